//! OpenTelemetry: one trace per sampled event, from its insert to its read models, across Service Bus.
//!
//! ```text
//! capture events ── send events ══ bus ══ process read-models ── apply
//! commit → read     → acknowledged        received → committed    transaction
//! ```
//!
//! The leader exports the first two spans, and the pod that holds the session the others; the trace context in the message joins them. A span is
//! exported when it has ended, with the times that the pipeline measured. A separate thread sends the batches: a slow or absent collector costs spans,
//! and never an event. Spans hold names of collections and message ids, and no contents of documents.

mod otlp_client;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use pipeline::publish::{PublishTracer, PublishedTrace};
use pipeline::trace::{TraceContext, TraceSampling};
use pipeline::view::{ApplyTimestamps, DeliveredEvent};

use crate::config::Config;
use otlp_client::OtlpHttpClient;

/// Short, so that a recent trace can be found soon.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Enough for a thousand spans per second while the collector pauses for some seconds; about 4 MB.
const MAX_QUEUED_SPANS: usize = 8_192;
/// For one request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stop waits for the remaining spans.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct EventTraces {
    sampling: TraceSampling,
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    pipeline: String,
    topic: String,
    subscription: String,
    views: String,
}

/// An ended span.
struct FinishedSpan {
    context: TraceContext,
    parent: Option<u64>,
    kind: SpanKind,
    name: String,
    from: SystemTime,
    to: SystemTime,
    attributes: Vec<KeyValue>,
}

impl EventTraces {
    /// `None` without a configured collector.
    pub(crate) fn start(config: &Config) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(endpoint) = &config.telemetry.otlp_endpoint else { return Ok(None) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpHttpClient::new(EXPORT_TIMEOUT)?)
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .context("`telemetry.otlp_endpoint`")?;
        let batches =
            BatchConfigBuilder::default().with_scheduled_delay(EXPORT_INTERVAL).with_max_queue_size(MAX_QUEUED_SPANS);
        let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
        processor.set_resource(&resource(config));
        tracing::info!(endpoint, one_in = config.telemetry.trace_one_in, "event tracing enabled");
        Ok(Some(Arc::new(Self {
            sampling: TraceSampling::one_in(config.telemetry.trace_one_in),
            processor,
            scope: InstrumentationScope::builder("headwater").with_version(env!("CARGO_PKG_VERSION")).build(),
            pipeline: config.pipeline.clone(),
            topic: config.service_bus.topic.clone(),
            subscription: config.service_bus.subscription.clone(),
            views: config.read_models.database.clone(),
        })))
    }

    /// Sends the remaining spans, if the collector accepts them in time.
    pub(crate) async fn stop(self: Arc<Self>) {
        let stopped = tokio::task::spawn_blocking(move || self.processor.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        if !matches!(stopped.await, Ok(Ok(()))) {
            tracing::warn!("failed to send the last spans to the collector in time; they are lost");
        }
    }

    /// Exports the two spans of a consumer, if the message is sampled.
    pub(crate) fn export_applied(&self, event: &DeliveredEvent, timings: ApplyTimestamps) {
        let Some(sent) = event.trace.filter(|trace| trace.sampled) else { return };
        let [process, apply] = [rand::random::<u64>().max(1), rand::random::<u64>().max(1)];
        let mut attributes = self.messaging("process", &event.message_id);
        attributes.push(KeyValue::new("messaging.destination.subscription.name", self.subscription.clone()));
        attributes.push(KeyValue::new("messaging.servicebus.message.delivery_count", i64::from(event.delivery_count)));
        self.export(FinishedSpan {
            context: TraceContext { span: process, ..sent },
            parent: Some(sent.span),
            kind: SpanKind::Consumer,
            name: format!("process {}", self.subscription),
            from: timings.submitted_at,
            to: timings.committed_at,
            attributes,
        });
        self.export(FinishedSpan {
            context: TraceContext { span: apply, ..sent },
            parent: Some(process),
            kind: SpanKind::Internal,
            name: "apply".to_owned(),
            from: timings.started_at,
            to: timings.committed_at,
            attributes: vec![
                KeyValue::new("db.system.name", "mongodb"),
                KeyValue::new("db.namespace", self.views.clone()),
            ],
        });
    }

    fn messaging(&self, operation: &'static str, id: &str) -> Vec<KeyValue> {
        vec![
            KeyValue::new("messaging.system", "servicebus"),
            KeyValue::new("messaging.operation.type", operation),
            KeyValue::new("messaging.destination.name", self.topic.clone()),
            KeyValue::new("messaging.message.id", id.to_owned()),
            KeyValue::new("headwater.pipeline", self.pipeline.clone()),
        ]
    }

    fn export(&self, span: FinishedSpan) {
        let FinishedSpan { context, parent, kind, name, from, to, attributes } = span;
        let span_context = SpanContext::new(
            TraceId::from_bytes(context.trace.to_be_bytes()),
            span_id(context.span),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        self.processor.on_end(SpanData {
            span_context,
            parent_span_id: parent.map_or(SpanId::INVALID, span_id),
            parent_span_is_remote: kind == SpanKind::Consumer,
            span_kind: kind,
            name: name.into(),
            // Two clocks: a span must not end before it starts.
            start_time: from.min(to),
            end_time: to,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        });
    }
}

impl PublishTracer for EventTraces {
    fn sampling(&self) -> TraceSampling {
        self.sampling
    }

    fn published(&self, published: PublishedTrace) {
        let PublishedTrace { id, namespace, operation, committed, captured, acknowledged } = published;
        let sent = TraceContext::for_message(&id, true);
        let root = TraceContext::root_span(&id);
        self.export(FinishedSpan {
            context: TraceContext { span: root, ..sent },
            parent: None,
            kind: SpanKind::Internal,
            name: format!("capture {}", namespace.collection),
            from: committed.unwrap_or(captured),
            to: captured,
            attributes: vec![
                KeyValue::new("db.system.name", "mongodb"),
                KeyValue::new("db.namespace", namespace.database.clone()),
                KeyValue::new("db.collection.name", namespace.collection.clone()),
                KeyValue::new("db.operation.name", operation.as_str()),
            ],
        });
        self.export(FinishedSpan {
            context: sent,
            parent: Some(root),
            kind: SpanKind::Producer,
            name: format!("send {}", self.topic),
            from: captured,
            to: acknowledged,
            attributes: self.messaging("send", id.as_str()),
        });
    }
}

fn span_id(number: u64) -> SpanId {
    SpanId::from_bytes(number.to_be_bytes())
}

/// Honours `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(config: &Config) -> Resource {
    let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder()
        .with_service_name(name.unwrap_or_else(|| "headwater".to_owned()))
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", config.pod_id.clone()),
        ])
        .build()
}
