//! Sends messages: many deliveries in flight, each with its own outcome from Service Bus.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use amqp::message::{BatchBuilder, BatchFull};
use amqp::performative::SenderSettleMode;
use amqp::{Attach, Source, Target, Value};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::Client;
use crate::connection::{ClientLink, Command, LinkOptions, OutcomeSender, OutgoingTransfer, WriteGuard};
use crate::error::{ClientOperation, Error};
use crate::message::{EncodedMessage, Message};
use crate::pipelined_sender::PipelinedSender;

/// Sends to one queue or topic. Cheap to clone; clones share the link and the window.
#[derive(Clone)]
pub struct Sender {
    inner: Arc<SenderInner>,
}

struct SenderInner {
    client: Client,
    address: Arc<str>,
    window: Arc<Semaphore>,
    tokens: AtomicU64,
    link: Mutex<Option<Arc<ClientLink>>>,
    /// Held while a link is opened, so that only one is opened.
    opening: tokio::sync::Mutex<()>,
    guard: Option<WriteGuard>,
}

impl Sender {
    pub(crate) fn new(client: Client, entity: &str) -> Self {
        Self::with_guard(client, entity.into(), None)
    }

    fn with_guard(client: Client, address: Arc<str>, guard: Option<WriteGuard>) -> Self {
        let window = Arc::new(Semaphore::new(client.config().send_window));
        // Above the tokens of a `PipelinedSender`, which may send over the same link.
        let tokens = AtomicU64::new(1 << 63);
        let (link, opening) = Default::default();
        Self { inner: Arc::new(SenderInner { client, address, window, tokens, link, opening, guard }) }
    }

    /// A separate sender that calls `may_write` right before each transfer is encoded, in the task that writes the socket. A refused
    /// transfer fails with [`Error::Fenced`] and was not sent. Bytes that are already in the socket cannot be recalled.
    #[must_use]
    pub fn with_write_guard(&self, may_write: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self::with_guard(self.inner.client.clone(), Arc::clone(&self.inner.address), Some(may_write))
    }

    /// Opens the link if needed, for callers that send many messages and keep their own window.
    pub async fn pipelined(&self) -> Result<PipelinedSender, Error> {
        let link = self.link(self.inner.client.deadline()).await?;
        let limit = batch_limit(&link.attach);
        Ok(PipelinedSender::new(link, limit))
    }

    /// Sends one message or batch and waits for its outcome.
    pub async fn send(&self, message: &EncodedMessage) -> Result<(), Error> {
        self.enqueue(message).await?.await
    }

    /// Encodes and sends one message; see [`send`](Self::send).
    pub async fn send_message(&self, message: &Message) -> Result<(), Error> {
        self.send(&message.encode()).await
    }

    /// Queues a message or batch behind everything enqueued before. Waits only for room in the window; the returned future is the
    /// outcome. `Ok` means that Service Bus has stored it. Dropping the future before the message is written cancels the send; after that, it only discards the outcome.
    pub async fn enqueue(
        &self,
        message: &EncodedMessage,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + use<>, Error> {
        let inner = &self.inner;
        let started = Instant::now();
        let deadline = inner.client.deadline();
        let address = Arc::clone(&inner.address);
        let late = move || Error::Timeout {
            operation: ClientOperation::Send,
            address: Arc::clone(&address),
            within: started.elapsed(),
        };
        let room = timeout_at(deadline, Arc::clone(&inner.window).acquire_owned()).await;
        let Ok(room) = room else { return Err(late()) };
        let permit = room.expect("the window is never closed");
        let link = self.link(deadline).await?;
        check_size(&link, message)?;
        let token = inner.tokens.fetch_add(1, Relaxed);
        let (reply, answer) = oneshot::channel();
        let transfer = OutgoingTransfer {
            link: link.key(),
            token,
            payload: message.bytes.clone(),
            message_format: message.format,
            permit: Some(permit),
            caller: OutcomeSender::One(reply),
        };
        link.connection().command(Command::Transfer(transfer))?;
        Ok(async move {
            match timeout_at(deadline, answer).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(link.close_error()),
                Err(_) => {
                    let _ = link.connection().command(Command::OverdueTransfer { link: link.key(), token });
                    Err(late())
                }
            }
        })
    }

    /// An empty batch with the entity's size limit.
    pub async fn batch(&self) -> Result<MessageBatch, Error> {
        let link = self.link(self.inner.client.deadline()).await?;
        Ok(MessageBatch { builder: BatchBuilder::new(batch_limit(&link.attach)), limit: batch_limit(&link.attach) })
    }

    /// Detaches. The sender can be used again and then opens a new link.
    pub async fn close(&self) -> Result<(), Error> {
        let link = self.inner.link.lock().expect("no one panics while holding the link").take();
        match link {
            Some(link) => link.detach(self.inner.client.deadline()).await,
            None => Ok(()),
        }
    }

    async fn link(&self, deadline: Instant) -> Result<Arc<ClientLink>, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let inner = &self.inner;
        let started = Instant::now();
        let late = |_| Error::Timeout {
            operation: ClientOperation::Attach,
            address: Arc::clone(&inner.address),
            within: started.elapsed(),
        };
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
        let attaching = LinkOptions { attach, address, inbound: None, own_session: false, credit: 0, guard };
        let link = Arc::new(connected.attach(attaching, deadline).await?);
        *inner.link.lock().expect("no one panics while holding the link") = Some(Arc::clone(&link));
        Ok(link)
    }

    fn current(&self) -> Option<Arc<ClientLink>> {
        let link = self.inner.link.lock().expect("no one panics while holding the link").clone();
        link.filter(|link| link.closed_reason().is_none())
    }
}

fn check_size(link: &ClientLink, message: &EncodedMessage) -> Result<(), Error> {
    let limit = link.attach.max_message_size.unwrap_or(0);
    if limit == 0 || message.bytes.len() as u64 <= limit {
        return Ok(());
    }
    Err(Error::MessageTooLarge { address: Arc::clone(link.address()), size: message.bytes.len(), limit })
}

/// The service names a batch limit of its own. Without it, the message limit applies; without both, the limit of the smallest tier.
fn batch_limit(attach: &Attach) -> usize {
    const STANDARD: u64 = 262_144;
    let named = attach.properties.as_ref().and_then(|map| map.get("com.microsoft:max-message-batch-size"));
    let named = named.and_then(Value::as_integer).and_then(|limit| u64::try_from(limit).ok());
    let limit = named.or(attach.max_message_size).filter(|limit| *limit > 0).unwrap_or(STANDARD);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Messages sent as one delivery, accepted or rejected together. On a partitioned entity all must have the same session id or partition key.
#[derive(Debug)]
pub struct MessageBatch {
    builder: BatchBuilder,
    limit: usize,
}

impl MessageBatch {
    /// `false` if the message does not fit; the batch is then unchanged.
    pub fn try_add(&mut self, message: &EncodedMessage) -> bool {
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

    /// Maximum size in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn finish(self) -> EncodedMessage {
        EncodedMessage::batch(self.builder.finish())
    }
}
