//! Replies from the engine to a connection.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::CallReply;
use crate::core::{CoreLinkId, Error, LinkEffect, MessageDelivery, SettlementOutcome, Timestamp};
use crate::journal::{Journal, ReadJournalEntry};

pub(crate) enum EngineReply {
    Sent {
        link: amqp::LinkId,
        delivery: u32,
        result: Result<(), Error>,
    },
    /// Delivery ids, each with whether it failed with `error`.
    Settled {
        link: amqp::LinkId,
        deliveries: Vec<(u32, bool)>,
        outcome: SettlementOutcome,
        error: Option<Error>,
    },
    Deliver {
        link: CoreLinkId,
        delivery: MessageDelivery,
        stored: Result<ReadJournalEntry, Error>,
    },
    /// All credit is used up to `delivery_count`; `unused` of it had no message.
    Drained {
        link: CoreLinkId,
        delivery_count: u32,
        unused: u32,
    },
    Attached {
        link: CoreLinkId,
        session: Arc<str>,
        locked_until: Timestamp,
    },
    Refused {
        link: CoreLinkId,
        error: Error,
    },
    Detached {
        link: CoreLinkId,
        error: Error,
    },
    /// The response to a call.
    Call(Box<CallReply>),
    /// Close the socket without a close frame. This and the remaining variants are fault injection for tests.
    DropConnection,
    ForceDetach {
        link: amqp::LinkId,
        error: Box<amqp::Error>,
    },
    ForceDetachReceiver {
        link: CoreLinkId,
        error: Box<amqp::Error>,
    },
    CloseConnection {
        error: Box<amqp::Error>,
    },
    Delayed {
        by: Duration,
        reply: Box<EngineReply>,
    },
}

impl EngineReply {
    /// Whether it only confirms an attach, which is valid as long as the process lives.
    pub(super) fn is_attach_success(&self) -> bool {
        matches!(self, Self::Call(result) if matches!(**result, CallReply::Receiver { result: Ok(_), .. } | CallReply::Sender { result: Ok(_), .. } | CallReply::Node { result: Ok(()), .. }))
    }

    /// Whether it concerns a link that the core knows. Such replies keep their order: attached, deliveries, detached.
    pub(super) fn concerns_link(&self) -> bool {
        match self {
            Self::Sent { .. } | Self::Settled { .. } => false,
            Self::Call(result) => {
                matches!(**result, CallReply::Receiver { .. } | CallReply::Sender { .. } | CallReply::Node { .. })
            }
            _ => true,
        }
    }

    /// Reads the body of a delivery now: a later compaction may move it.
    pub(super) fn from_effect(effect: LinkEffect, journal: &mut dyn Journal) -> Self {
        match effect {
            LinkEffect::Deliver { link, delivery } => {
                let stored = journal.read(delivery.location).map_err(Error::from);
                // Receive-and-delete: the reference passed to the delivery when the message left its queue.
                if delivery.settled {
                    journal.release(delivery.location);
                }
                Self::Deliver { link, delivery, stored }
            }
            LinkEffect::Drained { link, delivery_count, unused } => Self::Drained { link, delivery_count, unused },
            LinkEffect::Attached { link, session, locked_until } => Self::Attached { link, session, locked_until },
            LinkEffect::Refused { link, error } => Self::Refused { link, error },
            LinkEffect::Detached { link, error } => Self::Detached { link, error },
        }
    }
}

/// Whether an effect of a call that appended nothing can be sent at once: a crash cannot contradict it.
pub(super) fn is_crash_safe(effect: &LinkEffect, journal: &dyn Journal) -> bool {
    match effect {
        LinkEffect::Deliver { delivery, .. } => !delivery.settled && journal.is_durable(delivery.location),
        LinkEffect::Attached { .. } | LinkEffect::Drained { .. } => true,
        LinkEffect::Refused { .. } | LinkEffect::Detached { .. } => false,
    }
}

pub(super) fn link_of(effect: &LinkEffect) -> CoreLinkId {
    match effect {
        LinkEffect::Deliver { link, .. }
        | LinkEffect::Drained { link, .. }
        | LinkEffect::Attached { link, .. }
        | LinkEffect::Refused { link, .. }
        | LinkEffect::Detached { link, .. } => *link,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{LockToken, SequenceNumber};
    use crate::journal::{JournalEntry, JournalLocation};
    use crate::store::{LogStore, StoreFolder, StoreOptions};

    fn deliver(location: JournalLocation, settled: bool) -> LinkEffect {
        let delivery = MessageDelivery {
            token: LockToken(1),
            sequence: SequenceNumber(1),
            delivery_count: 0,
            locked_until: Timestamp(1),
            location,
            overrides: None,
            settled,
        };
        LinkEffect::Deliver { link: CoreLinkId(1), delivery }
    }

    #[test]
    fn a_delivery_is_crash_safe_once_the_message_is_durable() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(StoreFolder::new(folder.path()).unwrap());
        let recovery = LogStore::open(disk, StoreOptions { manual_io: true, ..StoreOptions::default() }).unwrap();
        let mut store = recovery.replay(|_, _| Ok::<_, Error>(())).unwrap().finish(|_| {}).unwrap();
        let mut locations = Vec::new();
        store.append(&[JournalEntry { meta: b"meta", body: Some(b"body"), references: 1 }], &mut locations).unwrap();
        assert!(!is_crash_safe(&deliver(locations[0], false), &store), "still in memory");
        store.run_pending_io();
        assert!(is_crash_safe(&deliver(locations[0], false), &store));
        assert!(
            !is_crash_safe(&deliver(locations[0], true), &store),
            "receiving it deleted it, which is to be noted first"
        );
    }
}
