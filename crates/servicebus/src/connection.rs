//! One connection to the bus, as the rest of the crate sees it: commands in by channel, replies by oneshot, every wait with a deadline.
//!
//! A task, the [driver](driver::Driver), owns socket and protocol state. It ends when the socket dies, the peer is silent beyond the idle time-out,
//! does not read, closes, or leaves a step unanswered; the reason is stored first and then everyone who waits is let go, so nobody
//! is left waiting on a connection that is no more. Never here: reconnecting, which is the [client's](crate::Client).

mod command;
mod driver;
mod links;
mod sessions;
mod settling;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amqp::Attach;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

pub use command::Outcome;
pub(crate) use command::{AttachRequest, Caller, Command, Guard, Inbound, LinkKey, Promise, Settle, Transfer};

use crate::error::{Error, Lost, Step};

/// A handle to a running connection. When the last one is dropped, the connection closes in good order.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    host: Arc<str>,
    commands: mpsc::UnboundedSender<Command>,
    end: Arc<OnceLock<Lost>>,
    keys: AtomicU64,
}

/// What the driver is told about patience.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// For the peer to read what we write, and to answer a close.
    pub(crate) answer: Duration,
    pub(crate) idle: Duration,
    pub(crate) handshake: Duration,
}

impl Connection {
    /// Runs AMQP over a stream that has just been dialled. Returns when the peer's open has come.
    pub(crate) async fn open<S>(
        stream: S,
        host: Arc<str>,
        container_id: String,
        patience: Patience,
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
            idle_time_out: Some(patience.idle),
            handshake_time_out: patience.handshake,
            // The bus decides how large a message may be.
            max_message_size: 0,
            max_incomplete_bytes: 256 << 20,
            ..amqp::Config::default()
        };
        let driver = driver::Driver::new(stream, config, inbox, opened, Arc::clone(&end), Arc::clone(&host), patience);
        tokio::spawn(driver.run());
        let shared = Shared { host, commands, end, keys: AtomicU64::new(1) };
        let connection = Self { shared: Arc::new(shared) };
        match timeout_at(deadline, open).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(_)) => Err(Error::Connect { host: connection.host(), source: connection.cause() }),
            Err(_) => Err(Error::Connect { host: connection.host(), source: Lost::NoAnswer(Step::Open) }),
        }
    }

    pub(crate) fn host(&self) -> Arc<str> {
        Arc::clone(&self.shared.host)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.shared.end.get().is_none() && !self.shared.commands.is_closed()
    }

    /// Why it ended, for those who were waiting on it.
    pub(crate) fn lost(&self) -> Error {
        Error::ConnectionLost { host: self.host(), source: self.cause() }
    }

    fn cause(&self) -> Lost {
        // The driver stores its reason before it lets anyone go; only a driver that was torn down with its runtime has none.
        self.shared.end.get().cloned().unwrap_or(Lost::HungUp)
    }

    pub(crate) fn key(&self) -> LinkKey {
        LinkKey(self.shared.keys.fetch_add(1, Relaxed))
    }

    /// Fails only when the connection has ended.
    pub(crate) fn command(&self, command: Command) -> Result<(), Error> {
        self.shared.commands.send(command).map_err(|_| self.lost())
    }

    /// A step got no answer in time: the connection ends, and with it everyone's wait.
    pub(crate) fn suspect(&self, step: Step) {
        let _ = self.shared.commands.send(Command::Suspect(step));
    }

    /// Waits for the driver's reply.
    pub(crate) async fn answer<T>(
        &self,
        step: Step,
        address: &Arc<str>,
        deadline: Instant,
        reply: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let started = Instant::now();
        match timeout_at(deadline, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => {
                self.suspect(step);
                Err(Error::Timeout { step, address: Arc::clone(address), within: started.elapsed() })
            }
        }
    }

    /// Closes in good order; true if the peer agreed in time.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), Error> {
        let (gone, wait) = oneshot::channel::<()>();
        if self.shared.commands.send(Command::Close(gone)).is_ok() && timeout_at(deadline, wait).await.is_err() {
            self.suspect(Step::Close);
            let within = Duration::ZERO.max(deadline.elapsed());
            return Err(Error::Timeout { step: Step::Close, address: self.host(), within });
        }
        match self.cause() {
            Lost::Closed => Ok(()),
            Lost::Dial(_)
            | Lost::Tls(_)
            | Lost::Socket(_)
            | Lost::HungUp
            | Lost::ByPeer
            | Lost::Amqp(_)
            | Lost::NoAnswer(_)
            | Lost::Stalled => Err(self.lost()),
        }
    }

    /// Opens a link. If the caller stops waiting, the link is detached as soon as it is there.
    pub(crate) async fn attach(&self, attaching: Attaching, deadline: Instant) -> Result<Link, Error> {
        let Attaching { attach, address, inbound, own_session, credit, guard } = attaching;
        let key = self.key();
        let end = Arc::new(OnceLock::new());
        let (reply, answer) = oneshot::channel();
        // Made before the wait: dropping it, at a time-out or with its caller, detaches what was asked for.
        let held = LinkGuard { connection: self.clone(), key, address, end: Arc::clone(&end) };
        let address = Arc::clone(&held.address);
        let request = AttachRequest { key, attach, address, inbound, own_session, credit, guard, end, reply };
        self.command(Command::Attach(Box::new(request)))?;
        let attach = self.answer(Step::Attach, &held.address, deadline, answer).await?;
        Ok(Link { guard: held, attach })
    }
}

/// A link to be opened.
pub(crate) struct Attaching {
    pub(crate) attach: Attach,
    pub(crate) address: Arc<str>,
    pub(crate) inbound: Option<Inbound>,
    /// Receivers have an AMQP session of their own: delivery-ids then run without gaps and settle in ranges.
    pub(crate) own_session: bool,
    /// Kept as credit and unsettled deliveries together; 0 gives none.
    pub(crate) credit: u32,
    /// Of a link that sends.
    pub(crate) guard: Option<Guard>,
}

/// An attached link. Dropping it detaches without waiting.
pub(crate) struct Link {
    guard: LinkGuard,
    /// The peer's half of the attach.
    pub(crate) attach: Box<Attach>,
}

struct LinkGuard {
    connection: Connection,
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

impl Link {
    pub(crate) fn connection(&self) -> &Connection {
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

    /// Why it is over; `None` while it is not.
    pub(crate) fn ended(&self) -> Option<Error> {
        let lost = || (!self.guard.connection.is_alive()).then(|| self.guard.connection.lost());
        self.guard.end.get().cloned().or_else(lost)
    }

    pub(crate) fn error(&self) -> Error {
        self.ended().unwrap_or_else(|| Error::Closed { address: Arc::clone(self.address()) })
    }

    /// Waits for the driver's reply to something asked of this link.
    pub(crate) async fn answer<T>(
        &self,
        step: Step,
        deadline: Instant,
        reply: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = self.guard.connection.answer(step, self.address(), deadline, reply).await;
        match result {
            // The driver knew the link no more; the link knows why.
            Err(Error::ConnectionLost { .. }) => Err(self.error()),
            result => result,
        }
    }

    /// Detaches, and waits until the peer has done so too. A link that is over already is detached.
    pub(crate) async fn detach(&self, deadline: Instant) -> Result<(), Error> {
        if self.guard.end.get().is_some() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.guard.connection.command(Command::Detach { link: self.key(), reply: Some(reply) })?;
        self.guard.connection.answer(Step::Detach, self.address(), deadline, answer).await
    }
}
