//! The clients a pod and the commands use, made from the configuration: MongoDB, Service Bus, the lease.
//!
//! Nothing here waits for a server. A client connects when it is first used, and a wrong URI is reported with its configuration key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use lease::mongo::{LeaseName, MongoLeaseStore};
use lease::{ElectionHost, Timing};
use mongodb::Database;
use mongodb::options::ClientOptions;
use pipeline::audit::{AuditDependencies, AuditStore, Auditor, UnauditableReason};
use pipeline::capture::StartPosition;
use pipeline::generation::{BuildDependencies, GenerationStage, GenerationStore};
use pipeline::producer::ProducerDependencies;
use pipeline::view::{self, ModelSet, PipelineStart, Projection};
use servicebus::ConnectionString;
use servicebus::administration::AdministrationClient;
use servicebus::entra::TokenSource;

use crate::config::{BusAccess, Config, CoordinationConfig, EntraAccess, ReadModelsConfig, Secret};
use crate::exit::ExitReason;
use crate::mongo_oidc;
use crate::pauses::PauseStore;
use crate::status::{AuditMonitor, StatusCollector, SubscriptionMonitor};

/// How long an operation looks for its MongoDB server. Short: pods and checks try again, so a long wait only delays the report.
pub(crate) const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a command that tries once: longer than an election of a replica set, short enough for a person who waits at the terminal.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

const CONNECTION_STRING: &str = "`service_bus.connection_string` is not valid";
const ENTRA: &str = "`service_bus.entra` is not complete";
const PROXY: &str = "the environment variable for the proxy is not valid";

pub(crate) async fn producer_dependencies(config: &Config, timeout: Duration) -> anyhow::Result<ProducerDependencies> {
    Ok(ProducerDependencies {
        pipeline: config.pipeline.clone(),
        pod_id: config.pod_id.clone(),
        source: config.source.clone(),
        server: shared_mongo_client(config, &config.source_uri, "source.uri", timeout).await?,
        coordination: coordination_database(config, timeout).await?,
        bus: bus_client(config)?,
        topic: config.service_bus.topic.clone(),
        subscription: config.service_bus.subscription.clone(),
        message_keys: config.message_keys.clone(),
    })
}

pub(crate) async fn status_collector(
    config: &Config,
    dependencies: &ProducerDependencies,
    timeout: Duration,
) -> anyhow::Result<StatusCollector> {
    let ReadModelsConfig { uri, database, models, .. } = &config.read_models;
    Ok(StatusCollector {
        pipeline: config.pipeline.clone(),
        by: config.pod_id.clone(),
        coordination: dependencies.coordination.clone(),
        source: dependencies.server.clone(),
        views: shared_mongo_client(config, uri, "read_models.uri", timeout).await?.database(database),
        read_models: models.iter().map(|model| model.name().to_owned()).collect(),
        subscription: SubscriptionMonitor::new(
            bus_administration(config)?,
            &dependencies.topic,
            &dependencies.subscription,
        ),
        generations: GenerationStore::new(&dependencies.coordination, &config.pipeline),
        pauses: PauseStore::new(&dependencies.coordination, &config.pipeline),
        audit: AuditMonitor {
            store: AuditStore::new(&dependencies.coordination, &config.pipeline),
            period: (config.audit.enabled && !models.is_empty()).then_some(config.audit.period),
            unauditable: UnauditableReason::of_source(&config.source),
        },
    })
}

pub(crate) async fn coordination_database(config: &Config, timeout: Duration) -> anyhow::Result<Database> {
    let client = shared_mongo_client(config, &config.coordination.uri, "coordination.uri", timeout).await?;
    Ok(client.database(&config.coordination.database))
}

/// The database of the read models for a pod that applies events; `None` if no read model is declared.
pub(crate) async fn read_model_database(config: &Config) -> anyhow::Result<Option<Database>> {
    let ReadModelsConfig { uri, database, models, .. } = &config.read_models;
    if models.is_empty() {
        return Ok(None);
    }
    let mut options = mongo_options(uri, "read_models.uri").await?;
    // Pods recognise each other's transactions by this name, and abort those that a dead pod left open.
    options.app_name = Some(view::application_name(&config.pipeline));
    Ok(Some(client_from(options, "read_models.uri", SERVER_SELECTION_TIMEOUT)?.database(database)))
}

pub(crate) fn bus_client(config: &Config) -> anyhow::Result<servicebus::Client> {
    let client = servicebus::Client::for_endpoint(bus_endpoint(config)?, bus_config(config)?);
    client.context(ExitReason::Misconfigured.with_message(CONNECTION_STRING))
}

