//! The seam: what a checkpoint is, and what a leader may do with it.

use lease::{Contender, Leadership};
use mongodb::bson::{Bson, DateTime, Timestamp};

use super::error::Error;
use crate::event::{Epoch, ResumeToken, Term};

/// Keeps the checkpoint of one pipeline. Every call is acknowledged by a majority when it returns `Ok`; after an error it
/// may have been applied all the same, and may be repeated as it is.
pub trait CheckpointStore: Send + Sync {
    /// Shuts out all lower terms for good, and returns what there is. A term that was claimed before, by this term or a
    /// higher one of somebody else, is refused: see [`Error::TermBehind`]. Makes the checkpoint of a pipeline that never had
    /// one; one that is gone is [`Error::Missing`].
    fn claim(&self, claim: &Claim) -> impl Future<Output = Result<Checkpoint, Error>> + Send;

    /// Moves the checkpoint of the claimed term. Within an epoch it never moves back. [`SaveResult::AlreadyAhead`] is said only where a
    /// majority has it further than `phase`.
    fn save(
        &self,
        claim: &Claim,
        epoch: Epoch,
        phase: &CheckpointPhase,
        cluster_time: Option<Timestamp>,
    ) -> impl Future<Output = Result<SaveResult, Error>> + Send;

    /// Leaves `ended` behind for a new epoch that begins at `phase`, wherever that is.
    fn begin_epoch(
        &self,
        claim: &Claim,
        ended: Epoch,
        phase: &CheckpointPhase,
    ) -> impl Future<Output = Result<Epoch, Error>> + Send;

    /// What is stored, for people. `None`: nothing yet.
    fn load(&self) -> impl Future<Output = Result<Option<Checkpoint>, Error>> + Send;
}

/// Who claims, and in which term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub term: Term,
    /// Two processes that hold the same term (the lease was deleted) are told apart by it.
    pub claimant: Contender,
    /// For people.
    pub pod_id: String,
}

impl Claim {
    pub fn from_leadership(leadership: &Leadership, pod_id: impl Into<String>) -> Self {
        Self { term: leadership.term(), claimant: leadership.contender(), pod_id: pod_id.into() }
    }
}

/// What is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The highest term that ever claimed it.
    pub term: Term,
    pub epoch: Epoch,
    pub phase: CheckpointPhase,
    /// Of the last event behind the checkpoint.
    pub cluster_time: Option<Timestamp>,
    /// By the server's clock; only shown.
    pub saved_at: Option<DateTime>,
    pub saved_by: String,
}

/// How far the pipeline has come.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointPhase {
    /// Claimed, and nothing read yet: the first save decides where the pipeline starts.
    Unstarted,
    /// What the source held at `start` is being read; the stream follows from `start`.
    Snapshot { start: ResumeToken, progress: SnapshotProgress },
    /// Everything up to `token` is acknowledged by the bus.
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

/// How far a snapshot has come.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotProgress {
    /// Names this run; part of its messages' ids.
    pub run: String,
    /// How many documents are behind it; only rises within a run.
    pub scanned: u64,
    /// The key after which the scan goes on; `None` before the first.
    pub after: Option<Bson>,
}

/// What became of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveResult {
    Saved,
    /// The store is further already: nothing was changed.
    AlreadyAhead,
}
