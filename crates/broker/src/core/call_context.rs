//! One call into the core: its inputs and the effects it causes.
//!
//! A call returns its result and pushes effects on other links to [`CallContext::effects`]. Both depend on what the
//! call appended: the engine sends them only after the journal is durable up to its position after the call.

use std::sync::Arc;

use super::error::Error;
use super::id::{CoreLinkId, LockToken, SequenceNumber, Timestamp};
use super::property_overrides::PropertyOverrides;
use crate::journal::{Journal, JournalLocation};

/// The inputs of every call: the current time, the journal, and the list that receives effects.
pub struct CallContext<'a> {
    pub now: Timestamp,
    pub journal: &'a mut dyn Journal,
    pub effects: &'a mut Vec<LinkEffect>,
}

/// An action the engine must perform for a link, in the given order.
#[derive(Debug, Clone)]
pub enum LinkEffect {
    /// Send a message to the receiver.
    Deliver { link: CoreLinkId, delivery: MessageDelivery },
    /// Reply to a drain: all credit is used up to `delivery_count`; `unused` of it had no message to deliver.
    Drained { link: CoreLinkId, delivery_count: u32, unused: u32 },
    /// Complete a waiting attach: it now holds a session.
    Attached { link: CoreLinkId, session: Arc<str>, locked_until: Timestamp },
    /// Refuse a waiting attach. The core no longer knows the link.
    Refused { link: CoreLinkId, error: Error },
    /// Close the link with this error. The core no longer knows the link.
    Detached { link: CoreLinkId, error: Error },
}

/// A message to be sent to a receiver.
#[derive(Debug, Clone)]
pub struct MessageDelivery {
    /// New for every delivery, also when `settled`: it is the AMQP delivery tag.
    pub token: LockToken,
    pub sequence: SequenceNumber,
    /// Failed deliveries before this one.
    pub delivery_count: u16,
    pub locked_until: Timestamp,
    /// Location of the body and its [`StoredEnvelope`](super::StoredEnvelope).
    pub location: JournalLocation,
    pub overrides: Option<Arc<PropertyOverrides>>,
    /// Receive-and-delete: the message is already removed from its queue. **The engine releases `location`** in the
    /// journal after it has read the body or closed the link.
    pub settled: bool,
}

impl MessageDelivery {
    /// Bytes it takes in the connection's output; the connection later reports them to
    /// [`Core::record_written`](super::Core::record_written).
    pub fn outgoing_size(&self) -> usize {
        /// Estimate for annotations and AMQP frames.
        const WRAPPING: usize = 512;
        self.location.len as usize + WRAPPING
    }
}
