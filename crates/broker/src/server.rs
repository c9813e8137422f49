//! A complete broker: the engine thread, the listener, and an orderly stop.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::access::AccessKeys;
use crate::connection::{BrokerConnectionConfig, Timeouts};
use crate::core::{self, BrokerLimits, EntityDefinition};
use crate::emulator_config::SubscriptionRules;
use crate::engine::{self, BrokerClock, EngineHandle, FaultInjector, StorageError, StorageLocation};
use crate::http::{self, NamespaceBackend, TestCommand, TestReport};
use crate::http_engine_backend::{ConfiguredEntities, HttpEngineBackend};
use crate::listener::{Listener, raise_open_file_limit};
use crate::page::{BrokerPage, PageAccess};
use crate::profile::{ProfileState, ServiceProfile, run_disturbances};
use crate::tier::ServiceTier;
use crate::tls::{self, TlsFiles};

/// Configuration of a broker.
#[derive(Debug, Clone)]
pub struct Config {
    /// Port 0 picks a free port; [`Broker::address`] returns it.
    pub listen: SocketAddr,
    /// Further addresses that serve the same. The official emulator has its administration on port 5300.
    pub also_listen: Vec<SocketAddr>,
    pub persistence: StorageLocation,
    /// Create queues, topics and subscriptions when a client first uses them.
    pub create_on_first_use: bool,
    /// Created at the start unless they exist.
    pub entities: Vec<(String, EntityDefinition)>,
    /// The rules of those subscriptions that do not have the default rule.
    pub rules: SubscriptionRules,
    pub tls: Option<TlsFiles>,
    /// Refuse connections without TLS. Needs `tls`.
    pub require_tls: bool,
    /// Keys that clients must have. `None`: every token is accepted, and only a loopback address is served.
    pub keys: Option<AccessKeys>,
    pub tier: ServiceTier,
    pub limits: BrokerLimits,
    pub max_connections: usize,
    pub timeouts: Timeouts,
    /// What the service does to its clients; nothing by default.
    pub profile: ServiceProfile,
    /// With a token, tests may advance the clock and arm faults over HTTP. Never set it in production.
    pub test_token: Option<String>,
}

/// The service allows 5,000 per namespace; the rest is for administration.
pub const DEFAULT_MAX_CONNECTIONS: usize = 6_000;

/// Enough to keep many peers busy at once, and little compared with the messages themselves.
const MAX_OUTGOING: usize = 64 << 20;

impl Config {
    pub fn new(listen: SocketAddr, persistence: StorageLocation) -> Self {
        Self {
            listen,
            also_listen: Vec::new(),
            persistence,
            create_on_first_use: false,
            entities: Vec::new(),
            rules: SubscriptionRules::default(),
            tls: None,
            require_tls: false,
            keys: None,
            tier: ServiceTier::Standard,
            limits: BrokerLimits { max_outgoing: MAX_OUTGOING, ..BrokerLimits::default() },
            max_connections: DEFAULT_MAX_CONNECTIONS,
            timeouts: Timeouts::default(),
            profile: ServiceProfile::default(),
            test_token: None,
        }
    }

