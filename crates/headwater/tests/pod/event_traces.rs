//! A collector receives traces from insert to read model.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{CUSTOMER, PodFixture, READ_MODELS, SOON, cluster_config};

/// Keeps the requests that it receives.
struct FakeCollector {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl FakeCollector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let kept = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(receive(stream, kept.clone()));
            }
        });
        Self { address, requests }
    }

    fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|body| ExportTraceServiceRequest::decode(&body[..]).expect("OTLP")).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.exports().into_iter().flat_map(|export| export.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

/// Reads one request and replies 200.
async fn receive(stream: TcpStream, kept: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut stream = BufReader::new(stream);
    let (mut line, mut length, mut first) = (String::new(), 0, String::new());
    while stream.read_line(&mut line).await.unwrap() > 2 {
        if first.is_empty() {
            first.clone_from(&line);
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    assert!(first.starts_with("POST /v1/traces "), "{first}");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    kept.lock().unwrap().push(body);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
}

fn traced_pods(collector: SocketAddr, pods: usize) -> TestClusterConfig {
    let more = format!("{READ_MODELS}telemetry: {{ otlp_endpoint: \"http://{collector}\", trace_one_in: 1 }}\n");
    TestClusterConfig { extra_yaml: more, pods, ..cluster_config(MongoTopology::Shared) }
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()? {
        AnyValue { value: Some(Value::StringValue(text)) } => Some(text),
        _ => None,
    }
}

#[tokio::test]
async fn one_insert_is_one_trace_from_source_to_read_model() {
    let collector = FakeCollector::start().await;
    let fixture = PodFixture::start(traced_pods(collector.address, 1)).await;
    fixture.insert("order-1", 1).await;
    let spans = wait_for("four spans", SOON, async || match collector.spans() {
        spans if spans.len() >= 4 => Ok(spans),
        spans => Err(spans.len()),
    })
    .await;

    let named = |name: &str| {
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no span has the name `{name}`: {spans:?}"));
        assert!(found.next().is_none(), "two spans have the name `{name}`");
        span
    };
    let path = ["capture events", "send events", "process read-models", "apply"].map(named);
    assert_eq!(spans.len(), path.len());
    assert!(path[0].parent_span_id.is_empty());
    for pair in path.windows(2) {
        assert_eq!(pair[1].parent_span_id, pair[0].span_id, "{} follows {}", pair[1].name, pair[0].name);
        assert_eq!(pair[1].trace_id, pair[0].trace_id);
        assert!(pair[0].start_time_unix_nano <= pair[1].start_time_unix_nano, "{pair:?}");
    }
    for span in path {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
    }
    assert_eq!([path[1].kind(), path[2].kind()], [SpanKind::Producer, SpanKind::Consumer]);
    assert_eq!(text(&path[0].attributes, "db.collection.name"), Some("events"));
    let id = text(&path[1].attributes, "messaging.message.id").expect("a message has an id");
    assert_eq!(text(&path[2].attributes, "messaging.message.id"), Some(id));
    let exports = collector.exports();
    let resource = exports[0].resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(text(&resource.attributes, "service.name"), Some("headwater"));
    assert_eq!(text(&resource.attributes, "service.instance.id"), Some("pod-0"));

    // Spans hold neither aggregate ids nor payloads.
    let requests = collector.requests.lock().unwrap().concat();
    for secret in ["order-1", CUSTOMER] {
        assert!(!requests.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "{secret}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_stopping_pod_sends_the_remaining_spans() {
    let collector = FakeCollector::start().await;
    let fixture = PodFixture::start(traced_pods(collector.address, 2)).await;
    for number in 0..20 {
        fixture.insert(&format!("order-{number}"), 1).await;
    }
    for number in 0..20 {
        fixture.wait_for_applied(&format!("order-{number}")).await;
    }
    fixture.stop().await;
    let spans = collector.spans();
    for name in ["capture events", "send events", "process read-models", "apply"] {
        assert_eq!(spans.iter().filter(|span| span.name == name).count(), 20, "{name}");
    }
    let traces: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 20);
}

#[tokio::test]
async fn a_silent_collector_does_not_delay_a_pod() {
    // Accepts connections and never replies.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = vec![];
        while let Ok((stream, _)) = silent.accept().await {
            held.push(stream);
        }
    });
    let fixture = PodFixture::start(traced_pods(address, 1)).await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    fixture.pod().wait_for_line("failed to send spans to the collector", SOON).await;
    fixture.insert("order-2", 1).await;
    fixture.wait_for_applied("order-2").await;
    assert_eq!(fixture.get("/readyz").await.status, 200);
    let began = Instant::now();
    fixture.pod().terminate();
    fixture.pod().wait_for_line("\"stopped\"", SOON).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    fixture.pod().wait_for_line("failed to send the last spans to the collector in time", SOON).await;
}
