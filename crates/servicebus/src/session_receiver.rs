//! Receiving from one session: its messages in order, its lock, its state.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use amqp::codec::RawValue;
use amqp::{Attach, Map, Source, Symbol, Value};
use bytes::Bytes;
use tokio::time::Instant;

use crate::Client;
use crate::client::Connected;
use crate::connection::{Command, Link};
use crate::error::{Error, Kind, Step};
use crate::inbox::Inbox;
use crate::message::{ReceivedMessage, from_millis};
use crate::receiver::locking;
use crate::settlement::{Settlement, Settler};

const FILTER: &str = "com.microsoft:session-filter";
const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
const TIMEOUT: Symbol = Symbol::from_static("com.microsoft:timeout");
/// 100-nanosecond ticks from the year 1 to 1970.
const TICKS_AT_EPOCH: i64 = 621_355_968_000_000_000;

/// Holds one session. It is let go by [`close`](Self::close), or when this and everything made from it has been dropped.
pub struct SessionReceiver {
    inbox: Inbox,
    session: Session,
}

/// The session beside its messages: usable while a `receive` waits.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    connected: Arc<Connected>,
    link: Arc<Link>,
    number: u64,
    entity: Arc<str>,
    id: String,
    locked_until: Mutex<SystemTime>,
    patience: Duration,
}

impl SessionReceiver {
    pub(crate) async fn accept_next(client: &Client, entity: &str, wait: Duration) -> Result<Option<Self>, Error> {
        match Self::open(client, entity, None, wait).await {
            Ok(receiver) => Ok(Some(receiver)),
            // The bus waited as long as it was asked to, and there was none.
            Err(Error::Refused { step: Step::Attach, source, .. }) if source.kind() == Kind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn accept(client: &Client, entity: &str, id: &str) -> Result<Self, Error> {
        Self::open(client, entity, Some(id), Duration::ZERO).await
    }

    async fn open(client: &Client, entity: &str, id: Option<&str>, wait: Duration) -> Result<Self, Error> {
        // The bus may use up the whole wait before it answers.
        let deadline = client.deadline() + wait;
        let connected = client.connected(deadline).await?;
        let filter = id.map_or_else(|| RawValue::from_value(&Value::Null), RawValue::string);
        let config = client.config();
        let mut attach = locking(entity, Source::at(entity).with_filter(FILTER, filter), config.settle_mode);
        if id.is_none() {
            let millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            attach.properties = Some(Map::new().with(TIMEOUT, millis));
        }
        let address: Arc<str> = entity.into();
        let inbox = Inbox::open(&connected, attach, Arc::clone(&address), config.credit, deadline).await?;
        let (id, locked_until) = granted(&inbox.link.attach).map_err(|what| {
            let address = Arc::clone(&address);
            Error::Malformed { step: Step::Attach, address, what }
        })?;
        let session = Inner {
            connected,
            link: Arc::clone(&inbox.link),
            number: inbox.number,
            entity: address,
            id,
            locked_until: Mutex::new(locked_until),
            patience: config.operation_timeout,
        };
        Ok(Self { inbox, session: Session { inner: Arc::new(session) } })
    }

    /// Up to `most` messages, in the session's order: those that are there, or the first to come within `wait`. Nothing if none came.
    pub async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        self.inbox.receive(most, wait).await
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn session_id(&self) -> &str {
        self.session.id()
    }

    pub fn settler(&self) -> Settler {
        self.session.settler()
    }

    /// Settles messages of this session, as [`Settler::settle`] does.
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ReceivedMessage>,
        how: Settlement,
    ) -> Result<(), Error> {
        self.settler().settle(messages, how).await
    }

    /// Lets the session go, and waits until the bus has: another receiver can have it when this returns. What was not settled is
    /// delivered again, its delivery count unchanged.
    pub async fn close(self) -> Result<(), Error> {
        self.session.close().await
    }
}

impl Session {
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// When the lock ends unless it is renewed, by the bus's clock.
    pub fn locked_until(&self) -> SystemTime {
        *self.inner.locked_until.lock().expect("no one panics while holding the moment")
    }

    pub fn settler(&self) -> Settler {
        let inner = &self.inner;
        Settler::new(Arc::clone(&inner.link), inner.number, inner.patience)
    }

    /// How many messages may be held unsettled from now on, those fetched ahead included. Fewer than are held: none come until enough
    /// are settled.
    pub fn keep_credit(&self, credit: u32) -> Result<(), Error> {
        let link = &self.inner.link;
        link.connection().command(Command::KeepCredit { link: link.key(), credit })
    }

    /// Why the session is lost; `None` while it is held, as far as is known here.
    pub fn lost(&self) -> Option<Error> {
        self.inner.link.ended()
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

    /// `None` clears it.
    pub async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        let (management, deadline) = self.management().await?;
        management.set_session_state(self.id(), state, self.inner.link.name(), deadline).await
    }

    /// As [`SessionReceiver::close`].
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.link.detach(Instant::now() + self.inner.patience).await
    }

    async fn management(&self) -> Result<(crate::management::Management, Instant), Error> {
        if let Some(error) = self.lost() {
            return Err(error);
        }
        let deadline = Instant::now() + self.inner.patience;
        let management = self.inner.connected.management(&self.inner.entity, deadline).await?;
        Ok((management, deadline))
    }
}

/// Which session the bus gave us, and until when.
fn granted(attach: &Attach) -> Result<(String, SystemTime), &'static str> {
    let filter = attach.source.as_ref().and_then(|source| source.filter.as_ref());
    let id = filter.and_then(|filter| filter.get(FILTER)).and_then(|raw| raw.get().undescribed().as_str());
    let id = id.ok_or("the answer names no session")?.to_owned();
    let ticks = attach.properties.as_ref().and_then(|map| map.get(LOCKED_UNTIL)).and_then(Value::as_integer);
    let until = ticks.and_then(|ticks| from_millis(ticks.checked_sub(TICKS_AT_EPOCH)? / 10_000));
    Ok((id, until.ok_or("the answer does not say how long the session is locked")?))
}
