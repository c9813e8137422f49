//! Station 5 of 5: messages become read models.
//!
//! `session` submits its batches through a [`SessionApplier`]; the [`Applier`] applies the events of all sessions in transactions. One
//! transaction reads the cursors of its aggregates, decides for each event whether it is next, and writes the read models and the cursors
//! together: that makes the effect exactly once. (For the first event of an aggregate no cursor is read; its insert fails if there is one.)
//! Exactly-once depends on nothing else: not on the session lock, not on duplicate detection, not on the leader.
//!
//! Never settles a message. Only [`SourceEventReader`] reads the source, and only if events are missing or in doubt; and [`SourceDocuments`] for a
//! replay.
//!
//! Reading order:
//! 1. What is applied: [`DeliveredEvent`] (the event), [`cursor`](decide) (next, duplicate, gap or regressed), `plan` (what a transaction
//!    writes), `transaction` (one transaction).
//! 2. Who is applied with whom: [`applier`](Applier), then `contention` (groups, retries, splits), whose `mod.rs` lists its layers.
//! 3. What the models write: [`projection`](Projection), `read_model` with `template`, `event_path`, `update_operators` and `value_position`
//!    (event values stay data), `statement`, `commands`; and `model_set`, the models of a generation.
//!    A build folds many events of an aggregate into one document: `memory_fold`, with `memory_update`.
//! 4. What cannot be applied: `parked`, `source_documents` for its replay, and `source_event_reader` for gaps; `discarded` for builds.
//! 5. What the documents should be: `fold` evaluates a model elsewhere, `snapshot_reader` reads documents with their cursors, `repair` replaces one; `applied`
//!    waits for an event.
//! 6. Stored documents: `cursor_document`, `epoch_floor`, `bson_writer`, `identity`; and `prepare` and `model_validation` before the first event.

mod applied;
mod applier;
mod applier_config;
mod bson_writer;
mod build_applier;
mod commands;
mod contention;
mod counters;
mod cursor;
mod cursor_document;
mod cursor_reader;
mod delivered_event;
mod discarded;
mod epoch_floor;
mod error;
mod event_path;
mod fold;
mod memory_fold;
mod memory_update;
mod model_set;
mod model_validation;
mod observer;
mod parked;
mod paused_models;
mod plan;
mod prepare;
mod projection;
mod read_model;
mod repair;
mod snapshot_reader;
mod source_documents;
mod source_event;
mod source_event_reader;
mod statement;
mod template;
mod transaction;
mod typed_index;
mod upcast;
mod update_operators;
mod value_position;

use crate::stored::identity;

pub use crate::stored::Identity;
pub use crate::stored::cursors::{CURSORS, DELETED_FIELD, application_name};
pub use applied::{AppliedReader, AppliedState, ModelProgress, UnavailableModels};
pub use applier::{Applier, ApplierSetup, Handle};
pub use applier_config::{Config, OnPoison};
pub use build_applier::{BuildApplier, BuildApplierSetup, BuiltEvents};
pub(crate) use contention::without_orphans;
pub use contention::{AppliedBatch, Arrivals, BatchEnd, SessionApplier};
pub use counters::{ApplyCounts, ReadModelCounts};
pub use cursor::{
    Cursor, CursorDecision, EventFacts, OrderingMode, PipelineStart, SourceEvidence, SourceQuestion, decide,
    is_version_of,
};
pub use cursor_reader::CursorReader;
pub use delivered_event::{DeliveredEvent, EventBody, PositionKey};
pub use discarded::DiscardedEvents;
pub use error::Error;
pub use fold::{Fold, FoldError, FoldScratch, RefusedEvent};
pub use model_set::{AppliedModel, FIRST_GENERATION, ModelSet, ModelSetMode};
pub use model_validation::validate;
pub use observer::{ApplyObserver, ApplyTimestamps};
pub use parked::{DiscardScope, ParkReason, ParkedAggregate, ParkedEntry, ParkedStore, PausedPage};
pub use plan::ApplyOutcome;
pub use prepare::prepare;
pub(crate) use prepare::{BUILD_PREFIX, create_index, prepare_build};
pub use projection::{Index, Projection, ProjectionError, ProjectionEvent, Statements, UnwritableValue};
pub use read_model::{ModelProblem, ReadModel, ReadModelDeclaration};
pub use repair::{DocumentRepair, RepairOutcome};
pub use snapshot_reader::{AggregateSnapshot, ModelCopy, SnapshotReader};
pub use source_documents::SourceDocuments;
pub use source_event::InvalidSourceEvent;
pub use source_event_reader::{EventPlace, SourceEventReader};
pub use upcast::{Upcast, UpcastDeclaration, upcast_documents};

/// The collection of parked events, in the read-model database.
pub const PARKED_EVENTS: &str = "parked_events";
