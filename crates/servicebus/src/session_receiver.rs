//! Receives from one session: ordered messages, the session lock, the session state.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use amqp::codec::RawValue;
use amqp::{Attach, Map, Source, Symbol, Value};
use bytes::Bytes;
use tokio::time::Instant;

use crate::Client;
use crate::client::ActiveConnection;
use crate::connection::{ClientLink, Command};
use crate::delivery_queue::DeliveryQueue;
use crate::error::{BusErrorKind, ClientOperation, Error};
use crate::message::{ReceivedMessage, from_millis};
use crate::receiver::peek_lock_attach;
use crate::settlement::{Settlement, Settler};

const FILTER: &str = "com.microsoft:session-filter";
const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
const TIMEOUT: Symbol = Symbol::from_static("com.microsoft:timeout");
/// 100-nanosecond ticks from the year 1 to 1970.
const TICKS_AT_EPOCH: i64 = 621_355_968_000_000_000;

/// Holds one session. The session is released by [`close`](Self::close), or when this and every handle made from it are dropped.
pub struct SessionReceiver {
    inbox: DeliveryQueue,
    session: SessionHandle,
}

/// The session without its messages: usable while a `receive` waits.
#[derive(Clone)]
pub struct SessionHandle {
    inner: Arc<SessionInner>,
}

struct SessionInner {
    connected: Arc<ActiveConnection>,
    link: Arc<ClientLink>,
    number: u64,
    entity: Arc<str>,
    id: String,
    locked_until: Mutex<SystemTime>,
    operation_timeout: Duration,
}

impl SessionReceiver {
    pub(crate) async fn accept_next(client: &Client, entity: &str, wait: Duration) -> Result<Option<Self>, Error> {
        match Self::open(client, entity, None, wait).await {
            Ok(receiver) => Ok(Some(receiver)),
            // Service Bus waited for the requested time and found no session.
            Err(Error::Refused { operation: ClientOperation::Attach, source, .. })
                if source.kind() == BusErrorKind::Timeout =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn accept(client: &Client, entity: &str, id: &str) -> Result<Self, Error> {
        Self::open(client, entity, Some(id), Duration::ZERO).await
    }

    async fn open(client: &Client, entity: &str, id: Option<&str>, wait: Duration) -> Result<Self, Error> {
        // Service Bus may use the whole wait before it replies.
        let deadline = client.deadline() + wait;
        let connected = client.connected(deadline).await?;
        let filter = id.map_or_else(|| RawValue::from_value(&Value::Null), RawValue::string);
        let config = client.config();
        let mut attach = peek_lock_attach(entity, Source::at(entity).with_filter(FILTER, filter), config.settle_mode);
        if id.is_none() {
            let millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            attach.properties = Some(Map::new().with(TIMEOUT, millis));
        }
        let address: Arc<str> = entity.into();
        let inbox = DeliveryQueue::open(&connected, attach, Arc::clone(&address), config.credit, deadline).await?;
        let (id, locked_until) = parse_granted_session(&inbox.link.attach).map_err(|what| {
            let address = Arc::clone(&address);
            Error::InvalidReply { operation: ClientOperation::Attach, address, what }
        })?;
        let session = SessionInner {
            connected,
            link: Arc::clone(&inbox.link),
            number: inbox.number,
            entity: address,
            id,
            locked_until: Mutex::new(locked_until),
            operation_timeout: config.operation_timeout,
        };
        Ok(Self { inbox, session: SessionHandle { inner: Arc::new(session) } })
    }

    /// Up to `most` messages in session order: those that have arrived, or else the first to arrive within `wait`. Empty if none arrives.
    pub async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        self.inbox.receive(most, wait).await
    }

    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    pub fn session_id(&self) -> &str {
        self.session.id()
    }

    pub fn settler(&self) -> Settler {
        self.session.settler()
    }

    /// Settles messages of this session; see [`Settler::settle`].
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ReceivedMessage>,
        how: Settlement,
    ) -> Result<(), Error> {
        self.settler().settle(messages, how).await
    }

    /// Releases the session and waits for the confirmation: another receiver can accept it when this returns. Unsettled messages are
    /// redelivered with an unchanged delivery count.
    pub async fn close(self) -> Result<(), Error> {
        self.session.close().await
    }
}

impl SessionHandle {
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// When the lock expires unless it is renewed, by the clock of Service Bus.
    pub fn locked_until(&self) -> SystemTime {
        *self.inner.locked_until.lock().expect("no one panics while holding the moment")
    }

    pub fn settler(&self) -> Settler {
        let inner = &self.inner;
        Settler::new(Arc::clone(&inner.link), inner.number, inner.operation_timeout)
    }

    /// Sets how many unsettled messages may be held, prefetched ones included. Below the number held now, no messages arrive until enough
    /// are settled.
    pub fn set_credit(&self, credit: u32) -> Result<(), Error> {
        let link = &self.inner.link;
        link.connection().command(Command::KeepCredit { link: link.key(), credit })
    }

    /// Why the session is lost; `None` while it is held, as far as this client knows.
    pub fn lost_reason(&self) -> Option<Error> {
        self.inner.link.closed_reason()
    }

    pub async fn renew_lock(&self) -> Result<SystemTime, Error> {
        let (management, deadline) = self.management().await?;
        let until = management.renew_session(self.id(), self.inner.link.name(), deadline).await?;
        *self.inner.locked_until.lock().expect("no one panics while holding the moment") = until;
        Ok(until)
    }

    pub async fn state(&self) -> Result<Option<Bytes>, Error> {
        let (management, deadline) = self.management().await?;
        management.session_state(self.id(), self.inner.link.name(), deadline).await
    }

    /// Sets the session state; `None` clears it.
    pub async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        let (management, deadline) = self.management().await?;
        management.set_session_state(self.id(), state, self.inner.link.name(), deadline).await
    }

    /// See [`SessionReceiver::close`].
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.link.detach(Instant::now() + self.inner.operation_timeout).await
    }

    async fn management(&self) -> Result<(crate::management::Management, Instant), Error> {
        if let Some(error) = self.lost_reason() {
            return Err(error);
        }
        let deadline = Instant::now() + self.inner.operation_timeout;
        let management = self.inner.connected.management(&self.inner.entity, deadline).await?;
        Ok((management, deadline))
    }
}

/// The accepted session's id, and when its lock expires.
fn parse_granted_session(attach: &Attach) -> Result<(String, SystemTime), &'static str> {
    let filter = attach.source.as_ref().and_then(|source| source.filter.as_ref());
    let id = filter.and_then(|filter| filter.get(FILTER)).and_then(|raw| raw.get().undescribed().as_str());
    let id = id.ok_or("the answer names no session")?.to_owned();
    let ticks = attach.properties.as_ref().and_then(|map| map.get(LOCKED_UNTIL)).and_then(Value::as_integer);
    let until = ticks.and_then(|ticks| from_millis(ticks.checked_sub(TICKS_AT_EPOCH)? / 10_000));
    Ok((id, until.ok_or("the answer does not say how long the session is locked")?))
}
