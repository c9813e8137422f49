//! One AMQP connection: turns frames into requests for the engine, and its replies into frames.
//!
//! One task per connection. It reads from the socket, lets the [protocol](amqp::Connection) decode, sends all resulting requests to the engine
//! at once, and writes all resulting frames at once. It never waits for one reply: attaches, settlements and management requests are
//! completed when their replies arrive.
//!
//! | file | does |
//! | --- | --- |
//! | `address` | parses link addresses |
//! | `links` | the table of links, with their ids in AMQP and in the core |
//! | `attach` | attaches and detaches links |
//! | `first_use` | creates entities when a client first uses them, if configured |
//! | `authorization` | what the connection's tokens allow |
//! | `inbound`, `decode`, `decimals` | messages from clients |
//! | `deliveries`, `encode` | messages to clients, and their settlement |
//! | `credit` | bounds what is in flight to a peer, or partly received from it |
//! | `node_requests`, `cbs`, `management` | requests and responses on `$cbs` and `$management` |
//! | `transactions` | the coordinator link, and operations inside a transaction |

mod address;
mod attach;
mod authorization;
mod cbs;
mod credit;
mod decimals;
mod decode;
mod deliveries;
mod encode;
mod first_use;
mod idle_links;
mod inbound;
mod links;
mod management;
mod node_requests;
mod rules;
mod transactions;

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use amqp::{ConnectionEvent, ServerSasl, condition};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::ServiceTier;
use crate::access::AccessKeys;
use crate::core::Error;
use crate::engine::{BrokerClock, EngineConnection, EngineHandle, EngineReply, EngineRequest};
use crate::profile::ProfileState;
use authorization::ConnectionGrants;
use credit::{LinkBudget, PartialDeliveryBudget, SharedCounter};
pub(crate) use decode::decode_message;
pub(crate) use encode::{DeliveryForm, WireMessageState, encode_message};
use idle_links::LinkActivity;
use links::LinkTable;
pub(crate) use node_requests::CallReply;
use transactions::ProvisionalSettlements;

/// Settings and counters that all connections of a broker share.
#[derive(Debug, Clone)]
pub(crate) struct BrokerConnectionConfig {
    /// Announced to senders if the entity has no limit of its own.
    pub(crate) max_message_size: u64,
    pub(crate) timeouts: Timeouts,
    /// Bytes of partly received messages in all connections.
    pub(crate) partial_bytes: SharedCounter,
    /// Number of links in all connections.
    pub(crate) links: SharedCounter,
    /// `None`: every token is accepted.
    pub(crate) keys: Option<Arc<AccessKeys>>,
    /// For the expiry of tokens.
    pub(crate) clock: Arc<BrokerClock>,
    /// Create entities when a client first uses them.
    pub(crate) create_on_first_use: bool,
    pub(crate) tier: ServiceTier,
    pub(crate) profile: Arc<ProfileState>,
}

/// Time limits for peers.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// For the first bytes of a connection, and again for a TLS handshake.
    pub first_bytes: Duration,
    /// For the AMQP open, or for the header of an HTTP request.
    pub handshake: Duration,
    /// For an AMQP peer that sends no complete frame. Half of it is announced to the peer.
    pub idle: Duration,
    /// For a peer that does not read what we write.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_bytes: Duration::from_secs(10),
            handshake: Duration::from_secs(30),
            idle: Duration::from_secs(120),
            write: Duration::from_secs(60),
        }
    }
}

/// Bytes read at once: a small buffer while the connection is quiet, a large one while it is busy.
const SMALL_READ: usize = 4 << 10;
const LARGE_READ: usize = 64 << 10;
/// Cost of a request besides its messages. Even empty requests must not pile up while the engine waits for its disk.
const REQUEST_OVERHEAD: usize = 128;
/// Bytes that may wait for the socket before nothing more is read.
const MAX_PENDING_OUTPUT: usize = 1 << 20;

pub(crate) struct BrokerConnection<S> {
    stream: S,
    amqp: amqp::Connection,
    line: EngineConnection,
    replies: UnboundedReceiver<Vec<EngineReply>>,
    settings: Arc<BrokerConnectionConfig>,
    links: LinkTable,
    grants: ConnectionGrants,
    provisional: ProvisionalSettlements,
    activity: LinkActivity,
    /// The host name that the client opened the connection with, for error texts.
    namespace: String,
    /// Requests from the current events; sent to the engine together.
    pending: Vec<EngineRequest>,
    pending_bytes: usize,
    /// Receivers whose peer has granted more credit than the core knows.
    links_needing_credit: Vec<amqp::LinkId>,
    /// Weight of the management requests that the engine has not replied to.
    management_weight: u32,
    /// Bytes from the engine for the peer that are not known to be written.
    unwritten_bytes: usize,
    partial_budget: PartialDeliveryBudget,
    encode_buffer: BytesMut,
    must_close: bool,
}

