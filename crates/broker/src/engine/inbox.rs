//! The channel to the engine: its messages and both ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{EngineReply, EngineRequest};
use crate::core::{CallContext, ConnectionId, Core, CoreLinkId};

/// An operation on the engine thread. The closure it returns runs when the journal is durable.
type DeferredCall = Box<dyn FnOnce(&mut Core, &mut CallContext<'_>) -> Box<dyn FnOnce() + Send> + Send>;

pub(crate) enum EngineMessage {
    Connected(ConnectionId, UnboundedSender<Vec<EngineReply>>),
    Requests { from: ConnectionId, requests: Vec<EngineRequest>, budget: Option<OwnedSemaphorePermit> },
    Disconnected { id: ConnectionId, links: Vec<CoreLinkId> },
    Call(DeferredCall),
    Woken,
    Stop,
}

/// Kibibytes of requests in flight to the engine: bounds what all connections together can queue.
const BUDGET_KIB: usize = 128 << 10;

/// A handle to the engine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    messages: Sender<EngineMessage>,
    woken: Arc<AtomicBool>,
    connections: Arc<AtomicU32>,
    budget: Arc<Semaphore>,
}

/// The engine's end of the channel.
pub(crate) struct EngineInbox {
    messages: Receiver<EngineMessage>,
    woken: Arc<AtomicBool>,
    /// Received while the engine waited for the store; handled in the next round.
    early: Option<EngineMessage>,
}

/// The engine has ended: the broker is stopping.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the broker is stopping")]
pub(crate) struct EngineStopped;

pub(crate) fn channel() -> (EngineHandle, EngineInbox) {
    let (sender, receiver) = mpsc::channel();
    let woken = Arc::new(AtomicBool::new(false));
    let engine = EngineHandle {
        messages: sender,
        woken: Arc::clone(&woken),
        connections: Arc::new(AtomicU32::new(1)),
        budget: Arc::new(Semaphore::new(BUDGET_KIB)),
    };
    (engine, EngineInbox { messages: receiver, woken, early: None })
}

impl EngineHandle {
    /// Registers a connection; the second value receives its replies.
    pub(crate) fn connect(&self) -> Result<(EngineConnection, UnboundedReceiver<Vec<EngineReply>>), EngineStopped> {
        let id = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed));
        let (outbox, replies) = unbounded_channel();
        self.messages.send(EngineMessage::Connected(id, outbox.clone())).map_err(|_| EngineStopped)?;
        Ok((EngineConnection { id, engine: self.clone(), outbox }, replies))
    }

    /// Calls the core; returns when everything the result depends on is durable.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineStopped> {
        let (sender, result) = oneshot::channel();
        let operation: DeferredCall = Box::new(move |core, call| {
            let value = act(core, call);
            Box::new(move || drop(sender.send(value)))
        });
        self.messages.send(EngineMessage::Call(operation)).map_err(|_| EngineStopped)?;
        result.await.map_err(|_| EngineStopped)
    }

    /// Wakes the engine: the store made progress, or the clock was moved.
    pub(crate) fn wake(&self) {
        // One wake-up in the channel is enough, however many threads ask for it.
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = self.messages.send(EngineMessage::Woken);
        }
    }

    pub(crate) fn stop(&self) {
        let _ = self.messages.send(EngineMessage::Stop);
    }
}

/// One connection's end of the channel.
pub(crate) struct EngineConnection {
    id: ConnectionId,
    engine: EngineHandle,
    /// Sends delayed replies back to the connection itself.
    outbox: UnboundedSender<Vec<EngineReply>>,
}

impl EngineConnection {
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Sends the requests of one socket read. Waits while too many bytes are in flight.
    pub(crate) async fn send(&self, requests: Vec<EngineRequest>, bytes: usize) -> Result<(), EngineStopped> {
        let kib = u32::try_from(bytes.div_ceil(1024).min(BUDGET_KIB)).unwrap_or(u32::MAX);
        let budget = match kib {
            // Requests without a payload never wait, so that settlements get through.
            0 => None,
            kib => Some(Arc::clone(&self.engine.budget).acquire_many_owned(kib).await.map_err(|_| EngineStopped)?),
        };
        let message = EngineMessage::Requests { from: self.id, requests, budget };
        self.engine.messages.send(message).map_err(|_| EngineStopped)
    }

    /// Sends a reply to the connection itself after a delay.
    pub(crate) fn send_delayed(&self, by: Duration, reply: EngineReply) {
        let outbox = self.outbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(by).await;
            let _ = outbox.send(vec![reply]);
        });
    }

    /// The connection is closed, with these receiver links.
    pub(crate) fn close(&self, links: Vec<CoreLinkId>) {
        let _ = self.engine.messages.send(EngineMessage::Disconnected { id: self.id, links });
    }
}

impl EngineInbox {
    /// Waits for the next message.
    pub(super) fn wait_next(&mut self, wait_limit: Duration) -> Option<EngineMessage> {
        if let Some(early) = self.early.take() {
            return Some(self.clear_wake(early));
        }
        match self.messages.recv_timeout(wait_limit) {
            Ok(message) => Some(self.clear_wake(message)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(EngineMessage::Stop),
        }
    }

    /// The next message, if one is waiting.
    pub(super) fn try_next(&mut self) -> Option<EngineMessage> {
        self.messages.try_recv().ok().map(|message| self.clear_wake(message))
    }

    /// Waits for a wake-up from the store only. Keeps the first other message; the rest stay in the channel.
    pub(super) fn wait_for_wake(&mut self, wait_limit: Duration) {
        if self.early.is_some() {
            // Only one message can be kept, so none is received. A short sleep instead of a busy loop.
            std::thread::park_timeout(wait_limit.min(Duration::from_millis(1)));
            return;
        }
        if let Ok(message) = self.messages.recv_timeout(wait_limit) {
            match self.clear_wake(message) {
                EngineMessage::Woken => {}
                other => self.early = Some(other),
            }
        }
    }

    /// After a wake-up is taken out of the channel, the next one may be sent.
    fn clear_wake(&self, message: EngineMessage) -> EngineMessage {
        if matches!(message, EngineMessage::Woken) {
            self.woken.store(false, Ordering::Release);
        }
        message
    }
}
