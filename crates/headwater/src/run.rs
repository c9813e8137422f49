//! One pod: who is started, in what order, and stopped, in what order.

mod shutdown;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use lease::Candidate;
use lease::mongo::LeaseName;
use mongodb::Database;
use mongodb::options::ClientOptions;
use pipeline::capture;
use pipeline::consumer::{self, Consumer};
use pipeline::event::Namespace;
use pipeline::producer::{Producer, ProducerDependencies};
use pipeline::publish::PublishTracer;
use pipeline::view::{self, Projection};
use servicebus::Client as Bus;
use servicebus::administration::Administration;
use tokio_util::sync::CancellationToken;

use self::shutdown::PodService;
use crate::admin::{AdminListener, PodServices};
use crate::apply_observer::LatencyObserver;
use crate::config::{Config, ReadModels, Secret, reserved};
use crate::event_traces::EventTraces;
use crate::exit::ExitReason;
use crate::operator;
use crate::pods::PodRegistry;
use crate::signal::StopSignal;
use crate::status::{StatusCollector, SubscriptionMonitor};
use crate::step_down::StepDownStore;

/// Runs until a signal. Then, side by side: the producer, if this pod leads, stops reading, sends what it has read, saves the checkpoint
/// and gives the lease back; the consumer applies and settles what it has in hand and lets its sessions go. The HTTP side is not ready from
/// the first moment of a stop, and ends last. A second signal ends the pod at once, and so does a service that does not end in time.
pub(crate) async fn run_pod(config: Config, mut stop: StopSignal) -> anyhow::Result<()> {
    let listener = AdminListener::bind(config.admin.listen)?;
    let places = places(&config, Some(FOUND_WITHIN)).await?;
    let views = views(&config).await?;
    let latency = admin::LatencyHistogram::default();
    let traces = EventTraces::start(&config)?;
    let witness = Arc::new(LatencyObserver { latency: latency.clone(), traces: traces.clone() });
    let consumer = views.clone().map(|views| consumer(&config, &places, views)).transpose()?;
    let consumer = consumer.map(|consumer| consumer.witnessed_by(witness));
    let collector = status_collector(&config, &places, Some(FOUND_WITHIN)).await?;
    let registry = PodRegistry::new(&places.coordination, &config.pipeline, &config.pod_id);
    let candidate = candidate(&config).await?;
    let mut producing = config.producer.clone();
    producing.capture.own = own_namespaces(&config);
    let step_down_store = StepDownStore::new(&places.coordination, &config.pipeline);
    let operator = match &config.admin.token {
        Some(token) => operator::open(&config, token, &places.coordination).await?,
        None => None,
    };
    let producer =
        Producer::new(producing, places).with_tracer(traces.clone().map(|traces| traces as Arc<dyn PublishTracer>));
    // Where nothing is built from the events, nothing is known that a snapshot could find gone.
    let producer = Arc::new(match &views {
        Some(views) => producer.with_read_models(views.clone()),
        None => producer,
    });

    let (producing, consuming) = (producer.handle(), consumer.as_ref().map(Consumer::handle));

    let shutdown = CancellationToken::new();
    let work = move |leadership| {
        let producer = Arc::clone(&producer);
        async move { producer.lead(leadership).await }
    };
    let elector = candidate.start(work, shutdown.clone().cancelled_owned())?;
    let pod_services = PodServices {
        pod_id: config.pod_id.clone(),
        ttl: config.coordination.lease.ttl,
        lease: elector.handle(),
        producer: producing,
        consumer: consuming,
        latency,
        generation: config.read_models.declared.generation(),
    };
    let mut admin_service = listener.start(pod_services, registry, collector, operator)?;
    tokio::spawn(step_down_store.watch(
        elector.handle(),
        admin_service.monitor().heartbeats().step_down.clone(),
        shutdown.clone(),
    ));
    let contending = async { elector.ended().await.context("the lease cannot be contended for") };
    let consuming = consume(consumer, &config, shutdown.clone());
    let limit = shutdown::shutdown_limit([config.producer.publish.drain, config.consumer.session.drain_within]);
    let services = shutdown::run_services(
        PodService { name: "producer", running: contending },
        PodService { name: "consumer", running: consuming },
        shutdown.clone(),
        limit,
    );
    let mut services = std::pin::pin!(services);
    tracing::info!(pod_id = config.pod_id, pipeline = config.pipeline, "pod started");

    let mut gone = Ok(());
    tokio::select! {
        // cancel-safe: asked again below
        ended = &mut services => return ended.and(admin_service.stop().await),
        // What cannot be looked at must not run on unseen.
        error = admin_service.wait_for_failure() => gone = Err(error),
        () = stop.recv() => {}
    }
    tracing::info!(pod_id = config.pod_id, "stopping");
    admin_service.monitor().set_stopping();
    shutdown.cancel();
    tokio::select! {
        ended = &mut services => ended?,
        () = stop.recv_second() => anyhow::bail!(ExitReason::Interrupted.with_message("stopped at once, on the second signal")),
    }
    if let Some(traces) = traces {
        traces.stop().await;
    }
    admin_service.stop().await?;
    tracing::info!(pod_id = config.pod_id, "stopped");
    gone
}

