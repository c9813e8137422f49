//! The checkpoint, and the store interface that publisher tests replace.

use lease::{CandidateId, Leadership};
use mongodb::bson::{Bson, DateTime, Timestamp};

use super::error::Error;
use crate::event::{Epoch, ResumeToken, Term};

/// Stores the checkpoint of one pipeline. `Ok` means that a majority has acknowledged the call. After an error the call may still have been
/// applied, and the caller may repeat it unchanged.
pub trait CheckpointStore: Send + Sync {
    /// Excludes all lower terms for good and returns the checkpoint. Refuses a term that another process has claimed, and any lower term: see
    /// [`Error::TermBehind`]. Creates the checkpoint of a new pipeline; a deleted one is [`Error::Missing`].
    fn claim(&self, claim: &CheckpointClaim) -> impl Future<Output = Result<Checkpoint, Error>> + Send;

    /// Moves the checkpoint of the claimed term. It never moves back within an epoch. Returns [`SaveResult::AlreadyAhead`] only if a majority
    /// has it ahead of `phase`.
    fn save(
        &self,
        claim: &CheckpointClaim,
        epoch: Epoch,
        phase: &CheckpointPhase,
        cluster_time: Option<Timestamp>,
    ) -> impl Future<Output = Result<SaveResult, Error>> + Send;

    /// Ends epoch `ended` and starts the next one at `phase`, which may lie anywhere.
    fn begin_epoch(
        &self,
        claim: &CheckpointClaim,
        ended: Epoch,
        phase: &CheckpointPhase,
    ) -> impl Future<Output = Result<Epoch, Error>> + Send;

    /// The stored checkpoint; `None` if there is none.
    fn load(&self) -> impl Future<Output = Result<Option<Checkpoint>, Error>> + Send;
}

/// The owner of a claim and its term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointClaim {
    pub term: Term,
    /// Distinguishes two processes with the same term, which happens after the lease document is deleted.
    pub claimant: CandidateId,
    /// Shown to operators.
    pub pod_id: String,
}

impl CheckpointClaim {
    pub fn from_leadership(leadership: &Leadership, pod_id: impl Into<String>) -> Self {
        Self { term: leadership.term(), claimant: leadership.candidate_id(), pod_id: pod_id.into() }
    }
}

/// The stored checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The highest term that ever claimed it.
    pub term: Term,
    pub epoch: Epoch,
    pub phase: CheckpointPhase,
    /// Cluster time of the last event before the checkpoint.
    pub cluster_time: Option<Timestamp>,
    /// By the clock of the server; for display only.
    pub saved_at: Option<DateTime>,
    pub saved_by: String,
}

/// The phase of the pipeline, with its resume position.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointPhase {
    /// Claimed, nothing read: the first save sets the start.
    Unstarted,
    /// A snapshot of the source at `start`; the stream follows from `start`.
    Snapshot { start: ResumeToken, progress: SnapshotProgress },
    /// Service Bus has acknowledged everything up to `token`.
    Stream { token: ResumeToken },
}

impl CheckpointPhase {
    /// For logs and status.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unstarted => "unstarted",
            Self::Snapshot { .. } => "snapshot",
            Self::Stream { .. } => "stream",
        }
    }
}

/// The progress of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotProgress {
    /// Identifies the run; part of its message ids.
    pub run: String,
    /// Documents scanned; only rises within a run.
    pub scanned: u64,
    /// The position after which the scan resumes; `None` at the beginning.
    pub after: Option<Bson>,
}

/// The result of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveResult {
    Saved,
    /// The stored checkpoint is ahead; nothing was changed.
    AlreadyAhead,
}
