//! The services of one pipeline in a pod: the order in which they start and stop.
//!
//! [`crate::connect`] makes the clients; [`shutdown`] bounds how long a stop takes.

use std::sync::Arc;

use anyhow::Context;
use mongodb::Database;
use pipeline::audit::Auditor;
use pipeline::consumer::{self, Consumer};
use pipeline::erasure::ErasureStore;
use pipeline::event::Namespace;
use pipeline::generation::GenerationStore;
use pipeline::producer::{Producer, ProducerDependencies};
use pipeline::publish::PublishTracer;
use pipeline::session::PodRun;
use pipeline::view;
use tokio_util::sync::CancellationToken;

use super::PodContext;
use super::shutdown::{self, PodService};
use crate::admin::{PipelineLoops, PipelineSlot, PodMonitor, PodServices};
use crate::apply_observer::LatencyObserver;
use crate::config::{Config, read_model_namespaces, reserved};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::dashboard_actions;
use crate::delivery_limit::DeliveryLimitStore;
use crate::event_traces::EventTraces;
use crate::exit::ExitReason;
use crate::generations::GenerationService;
use crate::parked::ParkedCommands;
use crate::pauses::{PauseService, PauseStore, PausesLoaded};
use crate::pods::PodRegistry;
use crate::step_down_requests::StepDownStore;

/// Runs until `shutdown`, then stops producer and consumer side by side. The producer, if this pod leads, stops reading, publishes what it has read,
/// saves the checkpoint and releases the lease. The consumer applies and settles its unsettled messages and closes its sessions. A service that does not
/// stop in time, or ends before, is an error.
pub(super) async fn run_pipeline(
    config: &Arc<Config>,
    pod: &PodContext,
    slot: &PipelineSlot,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let dependencies = connect::producer_dependencies(config, SERVER_SELECTION_TIMEOUT).await?;
    let views = connect::read_model_database(config).await?;
    let latency = admin::LatencyHistogram::default();
    let traces = EventTraces::start(config)?;
    let observer = Arc::new(LatencyObserver { latency: latency.clone(), traces: traces.clone() });
    let delivery_limit = DeliveryLimitStore::new(&dependencies.coordination, config);
    let bus_administration = connect::bus_administration(config)?;
    let consumer = match views.clone() {
        Some(views) => {
            // Before the first event: it says when an event is parked.
            let max_delivery_count = delivery_limit.read(&bus_administration).await;
            Some(build_consumer(config, &dependencies, views, max_delivery_count)?.with_observer(observer))
        }
        None => None,
    };
    let collector = connect::status_collector(config, &dependencies, SERVER_SELECTION_TIMEOUT).await?;
    let registry = PodRegistry::new(&dependencies.coordination, &config.pipeline, &config.pod_id);
    let step_down = StepDownStore::new(&dependencies.coordination, &config.pipeline);
    let operator = match &config.admin.token {
        Some(token) => dashboard_actions::open(config, token, &dependencies.coordination).await?,
        None => None,
    };
    let auditor = match (&consumer, &views) {
        (Some(consumer), Some(views)) if config.audit.enabled => {
            Some(connect::auditor(config, &dependencies, views, consumer.handle().applier())?)
        }
        _ => None,
    };
    let pauses = PauseStore::new(&dependencies.coordination, &config.pipeline);
    let parked = match &views {
        Some(_) => Some(ParkedCommands::open(config, SERVER_SELECTION_TIMEOUT).await?),
        None => None,
    };
    let generations = views.as_ref().map(|views| {
        let store = GenerationStore::new(&dependencies.coordination, &config.pipeline);
        let erasures = ErasureStore::new(views, &dependencies.coordination, &config.pipeline);
        (store, erasures, connect::build_dependencies(config, &dependencies, views))
    });
    let producer = Arc::new(build_producer(config, dependencies, traces.clone(), views));
    let observed_producer = Arc::clone(&producer);

    let (producer_handle, consumer_handle) = (producer.handle(), consumer.as_ref().map(Consumer::handle));
    let (loaded_sender, pauses_loaded) = PauseService::loaded_channel();
    let lead_after = pauses_loaded.clone();
    let lead = move |leadership: lease::Leadership| {
        let (producer, mut pauses_loaded) = (Arc::clone(&producer), lead_after.clone());
        async move {
            tokio::select! {
                () = pauses_loaded.wait() => {}
                // The producer sees it, too.
                _ = leadership.wait_for_stop() => {}
            }
            producer.lead(leadership).await
        }
    };
    if let Some(consumer) = consumer_handle.clone() {
        let set = move |limit| consumer.set_max_delivery_count(limit);
        tokio::spawn(delivery_limit.watch(bus_administration, set, shutdown.clone()));
    }
    let elector = pod.election.enter(connect::lease_name(config), lead, shutdown.clone().cancelled_owned())?;
    pod.leases.insert(&config.pipeline, elector.handle());
    let pauses = PauseService::new(
        pauses,
        producer_handle.clone(),
        consumer_handle.clone(),
        elector.handle(),
        parked,
        loaded_sender,
    );
    tokio::spawn(pauses.run(shutdown.clone()));
    let generations =
        generations.zip(consumer.as_ref()).map(|((store, erasures, build), consumer)| GenerationService {
            store,
            erasures,
            proposal: config.read_models.proposal(),
            build,
            applier: consumer.handle().applier(),
            lease: elector.handle(),
            pods: registry.clone(),
            on_change: config.read_models.on_change,
            change_delay: config.read_models.change_delay,
        });
    let pod_services = PodServices {
        pod_id: config.pod_id.clone(),
        ttl: config.coordination.lease.ttl,
        lease: elector.handle(),
        spread: pod.election.spread().clone(),
        producer: producer_handle,
        consumer: consumer_handle,
        audit: auditor.as_ref().map(Auditor::handle),
        tokens: connect::token_source(config)?,
        latency,
        generation: config.read_models.declared.generation(),
    };
    let monitor = Arc::new(PodMonitor::new(pod_services, slot.status_cache()));
    let loops = PipelineLoops::start(&monitor, registry, collector, slot.status_cache(), pod.address.clone());
    let heartbeat = monitor.heartbeats().step_down.clone();
    tokio::spawn(step_down.watch(elector.handle(), heartbeat, shutdown.clone()));
    slot.set_running(monitor, operator);
    let services = shutdown::run_services(
        PodService {
            name: "producer",
            running: async { elector.join().await.context("failed to take part in the election") },
        },
        PodService {
            name: "consumer",
            running: run_consumer(consumer, auditor, generations, pauses_loaded, config, shutdown.clone()),
        },
        shutdown.clone(),
        shutdown::shutdown_limit([config.producer.publish.drain, config.consumer.session.drain_within]),
    );
    let mut services = std::pin::pin!(services);
    tracing::info!(pod_id = config.pod_id, pipeline = config.pipeline, "pipeline started");
    let result = tokio::select! {
        // cancel-safe: polled again below
        ended = &mut services => ended,
        error = observed_producer.wait_for_other_cluster() => {
            shutdown.cancel();
            let stopped = services.await;
            stopped.and(Err(ExitReason::Misconfigured.with_message(error.to_string()).into()))
        }
    };
    if let Some(traces) = traces {
        traces.stop().await;
    }
    loops.stop().await;
    result
}

