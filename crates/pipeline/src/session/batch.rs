//! Messages of one session that go together, in order, and what is to become of each.

use servicebus::ReceivedMessage;

use super::message::{MessageReader, UnreadableMessage};
use crate::view::{DeliveredEvent, EventBody};

#[derive(Default)]
pub(super) struct SessionBatch {
    pub(super) events: Vec<DeliveredEvent>,
    pub(super) messages: Vec<(ReceivedMessage, SettlementRule)>,
}

/// What a message waits for.
pub(super) enum SettlementRule {
    /// Its event's outcome.
    ByOutcome,
    /// Its event's outcome, after which it is kept for people to look at.
    DeadLetterOnceResolved(String),
    /// Nothing.
    DeadLetter(String),
}

/// What a message is, before anything is done about it.
pub(super) enum ParsedMessage {
    Event(DeliveredEvent),
    /// Its body is kept apart, and must be fetched.
    Oversize(DeliveredEvent),
    /// Its body cannot be read.
    UnreadableBody(DeliveredEvent),
    /// It is none of ours, or its envelope is broken; why.
    NotAnEvent(String),
    NewerFormat {
        format: i64,
    },
}

impl SessionBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn add(&mut self, message: ReceivedMessage, event: Option<DeliveredEvent>, rule: SettlementRule) {
        self.events.extend(event);
        self.messages.push((message, rule));
    }
}

impl ParsedMessage {
    pub(super) fn parse(message: &ReceivedMessage, reader: &mut MessageReader) -> Self {
        match reader.read(message.raw(), message.delivery_count()) {
            Ok(event) if matches!(event.body, EventBody::Oversize(_)) => Self::Oversize(event),
            Ok(event) => Self::Event(event),
            Err(UnreadableMessage::NewerFormat { format }) => Self::NewerFormat { format },
            Err(UnreadableMessage::Body(event)) => Self::UnreadableBody(*event),
            Err(error @ (UnreadableMessage::NotHeadwater | UnreadableMessage::Property { .. })) => {
                Self::NotAnEvent(error.to_string())
            }
        }
    }

    /// A large one goes alone: what goes with it would only make it larger. One of a newer version does not go at all, and must not keep
    /// those before it.
    pub(super) const fn starts_new_batch(&self) -> bool {
        match self {
            Self::Oversize(_) | Self::NewerFormat { .. } => true,
            Self::Event(_) | Self::UnreadableBody(_) | Self::NotAnEvent(_) => false,
        }
    }
}
