//! The event of a dead letter that an operator wants to park.

use servicebus::ReceivedMessage;

use super::batch::ParsedMessage;
use super::known_places::KnownPlaces;
use super::message::{MessageReader, fetch_oversize_body};
use crate::stored::{ClaimCheckStore, claim_check};
use crate::view::DeliveredEvent;

/// Why a dead letter cannot be parked. Contains nothing of the message contents.
#[derive(Debug, thiserror::Error)]
pub enum UnusableDeadLetter {
    #[error("it is no event of this pipeline: {0}")]
    NotAnEvent(String),
    #[error("it has message format {0}, which needs a newer version")]
    NewerFormat(i64),
    #[error("failed to read its body")]
    Body(#[source] claim_check::Error),
    #[error("failed to read the checkpoint")]
    Checkpoint(#[source] mongo_error::DriverError),
}

/// Does not verify a signature: the operator answers for the message. The event is parked when it is applied, and never applied at once.
pub async fn read_dead_letter(
    message: &ReceivedMessage,
    places: &KnownPlaces,
    oversize: &ClaimCheckStore,
) -> Result<DeliveredEvent, UnusableDeadLetter> {
    let parsed = ParsedMessage::parse(message, &mut MessageReader::default());
    let parsed = parsed.check_place(places).await.map_err(|error| UnusableDeadLetter::Checkpoint(error.into()))?;
    let event = match parsed {
        ParsedMessage::Event(event) | ParsedMessage::UnreadableBody(event) => event,
        ParsedMessage::Oversize(mut event) => {
            fetch_oversize_body(oversize, message.raw(), &mut event).await.map_err(UnusableDeadLetter::Body)?;
            event
        }
        ParsedMessage::NotAnEvent(reason) => return Err(UnusableDeadLetter::NotAnEvent(reason)),
        ParsedMessage::Unverified(problem) => return Err(UnusableDeadLetter::NotAnEvent(problem.to_string())),
        ParsedMessage::NewerFormat { format } => return Err(UnusableDeadLetter::NewerFormat(format)),
    };
    Ok(DeliveredEvent { dead_lettered: true, ..event })
}
