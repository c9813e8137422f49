//! Station 2 of 5: the resume position. Read before capture starts, written after publish is acknowledged.
//!
//! A new leader *claims* the checkpoint with its term and reads it in the same statement. From then on the store refuses every save of an older
//! term, however late it arrives. Depends only on the term: on no clock and no lease. Never starts over on its own: a document that it cannot
//! read, that belongs to another source, or that is missing is an error for the operator.

mod document;
mod error;
mod known_pipelines;
mod mongo;
mod refusal;
mod store;

pub use error::Error;
pub use known_pipelines::PIPELINES;
pub use mongo::{COLLECTION, MongoCheckpointStore};
pub use store::{
    Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, PipelineIdentity, ReplayCounter, SaveResult,
    SnapshotProgress,
};
