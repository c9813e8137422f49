//! What the rest of the crate asks of the driver.

use std::sync::{Arc, OnceLock};

use amqp::{Attach, Delivery, DeliveryState};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::error::{Error, Refusal, Step};
use crate::request::Answers;

/// How callers name a link, from before it is attached. Never used twice on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkKey(pub(super) u64);

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(crate) enum Command {
    Attach(Box<AttachRequest>),
    Transfer(Transfer),
    /// A transfer's caller has waited long enough. If it is on its way, the connection is not to be trusted.
    OverdueTransfer {
        link: LinkKey,
        token: u64,
    },
    Settle(Settle),
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

/// One delivery to be sent.
pub(crate) struct Transfer {
    pub(crate) link: LinkKey,
    /// Not used twice on one link.
    pub(crate) token: u64,
    pub(crate) payload: Bytes,
    pub(crate) message_format: u32,
    /// Given back when the peer has answered, even if the caller has left: the window counts what is under way.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) reply: Reply<()>,
}

/// What becomes of deliveries.
pub(crate) struct Settle {
    pub(crate) link: LinkKey,
    pub(crate) deliveries: Vec<u32>,
    pub(crate) state: DeliveryState,
    /// Those that failed, with the peer's reason.
    pub(crate) reply: Reply<Vec<(u32, Refusal)>>,
}
