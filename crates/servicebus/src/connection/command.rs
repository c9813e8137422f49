//! What the rest of the crate asks of the driver.

use std::sync::{Arc, OnceLock};

use amqp::{Attach, Delivery, DeliveryState};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::error::{Error, Lost, Refusal, Step};
use crate::request::Answers;

/// How callers name a link, from before it is attached. Never used twice on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkKey(pub(super) u64);

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(crate) enum Command {
    Attach(Box<AttachRequest>),
    Transfer(Transfer),
    /// Many at once, for the price of one.
    Transfers(Vec<Transfer>),
    /// A transfer's caller has waited long enough. If it is on its way, the connection is not to be trusted.
    OverdueTransfer {
        link: LinkKey,
        token: u64,
    },
    Settle(Settle),
    /// How many deliveries the link may hold unsettled from now on.
    KeepCredit {
        link: LinkKey,
        credit: u32,
    },
    /// Use the credit up or give it back; answered when done.
    Drain {
        link: LinkKey,
        reply: Reply<()>,
    },
    Detach {
        link: LinkKey,
        reply: Option<Reply<()>>,
    },
    Suspect(Step),
    /// Dropped when the connection has ended.
    Close(oneshot::Sender<()>),
}

pub(crate) struct AttachRequest {
    pub(super) key: LinkKey,
    pub(super) attach: Attach,
    pub(super) address: Arc<str>,
    pub(super) inbound: Option<Inbound>,
    pub(super) own_session: bool,
    pub(super) credit: u32,
    pub(super) guard: Option<Guard>,
    /// Set before anyone who waits on the link is let go.
    pub(super) end: Arc<OnceLock<Error>>,
    pub(super) reply: Reply<Box<Attach>>,
}

/// Where deliveries go.
pub(crate) enum Inbound {
    /// Bounded by the link's credit.
    Messages(mpsc::UnboundedSender<Delivery>),
    /// Each to the request it answers.
    Answers(Arc<Answers>),
}

/// Asked by the driver right before it encodes a transfer: `false` holds it back.
pub(crate) type Guard = Arc<dyn Fn() -> bool + Send + Sync>;

/// What became of a delivery, under the token its sender gave it.
pub type Outcome = (u64, Result<(), Error>);

/// Who is told what became of a transfer.
pub(crate) enum Caller {
    One(Reply<()>),
    /// One channel for many transfers.
    Many(Promise),
}

/// Tells the outcome, and says so even when it is dropped with the connection that should have found it.
pub(crate) struct Promise {
    pub(crate) token: u64,
    pub(crate) outcomes: mpsc::UnboundedSender<Outcome>,
    pub(crate) host: Arc<str>,
    pub(crate) told: bool,
}

impl Promise {
    fn keep(&mut self, result: Result<(), Error>) {
        self.told = true;
        let _ = self.outcomes.send((self.token, result));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.told {
            let lost = Error::ConnectionLost { host: Arc::clone(&self.host), source: Lost::HungUp };
            self.keep(Err(lost));
        }
    }
}

impl Caller {
    pub(crate) fn tell(self, result: Result<(), Error>) {
        match self {
            Self::One(reply) => drop(reply.send(result)),
            Self::Many(mut promise) => promise.keep(result),
        }
    }

    /// Nobody wants to know any more.
    pub(crate) fn has_left(&self) -> bool {
        match self {
            Self::One(reply) => reply.is_closed(),
            Self::Many(promise) => promise.outcomes.is_closed(),
        }
    }
}

/// One delivery to be sent.
pub(crate) struct Transfer {
    pub(crate) link: LinkKey,
    /// Not used twice on one link.
    pub(crate) token: u64,
    pub(crate) payload: Bytes,
    pub(crate) message_format: u32,
    /// Given back when the peer has answered, even if the caller has left: the window counts what is under way.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) caller: Caller,
}

/// What becomes of deliveries.
pub(crate) struct Settle {
    pub(crate) link: LinkKey,
    pub(crate) deliveries: Vec<u32>,
    pub(crate) state: DeliveryState,
    /// Those that failed, with the peer's reason.
    pub(crate) reply: Reply<Vec<(u32, Refusal)>>,
}