/// Why a connection was closed, for the log.
enum ConnectionCloseReason {
    Closed,
    Lost(io::Error),
    Stopping,
    TooSlow,
}

/// Serves one connection until either side closes it.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    engine: &EngineHandle,
    settings: Arc<BrokerConnectionConfig>,
    shutdown: CancellationToken,
) {
    let Ok((line, replies)) = engine.connect() else { return };
    let config = amqp::Config {
        container_id: "headwater-broker".to_owned(),
        max_message_size: settings.max_message_size,
        handshake_time_out: settings.timeouts.handshake,
        idle_time_out: Some(settings.timeouts.idle),
        ..amqp::Config::default()
    };
    let grants = ConnectionGrants::default();
    let sasl =
        ServerSasl { plain: settings.keys.as_ref().map(|keys| grants.plain_verifier(keys)), ..ServerSasl::default() };
    let connection = BrokerConnection {
        stream,
        amqp: amqp::Connection::server(config, sasl, Instant::now()),
        links: LinkTable::new(line.id(), LinkBudget::new(&settings.links)),
        line,
        replies,
        grants,
        provisional: ProvisionalSettlements::default(),
        activity: LinkActivity::new(Instant::now()),
        namespace: "localhost".to_owned(),
        partial_budget: PartialDeliveryBudget::new(&settings.partial_bytes),
        settings,
        pending: Vec::new(),
        pending_bytes: 0,
        links_needing_credit: Vec::new(),
        management_weight: 0,
        unwritten_bytes: 0,
        encode_buffer: BytesMut::new(),
        must_close: false,
    };
    connection.run(shutdown).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    async fn run(mut self, shutdown: CancellationToken) {
        let end = self.run_until_closed(&shutdown).await;
        self.line.close(self.links.core_ids().collect());
        match end {
            ConnectionCloseReason::Closed => debug!("AMQP connection closed"),
            ConnectionCloseReason::Lost(error) => debug!(error = %error, "AMQP connection lost"),
            ConnectionCloseReason::Stopping => debug!("AMQP connection closed: broker is stopping"),
            ConnectionCloseReason::TooSlow => debug!("AMQP connection dropped: peer does not read"),
        }
    }

    async fn run_until_closed(&mut self, shutdown: &CancellationToken) -> ConnectionCloseReason {
        let mut input = BytesMut::new();
        let mut room = SMALL_READ;
        let mut batch = Vec::new();
        let mut stopping = false;
        loop {
            let deadlines =
                self.amqp.next_deadline().into_iter().chain(self.token_deadline()).chain(self.idle_deadline());
            let deadline = deadlines.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            // every arm is cancel-safe: a dropped read has read nothing, replies stay in their channel
            tokio::select! {
                read = read(&mut self.stream, &mut input, room) => match read {
                    Ok(0) => return ConnectionCloseReason::Closed,
                    Ok(read) => {
                        room = if read >= room { LARGE_READ } else { read.next_power_of_two().clamp(SMALL_READ, LARGE_READ) };
                        self.amqp.set_max_incomplete_bytes(self.partial_budget.allowance());
                        self.amqp.feed(&mut input, Instant::now());
                        self.partial_budget.set(self.amqp.incomplete_len());
                    }
                    Err(error) => return ConnectionCloseReason::Lost(error),
                },
                _ = self.replies.recv_many(&mut batch, 64) => {
                    batch.drain(..).flatten().for_each(|reply| self.on_reply(reply));
                }
                () = tokio::time::sleep_until(deadline.into()) => self.amqp.on_tick(Instant::now()),
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    let error = amqp::Error::new(condition::CONNECTION_FORCED, "broker is stopping");
                    let _ = self.amqp.close(Some(error));
                }
            }
            self.cut_expired_links();
            self.end_idle();
            let closed = self.take_events();
            if let Err(end) = self.send_requests().await {
                return end;
            }
            if self.must_close {
                return ConnectionCloseReason::Closed;
            }
            if let Err(end) = self.write().await {
                return end;
            }
            if closed {
                return if stopping { ConnectionCloseReason::Stopping } else { ConnectionCloseReason::Closed };
            }
            // Only after the write: a peer that does not read gets no more deliveries.
            self.report_written();
            self.grant_credit();
            if let Err(end) = self.send_requests().await {
                return end;
            }
        }
    }

    /// Handles all events; true when the connection is closed.
    fn take_events(&mut self) -> bool {
        while let Some(event) = self.amqp.poll_event() {
            if matches!(event, ConnectionEvent::Closed { .. }) {
                return true;
            }
            self.on_event(event);
        }
        false
    }

    fn on_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::AttachRequested { session, link, attach } => {
                self.record_activity(link);
                self.on_attach(session, link, attach);
            }
            ConnectionEvent::Detached { link, .. } => self.on_detached(link),
            ConnectionEvent::Delivery(delivery) => {
                self.record_activity(delivery.link);
                self.on_delivery(delivery);
            }
            ConnectionEvent::Credit { link, credit, drain } => {
                self.record_activity(link);
                self.on_credit(link, credit, drain);
            }
            ConnectionEvent::Disposition(disposition) => {
                self.record_activity(disposition.link);
                self.on_disposition(disposition);
            }
            ConnectionEvent::Opened(open) => {
                if let Some(host) = open.hostname.filter(|host| !host.is_empty()) {
                    self.namespace = host;
                }
            }
            ConnectionEvent::SessionBegun { .. }
            | ConnectionEvent::SessionEnded { .. }
            | ConnectionEvent::Attached { .. }
            | ConnectionEvent::Drained { .. }
            | ConnectionEvent::Closed { .. } => {}
        }
    }

    fn on_reply(&mut self, reply: EngineReply) {
        match reply {
            EngineReply::Sent { link, delivery, result } => self.on_sent(link, delivery, result),
            EngineReply::Settled { link, deliveries, outcome, error } => {
                self.on_settled(link, &deliveries, &outcome, error)
            }
            EngineReply::Deliver { link, delivery, stored } => self.deliver(link, &delivery, stored),
            EngineReply::Drained { link, delivery_count, unused } => self.drained(link, delivery_count, unused),
            EngineReply::Attached { link, session, locked_until } => {
                self.on_session_accepted(link, &session, locked_until)
            }
            EngineReply::Refused { link, error } | EngineReply::Detached { link, error } => self.end_link(link, &error),
            EngineReply::Call(reply) => self.on_call_reply(*reply),
            EngineReply::DropConnection => self.must_close = true,
            EngineReply::ForceDetach { link, error } => self.force_detach(link, *error),
            EngineReply::ForceDetachReceiver { link, error } => {
                if let Some(link) = self.links.by_core_id(link) {
                    self.force_detach(link, *error);
                }
            }
            // Fails only if the connection is already closed.
            EngineReply::CloseConnection { error } => drop(self.amqp.close(Some(*error))),
            EngineReply::Delayed { by, reply } => self.line.send_delayed(by, *reply),
        }
    }

    /// Sends the pending requests to the engine.
    async fn send_requests(&mut self) -> Result<(), ConnectionCloseReason> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.pending_bytes) + self.pending.len() * REQUEST_OVERHEAD;
        self.line.send(std::mem::take(&mut self.pending), bytes).await.map_err(|_| ConnectionCloseReason::Stopping)
    }

    async fn write(&mut self) -> Result<(), ConnectionCloseReason> {
        loop {
            let output = self.amqp.take_output();
            if output.is_empty() {
                return Ok(());
            }
            let written = async {
                self.stream.write_all(&output).await?;
                // TLS and WebSocket keep bytes until they are flushed.
                self.stream.flush().await
            };
            match timeout(self.settings.timeouts.write, written).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(ConnectionCloseReason::Lost(error)),
                Err(_) => return Err(ConnectionCloseReason::TooSlow),
            }
            if self.amqp.output_len() < MAX_PENDING_OUTPUT {
                return Ok(());
            }
        }
    }
}

