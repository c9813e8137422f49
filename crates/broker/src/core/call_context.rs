//! One call into the core: what it is given, and what it asks of the shell.
//!
//! The answer of a call is its return value; what it causes elsewhere is pushed to [`CallContext::effects`]. Both depend on what
//! the call appended: the shell may let them out only when the journal is durable up to its position after the call.

use std::sync::Arc;

use super::error::Error;
use super::id::{CoreLinkId, LockToken, SequenceNumber, Timestamp};
use super::message_overrides::MessageOverrides;
use crate::journal::{Journal, Location};

/// What every call needs: the moment, the memory, and where to put what it causes.
pub struct CallContext<'a> {
    pub now: Timestamp,
    pub journal: &'a mut dyn Journal,
    pub effects: &'a mut Vec<Effect>,
}

/// Something the shell must do for a link, in the order given.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Send a message.
    Deliver { link: CoreLinkId, delivery: MessageDelivery },
    /// Answer a drain: credit is used up, `delivery_count` says how far. `unused` of it found nothing to deliver.
    Drained { link: CoreLinkId, delivery_count: u32, unused: u32 },
    /// Answer an attach that waited: it has a session now.
    Attached { link: CoreLinkId, session: Arc<str>, locked_until: Timestamp },
    /// Refuse an attach that waited. The link is unknown here from now on.
    Refused { link: CoreLinkId, error: Error },
    /// Close a link with this error. The link is unknown here from now on.
    Detached { link: CoreLinkId, error: Error },
}

/// A message on its way to a receiver.
#[derive(Debug, Clone)]
pub struct MessageDelivery {
    /// Fresh for this delivery, also when `settled`: it is the delivery tag.
    pub token: LockToken,
    pub sequence: SequenceNumber,
    /// Failed deliveries before this one.
    pub delivery_count: u16,
    pub locked_until: Timestamp,
    /// Where body and [`StoredEnvelope`](super::StoredEnvelope) lie.
    pub location: Location,
    pub overrides: Option<Arc<MessageOverrides>>,
    /// Receive-and-delete: the message is gone from its queue, and **the shell releases `location`** in the journal once
    /// it has read the body, or given up on the link.
    pub settled: bool,
}

impl MessageDelivery {
    /// What it takes on its way to the peer, in bytes; what [`Core::written`](super::Core::written) is told of it.
    pub fn outgoing_size(&self) -> usize {
        /// Its record, annotations and frames, about.
        const WRAPPING: usize = 512;
        self.location.len as usize + WRAPPING
    }
}