/// The auditor of a pod, which heals with the applier of its consumer.
pub(crate) fn auditor(
    config: &Config,
    dependencies: &ProducerDependencies,
    views: &Database,
    applier: view::Handle,
) -> anyhow::Result<Auditor> {
    let dependencies = AuditDependencies {
        pipeline: config.pipeline.clone(),
        pod_id: config.pod_id.clone(),
        source: dependencies.source.clone(),
        server: dependencies.server.clone(),
        capture: config.producer.capture.clone(),
        start: pipeline_start(config),
        views: views.clone(),
        coordination: dependencies.coordination.clone(),
        bus: bus_client(config)?,
        topic: dependencies.topic.clone(),
        subscription: dependencies.subscription.clone(),
        sessions: config.producer.publish.sessions,
        applier,
    };
    Ok(Auditor::new(config.audit.clone(), dependencies))
}

/// What a build of read models reads and writes.
pub(crate) fn build_dependencies(
    config: &Config,
    dependencies: &ProducerDependencies,
    views: &Database,
) -> BuildDependencies {
    BuildDependencies {
        pipeline: config.pipeline.clone(),
        source: dependencies.source.clone(),
        server: dependencies.server.clone(),
        capture: config.producer.capture.clone(),
        start: pipeline_start(config),
        views: views.clone(),
        coordination: dependencies.coordination.clone(),
        view: config.consumer.view.clone(),
    }
}

/// The read models that pods apply now, for a command that applies some itself; those of the configuration before the first pod.
pub(crate) async fn model_set(config: &Config, coordination: &Database) -> anyhow::Result<ModelSet> {
    match GenerationStore::new(coordination, &config.pipeline).load().await? {
        // Nobody would replace the set in a command, so that it would wait for ever.
        Some(generation) if generation.stage == GenerationStage::Switching => {
            bail!("the read models are being switched; try again in a moment")
        }
        Some(generation) => Ok(generation.model_set()?),
        None => {
            let models = config.read_models.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>);
            Ok(ModelSet::fixed(models.collect()))
        }
    }
}

pub(crate) fn pipeline_start(config: &Config) -> PipelineStart {
    match config.producer.start {
        StartPosition::Beginning => PipelineStart::Beginning,
        StartPosition::Now | StartPosition::At(_) => PipelineStart::Now,
    }
}

/// Topics and subscriptions: their settings and message counts.
pub(crate) fn bus_administration(config: &Config) -> anyhow::Result<AdministrationClient> {
    let client = AdministrationClient::for_endpoint(bus_endpoint(config)?, &bus_config(config)?);
    client.context(ExitReason::Misconfigured.with_message(CONNECTION_STRING))
}

fn bus_endpoint(config: &Config) -> anyhow::Result<ConnectionString> {
    let misconfigured = |text: &str| ExitReason::Misconfigured.with_message(text);
    match &config.service_bus.access {
        BusAccess::ConnectionString(text) => {
            ConnectionString::parse(text.reveal()).with_context(|| misconfigured(CONNECTION_STRING))
        }
        BusAccess::Entra(access) => {
            let tokens = token_source(config)?.expect("made for this kind of access");
            ConnectionString::for_namespace(&access.namespace, tokens)
                .with_context(|| misconfigured("`service_bus.fully_qualified_namespace` is not valid"))
        }
    }
}

/// The source of tokens that all clients of this process share; `None` with a connection string.
pub(crate) fn token_source(config: &Config) -> anyhow::Result<Option<Arc<TokenSource>>> {
    let BusAccess::Entra(EntraAccess { settings, tokens, .. }) = &config.service_bus.access else { return Ok(None) };
    if let Some(tokens) = tokens.get() {
        return Ok(Some(Arc::clone(tokens)));
    }
    let entra = settings.clone().resolve(|name| std::env::var(name).ok());
    let entra = entra.with_context(|| ExitReason::Misconfigured.with_message(ENTRA))?;
    let source = TokenSource::new(entra, bus_config(config)?);
    Ok(Some(Arc::clone(tokens.get_or_init(|| Arc::new(source)))))
}

fn bus_config(config: &Config) -> anyhow::Result<servicebus::Config> {
    let proxies = servicebus::ProxySettings::from_environment(|name| std::env::var(name).ok());
    let is_needed = config.service_bus.transport == servicebus::Transport::WebSocket
        || matches!(config.service_bus.access, BusAccess::Entra(_));
    let proxies = match proxies {
        Err(error) if !is_needed => {
            tracing::warn!(%error, "the proxy of the environment cannot be used; connecting without one");
            servicebus::ProxySettings::default()
        }
        proxies => proxies.with_context(|| ExitReason::Misconfigured.with_message(PROXY))?,
    };
    Ok(servicebus::Config {
        proxies,
        container_id: config.pod_id.clone(),
        ca_file: config.service_bus.ca_file.clone(),
        transport: config.service_bus.transport,
        ..servicebus::Config::default()
    })
}

