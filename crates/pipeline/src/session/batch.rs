//! Messages of one session that go together, in order, and what is to become of each.

use servicebus::ReceivedMessage;

use super::message::{Reader, Unreadable};
use crate::view::{Body, Delivered};

#[derive(Default)]
pub(super) struct Batch {
    pub(super) events: Vec<Delivered>,
    pub(super) messages: Vec<(ReceivedMessage, Fate)>,
}

/// What a message waits for.
pub(super) enum Fate {
    /// Its event's outcome.
    Event,
    /// Its event's outcome, after which it is kept for people to look at.
    Mangled(String),
    /// Nothing.
    NotAnEvent(String),
}

/// What a message is, before anything is done about it.
pub(super) enum Sorted {
    Event(Delivered),
    /// Its body is kept apart, and must be fetched.
    Large(Delivered),
    /// Its body cannot be read.
    Mangled(Delivered),
    /// It is none of ours, or its envelope is broken; why.
    NotAnEvent(String),
    Newer {
        format: i64,
    },
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn add(&mut self, message: ReceivedMessage, event: Option<Delivered>, fate: Fate) {
        self.events.extend(event);
        self.messages.push((message, fate));
    }
}

impl Sorted {
    pub(super) fn of(message: &ReceivedMessage, reader: &mut Reader) -> Self {
        match reader.read(message.raw(), message.delivery_count()) {
            Ok(event) if matches!(event.body, Body::Oversize(_)) => Self::Large(event),
            Ok(event) => Self::Event(event),
            Err(Unreadable::Newer { format }) => Self::Newer { format },
            Err(Unreadable::Body(event)) => Self::Mangled(*event),
            Err(error @ (Unreadable::NotOurs | Unreadable::Property { .. })) => Self::NotAnEvent(error.to_string()),
        }
    }

    /// A large one goes alone: what goes with it would only make it larger. One of a newer version does not go at all, and must not keep
    /// those before it.
    pub(super) const fn begins_a_batch(&self) -> bool {
        match self {
            Self::Large(_) | Self::Newer { .. } => true,
            Self::Event(_) | Self::Mangled(_) | Self::NotAnEvent(_) => false,
        }
    }
}
