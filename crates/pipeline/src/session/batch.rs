//! The messages of one session that are applied together, in order, and how each will be settled.

use servicebus::ReceivedMessage;

use super::known_places::{KnownPlaces, PlaceProblem};
use super::message::{MessageReader, UnreadableMessage};
use crate::signing::SignatureProblem;
use crate::view::{DeliveredEvent, EventBody};

#[derive(Default)]
pub(super) struct SessionBatch {
    pub(super) events: Vec<DeliveredEvent>,
    pub(super) messages: Vec<BatchMessage>,
}

pub(super) type BatchMessage = (ReceivedMessage, SettlementRule);

/// When and how a message is settled.
pub(super) enum SettlementRule {
    /// Completed or dead-lettered as the outcome of its event says.
    ByOutcome,
    /// Dead-lettered for inspection, once its event is resolved (parked).
    DeadLetterOnceResolved(String),
    /// Dead-lettered at once: it has no event.
    DeadLetter { reason: &'static str, description: String },
}

/// A message after parsing.
pub(super) enum ParsedMessage {
    Event(DeliveredEvent),
    /// The body is in the claim-check store and must be fetched.
    Oversize(DeliveredEvent),
    /// The envelope is readable, the body is not.
    UnreadableBody(DeliveredEvent),
    /// Not published by Headwater, or a broken envelope; with the reason.
    NotAnEvent(String),
    /// Not proven to come from a pod of this pipeline.
    Unverified(SignatureProblem),
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
            Err(UnreadableMessage::Signature(problem)) => Self::Unverified(problem),
            Err(UnreadableMessage::Body(event)) => Self::UnreadableBody(*event),
            Err(error @ (UnreadableMessage::NotHeadwater | UnreadableMessage::Property { .. })) => {
                Self::NotAnEvent(error.to_string())
            }
        }
    }

    /// The event, if the message has one.
    pub(super) const fn event(&self) -> Option<&DeliveredEvent> {
        match self {
            Self::Event(event) | Self::Oversize(event) | Self::UnreadableBody(event) => Some(event),
            Self::NotAnEvent(_) | Self::Unverified(_) | Self::NewerFormat { .. } => None,
        }
    }

    /// Turns a message that has no place in this pipeline into one without an event.
    pub(super) async fn check_place(self, places: &KnownPlaces) -> Result<Self, mongodb::error::Error> {
        let Some(event) = self.event() else { return Ok(self) };
        match places.problem_of(event) {
            None => Ok(self),
            Some(PlaceProblem::Epoch) if places.is_epoch_reached(event).await? => Ok(self),
            Some(problem) => Ok(Self::NotAnEvent(problem.to_string())),
        }
    }

    /// An oversize event is applied alone, as others would only make its transaction larger. A newer format or key is not applied at
    /// all and must not delay the messages before it.
    pub(super) const fn starts_new_batch(&self) -> bool {
        match self {
            Self::Oversize(_) | Self::NewerFormat { .. } => true,
            Self::Unverified(problem) => problem.is_fixed_elsewhere(),
            Self::Event(_) | Self::UnreadableBody(_) | Self::NotAnEvent(_) => false,
        }
    }
}
