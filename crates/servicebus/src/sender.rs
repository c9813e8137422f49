//! Sending: many deliveries under way at once, each with the bus's own outcome.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use amqp::message::{BatchBuilder, BatchFull};
use amqp::performative::SenderSettleMode;
use amqp::{Attach, Source, Target, Value};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::Client;
use crate::bulk::Bulk;
use crate::connection::{Attaching, Caller, Command, Guard, Link, Transfer};
use crate::error::{Error, Step};
use crate::message::{Encoded, Message};

/// Sends to one queue or topic. Cheap to clone; clones share link and window.
#[derive(Clone)]
pub struct Sender {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    address: Arc<str>,
    window: Arc<Semaphore>,
    tokens: AtomicU64,
    link: Mutex<Option<Arc<Link>>>,
    /// Held while a link is opened, so that it is opened once.
    opening: tokio::sync::Mutex<()>,
    guard: Option<Guard>,
}

impl Sender {
    pub(crate) fn new(client: Client, entity: &str) -> Self {
        Self::with_guard(client, entity.into(), None)
    }

    fn with_guard(client: Client, address: Arc<str>, guard: Option<Guard>) -> Self {
        let window = Arc::new(Semaphore::new(client.config().send_window));
        // Above all that a bulk's caller may use: both may send over one link.
        let tokens = AtomicU64::new(1 << 63);
        let (link, opening) = Default::default();
        Self { inner: Arc::new(Inner { client, address, window, tokens, link, opening, guard }) }
    }

    /// A sender of its own that asks `may_write` before each transfer, in the task that writes the socket, right before the transfer is
    /// encoded. What is held back fails with [`Error::Withheld`] and has not left; what is already in the socket cannot be called back.
    #[must_use]
    pub fn guarded(&self, may_write: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self::with_guard(self.inner.client.clone(), Arc::clone(&self.inner.address), Some(may_write))
    }

    /// Opens the link if there is none, for someone who sends very many and keeps a window of their own.
    pub async fn bulk(&self) -> Result<Bulk, Error> {
        let link = self.link(self.inner.client.deadline()).await?;
        let limit = batch_limit(&link.attach);
        Ok(Bulk::new(link, limit))
    }

    /// Sends one message or batch and waits for its outcome.
    pub async fn send(&self, message: &Encoded) -> Result<(), Error> {
        self.enqueue(message).await?.await
    }

    /// [`send`](Self::send), for a message that is sent once.
    pub async fn send_message(&self, message: &Message) -> Result<(), Error> {
        self.send(&message.encode()).await
    }

    /// Puts a message or batch on its way, behind everything enqueued before. Waits only for room in the window; the future it returns
    /// is the outcome. `Ok`: the bus has it. Dropping the future before the message has gone out takes it back; afterwards it only hides the outcome.
    pub async fn enqueue(
        &self,
        message: &Encoded,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + use<>, Error> {
        let inner = &self.inner;
        let started = Instant::now();
        let deadline = inner.client.deadline();
        let address = Arc::clone(&inner.address);
        let late =
            move || Error::Timeout { step: Step::Send, address: Arc::clone(&address), within: started.elapsed() };
        let room = timeout_at(deadline, Arc::clone(&inner.window).acquire_owned()).await;
        let Ok(room) = room else { return Err(late()) };
        let permit = room.expect("the window is never closed");
        let link = self.link(deadline).await?;
        check_size(&link, message)?;
        let token = inner.tokens.fetch_add(1, Relaxed);
        let (reply, answer) = oneshot::channel();
        let transfer = Transfer {
            link: link.key(),
            token,
            payload: message.bytes.clone(),
            message_format: message.format,
            permit: Some(permit),
            caller: Caller::One(reply),
        };
        link.connection().command(Command::Transfer(transfer))?;
        Ok(async move {
            match timeout_at(deadline, answer).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(link.error()),
                Err(_) => {
                    let _ = link.connection().command(Command::OverdueTransfer { link: link.key(), token });
                    Err(late())
                }
            }
        })
    }

    /// An empty batch of the size that the entity takes.
    pub async fn batch(&self) -> Result<Batch, Error> {
        let link = self.link(self.inner.client.deadline()).await?;
        Ok(Batch { builder: BatchBuilder::new(batch_limit(&link.attach)), limit: batch_limit(&link.attach) })
    }

    /// Detaches. The sender may be used again, and then opens another link.
    pub async fn close(&self) -> Result<(), Error> {
        let link = self.inner.link.lock().expect("no one panics while holding the link").take();
        match link {
            Some(link) => link.detach(self.inner.client.deadline()).await,
            None => Ok(()),
        }
    }

    async fn link(&self, deadline: Instant) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let inner = &self.inner;
        let started = Instant::now();
        let late =
            |_| Error::Timeout { step: Step::Attach, address: Arc::clone(&inner.address), within: started.elapsed() };
        let _opening = timeout_at(deadline, inner.opening.lock()).await.map_err(late)?;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let connected = inner.client.connected(deadline).await?;
        let name = format!("{}-{}", inner.address, Uuid::new_v4());
        let mut attach = Attach::sender(name.clone(), Source::at(&name), Target::at(&inner.address));
        attach.snd_settle_mode = SenderSettleMode::Unsettled;
        let address = Arc::clone(&inner.address);
        let guard = inner.guard.clone();
        let attaching = Attaching { attach, address, inbound: None, own_session: false, credit: 0, guard };
        let link = Arc::new(connected.attach(attaching, deadline).await?);
        *inner.link.lock().expect("no one panics while holding the link") = Some(Arc::clone(&link));
        Ok(link)
    }

    fn current(&self) -> Option<Arc<Link>> {
        let link = self.inner.link.lock().expect("no one panics while holding the link").clone();
        link.filter(|link| link.ended().is_none())
    }
}

fn check_size(link: &Link, message: &Encoded) -> Result<(), Error> {
    let limit = link.attach.max_message_size.unwrap_or(0);
    if limit == 0 || message.bytes.len() as u64 <= limit {
        return Ok(());
    }
    Err(Error::MessageTooLarge { address: Arc::clone(link.address()), size: message.bytes.len(), limit })
}

/// The service names a limit for batches apart from that for messages; without either, the smallest tier's.
fn batch_limit(attach: &Attach) -> usize {
    const STANDARD: u64 = 262_144;
    let named = attach.properties.as_ref().and_then(|map| map.get("com.microsoft:max-message-batch-size"));
    let named = named.and_then(Value::as_integer).and_then(|limit| u64::try_from(limit).ok());
    let limit = named.or(attach.max_message_size).filter(|limit| *limit > 0).unwrap_or(STANDARD);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Messages that travel as one delivery and are accepted or refused together. On a partitioned entity all must have the same session id or partition key.
#[derive(Debug)]
pub struct Batch {
    builder: BatchBuilder,
    limit: usize,
}

impl Batch {
    /// `false` if it does not fit beside what is there; the batch is then as it was.
    pub fn try_add(&mut self, message: &Encoded) -> bool {
        match self.builder.add(&message.bytes) {
            Ok(()) => true,
            Err(BatchFull::NoRoom { .. } | BatchFull::Malformed(_)) => false,
        }
    }

    pub fn len(&self) -> usize {
        self.builder.len()
    }

    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Bytes it may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn finish(self) -> Encoded {
        Encoded::batch(self.builder.finish())
    }
}