    /// Sets the tier and its limits.
    pub fn set_tier(&mut self, tier: ServiceTier) {
        self.tier = tier;
        self.limits.max_message_size = tier.max_message_size();
        self.limits.max_entities = tier.max_entities();
        self.limits.tier = tier;
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Memory(#[from] StorageError),
    #[error("failed to start the engine thread")]
    Thread(#[source] std::io::Error),
    #[error("failed to set up TLS")]
    Tls(#[from] tls::Error),
    #[error("TLS is required, but there is no certificate")]
    NoCertificate,
    #[error(
        "{address} is not a loopback address, and there are no keys: everyone who can reach it would have full access"
    )]
    NoKeys { address: SocketAddr },
    #[error("failed to create configured entity `{path}`")]
    Entity {
        path: String,
        #[source]
        source: core::Error,
    },
    #[error("broker stopped during startup")]
    Stopped,
}

/// A running broker.
pub struct Broker {
    /// The main one first.
    addresses: Vec<SocketAddr>,
    /// The name of a key that may manage the namespace.
    key_name: Option<String>,
    /// False if every key is accepted.
    has_keys: bool,
    engine: EngineHandle,
    namespace: HttpEngineBackend,
    page_access: Arc<PageAccess>,
    require_tls: bool,
    shutdown: CancellationToken,
    listener: tokio::task::JoinHandle<()>,
    thread: JoinHandle<()>,
}

impl Broker {
    /// Recovers the stored state, then listens. Clients are served when this returns.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        if config.require_tls && tls.is_none() {
            return Err(Error::NoCertificate);
        }
        let mut loopback_only = true;
        let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
        for listen in std::iter::once(&config.listen).chain(&config.also_listen).copied() {
            if config.keys.is_none() && !listen.ip().is_loopback() {
                return Err(Error::NoKeys { address: listen });
            }
            let unbound = |source| Error::Listen { address: listen, source };
            // Bound before the store is opened: a port in use is the more likely problem, and the cheaper one to detect.
            let socket = TcpListener::bind(listen).await.map_err(unbound)?;
            addresses.push(socket.local_addr().map_err(unbound)?);
            sockets.push(socket);
            loopback_only &= listen.ip().is_loopback();
        }
        raise_open_file_limit(config.max_connections);

        let clock = Arc::new(BrokerClock::default());
        let faults = Arc::new(FaultInjector::default());
        let (engine, inbox) = engine::channel();
        let (core, memory) =
            engine::EngineStorage::recover(&config.persistence, config.limits.clone(), clock.now(), &engine)?;
        let thread =
            engine::start(core, memory, Arc::clone(&clock), Arc::clone(&faults), inbox).map_err(Error::Thread)?;
        let entities = in_creation_order(config.entities);
        let configured = Arc::new(ConfiguredEntities { entities, rules: config.rules });
        create_missing(&engine, &configured).await?;

        let shutdown = CancellationToken::new();
        let key_name = config.keys.as_ref().and_then(AccessKeys::manager).map(str::to_owned);
        let has_keys = config.keys.is_some();
        let keys = config.keys.map(Arc::new);
        let namespace = HttpEngineBackend {
            engine: engine.clone(),
            clock: Arc::clone(&clock),
            faults,
            started_at: clock.now(),
            tier: config.tier,
            max_message_size: config.limits.max_message_size,
            configured,
        };
        let page_access = Arc::new(PageAccess::new(keys.clone()));
        let page = BrokerPage::new(engine.clone(), Arc::clone(&clock), Arc::clone(&page_access), config.tier);
        let http = http::Config {
            test_token: config.test_token,
            header_timeout: config.timeouts.handshake,
            loopback_only,
            keys: keys.clone(),
            entity_update: config.profile.entity_update,
            page: Some(page),
        };
        let http = http::HttpService::new(namespace.clone(), http);
        let profile = ProfileState::new(config.profile);
        let settings = BrokerConnectionConfig {
            profile: Arc::clone(&profile),
            max_message_size: config.limits.max_message_size as u64,
            timeouts: config.timeouts,
            partial_bytes: Arc::default(),
            links: Arc::default(),
            keys,
            clock,
            create_on_first_use: config.create_on_first_use,
            tier: config.tier,
        };
        let listener = Listener {
            sockets,
            tls,
            require_tls: config.require_tls,
            engine: engine.clone(),
            http,
            settings: Arc::new(settings),
            max_connections: config.max_connections,
        };
        let listener = tokio::spawn(listener.run(shutdown.clone()));
        let disturbed = namespace.clone();
        let arm = move |fault| {
            let namespace = disturbed.clone();
            // Fails only if the broker stops.
            async move { drop(namespace.run_test_command(TestCommand::Arm(fault)).await) }
        };
        tokio::spawn(run_disturbances(profile, arm, shutdown.clone()));
        let require_tls = config.require_tls;
        Ok(Self {
            addresses,
            key_name,
            has_keys,
            engine,
            namespace,
            page_access,
            require_tls,
            shutdown,
            listener,
            thread,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The further addresses that serve the same.
    pub fn other_addresses(&self) -> &[SocketAddr] {
        &self.addresses[1..]
    }

    /// A connection string for the SDKs. It contains no key: if the broker has keys, the reader puts one in.
    pub fn connection_string(&self) -> String {
        let address = self.address();
        let name = self.key_name.as_deref().unwrap_or("RootManageSharedAccessKey");
        let key = if self.has_keys { "<key>" } else { "SAS_KEY_VALUE" };
        format!("Endpoint=sb://{address};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;")
    }

    /// The address of the broker's page. Without keys it contains the token for actions, behind `#`: a browser does not send that part.
    pub fn page_url(&self) -> String {
        let scheme = if self.require_tls { "https" } else { "http" };
        let token = self.page_access.token().map(|token| format!("#token={token}")).unwrap_or_default();
        format!("{scheme}://{}/{token}", self.address())
    }

    /// Advances the broker's clock, for tests.
    pub fn advance_clock(&self, by: Duration) {
        self.namespace.clock.advance(by);
        self.engine.wake();
    }

    /// Runs a test command without a token: what `/$test` does over HTTP.
    pub async fn test(&self, command: TestCommand) -> Result<TestReport, http::BackendError> {
        self.namespace.run_test_command(command).await
    }

    /// Closes all connections, then flushes the store to disk.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // Bounded, because a peer may never reply to the close.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.listener).await;
        self.engine.stop();
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

/// Every entity after those that it forwards to, as far as possible. The rest fails with the reason.
fn in_creation_order(mut waiting: Vec<(String, EntityDefinition)>) -> Vec<(String, EntityDefinition)> {
    let mut ordered = Vec::with_capacity(waiting.len());
    loop {
        let names: HashSet<String> = waiting.iter().map(|(path, _)| path.to_lowercase()).collect();
        let is_ready = |(path, description): &(String, EntityDefinition)| {
            let topic = path.rsplit_once("/Subscriptions/").map(|(topic, _)| topic);
            description.forward_paths().chain(topic).all(|needed| !names.contains(&needed.to_lowercase()))
        };
        let (ready, blocked): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_ready);
        if ready.is_empty() {
            ordered.extend(blocked);
            return ordered;
        }
        ordered.extend(ready);
        waiting = blocked;
    }
}

async fn create_missing(engine: &EngineHandle, configured: &ConfiguredEntities) -> Result<(), Error> {
    for (path, description) in configured.entities.clone() {
        let name = path.clone();
        let rules = configured.rules.get(&path).cloned().unwrap_or_default();
        let created = engine.call(move |core, call| match core.create_with_rules(call, &name, description, rules) {
            Ok(_) | Err(core::Error::EntityExists { .. }) => Ok(()),
            Err(error) => Err(error),
        });
        let created = created.await.map_err(|_| Error::Stopped)?;
        created.map_err(|source| Error::Entity { path, source })?;
    }
    Ok(())
}
