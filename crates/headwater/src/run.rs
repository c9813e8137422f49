//! One pod: who is started, in what order, and stopped, in what order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use lease::Candidate;
use lease::mongo::LeaseName;
use mongodb::options::ClientOptions;
use pipeline::checkpoint::{COLLECTION as CHECKPOINTS, PIPELINES};
use pipeline::event::Namespace;
use pipeline::producer::{Places, Producer};
use pipeline::publish::{oversize, rejected};
use servicebus::Client as Bus;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Secret};
use crate::signal::StopSignal;

/// Runs until a signal. Then the producer, if this pod leads, stops reading, sends what it has read, saves the checkpoint and gives the
/// lease back; a second signal ends it at once.
pub(crate) async fn pod(config: Config, mut stop: StopSignal) -> anyhow::Result<()> {
    let places = places(&config, Some(FOUND_WITHIN)).await?;
    let coordination = options(&config.coordination.uri, "coordination.uri").await?;
    let candidate = Candidate {
        name: LeaseName {
            database: config.coordination.database.clone(),
            key: config.pipeline.clone(),
            pod_id: config.pod_id.clone(),
            fingerprint: config.source.fingerprint(),
        },
        config: config.coordination.lease.clone(),
        client: coordination,
    };
    let mut producing = config.producer.clone();
    producing.capture.own = own_namespaces(&config);
    let producer = Arc::new(Producer::new(producing, places));

    let shutdown = CancellationToken::new();
    let work = move |leadership| {
        let producer = Arc::clone(&producer);
        async move { producer.lead(leadership).await }
    };
    let mut elector = std::pin::pin!(candidate.start(work, shutdown.clone().cancelled_owned())?.ended());
    tracing::info!(pod_id = config.pod_id, pipeline = config.pipeline, "pod started");

    tokio::select! {
        // cancel-safe: asked again below
        ended = &mut elector => return ended.context("the lease cannot be contended for"),
        () = stop.received() => {}
    }
    tracing::info!(pod_id = config.pod_id, "stopping");
    shutdown.cancel();
    tokio::select! {
        ended = &mut elector => ended.context("stop")?,
        () = stop.received_again() => anyhow::bail!("stopped at once, on the second signal"),
    }
    tracing::info!(pod_id = config.pod_id, "stopped");
    Ok(())
}

/// A server that is away is found out soon: whoever asks in a pod asks again.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// The servers a pod talks to; none of them is waited for. `found_within`: how long a call looks for its server; left out, as the driver does.
pub(crate) async fn places(config: &Config, found_within: Option<Duration>) -> anyhow::Result<Places> {
    let server = client(&config.source_uri, "source.uri", found_within).await?;
    let coordination = client(&config.coordination.uri, "coordination.uri", found_within).await?;
    let bus = servicebus::Config {
        container_id: config.pod_id.clone(),
        ca_file: config.service_bus.ca_file.clone(),
        ..servicebus::Config::default()
    };
    let bus =
        Bus::new(config.service_bus.connection_string.reveal(), bus).context("`service_bus.connection_string`")?;
    Ok(Places {
        pipeline: config.pipeline.clone(),
        pod_id: config.pod_id.clone(),
        source: config.source.clone(),
        server,
        coordination: coordination.database(&config.coordination.database),
        bus,
        topic: config.service_bus.topic.clone(),
        subscription: config.service_bus.subscription.clone(),
    })
}

async fn client(uri: &Secret, key: &str, found_within: Option<Duration>) -> anyhow::Result<mongodb::Client> {
    let mut options = options(uri, key).await?;
    options.server_selection_timeout = options.server_selection_timeout.or(found_within);
    mongodb::Client::with_options(options).map_err(|_| anyhow::anyhow!("`{key}` cannot be used"))
}

/// The driver's own words may quote the URI, and with it a password.
async fn options(uri: &Secret, key: &str) -> anyhow::Result<ClientOptions> {
    let mut options = ClientOptions::parse(uri.reveal()).await.map_err(|_| {
        anyhow::anyhow!("`{key}` is not a MongoDB URI; write, for example, `mongodb://host:27017/?replicaSet=rs0`")
    })?;
    options.app_name.get_or_insert_with(|| "headwater".to_owned());
    Ok(options)
}

/// What this installation itself writes: never captured.
fn own_namespaces(config: &Config) -> Vec<Namespace> {
    let names = [lease::mongo::COLLECTION, CHECKPOINTS, PIPELINES, oversize::COLLECTION, rejected::COLLECTION];
    names.map(|name| Namespace::new(&config.coordination.database, name)).into()
}