async fn candidate(config: &Config) -> anyhow::Result<Candidate> {
    Ok(Candidate {
        name: LeaseName {
            database: config.coordination.database.clone(),
            key: config.pipeline.clone(),
            pod_id: config.pod_id.clone(),
            fingerprint: config.source.fingerprint(),
        },
        config: config.coordination.lease.clone(),
        client: options(&config.coordination.uri, "coordination.uri").await?,
    })
}

/// Who looks at the whole pipeline.
pub(crate) async fn status_collector(
    config: &Config,
    places: &ProducerDependencies,
    found_within: Option<Duration>,
) -> anyhow::Result<StatusCollector> {
    let ReadModels { uri, database, models, .. } = &config.read_models;
    Ok(StatusCollector {
        pipeline: config.pipeline.clone(),
        by: config.pod_id.clone(),
        coordination: places.coordination.clone(),
        source: places.server.clone(),
        views: client(uri, "read_models.uri", found_within).await?.database(database),
        read_models: models.iter().map(|model| model.name().to_owned()).collect(),
        subscription: SubscriptionMonitor::new(administration(config)?, &places.topic, &places.subscription),
    })
}

/// The database of the read models; `None` where none is declared.
async fn views(config: &Config) -> anyhow::Result<Option<Database>> {
    let ReadModels { uri, database, models, .. } = &config.read_models;
    if models.is_empty() {
        tracing::info!(pod_id = config.pod_id, "no read models are declared: this pod only publishes");
        return Ok(None);
    }
    let mut options = options(uri, "read_models.uri").await?;
    // By that name pods know each other's transactions, and end those of the dead.
    options.app_name = Some(view::application(&config.pipeline));
    let client = connect(options, "read_models.uri", Some(FOUND_WITHIN))?;
    Ok(Some(client.database(database)))
}

fn consumer(config: &Config, places: &ProducerDependencies, views: Database) -> anyhow::Result<Consumer> {
    let places = consumer::Places {
        pipeline: places.pipeline.clone(),
        source: places.source.clone(),
        source_database: places.server.database(&places.source.database),
        start: match config.producer.start {
            capture::PipelineStart::Beginning => view::Start::Beginning,
            capture::PipelineStart::Now | capture::PipelineStart::At(_) => view::Start::Now,
        },
        filtered: !config.producer.capture.filter.is_empty(),
        views,
        coordination: places.coordination.clone(),
        // Connections of its own: what the producer sends does not wait behind what is received.
        bus: bus(config)?,
        topic: places.topic.clone(),
        subscription: places.subscription.clone(),
        models: config.read_models.models.clone(),
        projections: vec![],
    };
    Ok(Consumer::new(config.consumer.clone(), places)?)
}

