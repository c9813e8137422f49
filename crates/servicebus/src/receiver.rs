//! Receiving without sessions: plain queues and subscriptions, and every dead-letter queue.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use amqp::performative::{ReceiverSettleMode, SenderSettleMode};
use amqp::{Attach, Source, Target};
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Client;
use crate::client::Connected;
use crate::connection::Command;
use crate::error::{Error, Step};
use crate::inbox::Inbox;
use crate::message::ReceivedMessage;
use crate::settlement::{Settlement, Settler};

/// Receives from one queue or subscription, each message locked by itself.
pub struct Receiver {
    client: Client,
    address: Arc<str>,
    open: Option<Open>,
}

struct Open {
    connected: Arc<Connected>,
    inbox: Inbox,
}

impl Receiver {
    pub(crate) fn new(client: Client, entity: &str) -> Self {
        Self { client, address: entity.into(), open: None }
    }

    /// Up to `most` messages: those that are there, or the first to come within `wait`. Opens the link if it is not open, or was lost.
    pub async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        self.opened().await?.inbox.receive(most, wait).await
    }

    /// Settles what this receiver has received since it last lost its link; `None` before the first `receive`.
    pub fn settler(&self) -> Option<Settler> {
        let open = self.open.as_ref()?;
        let patience = self.client.config().operation_timeout;
        Some(Settler::new(Arc::clone(&open.inbox.link), open.inbox.number, patience))
    }

    /// Settles messages of this receiver, as [`Settler::settle`] does.
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ReceivedMessage>,
        how: Settlement,
    ) -> Result<(), Error> {
        match self.settler() {
            Some(settler) => settler.settle(messages, how).await,
            None => Err(Error::Closed { address: Arc::clone(&self.address) }),
        }
    }

    /// Holds a message for longer; says until when, by the bus's clock.
    pub async fn renew_lock(&self, message: &ReceivedMessage) -> Result<SystemTime, Error> {
        let deadline = self.client.deadline();
        let open = self.open.as_ref().ok_or_else(|| Error::Closed { address: Arc::clone(&self.address) })?;
        let management = open.connected.management(&self.address, deadline).await?;
        management.renew_lock(message.lock_token(), open.inbox.link.name(), deadline).await
    }

    /// Lets go of what was fetched ahead and detaches. What was handed out and not settled stays locked until its lock ends.
    pub async fn close(mut self) -> Result<(), Error> {
        let deadline = self.client.deadline();
        let settler = self.settler();
        let (Some(open), Some(settler)) = (&mut self.open, settler) else { return Ok(()) };
        let link = Arc::clone(&open.inbox.link);
        if link.ended().is_some() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        link.connection().command(Command::Drain { link: link.key(), reply })?;
        link.answer(Step::Detach, deadline, answer).await?;
        let leftovers = open.inbox.leftovers();
        if !leftovers.is_empty() {
            settler.settle_deliveries(leftovers, Settlement::Release).await?;
        }
        link.detach(deadline).await
    }

    async fn opened(&mut self) -> Result<&mut Open, Error> {
        let lost = self.open.as_ref().is_none_or(|open| open.inbox.link.ended().is_some());
        if lost {
            self.open = None;
            self.open = Some(self.attach(self.client.deadline()).await?);
        }
        Ok(self.open.as_mut().expect("just opened"))
    }

    async fn attach(&self, deadline: Instant) -> Result<Open, Error> {
        let connected = self.client.connected(deadline).await?;
        let config = self.client.config();
        let attach = locking(&self.address, Source::at(&self.address), config.settle_mode);
        let inbox = Inbox::open(&connected, attach, Arc::clone(&self.address), config.credit, deadline).await?;
        Ok(Open { connected, inbox })
    }
}

/// The attach of a receiver that locks (peek-lock): the bus forgets a message only when both sides have settled.
pub(crate) fn locking(address: &str, source: Source, settle_mode: ReceiverSettleMode) -> Attach {
    // Differs from that of any other link, of this process or another, without asking the system for chance each time.
    static PROCESS: LazyLock<Uuid> = LazyLock::new(Uuid::new_v4);
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let name = format!("{address}-{}-{}", *PROCESS, NUMBERS.fetch_add(1, Relaxed));
    let mut attach = Attach::receiver(name.clone(), source, Target::at(&name));
    attach.snd_settle_mode = SenderSettleMode::Unsettled;
    attach.rcv_settle_mode = settle_mode;
    attach
}
