//! The client: one connection at a time, made when it is first needed and again after it was lost.
//!
//! What is in flight when a connection dies fails with [`Error::ConnectionLost`]; the next use dials again, not before a pause that grows with
//! every failure. Callers that retry in a loop are thereby paced, and many of them share one dial.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tracing::{info, warn};

use crate::cbs::Cbs;
use crate::connection::{Attaching, Connection, Link, Patience};
use crate::error::{Error, Kind, Lost, Step};
use crate::management::Management;
use crate::request::RequestLink;
use crate::{Config, ConnectionString, Receiver, Sender, SessionReceiver, tls};

/// A handle to the bus. Cheap to clone; clones share one connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    connection_string: ConnectionString,
    config: Config,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Connected>>,
    failures: u32,
    not_before: Option<Instant>,
    closed: bool,
}

/// A connection with what belongs to it alone.
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    cbs: Cbs,
    managements: tokio::sync::Mutex<HashMap<Arc<str>, Arc<RequestLink>>>,
    since: Instant,
    renewal: std::sync::OnceLock<JoinHandle<()>>,
}

impl Client {
    /// Reads the connection string and the certificates; connects when first used.
    pub fn new(connection_string: &str, config: Config) -> Result<Self, Error> {
        let connection_string = ConnectionString::parse(connection_string)?;
        let tls = if connection_string.emulator {
            None
        } else {
            let host = Arc::clone(&connection_string.host);
            let name = ServerName::try_from(host.to_string()).map_err(|_| tls::Error::Name { host })?;
            Some((tls::connector(&config)?, name))
        };
        Ok(Self { inner: Arc::new(Inner { connection_string, config, tls, state: Default::default() }) })
    }

    /// A client of the same settings with a connection of its own; its receivers begin with this credit.
    #[must_use]
    pub fn another(&self, credit: u32) -> Self {
        let Inner { connection_string, config, tls, .. } = &*self.inner;
        let config = Config { credit, ..config.clone() };
        let (connection_string, tls) = (connection_string.clone(), tls.clone());
        Self { inner: Arc::new(Inner { connection_string, config, tls, state: Default::default() }) }
    }

    pub fn connection_string(&self) -> &ConnectionString {
        &self.inner.connection_string
    }

    /// A sender to a queue or topic. Its link is opened when first used, and again after it was lost.
    pub fn sender(&self, entity: &str) -> Sender {
        Sender::new(self.clone(), entity)
    }

    /// A receiver from a queue or subscription without sessions, or from a dead-letter queue (`<entity>/$DeadLetterQueue`).
    pub fn receiver(&self, entity: &str) -> Receiver {
        Receiver::new(self.clone(), entity)
    }

    /// Accepts whichever session of the entity is free and has messages. `None` if there was none for as long as `wait`.
    pub async fn accept_next_session(&self, entity: &str, wait: Duration) -> Result<Option<SessionReceiver>, Error> {
        SessionReceiver::accept_next(self, entity, wait).await
    }

    /// Accepts one session by name, with messages or without.
    pub async fn accept_session(&self, entity: &str, session: &str) -> Result<SessionReceiver, Error> {
        SessionReceiver::accept(self, entity, session).await
    }

