//! One connection to Service Bus: commands go in by a channel, replies come back by oneshot channels, every wait has a deadline.
//!
//! A task, the [driver](driver::Driver), owns the socket and the protocol state. It ends when the socket fails, when the peer is idle for too long,
//! does not read, closes, or does not reply. It stores the reason first and then releases all waiting callers, so no caller waits on a closed
//! connection. Never reconnects: that is the [client's](crate::Client) task.

mod command;
mod driver;
mod links;
mod session_pool;
mod settlements;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amqp::Attach;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

pub use command::SendOutcome;
pub(crate) use command::{
    AttachRequest, Command, InboundEvent, LinkKey, OutcomeSender, OutgoingTransfer, SettleRequest, SharedOutcomeSender,
    WriteGuard,
};

use crate::error::{ClientOperation, DisconnectReason, Error};

/// A handle to a running connection. The connection closes when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct ClientConnection {
    shared: Arc<ConnectionShared>,
}

struct ConnectionShared {
    host: Arc<str>,
    commands: mpsc::UnboundedSender<Command>,
    end: Arc<OnceLock<DisconnectReason>>,
    keys: AtomicU64,
}

/// Time limits of the driver.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTimeouts {
    /// For the peer to read what we write, and to reply to a close.
    pub(crate) reply: Duration,
    pub(crate) idle: Duration,
    pub(crate) handshake: Duration,
}

impl ClientConnection {
    /// Runs AMQP over a new stream. Returns when the peer's open has arrived.
    pub(crate) async fn open<S>(
        stream: S,
        host: Arc<str>,
        container_id: String,
        timeouts: ConnectionTimeouts,
        deadline: Instant,
    ) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (commands, inbox) = mpsc::unbounded_channel();
        let end = Arc::new(OnceLock::new());
        let (opened, open) = oneshot::channel();
        let config = amqp::Config {
            container_id,
            hostname: Some(host.to_string()),
            idle_time_out: Some(timeouts.idle),
            handshake_time_out: timeouts.handshake,
            // 0 means no limit: Service Bus enforces its own.
            max_message_size: 0,
            max_incomplete_bytes: 256 << 20,
            ..amqp::Config::default()
        };
        let driver = driver::Driver::new(stream, config, inbox, opened, Arc::clone(&end), Arc::clone(&host), timeouts);
        tokio::spawn(driver.run());
        let shared = ConnectionShared { host, commands, end, keys: AtomicU64::new(1) };
        let connection = Self { shared: Arc::new(shared) };
        match timeout_at(deadline, open).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(_)) => Err(Error::Connect { host: connection.host(), source: connection.disconnect_reason() }),
            Err(_) => Err(Error::Connect {
                host: connection.host(),
                source: DisconnectReason::NoReply(ClientOperation::Open),
            }),
        }
    }

    pub(crate) fn host(&self) -> Arc<str> {
        Arc::clone(&self.shared.host)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.shared.end.get().is_none() && !self.shared.commands.is_closed()
    }

    /// The error for callers that waited on this connection.
    pub(crate) fn lost_error(&self) -> Error {
        Error::ConnectionLost { host: self.host(), source: self.disconnect_reason() }
    }

    fn disconnect_reason(&self) -> DisconnectReason {
        // The driver stores its reason before it releases callers. Only a driver that was dropped with its runtime has none.
        self.shared.end.get().cloned().unwrap_or(DisconnectReason::UnexpectedEof)
    }

    pub(crate) fn key(&self) -> LinkKey {
        LinkKey(self.shared.keys.fetch_add(1, Relaxed))
    }

    /// Fails only if the connection is closed.
    pub(crate) fn command(&self, command: Command) -> Result<(), Error> {
        self.shared.commands.send(command).map_err(|_| self.lost_error())
    }

    /// Closes the connection because a request got no reply in time. All waiting callers get an error.
    pub(crate) fn abort(&self, operation: ClientOperation) {
        let _ = self.shared.commands.send(Command::Abort(operation));
    }

    /// Waits for the driver's reply.
    pub(crate) async fn wait_reply<T>(
        &self,
        operation: ClientOperation,
        address: &Arc<str>,
        deadline: Instant,
        reply: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let started = Instant::now();
        match timeout_at(deadline, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.lost_error()),
            Err(_) => {
                self.abort(operation);
                Err(Error::Timeout { operation, address: Arc::clone(address), within: started.elapsed() })
            }
        }
    }

    /// Closes the connection; `Ok` if the peer confirmed in time.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), Error> {
        let (gone, wait) = oneshot::channel::<()>();
        if self.shared.commands.send(Command::Close(gone)).is_ok() && timeout_at(deadline, wait).await.is_err() {
            self.abort(ClientOperation::Close);
            let within = Duration::ZERO.max(deadline.elapsed());
            return Err(Error::Timeout { operation: ClientOperation::Close, address: self.host(), within });
        }
        match self.disconnect_reason() {
            DisconnectReason::Closed => Ok(()),
            DisconnectReason::Dial(_)
            | DisconnectReason::Tls(_)
            | DisconnectReason::WebSocket(_)
            | DisconnectReason::Socket(_)
            | DisconnectReason::UnexpectedEof
            | DisconnectReason::ClosedByPeer
            | DisconnectReason::AmqpError(_)
            | DisconnectReason::NoReply(_)
            | DisconnectReason::WriteStalled => Err(self.lost_error()),
        }
    }

    /// Opens a link. If the caller stops waiting, the link is detached as soon as it is attached.
    pub(crate) async fn attach(&self, attaching: LinkOptions, deadline: Instant) -> Result<ClientLink, Error> {
        let LinkOptions { attach, address, inbound, own_session, credit, guard } = attaching;
        let key = self.key();
        let end = Arc::new(OnceLock::new());
        let (reply, answer) = oneshot::channel();
        // Created before the wait: dropping it, on timeout or by the caller, detaches the requested link.
        let held = LinkGuard { connection: self.clone(), key, address, end: Arc::clone(&end) };
        let address = Arc::clone(&held.address);
        let request = AttachRequest { key, attach, address, inbound, own_session, credit, guard, end, reply };
        self.command(Command::Attach(Box::new(request)))?;
        let attach = self.wait_reply(ClientOperation::Attach, &held.address, deadline, answer).await?;
        Ok(ClientLink { guard: held, attach })
    }
}

