//! Read models written in Rust, for programs built on the library. A declared model ([`super::Model`]) is one of them.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mongodb::bson::{Document, RawDocument};
use serde::de::DeserializeOwned;

use super::delivered_event::DeliveredEvent;
pub use super::statement::{Statements, UnwritableValue};

/// Turns events into changes of read models.
///
/// Called once for each event that is next in its aggregate, and again when its transaction is: what it writes down takes effect exactly
/// once, what it does besides (a mail, a log) at least once. It cannot read the database: what it needs to know of the past
/// belongs in the update, as an operator or a pipeline.
pub trait Projection: Send + Sync + 'static {
    /// Under this name an aggregate is parked when an event cannot be applied.
    fn name(&self) -> &str;

    /// What it writes to; made at start. By default one collection of its own name.
    fn collections(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// Indexes, by collection; made at start.
    fn indexes(&self) -> Vec<Index> {
        vec![]
    }

    /// Whether this event means anything to it. Asked without the event's body, which may not be there.
    fn handles(&self, _event: &DeliveredEvent) -> bool {
        true
    }

    /// Writes down what the event changes. An error parks the aggregate in this model, with the event.
    fn apply(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError>;
}

/// What the model makes of an event; an error is why it is poison. A projection is somebody's code: its panic is its refusal, not the end
/// of everybody's transactions.
pub(super) fn project(model: &dyn Projection, event: &ProjectionEvent<'_>) -> Result<Statements, String> {
    let mut statements = Statements::default();
    let applied = catch_unwind(AssertUnwindSafe(|| model.apply(event, &mut statements)));
    applied.map_err(|_| "the projection panicked".to_owned())?.map_err(|refused| refused.to_string())?;
    Ok(statements)
}

/// An event with its body.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionEvent<'a> {
    pub(super) delivered: &'a DeliveredEvent,
    pub(super) document: &'a RawDocument,
}

impl<'a> ProjectionEvent<'a> {
    pub fn new(delivered: &'a DeliveredEvent, document: &'a RawDocument) -> Self {
        Self { delivered, document }
    }

    /// The event as the source holds it.
    pub fn document(&self) -> &'a RawDocument {
        self.document
    }

    /// The event as a type of yours.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ProjectionError> {
        // The decoder's own words may quote a value.
        mongodb::bson::deserialize_from_slice(self.document.as_bytes())
            .map_err(|_| ProjectionError::new("the event does not have the shape it is read as"))
    }
}

impl Deref for ProjectionEvent<'_> {
    type Target = DeliveredEvent;

    fn deref(&self) -> &DeliveredEvent {
        self.delivered
    }
}

/// Why an event cannot be applied. Kept with the parked event and shown to operators: say what is wrong, and quote nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProjectionError(String);

impl ProjectionError {
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<UnwritableValue> for ProjectionError {
    fn from(error: UnwritableValue) -> Self {
        Self(error.to_string())
    }
}

/// An index of a read model: the keys, and the options as `createIndexes` has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    pub collection: String,
    pub keys: Document,
    pub options: Document,
}
