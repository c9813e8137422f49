//! Read models written in Rust, for programs built on this library. A declared model ([`super::ReadModel`]) is one of them.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mongodb::bson::{Document, RawDocument};
use serde::de::DeserializeOwned;

use super::delivered_event::DeliveredEvent;
use super::read_model::ReadModel;
pub use super::statement::{Statements, UnwritableValue};
use super::upcast::Upcast;
use super::value_position::UnusableValue;

/// Turns events into read-model changes.
///
/// Called once for each event that is next in its aggregate, and again if the transaction is retried: its writes take effect exactly once,
/// other side effects (a mail, a log line) at least once. It cannot read the database: express what depends on earlier state in the update,
/// as an operator or a pipeline.
pub trait Projection: Send + Sync + 'static {
    /// Identifies the model; aggregates are parked under this name.
    fn name(&self) -> &str;

    /// The collections it writes to; created at start. By default one with the model's name.
    fn collections(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// Indexes; created at start.
    fn indexes(&self) -> Vec<Index> {
        vec![]
    }

    /// Whether the event concerns this model. Called without the body, which may be missing.
    fn handles(&self, _event: &DeliveredEvent) -> bool {
        true
    }

    /// A declared model, which a build may fold without the server.
    #[doc(hidden)]
    fn as_read_model(&self) -> Option<&ReadModel> {
        None
    }

    /// The stages that bring an old event into its present form, if there are any for its type: [`apply`](Self::apply) gets the result.
    fn upcast(&self, _event: &DeliveredEvent) -> Option<&Arc<Upcast>> {
        None
    }

    /// Adds the changes of the event. An error parks the aggregate in this model.
    fn apply(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError>;
}

/// Runs the projection; an error makes the event poison. A projection is user code: its panic counts as an error and does not affect other
/// transactions.
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

    /// The event as stored in the source, after its upcast.
    pub fn document(&self) -> &'a RawDocument {
        self.document
    }

    /// Deserializes the event.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ProjectionError> {
        // The decoder's message may quote a value.
        mongodb::bson::deserialize_from_slice(self.document.as_bytes())
            .map_err(|_| ProjectionError::new("the event does not match the type it is read as"))
    }
}

impl Deref for ProjectionEvent<'_> {
    type Target = DeliveredEvent;

    fn deref(&self) -> &DeliveredEvent {
        self.delivered
    }
}

/// Why an event cannot be applied. Stored with the parked event and shown to operators: name the problem, quote no values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProjectionError(String);

impl ProjectionError {
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<UnusableValue> for ProjectionError {
    fn from(error: UnusableValue) -> Self {
        Self(error.to_string())
    }
}

impl From<UnwritableValue> for ProjectionError {
    fn from(error: UnwritableValue) -> Self {
        Self(error.to_string())
    }
}

/// An index of a read model: keys, and options as in `createIndexes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    pub collection: String,
    pub keys: Document,
    pub options: Document,
}

impl Index {
    pub fn is_unique(&self) -> bool {
        self.options.get_bool("unique").unwrap_or(false)
    }
}
