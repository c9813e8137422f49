//! The client: owns one connection at a time. It connects on first use and reconnects after a loss.
//!
//! Operations in flight when a connection is lost fail with [`Error::ConnectionLost`]. The next use connects again, after a backoff that grows with
//! every failure. So callers that retry in a loop are slowed down, and concurrent callers share one attempt.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tracing::{info, warn};

use crate::cbs::{CbsTokens, TokenGrant};
use crate::connection::{ClientConnection, ClientLink, ConnectionTimeouts, LinkOptions};
use crate::error::{BusErrorKind, ClientOperation, DisconnectReason, Error};
use crate::management::Management;
use crate::request_link::RequestLink;
use crate::{Config, ConnectionString, MessageBrowser, Receiver, Sender, SessionReceiver, Transport, error_chain, tls};

/// A Service Bus client. Cheap to clone; clones share one connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    connection_string: ConnectionString,
    config: Config,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    state: tokio::sync::Mutex<ReconnectState>,
}

#[derive(Default)]
struct ReconnectState {
    current: Option<Arc<ActiveConnection>>,
    failures: u32,
    not_before: Option<Instant>,
    closed: bool,
}

/// A connection, with its tokens and management links.
pub(crate) struct ActiveConnection {
    pub(crate) connection: ClientConnection,
    cbs: CbsTokens,
    managements: tokio::sync::Mutex<HashMap<Arc<str>, Arc<RequestLink>>>,
    since: Instant,
    renewal: std::sync::OnceLock<JoinHandle<()>>,
}

impl Client {
    /// Parses the connection string and loads the certificates. Connects on first use.
    pub fn new(connection_string: &str, config: Config) -> Result<Self, Error> {
        Self::for_endpoint(ConnectionString::parse(connection_string)?, config)
    }

    /// A client of a parsed connection string, or of a namespace with tokens of Entra ID. Loads the certificates; connects on first use.
    pub fn for_endpoint(connection_string: ConnectionString, config: Config) -> Result<Self, Error> {
        let tls = if connection_string.emulator {
            None
        } else {
            let host = Arc::clone(&connection_string.host);
            let name = ServerName::try_from(host.to_string()).map_err(|_| tls::Error::Name { host })?;
            Some((tls::connector(&config)?, name))
        };
        Ok(Self { inner: Arc::new(ClientInner { connection_string, config, tls, state: Default::default() }) })
    }

    /// A client with the same settings, its own connection, and this credit for its receivers.
    #[must_use]
    pub fn with_own_connection(&self, credit: u32) -> Self {
        let ClientInner { connection_string, config, tls, .. } = &*self.inner;
        let config = Config { credit, ..config.clone() };
        let (connection_string, tls) = (connection_string.clone(), tls.clone());
        Self { inner: Arc::new(ClientInner { connection_string, config, tls, state: Default::default() }) }
    }

    pub fn connection_string(&self) -> &ConnectionString {
        &self.inner.connection_string
    }

    /// A sender to a queue or topic. It opens its link on first use, and again after a loss.
    pub fn sender(&self, entity: &str) -> Sender {
        Sender::new(self.clone(), entity)
    }

    /// A receiver for a queue or subscription without sessions, or for a dead-letter queue (`<entity>/$DeadLetterQueue`).
    pub fn receiver(&self, entity: &str) -> Receiver {
        Receiver::new(self.clone(), entity)
    }

    /// Reads an entity without receiving from it.
    pub fn browser(&self, entity: &str) -> MessageBrowser {
        MessageBrowser::new(self.clone(), entity)
    }

    /// Accepts any unlocked session of the entity that has messages; `None` if none appears within `wait`.
    pub async fn accept_next_session(&self, entity: &str, wait: Duration) -> Result<Option<SessionReceiver>, Error> {
        SessionReceiver::accept_next(self, entity, wait).await
    }

