//! The line to the engine: what may be sent along it, and the two ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Reply, Request};
use crate::core::{ConnectionId, Core, LinkId, Turn};

/// Work of a call: on the engine's thread; what it returns runs when the journal is durable.
type Call = Box<dyn FnOnce(&mut Core, &mut Turn<'_>) -> Box<dyn FnOnce() + Send> + Send>;

pub(crate) enum Message {
    Connected(ConnectionId, UnboundedSender<Vec<Reply>>),
    Requests { from: ConnectionId, requests: Vec<Request>, budget: Option<OwnedSemaphorePermit> },
    Gone { id: ConnectionId, links: Vec<LinkId> },
    Call(Call),
    Woken,
    Stop,
}

/// Kibibytes of messages that may be under way to the engine: bounds what any number of connections can pile up before it.
const BUDGET_KIB: usize = 128 << 10;

/// The engine, from outside. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Engine {
    messages: Sender<Message>,
    woken: Arc<AtomicBool>,
    connections: Arc<AtomicU32>,
    budget: Arc<Semaphore>,
}

/// The engine's own end.
pub(crate) struct Inbox {
    messages: Receiver<Message>,
    woken: Arc<AtomicBool>,
    /// Taken while waiting for a wake, kept for the next round.
    early: Option<Message>,
}

/// The engine is gone: the broker is stopping.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the broker is stopping")]
pub(crate) struct Stopped;

pub(crate) fn line() -> (Engine, Inbox) {
    let (sender, receiver) = channel();
    let woken = Arc::new(AtomicBool::new(false));
    let engine = Engine {
        messages: sender,
        woken: Arc::clone(&woken),
        connections: Arc::new(AtomicU32::new(1)),
        budget: Arc::new(Semaphore::new(BUDGET_KIB)),
    };
    (engine, Inbox { messages: receiver, woken, early: None })
}

impl Engine {
    /// Registers a connection; replies to it come out of the second value.
    pub(crate) fn connect(&self) -> Result<(Line, UnboundedReceiver<Vec<Reply>>), Stopped> {
        let id = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed));
        let (outbox, replies) = unbounded_channel();
        self.messages.send(Message::Connected(id, outbox.clone())).map_err(|_| Stopped)?;
        Ok((Line { id, engine: self.clone(), outbox }, replies))
    }

    /// Asks the core something; the answer comes when everything it rests on is durable.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, answer) = oneshot::channel();
        let call: Call = Box::new(move |core, turn| {
            let value = act(core, turn);
            Box::new(move || drop(sender.send(value)))
        });
        self.messages.send(Message::Call(call)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Makes the engine look again: the store has news, or the clock was moved.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = self.messages.send(Message::Woken);
        }
    }

    pub(crate) fn stop(&self) {
        let _ = self.messages.send(Message::Stop);
    }
}

/// One connection's line to the engine.
pub(crate) struct Line {
    id: ConnectionId,
    engine: Engine,
    /// Its own end of the replies, for those that are to come later.
    outbox: UnboundedSender<Vec<Reply>>,
}

impl Line {
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Sends what one read brought. Waits while too many bytes are under way already.
    pub(crate) async fn send(&self, requests: Vec<Request>, bytes: usize) -> Result<(), Stopped> {
        let kib = u32::try_from(bytes.div_ceil(1024).min(BUDGET_KIB)).unwrap_or(u32::MAX);
        let budget = match kib {
            0 => None,
            kib => Some(Arc::clone(&self.engine.budget).acquire_many_owned(kib).await.map_err(|_| Stopped)?),
        };
        let message = Message::Requests { from: self.id, requests, budget };
        self.engine.messages.send(message).map_err(|_| Stopped)
    }

    /// Lets a reply come again after a while.
    pub(crate) fn postpone(&self, by: Duration, reply: Reply) {
        let outbox = self.outbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(by).await;
            let _ = outbox.send(vec![reply]);
        });
    }

    /// The connection has gone, with these receivers.
    pub(crate) fn gone(&self, links: Vec<LinkId>) {
        let _ = self.engine.messages.send(Message::Gone { id: self.id, links });
    }
}

impl Inbox {
    /// The next message, waited for.
    pub(super) fn first(&mut self, patience: Duration) -> Option<Message> {
        if let Some(early) = self.early.take() {
            return self.seen(early);
        }
        match self.messages.recv_timeout(patience) {
            Ok(message) => self.seen(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Message::Stop),
        }
    }

    /// The next message, if there is one.
    pub(super) fn next(&mut self) -> Option<Message> {
        self.messages.try_recv().ok().and_then(|message| self.seen(message))
    }

    /// Waits for news of the store only; the first other message is kept, and what follows it stays in line.
    pub(super) fn wait_for_wake(&mut self, patience: Duration) {
        if self.early.is_some() {
            std::thread::park_timeout(patience.min(Duration::from_millis(1)));
            return;
        }
        if let Ok(message) = self.messages.recv_timeout(patience) {
            match message {
                Message::Woken => self.woken.store(false, Ordering::Release),
                other => self.early = Some(other),
            }
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the callers' form")]
    fn seen(&self, message: Message) -> Option<Message> {
        if matches!(message, Message::Woken) {
            self.woken.store(false, Ordering::Release);
        }
        Some(message)
    }
}
