//! Station 5 of 5: messages become read models.
//!
//! `session` hands over what it received, through a [`SessionApplier`]; the [`Applier`] gathers the events of all sessions into transactions. One
//! transaction reads the cursors of its aggregates, decides for each event whether it is next, and writes the read models and the
//! cursors together: that is what makes the effect exactly once. (Of an aggregate's first event no cursor is read; its insert is refused
//! if there is one.) Leans on nothing else for that: not on the session's lock, not on
//! the bus's duplicate detection, not on who leads.
//!
//! Never settles a message, and never waits for one. Only [`SourceHistory`] reads the source, and only where events are missing or in doubt.

mod applier;
mod blocked_aggregates;
mod bson_writer;
mod commands;
mod config;
mod counters;
mod cursor;
mod cursor_document;
mod delivered_event;
mod epoch_floor;
mod error;
mod event_path;
mod group;
mod model_check;
mod observer;
mod orphaned_transactions;
mod parked;
mod plan;
mod prepare;
mod projection;
mod queue;
mod read_model;
mod session_applier;
mod source_history;
mod statement;
mod template;
mod transaction;

use crate::stored::identity;

pub use crate::stored::Identity;
pub use crate::stored::cursors::{CURSORS, GONE, application_name};
pub use applier::{Applier, ApplierSetup, Handle};
pub use config::{Config, OnPoison};
pub use counters::{ApplyCounts, ReadModelCounts};
pub use cursor::{
    Cursor, CursorDecision, EventFacts, OrderingMode, PipelineStart, SourceEvidence, SourceQuestion, decide,
};
pub use delivered_event::{DeliveredEvent, EventBody, PositionKey};
pub use error::Error;
pub use model_check::validate;
pub use observer::{ApplyObserver, ApplyTimings};
pub use parked::{DiscardScope, ParkReason, ParkedAggregate, ParkedEntry, ParkedStore};
pub use plan::ApplyOutcome;
pub use prepare::prepare;
pub use projection::{Index, Projection, ProjectionError, ProjectionEvent, Statements, UnwritableValue};
pub use read_model::{ModelProblem, ReadModel, ReadModelDeclaration};
pub use session_applier::{AppliedBatch, BatchEnd, SessionApplier};
pub use source_history::SourceHistory;

/// Events that wait, beside them.
pub const PARKED_EVENTS: &str = "parked_events";
