//! Events for the owner of a connection, and the ids of its AMQP sessions and links.

use bytes::Bytes;

use super::slab::SlabKey;
use crate::performative::{Attach, DeliveryState, Error, Open};

/// An AMQP session of one connection. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) SlabKey);

impl SessionId {
    /// A number that no other AMQP session of the connection ever has.
    pub fn number(self) -> u64 {
        self.0.number()
    }
}

/// A link of one connection. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(super) SlabKey);

/// An event for the owner. Events come in the order of the peer's frames.
#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionEvent {
    /// The peer's open has arrived; ours is sent too.
    Opened(Box<Open>),
    /// An AMQP session is ready: begun by the peer, or the peer has replied to our begin.
    SessionBegun { session: SessionId, by_peer: bool },
    /// An AMQP session has ended. Its links were reported as `Detached` before.
    SessionEnded { session: SessionId, error: Option<Box<Error>> },
    /// The peer requests a link. Reply with [`super::Connection::accept_attach`] or `refuse_attach`, at any later time.
    /// If the peer stops waiting, `Detached` is reported.
    AttachRequested { session: SessionId, link: LinkId, attach: Box<Attach> },
    /// The peer accepted our attach. A refusal is reported as `Detached` only.
    Attached { link: LinkId, attach: Box<Attach> },
    /// On a sending link: how many deliveries we may send now. With `drain`, send what is available, then call
    /// [`super::Connection::drained`], also if `credit` is 0.
    Credit { link: LinkId, credit: u32, drain: bool },
    /// On a receiving link: the peer has no more to send and returned the credit.
    Drained { link: LinkId },
    /// A complete delivery.
    Delivery(Delivery),
    /// A disposition from the peer for one link: about deliveries that we sent, or a reply about deliveries that we received.
    Disposition(DispositionEvent),
    /// The link is closed. This is its last event; it also confirms our own detach.
    Detached { link: LinkId, closed: bool, error: Option<Box<Error>> },
    /// The connection is closed; this is the last event. Write the output that [`super::Connection::take_output`] still returns, then close
    /// the socket. Links and AMQP sessions are not reported one by one. `by_peer` if the peer closed first.
    Closed { error: Option<Box<Error>>, by_peer: bool },
}

/// A delivery on a receiving link.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub link: LinkId,
    pub id: u32,
    pub tag: Bytes,
    pub message_format: u32,
    /// Settled by the sender: no disposition is expected.
    pub settled: bool,
    /// Set inside transactions.
    pub state: Option<DeliveryState>,
    /// The encoded message. A slice of the read buffer if it came in one frame, so copy it to keep it for long.
    pub payload: Bytes,
}

/// A disposition about unsettled deliveries of one link.
#[derive(Debug, Clone, PartialEq)]
pub struct DispositionEvent {
    pub link: LinkId,
    pub deliveries: Vec<DeliveryRef>,
    /// The peer has settled: nothing more is expected. Otherwise reply with
    /// [`super::Connection::dispose`], settled.
    pub settled: bool,
    pub state: Option<DeliveryState>,
}

/// A delivery named in a [`DispositionEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryRef {
    pub id: u32,
    /// The token given to [`super::Connection::transfer`]; 0 for deliveries that we received.
    pub token: u64,
}

/// Why a command failed. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("connection is closed")]
    Closed,
    #[error("AMQP session is gone")]
    SessionGone,
    #[error("link is gone")]
    LinkGone,
    #[error("link is not in a state for this")]
    WrongState,
    #[error("link is of the other role")]
    WrongRole,
    #[error("link has no credit")]
    NoCredit,
    #[error("delivery tag is longer than 32 bytes")]
    TagTooLong,
    #[error("message of {size} bytes exceeds the link's maximum of {max}")]
    MessageTooLarge { size: usize, max: u64 },
    #[error("peer takes no more AMQP sessions")]
    TooManySessions,
    #[error("peer takes no more links")]
    TooManyLinks,
}