/// Reads up to `room` bytes. A quiet connection holds no buffer while it waits: its bytes are read onto the stack first.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, input: &mut BytesMut, room: usize) -> io::Result<usize> {
    if room > SMALL_READ {
        input.reserve(room);
        return stream.read_buf(input).await;
    }
    if input.is_empty() {
        *input = BytesMut::new();
    }
    poll_fn(|cx| {
        let mut bytes = [MaybeUninit::uninit(); SMALL_READ];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
        input.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}

/// The text of an error. SDKs parse the one for a missing entity: it names the entity's URI, as the service's does.
fn describe_error(error: &Error, namespace: &str) -> String {
    match error {
        Error::EntityNotFound { path } => format!(
            "The messaging entity 'sb://{namespace}/{path}' could not be found. To know more visit \
             https://aka.ms/sbResourceMgrExceptions."
        ),
        Error::EntityExists { path } => format!("The messaging entity 'sb://{namespace}/{path}' already exists."),
        Error::EntityDisabled { path } => format!("Messaging entity 'sb://{namespace}/{path}' is currently disabled."),
        error => error.to_string(),
    }
}

/// Converts an error of the core to an AMQP error.
pub(crate) fn to_amqp(error: &Error) -> amqp::Error {
    amqp::Error::new(amqp::Symbol::from_static(error.condition()), error.to_string())
}