/// A link to open.
#[derive(Clone)]
pub(crate) struct LinkOptions {
    pub(crate) attach: Attach,
    pub(crate) address: Arc<str>,
    pub(crate) inbound: Option<InboundEvent>,
    /// Receivers use an AMQP session of their own: delivery-ids then have no gaps and settle in ranges.
    pub(crate) own_session: bool,
    /// Target for credit plus unsettled deliveries; 0 grants no credit.
    pub(crate) credit: u32,
    /// Only for links that send.
    pub(crate) guard: Option<WriteGuard>,
}

/// An attached link. Dropping it detaches without waiting.
pub(crate) struct ClientLink {
    guard: LinkGuard,
    /// The peer's half of the attach.
    pub(crate) attach: Box<Attach>,
}

struct LinkGuard {
    connection: ClientConnection,
    key: LinkKey,
    address: Arc<str>,
    end: Arc<OnceLock<Error>>,
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        if self.end.get().is_none() {
            let _ = self.connection.command(Command::Detach { link: self.key, reply: None });
        }
    }
}

impl ClientLink {
    pub(crate) fn connection(&self) -> &ClientConnection {
        &self.guard.connection
    }

    pub(crate) fn key(&self) -> LinkKey {
        self.guard.key
    }

    pub(crate) fn name(&self) -> &str {
        &self.attach.name
    }

    pub(crate) fn address(&self) -> &Arc<str> {
        &self.guard.address
    }

    /// Why the link is closed; `None` while it is open.
    pub(crate) fn closed_reason(&self) -> Option<Error> {
        let lost = || (!self.guard.connection.is_alive()).then(|| self.guard.connection.lost_error());
        self.guard.end.get().cloned().or_else(lost)
    }

    pub(crate) fn close_error(&self) -> Error {
        self.closed_reason().unwrap_or_else(|| Error::Closed { address: Arc::clone(self.address()) })
    }

    /// Waits for the driver's reply to a request on this link.
    pub(crate) async fn wait_reply<T>(
        &self,
        operation: ClientOperation,
        deadline: Instant,
        reply: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = self.guard.connection.wait_reply(operation, self.address(), deadline, reply).await;
        match result {
            // The driver no longer knows the link, but the link stores why it was closed.
            Err(Error::ConnectionLost { .. }) => Err(self.close_error()),
            result => result,
        }
    }

    /// Detaches and waits for the peer's detach. Returns at once if the link is already closed.
    pub(crate) async fn detach(&self, deadline: Instant) -> Result<(), Error> {
        if self.guard.end.get().is_some() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.guard.connection.command(Command::Detach { link: self.key(), reply: Some(reply) })?;
        self.guard.connection.wait_reply(ClientOperation::Detach, self.address(), deadline, answer).await
    }
}
