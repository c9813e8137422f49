//! What the core has to say to a connection.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::Answer;
use crate::core::{Delivery, Effect, Error, LinkId, Outcome, Timestamp};
use crate::journal::{Journal, Stored};

pub(crate) enum Reply {
    Sent {
        link: amqp::LinkId,
        delivery: u32,
        result: Result<(), Error>,
    },
    /// Deliveries, and whether each failed with `error`.
    Settled {
        link: amqp::LinkId,
        deliveries: Vec<(u32, bool)>,
        outcome: Outcome,
        error: Option<Error>,
    },
    Deliver {
        link: LinkId,
        delivery: Delivery,
        stored: Result<Stored, Error>,
    },
    Drained {
        link: LinkId,
    },
    Attached {
        link: LinkId,
        session: Arc<str>,
        locked_until: Timestamp,
    },
    Refused {
        link: LinkId,
        error: Error,
    },
    Detached {
        link: LinkId,
        error: Error,
    },
    /// The answer to a call.
    Answer(Box<Answer>),
    /// Close the socket without a word: a fault for tests, as are the rest.
    HangUp,
    ForceDetach {
        link: amqp::LinkId,
    },
    ForceDetachReceiver {
        link: LinkId,
    },
    Later {
        by: Duration,
        reply: Box<Reply>,
    },
}

impl Reply {
    /// Reads the body of a delivery now, while its place is certain.
    pub(super) fn from_effect(effect: Effect, journal: &mut dyn Journal) -> Self {
        match effect {
            Effect::Deliver { link, delivery } => {
                let stored = journal.read(delivery.location).map_err(Error::from);
                if delivery.settled {
                    journal.release(delivery.location);
                }
                Self::Deliver { link, delivery, stored }
            }
            Effect::Drained { link, .. } => Self::Drained { link },
            Effect::Attached { link, session, locked_until } => Self::Attached { link, session, locked_until },
            Effect::Refused { link, error } => Self::Refused { link, error },
            Effect::Detached { link, error } => Self::Detached { link, error },
        }
    }
}

pub(super) fn link_of(effect: &Effect) -> LinkId {
    match effect {
        Effect::Deliver { link, .. }
        | Effect::Drained { link, .. }
        | Effect::Attached { link, .. }
        | Effect::Refused { link, .. }
        | Effect::Detached { link, .. } => *link,
    }
}
