//! Receives without sessions: plain queues and subscriptions, and dead-letter queues.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use amqp::performative::{ReceiverSettleMode, SenderSettleMode};
use amqp::{Attach, Source, Target};
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Client;
use crate::client::ActiveConnection;
use crate::connection::Command;
use crate::delivery_queue::DeliveryQueue;
use crate::error::{ClientOperation, Error};
use crate::message::ReceivedMessage;
use crate::settlement::{Settlement, Settler};

/// Receives from one queue or subscription. Each message has its own lock.
pub struct Receiver {
    client: Client,
    address: Arc<str>,
    open: Option<OpenReceiver>,
}

struct OpenReceiver {
    connected: Arc<ActiveConnection>,
    inbox: DeliveryQueue,
}

impl Receiver {
    pub(crate) fn new(client: Client, entity: &str) -> Self {
        Self { client, address: entity.into(), open: None }
    }

    /// Up to `most` messages: those that have arrived, or else the first to arrive within `wait`. Opens or reopens the link if needed.
    pub async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        self.ensure_open().await?.inbox.receive(most, wait).await
    }

    /// Settles messages received since the link was last opened; `None` before the first `receive`.
    pub fn settler(&self) -> Option<Settler> {
        let open = self.open.as_ref()?;
        let operation_timeout = self.client.config().operation_timeout;
        Some(Settler::new(Arc::clone(&open.inbox.link), open.inbox.number, operation_timeout))
    }

    /// Settles messages of this receiver; see [`Settler::settle`].
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

    /// Renews a message's lock. Returns when it expires, by the clock of Service Bus.
    pub async fn renew_lock(&self, message: &ReceivedMessage) -> Result<SystemTime, Error> {
        let deadline = self.client.deadline();
        let open = self.open.as_ref().ok_or_else(|| Error::Closed { address: Arc::clone(&self.address) })?;
        let management = open.connected.management(&self.address, deadline).await?;
        management.renew_lock(message.lock_token(), open.inbox.link.name(), deadline).await
    }

    /// Releases prefetched messages and detaches. Messages that were returned and not settled stay locked until their locks expire.
    pub async fn close(mut self) -> Result<(), Error> {
        let deadline = self.client.deadline();
        let settler = self.settler();
        let (Some(open), Some(settler)) = (&mut self.open, settler) else { return Ok(()) };
        let link = Arc::clone(&open.inbox.link);
        if link.closed_reason().is_some() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        link.connection().command(Command::Drain { link: link.key(), reply })?;
        link.wait_reply(ClientOperation::Detach, deadline, answer).await?;
        let leftovers = open.inbox.drain_ids();
        if !leftovers.is_empty() {
            settler.settle_deliveries(leftovers, Settlement::Release).await?;
        }
        link.detach(deadline).await
    }

    async fn ensure_open(&mut self) -> Result<&mut OpenReceiver, Error> {
        let lost = self.open.as_ref().is_none_or(|open| open.inbox.link.closed_reason().is_some());
        if lost {
            self.open = None;
            self.open = Some(self.attach(self.client.deadline()).await?);
        }
        Ok(self.open.as_mut().expect("just opened"))
    }

    async fn attach(&self, deadline: Instant) -> Result<OpenReceiver, Error> {
        let connected = self.client.connected(deadline).await?;
        let config = self.client.config();
        let attach = peek_lock_attach(&self.address, Source::at(&self.address), config.settle_mode);
        let inbox = DeliveryQueue::open(&connected, attach, Arc::clone(&self.address), config.credit, deadline).await?;
        Ok(OpenReceiver { connected, inbox })
    }
}

/// The attach of a peek-lock receiver: Service Bus removes a message only after both sides have settled.
pub(crate) fn peek_lock_attach(address: &str, source: Source, settle_mode: ReceiverSettleMode) -> Attach {
    // Unique across links and processes, without asking the system for random bytes each time.
    static PROCESS: LazyLock<Uuid> = LazyLock::new(Uuid::new_v4);
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let name = format!("{address}-{}-{}", *PROCESS, NUMBERS.fetch_add(1, Relaxed));
    let mut attach = Attach::receiver(name.clone(), source, Target::at(&name));
    attach.snd_settle_mode = SenderSettleMode::Unsettled;
    attach.rcv_settle_mode = settle_mode;
    attach
}
