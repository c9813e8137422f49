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
    /// How often an operator has moved the checkpoint: see [`ReplayCounter`].
    pub replay: ReplayCounter,
    pub identity: PipelineIdentity,
}

/// What a running pipeline must not change unnoticed. `None`: unknown, because an older version wrote the checkpoint or the value cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineIdentity {
    /// The cluster that holds the source.
    pub cluster: Option<String>,
    /// How aggregates are mapped to sessions.
    pub sessions: Option<String>,
}

/// Part of every message id once an operator has moved the checkpoint. Without it, duplicate detection would drop what is published again. Until
/// then message ids depend on the token alone, as older versions send them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayCounter(u64);

impl ReplayCounter {
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
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
