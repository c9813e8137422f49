//! What a connection tells its owner, and how the owner names things.

use bytes::Bytes;

use super::slab::SlabKey;
use crate::performative::{Attach, DeliveryState, Error, Open};

/// One AMQP session of one connection. Never reused for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) SlabKey);

/// One link of one connection. Never reused for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(super) SlabKey);

/// Something the owner has to know. Events come in the order in which the peer's frames did.
#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionEvent {
    /// The peer's open has arrived; ours is on its way too.
    Opened(Box<Open>),
    /// An AMQP session is ready: begun by the peer, or our begin was answered.
    SessionBegun { session: SessionId, by_peer: bool },
    /// An AMQP session is over. Its links have been reported `Detached` before.
    SessionEnded { session: SessionId, error: Option<Box<Error>> },
    /// The peer wants a link. Answer with [`super::Connection::accept_attach`] or `refuse_attach`, now or much later.
    /// If the peer gives up meanwhile, `Detached` says so.
    AttachRequested { session: SessionId, link: LinkId, attach: Box<Attach> },
    /// Our attach was agreed to. A refusal comes as `Detached` alone.
    Attached { link: LinkId, attach: Box<Attach> },
    /// On a link we send on: how many deliveries we may send now. With `drain`, send what there is, then call
    /// [`super::Connection::drained`].
    Credit { link: LinkId, credit: u32, drain: bool },
    /// On a link we receive on: the peer has no more to send and gave the credit back.
    Drained { link: LinkId },
    /// A complete delivery.
    Delivery(Delivery),
    /// The peer spoke about deliveries of one link: those we sent, or (its answer) those we received.
    Disposition(DispositionEvent),
    /// The link is over. Final for this link; a detach of ours is confirmed by it too.
    Detached { link: LinkId, closed: bool, error: Option<Box<Error>> },
    /// The connection is over and nothing follows. Write what [`super::Connection::take_output`] still gives, then hang
    /// up. Links and AMQP sessions are not reported one by one. `by_peer` if the peer closed first.
    Closed { error: Option<Box<Error>>, by_peer: bool },
}

/// A delivery on a link we receive on.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub link: LinkId,
    pub id: u32,
    pub tag: Bytes,
    pub message_format: u32,
    /// Settled by the sender: expects no disposition.
    pub settled: bool,
    /// Set inside transactions.
    pub state: Option<DeliveryState>,
    /// The encoded message. A slice of the read buffer when it came in one frame: copy what is kept for long.
    pub payload: Bytes,
}

/// What a disposition says about deliveries of one link that are unsettled here.
#[derive(Debug, Clone, PartialEq)]
pub struct DispositionEvent {
    pub link: LinkId,
    pub deliveries: Vec<DeliveryRef>,
    /// The peer has settled: nothing more is expected for these. Otherwise answer with
    /// [`super::Connection::dispose`], settled.
    pub settled: bool,
    pub state: Option<DeliveryState>,
}

/// A delivery named in a [`DispositionEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryRef {
    pub id: u32,
    /// What the sender's owner gave [`super::Connection::transfer`]; 0 for deliveries we received.
    pub token: u64,
}

/// Why a command was not carried out. Nothing was sent.
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