/// `key`: the configuration key of the URI, for the error message.
pub(crate) async fn mongo_client(uri: &Secret, key: &str, timeout: Duration) -> anyhow::Result<mongodb::Client> {
    client_from(mongo_options(uri, key).await?, key, timeout)
}

/// The client that all pipelines of the process use for this URI.
pub(crate) async fn shared_mongo_client(
    config: &Config,
    uri: &Secret,
    key: &str,
    timeout: Duration,
) -> anyhow::Result<mongodb::Client> {
    let clients = &config.clients;
    if clients.pipelines <= 1 {
        return mongo_client(uri, key, timeout).await;
    }
    let id = (uri.reveal().to_owned(), timeout);
    if let Some(client) = clients.lock().get(&id) {
        return Ok(client.clone());
    }
    let mut options = mongo_options(uri, key).await?;
    // Every leader's change stream holds a connection while it waits.
    options.max_pool_size.get_or_insert(CONNECTIONS_PER_PIPELINE.saturating_mul(clients.pipelines));
    let client = client_from(options, key, timeout)?;
    Ok(clients.lock().entry(id).or_insert(client).clone())
}

/// The MongoDB clients of a process, by URI and timeout. A configuration with new credentials has new ones.
///
/// Read models are written with a client per pipeline, because pods recognise each other's transactions by its application name. Service Bus
/// connections are not shared: Service Bus closes a connection for the mistake of one link, and that must not stop another pipeline.
#[derive(Default)]
pub(crate) struct SharedClients {
    mongo: Mutex<HashMap<(String, Duration), mongodb::Client>>,
    pipelines: u32,
}

/// The default pool of the driver.
const CONNECTIONS_PER_PIPELINE: u32 = 10;

impl SharedClients {
    pub(crate) fn for_pipelines(count: usize) -> Self {
        Self { mongo: Mutex::default(), pipelines: u32::try_from(count).unwrap_or(u32::MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, Duration), mongodb::Client>> {
        self.mongo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Never shows a URI.
impl std::fmt::Debug for SharedClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedClients").field("pipelines", &self.pipelines).finish_non_exhaustive()
    }
}

fn client_from(mut options: ClientOptions, key: &str, timeout: Duration) -> anyhow::Result<mongodb::Client> {
    // A timeout in the URI is the choice of the user, and wins.
    options.server_selection_timeout.get_or_insert(timeout);
    let client = mongodb::Client::with_options(options);
    client.map_err(|_| ExitReason::Misconfigured.with_message(format!("`{key}` cannot be used")).into())
}

async fn mongo_options(uri: &Secret, key: &str) -> anyhow::Result<ClientOptions> {
    // The driver's error is dropped: it may quote the URI, and with it a password.
    let mut options = ClientOptions::parse(uri.reveal()).await.map_err(|_| {
        ExitReason::Misconfigured.with_message(format!(
            "`{key}` is not a MongoDB URI; write, for example, `mongodb://host:27017/?replicaSet=rs0`"
        ))
    })?;
    options.app_name.get_or_insert_with(|| "headwater".to_owned());
    let variable = |name: &str| std::env::var(name).ok();
    let proxies = servicebus::ProxySettings::from_environment(variable).unwrap_or_default();
    let tokens = servicebus::Config { proxies, ..servicebus::Config::default() };
    mongo_oidc::provide_tokens(&mut options, variable, tokens).with_context(|| {
        ExitReason::Misconfigured.with_message(format!("`{key}` asks for tokens of Entra ID (MONGODB-OIDC)"))
    })?;
    Ok(options)
}

/// The thread on which all pipelines of this process take part in the election. They have the same coordination database.
pub(crate) async fn election_host(configs: &[Arc<Config>]) -> anyhow::Result<ElectionHost> {
    let config = &configs[0];
    let options = mongo_options(&config.coordination.uri, "coordination.uri").await?;
    let CoordinationConfig { database, lease, .. } = &config.coordination;
    let keys = configs.iter().map(|config| config.pipeline.clone()).collect();
    Ok(ElectionHost::start(options, database.clone(), keys, lease.clone())?)
}

/// The lease of a pipeline, for commands that read it and do not take part in the election.
pub(crate) async fn lease(config: &Config) -> anyhow::Result<MongoLeaseStore> {
    let lease = &config.coordination.lease;
    let options = mongo_options(&config.coordination.uri, "coordination.uri").await?;
    let timing = Timing::new(lease.ttl, lease.renew_deadline, lease.heartbeat).context("`coordination.lease`")?;
    Ok(MongoLeaseStore::open(options, lease_name(config), &timing)?)
}

pub(crate) fn lease_name(config: &Config) -> LeaseName {
    LeaseName {
        database: config.coordination.database.clone(),
        key: config.pipeline.clone(),
        pod_id: config.pod_id.clone(),
        fingerprint: config.source.fingerprint(),
    }
}