    /// Whether a queue, topic or subscription is there. Needs the right to listen to it.
    pub async fn entity_exists(&self, entity: &str) -> Result<bool, Error> {
        let deadline = self.deadline();
        match self.connected(deadline).await?.management(entity, deadline).await {
            Ok(management) => management.exists(deadline).await,
            // The service does not even attach to the node of what is not there.
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends as soon as the bus takes away the link that [`entity_exists`](Self::entity_exists) asked over, which it does when the
    /// entity is deleted: time to ask again. Also ends with the connection.
    pub async fn entity_disturbed(&self, entity: &str) -> Error {
        let deadline = self.deadline();
        let management = match self.connected(deadline).await {
            Ok(connected) => connected.management(entity, deadline).await,
            Err(error) => Err(error),
        };
        match management {
            Ok(management) => management.ended().await,
            Err(error) => error,
        }
    }

    /// Connects now, rather than at the first use.
    pub async fn connect(&self) -> Result<(), Error> {
        self.connected(self.deadline()).await.map(drop)
    }

    /// Closes the connection in good order. The client cannot be used again.
    pub async fn close(&self) -> Result<(), Error> {
        let deadline = self.deadline();
        let lock = timeout_at(deadline, self.inner.state.lock()).await;
        let mut state = lock.map_err(|_| self.late(Step::Close))?;
        state.closed = true;
        match state.current.take() {
            Some(connected) => connected.connection.close(deadline).await,
            None => Ok(()),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// When a call that begins now must have ended.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.config.operation_timeout
    }

    /// The connection, made if there is none. Others who ask meanwhile wait for the same one.
    pub(crate) async fn connected(&self, deadline: Instant) -> Result<Arc<Connected>, Error> {
        let lock = timeout_at(deadline, self.inner.state.lock()).await;
        let mut state = lock.map_err(|_| self.late(Step::Open))?;
        if state.closed {
            return Err(Error::Closed { address: Arc::clone(&self.inner.connection_string.host) });
        }
        if let Some(connected) = &state.current {
            if connected.connection.is_alive() {
                return Ok(Arc::clone(connected));
            }
            let lived = connected.since.elapsed();
            state.note_end(lived, &self.inner.config);
        }
        if let Some(not_before) = state.not_before {
            timeout_at(deadline, tokio::time::sleep_until(not_before)).await.map_err(|_| self.late(Step::Open))?;
        }
        match self.dial(deadline).await {
            Ok(connection) => {
                info!(host = %self.inner.connection_string.host, "connected to the bus");
                let connected = Connected::new(connection, &self.inner);
                state.current = Some(Arc::clone(&connected));
                state.not_before = None;
                Ok(connected)
            }
            Err(error) => {
                state.note_failure(&self.inner.config);
                warn!(host = %self.inner.connection_string.host, error = %chain(&error), "connect to the bus");
                Err(error)
            }
        }
    }

    async fn dial(&self, deadline: Instant) -> Result<Connection, Error> {
        let Inner { connection_string, config, tls, .. } = &*self.inner;
        let host = Arc::clone(&connection_string.host);
        let deadline = deadline.min(Instant::now() + config.connect_timeout);
        let failed = |source| Error::Connect { host: Arc::clone(&host), source };
        let late = || failed(Lost::NoAnswer(Step::Open));
        let dialled = timeout_at(deadline, TcpStream::connect(connection_string.authority())).await;
        let stream = dialled.map_err(|_| late())?.map_err(|error| failed(Lost::Dial(Arc::new(error))))?;
        // Small frames must not wait for more to come.
        stream.set_nodelay(true).map_err(|error| failed(Lost::Dial(Arc::new(error))))?;
        let patience =
            Patience { answer: config.operation_timeout, idle: config.idle_timeout, handshake: config.connect_timeout };
        let container = config.container_id.clone();
        match tls {
            None => Connection::open(stream, Arc::clone(&host), container, patience, deadline).await,
            Some((connector, name)) => {
                let agreed = timeout_at(deadline, connector.connect(name.clone(), stream)).await;
                let stream = agreed.map_err(|_| late())?.map_err(|error| failed(Lost::Tls(Arc::new(error))))?;
                Connection::open(stream, Arc::clone(&host), container, patience, deadline).await
            }
        }
    }

    fn late(&self, step: Step) -> Error {
        let address = Arc::clone(&self.inner.connection_string.host);
        Error::Timeout { step, address, within: self.inner.config.operation_timeout }
    }
}

impl State {
    /// A connection that lived long was good; one that keeps dying young is dialled ever more slowly.
    fn note_end(&mut self, lived: Duration, config: &Config) {
        self.current = None;
        if lived >= config.longest_backoff {
            self.failures = 0;
            self.not_before = None;
        } else {
            self.note_failure(config);
        }
    }

    fn note_failure(&mut self, config: &Config) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + backoff(self.failures, config, rand::random()));
    }
}

/// The pause after so many failures: between half and all of a time that doubles. `dice` is in 0..1.
fn backoff(failures: u32, config: &Config, dice: f64) -> Duration {
    let doubled = config.first_backoff.saturating_mul(1 << failures.saturating_sub(1).min(20));
    doubled.min(config.longest_backoff).mul_f64(0.5 + dice / 2.0)
}

impl Connected {
    fn new(connection: Connection, inner: &Inner) -> Arc<Self> {
        let cbs = Cbs::new(inner.connection_string.credential.clone(), inner.config.token_lifetime);
        let connected = Arc::new(Self {
            connection,
            cbs,
            managements: Default::default(),
            since: Instant::now(),
            renewal: Default::default(),
        });
        let renewal = tokio::spawn(renew_tokens(Arc::downgrade(&connected), inner.config.clone()));
        let _ = connected.renewal.set(renewal);
        connected
    }

    /// Puts a token for the address, then attaches.
    pub(crate) async fn attach(&self, attaching: Attaching, deadline: Instant) -> Result<Link, Error> {
        self.cbs.authorize(&self.connection, &attaching.address, deadline).await?;
        self.connection.attach(attaching, deadline).await
    }

    /// The way to an entity's `$management`, shared by all who ask.
    pub(crate) async fn management(&self, entity: &str, deadline: Instant) -> Result<Management, Error> {
        let node: Arc<str> = format!("{entity}/$management").into();
        let lock = timeout_at(deadline, self.managements.lock()).await;
        let late = |_| Error::Timeout { step: Step::Manage, address: Arc::clone(&node), within: deadline.elapsed() };
        let mut managements = lock.map_err(late)?;
        if let Some(link) = managements.get(&node).filter(|link| link.is_alive()) {
            return Ok(Management::new(node, Arc::clone(link)));
        }
        self.cbs.authorize(&self.connection, &node, deadline).await?;
        let link = Arc::new(RequestLink::open(&self.connection, &node, deadline).await?);
        managements.insert(Arc::clone(&node), Arc::clone(&link));
        Ok(Management::new(node, link))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.get() {
            renewal.abort();
        }
    }
}

/// Keeps the tokens of a connection fresh for as long as it is used.
async fn renew_tokens(connected: Weak<Connected>, config: Config) {
    // Looks at least this often, for addresses that were added meanwhile.
    let rhythm = (config.token_lifetime / 8).clamp(Duration::from_millis(10), Duration::from_secs(60));
    loop {
        tokio::time::sleep(rhythm).await;
        let Some(connected) = connected.upgrade() else { return };
        if !connected.connection.is_alive() {
            return;
        }
        let deadline = Instant::now() + config.operation_timeout;
        if let Err(error) = connected.cbs.renew(&connected.connection, deadline).await {
            warn!(error = %chain(&error), "renew a token");
        }
    }
}

/// An error with its causes, for the log.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_bound_and_is_never_nothing() {
        let config = Config {
            first_backoff: Duration::from_millis(100),
            longest_backoff: Duration::from_secs(1),
            ..Config::default()
        };
        let pauses: Vec<_> = [1, 2, 3, 4, 5, 60].map(|failures| backoff(failures, &config, 1.0).as_millis()).into();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff(1, &config, 0.0).as_millis(), 50);
    }
}
