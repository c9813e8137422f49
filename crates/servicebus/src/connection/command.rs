//! Commands from the rest of the crate to the driver.

use std::sync::{Arc, OnceLock};

use amqp::{Attach, Delivery, DeliveryState};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::error::{ClientOperation, DisconnectReason, Error, ServiceError};
use crate::request_link::PendingResponses;

/// The caller's id for a link, assigned before the attach. Never reused on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkKey(pub(super) u64);

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(crate) enum Command {
    Attach(Box<AttachRequest>),
    Transfer(OutgoingTransfer),
    /// Many transfers in one command.
    Transfers(Vec<OutgoingTransfer>),
    /// A caller's deadline has passed. If the transfer is unsettled, the connection is closed.
    OverdueTransfer {
        link: LinkKey,
        token: u64,
    },
    Settle(SettleRequest),
    /// Sets how many unsettled deliveries the link may hold.
    KeepCredit {
        link: LinkKey,
        credit: u32,
    },
    /// Asks the peer to use the credit or return it; the reply comes when that is done.
    Drain {
        link: LinkKey,
        reply: Reply<()>,
    },
    Detach {
        link: LinkKey,
        reply: Option<Reply<()>>,
    },
    Abort(ClientOperation),
    /// The sender is dropped when the connection is closed.
    Close(oneshot::Sender<()>),
}

pub(crate) struct AttachRequest {
    pub(super) key: LinkKey,
    pub(super) attach: Attach,
    pub(super) address: Arc<str>,
    pub(super) inbound: Option<InboundEvent>,
    pub(super) own_session: bool,
    pub(super) credit: u32,
    pub(super) guard: Option<WriteGuard>,
    /// Set before any caller that waits on the link is released.
    pub(super) end: Arc<OnceLock<Error>>,
    pub(super) reply: Reply<Box<Attach>>,
}

/// Where deliveries go.
#[derive(Clone)]
pub(crate) enum InboundEvent {
    /// Bounded by the link's credit.
    Messages(mpsc::UnboundedSender<Delivery>),
    /// Each delivery goes to the request with its correlation id.
    Responses(Arc<PendingResponses>),
}

/// The driver calls this right before it encodes a transfer; `false` refuses the transfer.
pub(crate) type WriteGuard = Arc<dyn Fn() -> bool + Send + Sync>;

/// The result of a transfer, with the token that its sender chose.
pub type SendOutcome = (u64, Result<(), Error>);

/// Who gets the result of a transfer.
pub(crate) enum OutcomeSender {
    One(Reply<()>),
    /// One channel for many transfers.
    Many(SharedOutcomeSender),
}

/// Sends exactly one outcome. If it is dropped with the connection, it sends `ConnectionLost`.
pub(crate) struct SharedOutcomeSender {
    pub(crate) token: u64,
    pub(crate) outcomes: mpsc::UnboundedSender<SendOutcome>,
    pub(crate) host: Arc<str>,
    pub(crate) sent: bool,
}

impl SharedOutcomeSender {
    fn send(&mut self, result: Result<(), Error>) {
        self.sent = true;
        let _ = self.outcomes.send((self.token, result));
    }
}

impl Drop for SharedOutcomeSender {
    fn drop(&mut self) {
        if !self.sent {
            let lost = Error::ConnectionLost { host: Arc::clone(&self.host), source: DisconnectReason::UnexpectedEof };
            self.send(Err(lost));
        }
    }
}

impl OutcomeSender {
    pub(crate) fn send(self, result: Result<(), Error>) {
        match self {
            Self::One(reply) => drop(reply.send(result)),
            Self::Many(mut shared) => shared.send(result),
        }
    }

    /// True if nobody waits for the outcome.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::One(reply) => reply.is_closed(),
            Self::Many(shared) => shared.outcomes.is_closed(),
        }
    }
}

/// One delivery to send.
pub(crate) struct OutgoingTransfer {
    pub(crate) link: LinkKey,
    /// Never reused on one link.
    pub(crate) token: u64,
    pub(crate) payload: Bytes,
    pub(crate) message_format: u32,
    /// Released when the peer has replied, even if the caller has stopped waiting: the window counts unsettled transfers.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) caller: OutcomeSender,
}

/// A settlement of received deliveries.
pub(crate) struct SettleRequest {
    pub(crate) link: LinkKey,
    pub(crate) deliveries: Vec<u32>,
    pub(crate) state: DeliveryState,
    /// Gets the deliveries that failed, with the peer's errors.
    pub(crate) reply: Reply<Vec<(u32, ServiceError)>>,
}
