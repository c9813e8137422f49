//! A whole broker in one value: the engine's thread, the port, and an orderly stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connection::{ConnectionSettings, Timeouts};
use crate::core::{self, BrokerLimits, EntityDescription};
use crate::engine::{self, BrokerClock, EngineHandle, FaultInjector, Persistence, StorageError};
use crate::http::{self, TestCommand, TestControl, TestReport};
use crate::http_namespace::HttpNamespace;
use crate::listener::{Listener, raise_open_file_limit};
use crate::tls::{self, TlsFiles};

/// How a broker is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Port 0: any that is free; [`Broker::address`] tells which.
    pub listen: SocketAddr,
    pub persistence: Persistence,
    /// Created at the start unless they are there already.
    pub entities: Vec<(String, EntityDescription)>,
    pub tls: Option<TlsFiles>,
    pub limits: BrokerLimits,
    pub max_connections: usize,
    pub timeouts: Timeouts,
    /// With a token, tests may move the clock and arm faults over HTTP. Never set it on a broker that matters.
    pub test_token: Option<String>,
}

/// Enough to keep many peers busy at once, little beside what the messages themselves take.
const MAX_OUTGOING: usize = 64 << 20;

impl Config {
    pub fn new(listen: SocketAddr, persistence: Persistence) -> Self {
        Self {
            listen,
            persistence,
            entities: Vec::new(),
            tls: None,
            limits: BrokerLimits { max_outgoing: MAX_OUTGOING, ..BrokerLimits::default() },
            // The service allows 5,000 to a namespace; some room for administration beside them.
            max_connections: 6_000,
            timeouts: Timeouts::default(),
            test_token: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Memory(#[from] StorageError),
    #[error("start the broker's thread")]
    Thread(#[source] std::io::Error),
    #[error("set up TLS")]
    Tls(#[from] tls::Error),
    #[error("create `{path}` as configured")]
    Entity {
        path: String,
        #[source]
        source: core::Error,
    },
    #[error("the broker stopped while it was starting")]
    Stopped,
}

/// A running broker.
pub struct Broker {
    address: SocketAddr,
    engine: EngineHandle,
    namespace: HttpNamespace,
    shutdown: CancellationToken,
    listener: tokio::task::JoinHandle<()>,
    thread: JoinHandle<()>,
}

impl Broker {
    /// Recovers what is stored, then listens. When this returns, clients are served.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        let listen = config.listen;
        let unbound = |source| Error::Listen { address: listen, source };
        // Bound before the store is opened: a port in use is the likelier mistake, and the cheaper one to find.
        let socket = TcpListener::bind(listen).await.map_err(unbound)?;
        let address = socket.local_addr().map_err(unbound)?;
        raise_open_file_limit(config.max_connections);

        let clock = Arc::new(BrokerClock::default());
        let faults = Arc::new(FaultInjector::default());
        let (engine, inbox) = engine::channel();
        let (core, memory) =
            engine::EngineStorage::recover(&config.persistence, config.limits.clone(), clock.now(), &engine)?;
        let thread =
            engine::start(core, memory, Arc::clone(&clock), Arc::clone(&faults), inbox).map_err(Error::Thread)?;
        create_missing(&engine, config.entities).await?;

        let shutdown = CancellationToken::new();
        let namespace = HttpNamespace {
            engine: engine.clone(),
            clock: Arc::clone(&clock),
            faults,
            started_at: clock.now(),
            max_message_size: config.limits.max_message_size,
        };
        let http = http::Config {
            test_token: config.test_token,
            header_timeout: config.timeouts.handshake,
            ..http::Config::default()
        };
        let http = http::HttpService::new(namespace.clone(), http);
        let settings = ConnectionSettings {
            max_message_size: config.limits.max_message_size as u64,
            timeouts: config.timeouts,
            partial_bytes: Arc::default(),
            links: Arc::default(),
        };
        let listener = Listener {
            socket,
            tls,
            engine: engine.clone(),
            http,
            settings: Arc::new(settings),
            max_connections: config.max_connections,
        };
        let listener = tokio::spawn(listener.run(shutdown.clone()));
        Ok(Self { address, engine, namespace, shutdown, listener, thread })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A connection string as the SDKs take it.
    pub fn connection_string(&self) -> String {
        let address = self.address;
        format!(
            "Endpoint=sb://{address};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
    }

    /// Moves the broker's clock ahead, for tests.
    pub fn advance_clock(&self, by: Duration) {
        self.namespace.clock.advance(by);
        self.engine.wake();
    }

    /// Moves the clock, or arms a fault, for tests: what `/$test` does over HTTP, without a token.
    pub async fn test(&self, command: TestCommand) -> Result<TestReport, http::BackendError> {
        self.namespace.run_test_command(command).await
    }

    /// Tells every peer, waits for them to go, and brings the store to the disk.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // A peer that does not answer is not waited for longer than a moment.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.listener).await;
        self.engine.stop();
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

async fn create_missing(engine: &EngineHandle, entities: Vec<(String, EntityDescription)>) -> Result<(), Error> {
    for (path, description) in entities {
        let name = path.clone();
        let created = engine.call(move |core, call| match core.create(call, &name, description) {
            Ok(_) | Err(core::Error::EntityExists { .. }) => Ok(()),
            Err(error) => Err(error),
        });
        let created = created.await.map_err(|_| Error::Stopped)?;
        created.map_err(|source| Error::Entity { path, source })?;
    }
    Ok(())
}