/// Until `shutdown`, and then until what is in hand is settled.
async fn consume(consumer: Option<Consumer>, config: &Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Some(consumer) = consumer else {
        shutdown.cancelled().await;
        return Ok(());
    };
    // A task of its own, beside the one that waits for signals.
    match tokio::spawn(consumer.run(shutdown)).await.context("the consumer ended before its time")? {
        Err(view::Error::Mistakes(mistakes)) => Err(config.read_models.declared.explain(&mistakes).into()),
        ended => ended.context("the read models cannot be used"),
    }
}

/// A server that is away is found out soon: whoever asks in a pod asks again.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// The servers a pod talks to; none of them is waited for. `found_within`: how long a call looks for its server; left out, as the driver does.
pub(crate) async fn places(config: &Config, found_within: Option<Duration>) -> anyhow::Result<ProducerDependencies> {
    let server = client(&config.source_uri, "source.uri", found_within).await?;
    let coordination = client(&config.coordination.uri, "coordination.uri", found_within).await?;
    Ok(ProducerDependencies {
        pipeline: config.pipeline.clone(),
        pod_id: config.pod_id.clone(),
        source: config.source.clone(),
        server,
        coordination: coordination.database(&config.coordination.database),
        bus: bus(config)?,
        topic: config.service_bus.topic.clone(),
        subscription: config.service_bus.subscription.clone(),
    })
}

fn bus(config: &Config) -> anyhow::Result<Bus> {
    let bus = Bus::new(config.service_bus.connection_string.reveal(), bus_settings(config));
    bus.context(ExitReason::Misconfigured.with_message(CONNECTION_STRING))
}

/// The bus's other side: entities and what they hold.
pub(crate) fn administration(config: &Config) -> anyhow::Result<Administration> {
    let bus = Administration::new(config.service_bus.connection_string.reveal(), &bus_settings(config));
    bus.context(ExitReason::Misconfigured.with_message(CONNECTION_STRING))
}

const CONNECTION_STRING: &str = "`service_bus.connection_string`";

fn bus_settings(config: &Config) -> servicebus::Config {
    servicebus::Config {
        container_id: config.pod_id.clone(),
        ca_file: config.service_bus.ca_file.clone(),
        ..servicebus::Config::default()
    }
}

pub(crate) async fn client(uri: &Secret, key: &str, found_within: Option<Duration>) -> anyhow::Result<mongodb::Client> {
    connect(options(uri, key).await?, key, found_within)
}

fn connect(mut options: ClientOptions, key: &str, found_within: Option<Duration>) -> anyhow::Result<mongodb::Client> {
    options.server_selection_timeout = options.server_selection_timeout.or(found_within);
    let client = mongodb::Client::with_options(options);
    client.map_err(|_| ExitReason::Misconfigured.with_message(format!("`{key}` cannot be used")).into())
}

/// The driver's own words may quote the URI, and with it a password.
pub(crate) async fn options(uri: &Secret, key: &str) -> anyhow::Result<ClientOptions> {
    let mut options = ClientOptions::parse(uri.reveal()).await.map_err(|_| {
        ExitReason::Misconfigured.with_message(format!(
            "`{key}` is not a MongoDB URI; write, for example, `mongodb://host:27017/?replicaSet=rs0`"
        ))
    })?;
    options.app_name.get_or_insert_with(|| "headwater".to_owned());
    Ok(options)
}

/// What this installation itself writes: never captured.
fn own_namespaces(config: &Config) -> Vec<Namespace> {
    let coordination =
        reserved::COORDINATION_COLLECTIONS.map(|name| Namespace::new(&config.coordination.database, name));
    // Where they live with the source; elsewhere they cannot be captured.
    let views = &config.read_models;
    let with_the_source = views.uri == config.source_uri;
    let models = views.models.iter().map(|model| model.name()).chain([view::CURSORS, view::PARKED_EVENTS]);
    let views = models.filter(|_| with_the_source).map(|name| Namespace::new(&views.database, name));
    coordination.into_iter().chain(views).collect()
}
