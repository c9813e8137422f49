//! Station 2 of 5: where to resume. Read before capture opens, written after publish is acknowledged.
//!
//! A new leader first *claims* the checkpoint with its term and gets it back in the same statement; from then on every
//! save of an older term is refused by the store, however late it arrives. Leans on nothing but the term: no clock, no
//! lease. Never starts over by itself: a document it cannot read, or of another source, or one that is gone, is an error
//! for an operator.

mod document;
mod error;
mod mongo;
mod pipeline_registry;
mod refusal;
mod store;

pub use error::Error;
pub use mongo::{COLLECTION, MongoCheckpointStore};
pub use pipeline_registry::PIPELINES;
pub use store::{Checkpoint, CheckpointPhase, CheckpointStore, Claim, SaveResult, SnapshotProgress};