fn build_producer(
    config: &Config,
    dependencies: ProducerDependencies,
    traces: Option<Arc<EventTraces>>,
    views: Option<Database>,
) -> Producer {
    let mut producer = config.producer.clone();
    producer.capture.own = own_namespaces(config);
    let producer = Producer::new(producer, dependencies);
    let producer = producer.with_tracer(traces.map(|traces| traces as Arc<dyn PublishTracer>));
    // A snapshot finds deleted documents by what the read models still have; without read models there is nothing to compare.
    match views {
        Some(views) => producer.with_read_models(views),
        None => producer,
    }
}

fn build_consumer(
    config: &Config,
    dependencies: &ProducerDependencies,
    views: Database,
    max_delivery_count: u32,
) -> anyhow::Result<Consumer> {
    let dependencies = consumer::ConsumerDependencies {
        pipeline: dependencies.pipeline.clone(),
        source: dependencies.source.clone(),
        source_database: dependencies.server.database(&dependencies.source.database),
        start: connect::pipeline_start(config),
        filtered: !config.producer.capture.filter.is_empty(),
        views,
        coordination: dependencies.coordination.clone(),
        // A client of its own: sends of the producer must not queue behind received messages.
        bus: connect::bus_client(config)?,
        topic: dependencies.topic.clone(),
        subscription: dependencies.subscription.clone(),
        pod_run: PodRun::of_process(&config.pod_id),
        message_keys: dependencies.message_keys.clone(),
        models: config.read_models.models.clone(),
        projections: vec![],
    };
    Ok(Consumer::new(config.consumer.clone().with_max_delivery_count(max_delivery_count), dependencies)?)
}

/// Runs until `shutdown`, and then until the unsettled messages are settled.
async fn run_consumer(
    consumer: Option<Consumer>,
    auditor: Option<Auditor>,
    generations: Option<GenerationService>,
    mut pauses_loaded: PausesLoaded,
    config: &Config,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let (Some(consumer), Some(generations)) = (consumer, generations) else {
        tracing::info!(pod_id = config.pod_id, "no read models declared: this pod only publishes");
        shutdown.cancelled().await;
        return Ok(());
    };
    // Before the first event: pods apply what the store holds, not what their configuration proposes, and nothing that is paused.
    let load = async {
        pauses_loaded.wait().await;
        generations.load_until_ok().await;
    };
    if shutdown.run_until_cancelled(load).await.is_none() {
        return Ok(());
    }
    let followed = tokio::spawn(generations.run(shutdown.clone()));
    // Ends at once with `shutdown`, and heals with the applier of the consumer.
    let pause = consumer.handle().pause_switch().clone();
    let audit = auditor.map(|auditor| tokio::spawn(auditor.run(pause, shutdown.clone())));
    // A task of its own: the task of `run_pod` must stay free for signals.
    let consumed = tokio::spawn(consumer.run(shutdown)).await;
    if let Some(audit) = audit {
        audit.await.context("audit task failed")?;
    }
    followed.await.context("generation task failed")?;
    match consumed.context("consumer task failed")? {
        Err(view::Error::InvalidModels(mistakes)) => Err(config.read_models.declared.explain(&mistakes).into()),
        result => result.context("failed to use the read models"),
    }
}

/// Collections that this pipeline writes itself. They are never captured.
fn own_namespaces(config: &Config) -> Vec<Namespace> {
    let coordination =
        reserved::COORDINATION_COLLECTIONS.map(|name| Namespace::new(&config.coordination.database, name));
    // Read models on another server are not in the change stream of the source.
    let views = if config.read_models.uri == config.source_uri { read_model_namespaces(config) } else { vec![] };
    coordination.into_iter().chain(views).collect()
}