    /// Accepts one session by id, with or without messages.
    pub async fn accept_session(&self, entity: &str, session: &str) -> Result<SessionReceiver, Error> {
        SessionReceiver::accept(self, entity, session).await
    }

    /// True if the queue, topic or subscription exists. Needs the Listen right.
    pub async fn entity_exists(&self, entity: &str) -> Result<bool, Error> {
        let deadline = self.deadline();
        match self.connected(deadline).await?.management(entity, deadline).await {
            Ok(management) => management.exists(deadline).await,
            // The service refuses to attach to `$management` of an entity that does not exist.
            Err(error) if error.kind() == BusErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until Service Bus detaches the management link that [`entity_exists`](Self::entity_exists) uses, which it does when the entity is
    /// deleted. Also returns when the connection is lost. The caller then asks again.
    pub async fn management_link_closed(&self, entity: &str) -> Error {
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

    /// Connects now instead of on first use.
    pub async fn connect(&self) -> Result<(), Error> {
        self.connected(self.deadline()).await.map(drop)
    }

    /// Closes the connection with an AMQP close. The client cannot be used again.
    pub async fn close(&self) -> Result<(), Error> {
        let deadline = self.deadline();
        let lock = timeout_at(deadline, self.inner.state.lock()).await;
        let mut state = lock.map_err(|_| self.timeout_error(ClientOperation::Close))?;
        state.closed = true;
        match state.current.take() {
            Some(connected) => connected.connection.close(deadline).await,
            None => Ok(()),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The deadline of a call that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.config.operation_timeout
    }

    /// The current connection, or a new one. Concurrent callers wait for the same attempt.
    pub(crate) async fn connected(&self, deadline: Instant) -> Result<Arc<ActiveConnection>, Error> {
        let lock = timeout_at(deadline, self.inner.state.lock()).await;
        let mut state = lock.map_err(|_| self.timeout_error(ClientOperation::Open))?;
        if state.closed {
            return Err(Error::Closed { address: Arc::clone(&self.inner.connection_string.host) });
        }
        if let Some(connected) = &state.current {
            if connected.connection.is_alive() {
                return Ok(Arc::clone(connected));
            }
            let lived = connected.since.elapsed();
            state.record_end(lived, &self.inner.config);
        }
        if let Some(not_before) = state.not_before {
            timeout_at(deadline, tokio::time::sleep_until(not_before))
                .await
                .map_err(|_| self.timeout_error(ClientOperation::Open))?;
        }
        // Boxed: connecting is rare, and every call of the client would carry its state.
        match Box::pin(self.dial(deadline)).await {
            Ok(connection) => {
                info!(host = %self.inner.connection_string.host, "connected to Service Bus");
                let connected = ActiveConnection::new(connection, &self.inner);
                state.current = Some(Arc::clone(&connected));
                state.not_before = None;
                Ok(connected)
            }
            Err(error) => {
                state.record_failure(&self.inner.config);
                warn!(host = %self.inner.connection_string.host, error = %error_chain(&error), "failed to connect to Service Bus; retrying on next use");
                Err(error)
            }
        }
    }

    async fn dial(&self, deadline: Instant) -> Result<ClientConnection, Error> {
        let ClientInner { connection_string, config, tls, .. } = &*self.inner;
        let host = Arc::clone(&connection_string.host);
        let deadline = deadline.min(Instant::now() + config.connect_timeout);
        let failed = |source| Error::Connect { host: Arc::clone(&host), source };
        let late = || failed(DisconnectReason::NoReply(ClientOperation::Open));
        let authority = connection_string.authority_for(config.transport);
        let dialled = timeout_at(deadline, self.open_socket(&authority)).await;
        let stream = dialled.map_err(|_| late())?.map_err(|error| failed(DisconnectReason::Dial(Arc::new(error))))?;
        // Frames are batched before they are written, so Nagle's algorithm would only delay them.
        stream.set_nodelay(true).map_err(|error| failed(DisconnectReason::Dial(Arc::new(error))))?;
        let timeouts = ConnectionTimeouts {
            reply: config.operation_timeout,
            idle: config.idle_timeout,
            handshake: config.connect_timeout,
        };
        match tls {
            None => self.open(stream, &authority, timeouts, deadline).await,
            Some((connector, name)) => {
                let agreed = timeout_at(deadline, connector.connect(name.clone(), stream)).await;
                let stream =
                    agreed.map_err(|_| late())?.map_err(|error| failed(DisconnectReason::Tls(Arc::new(error))))?;
                self.open(stream, &authority, timeouts, deadline).await
            }
        }
    }

    /// Only WebSockets go through a proxy: proxies do not let AMQP's own port through.
    async fn open_socket(&self, authority: &str) -> std::io::Result<TcpStream> {
        match self.inner.config.transport {
            Transport::Amqp => TcpStream::connect(authority).await,
            // Without TLS a proxy could read tokens and messages.
            Transport::WebSocket if self.inner.tls.is_some() => self.inner.config.proxies.connect(authority).await,
            Transport::WebSocket => TcpStream::connect(authority).await,
        }
    }

    /// Opens AMQP over a stream, or over a WebSocket on it.
    async fn open<S>(
        &self,
        stream: S,
        authority: &str,
        timeouts: ConnectionTimeouts,
        deadline: Instant,
    ) -> Result<ClientConnection, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let ClientInner { connection_string, config, tls, .. } = &*self.inner;
        let (host, container) = (Arc::clone(&connection_string.host), config.container_id.clone());
        if config.transport == Transport::Amqp {
            return ClientConnection::open(stream, host, container, timeouts, deadline).await;
        }
        let failed = |source| Error::Connect { host: Arc::clone(&host), source };
        let upgraded = timeout_at(deadline, websocket::connect(stream, authority, tls.is_some())).await;
        let stream = upgraded
            .map_err(|_| failed(DisconnectReason::NoReply(ClientOperation::Open)))?
            .map_err(|error| failed(DisconnectReason::WebSocket(Arc::new(error))))?;
        ClientConnection::open(stream, host, container, timeouts, deadline).await
    }

    fn timeout_error(&self, operation: ClientOperation) -> Error {
        let address = Arc::clone(&self.inner.connection_string.host);
        Error::Timeout { operation, address, within: self.inner.config.operation_timeout }
    }
}

impl ReconnectState {
    /// Resets the backoff after a connection that lived long. A connection that was lost early counts as a failure: as the first one, if it lived at
    /// least as long as the backoff before it, and as one more if not. So a service that closes connections again and again is not left alone for
    /// longer than its connections last.
    fn record_end(&mut self, lived: Duration, config: &Config) {
        self.current = None;
        if lived >= config.max_backoff {
            self.failures = 0;
            self.not_before = None;
            return;
        }
        if lived >= longest_backoff(self.failures, config) {
            self.failures = 0;
        }
        self.record_failure(config);
    }

    fn record_failure(&mut self, config: &Config) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + backoff(self.failures, config, rand::random()));
    }
}

/// The backoff after this many failures: a doubling time, of which half is random. `dice` is in 0..1.
pub(crate) fn backoff(failures: u32, config: &Config, dice: f64) -> Duration {
    longest_backoff(failures, config).mul_f64(0.5 + dice / 2.0)
}

fn longest_backoff(failures: u32, config: &Config) -> Duration {
    config.initial_backoff.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(config.max_backoff)
}

impl ActiveConnection {
    fn new(connection: ClientConnection, inner: &ClientInner) -> Arc<Self> {
        let cbs = CbsTokens::new(inner.connection_string.credential.clone(), inner.config.token_lifetime);
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
    pub(crate) async fn attach(&self, attaching: LinkOptions, deadline: Instant) -> Result<ClientLink, Error> {
        let attach = || self.connection.attach(attaching.clone(), deadline);
        self.open_with_token(&attaching.address, deadline, attach).await
    }

    /// Opens a link or a pair of links with a token. Service Bus forgets a token when it expires, and the rights of a key may change:
    /// after a refusal the token counts as forgotten, and one that was put for an earlier link is put again at once.
    async fn open_with_token<T, F: Future<Output = Result<T, Error>>>(
        &self,
        address: &Arc<str>,
        deadline: Instant,
        open: impl Fn() -> F,
    ) -> Result<T, Error> {
        let granted = self.cbs.authorize(&self.connection, address, deadline).await?;
        let opened = open().await;
        if opened.as_ref().err().is_none_or(|error| error.kind() != BusErrorKind::Unauthorized) {
            return opened;
        }
        self.cbs.on_link_refused(address);
        match granted {
            TokenGrant::New => opened,
            TokenGrant::Earlier => {
                self.cbs.authorize(&self.connection, address, deadline).await?;
                open().await
            }
        }
    }

    /// The request link to an entity's `$management` node, shared by all callers.
    pub(crate) async fn management(&self, entity: &str, deadline: Instant) -> Result<Management, Error> {
        let node: Arc<str> = format!("{entity}/$management").into();
        let lock = timeout_at(deadline, self.managements.lock()).await;
        let late = |_| Error::Timeout {
            operation: ClientOperation::Manage,
            address: Arc::clone(&node),
            within: deadline.elapsed(),
        };
        let mut managements = lock.map_err(late)?;
        if let Some(link) = managements.get(&node).filter(|link| link.is_alive()) {
            return Ok(Management::new(node, Arc::clone(link)));
        }
        let open = || RequestLink::open(&self.connection, &node, deadline);
        let link = Arc::new(self.open_with_token(&node, deadline, open).await?);
        managements.insert(Arc::clone(&node), Arc::clone(&link));
        Ok(Management::new(node, link))
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.get() {
            renewal.abort();
        }
    }
}

/// Renews the tokens of a connection until it is dropped or lost.
async fn renew_tokens(connected: Weak<ActiveConnection>, config: Config) {
    let mut interval = config.token_lifetime.min(Duration::from_secs(1)) / 8;
    loop {
        tokio::time::sleep(interval).await;
        let Some(connected) = connected.upgrade() else { return };
        if !connected.connection.is_alive() {
            return;
        }
        for error in connected.cbs.renew(&connected.connection, config.operation_timeout).await {
            warn!(error = %error_chain(&error), "failed to renew token; retrying");
        }
        interval = connected.cbs.renewal_interval();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The failures in a row that the next backoff follows.
    fn failures_after(lives: &[u64]) -> u32 {
        let config = Config::default();
        let mut state = ReconnectState::default();
        lives.iter().for_each(|millis| state.record_end(Duration::from_millis(*millis), &config));
        state.failures
    }

    #[test]
    fn a_connection_that_outlived_its_backoff_ends_the_series() {
        // Closed at once, again and again: each counts.
        assert_eq!(failures_after(&[0; 9]), 9);
        // A service that closes connections every three seconds is asked again soon.
        assert_eq!(failures_after(&[3_000; 50]), 1);
        // The backoff after seven failures is 6.4 s.
        let after_outage = |millis| failures_after(&[0, 0, 0, 0, 0, 0, 0, millis]);
        assert_eq!((after_outage(3_000), after_outage(6_400), after_outage(15_000)), (8, 1, 0));
    }

    #[test]
    fn the_backoff_doubles_up_to_its_maximum() {
        let config = Config {
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            ..Config::default()
        };
        let pauses: Vec<_> = [1, 2, 3, 4, 5, 60].map(|failures| backoff(failures, &config, 1.0).as_millis()).into();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff(1, &config, 0.0).as_millis(), 50);
    }
}
