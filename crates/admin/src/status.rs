//! The state of one pipeline as a document: what `/api/status` answers, `headwater status` prints and the dashboard shows.
//!
//! What is not known is `None`, and `null` in JSON: never 0. Ages are computed by the clock that dated the moment, so that nobody has to
//! compare clocks; times are there to be shown. Names of aggregates and contents of documents have no place in it.

use serde::{Deserialize, Serialize};

use crate::problems;
use crate::time::WallTime;

/// The shape of the document; raised when a field changes its meaning.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineStatus {
    pub format: u32,
    pub pipeline: String,
    /// No problem is critical.
    pub healthy: bool,
    /// The worst first.
    pub problems: Vec<PipelineProblem>,
    /// Whom the lease names, while it is valid.
    pub leader: Option<LeaderStatus>,
    pub lag: LagStatus,
    pub throughput: ThroughputStatus,
    /// From insert to read model, over the last seconds and all pods.
    pub latency: Option<LatencyQuantiles>,
    pub oplog: OplogStatus,
    pub checkpoint: Option<CheckpointStatus>,
    /// By name; those that have been silent for long are left out.
    pub pods: Vec<PodStatus>,
    /// The newest first.
    pub terms: Vec<TermStatus>,
    pub read_models: Vec<ReadModelStatus>,
    pub parked: Option<Vec<ParkedCount>>,
    pub rejected: Option<Vec<RejectedCount>>,
    pub subscription: SubscriptionStatus,
    pub collected: CollectionInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineProblem {
    /// For programs; stays the same when the words change.
    pub code: String,
    pub severity: ProblemSeverity,
    /// For people: what is wrong, and where.
    pub text: String,
    /// The page that says what to do, if there is one: `E0001`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemSeverity {
    /// MetricSource models fall behind, or will.
    Critical,
    /// Something waits for a person; everything else goes on.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaderStatus {
    pub pod: String,
    pub term: u64,
    pub since: Option<WallTime>,
    pub for_seconds: Option<f64>,
    pub heartbeat_seconds_ago: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LagStatus {
    /// How far the checkpoint is behind the source's newest operation; not known of one that is ahead of it.
    pub seconds: Option<f64>,
    /// MetricSource and not acknowledged by the bus, plus what waits on the bus.
    pub events: Option<u64>,
    /// There is more that has not been read yet, or not been counted.
    pub is_lower_bound: bool,
}

/// Over all pods, by what each last announced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStatus {
    pub published_per_second: Option<f64>,
    pub applied_per_second: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    pub p50_seconds: f64,
    pub p99_seconds: f64,
    /// How many events that is taken from.
    pub events: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OplogStatus {
    /// How long the checkpoint could stand still before the oplog no longer holds what follows it, at the present rate of writing.
    pub headroom_seconds: Option<f64>,
    /// How much time the oplog spans now.
    pub window_seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// `unstarted`, `snapshot` or `stream`.
    pub phase: String,
    /// How many documents a snapshot has read.
    pub scanned: Option<u64>,
    pub term: u64,
    pub epoch: u64,
    pub saved: Option<WallTime>,
    pub saved_seconds_ago: Option<f64>,
    pub saved_by: String,
    /// How far it lies beyond the source's newest operation, where it does: what is written until then is passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_seconds: Option<f64>,
}

/// As it last announced itself; the role is the lease's word, not the pod's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodStatus {
    pub id: String,
    pub version: String,
    /// Of its set of read models.
    pub generation: Option<String>,
    /// Of its HTTP side.
    pub address: Option<String>,
    pub role: PodRole,
    pub started: Option<WallTime>,
    pub last_seen: WallTime,
    pub last_seen_seconds_ago: f64,
    /// It should have been heard of since: crashed, or cut off.
    pub silent: bool,
    /// What its producer and its consumer do, in a word or two.
    pub producer: String,
    pub consumer: String,
    pub problems: Vec<PodProblem>,
    pub sessions: Option<u64>,
    pub published_per_second: Option<f64>,
    pub applied_per_second: Option<f64>,
    pub latency: Option<LatencyQuantiles>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodRole {
    Leader,
    Standby,
}

/// What a pod says stands in its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodProblem {
    pub service: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TermStatus {
    pub term: u64,
    pub pod: String,
    pub started: WallTime,
    /// `None`: it goes on, or its leader died before it could say.
    pub ended: Option<WallTime>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadModelStatus {
    pub name: String,
    pub documents: Option<u64>,
    /// When any pod last applied an event to this one; not known while none has since it started.
    pub applied: Option<WallTime>,
    pub applied_seconds_ago: Option<f64>,
    pub parked_aggregates: Option<u64>,
}

/// What waits in one read model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParkedCount {
    pub read_model: String,
    pub aggregates: u64,
    pub events: u64,
    pub oldest_seconds: Option<f64>,
}

/// Why an event is rejected: every code there is.
pub const REASONS: [&str; 3] = ["no_aggregate_id", "refused", "too_large"];

/// What was rejected for one of the [`REASONS`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedCount {
    pub reason: String,
    pub events: u64,
}

/// What the bus says of the subscription.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// Messages that wait or are being applied.
    pub active_messages: Option<u64>,
    pub dead_letters: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectionInfo {
    pub at: WallTime,
    /// The pod that looked.
    pub by: String,
    /// How old this is by now.
    pub seconds_ago: f64,
    /// What could not be read, in a word or two each.
    pub unavailable: Vec<String>,
}

impl PipelineStatus {
    /// Nothing known yet.
    pub fn unknown(pipeline: impl Into<String>, collected: CollectionInfo) -> Self {
        Self {
            format: FORMAT,
            pipeline: pipeline.into(),
            healthy: false,
            problems: vec![],
            leader: None,
            lag: LagStatus::default(),
            throughput: ThroughputStatus::default(),
            latency: None,
            oplog: OplogStatus::default(),
            checkpoint: None,
            pods: vec![],
            terms: vec![],
            read_models: vec![],
            parked: None,
            rejected: None,
            subscription: SubscriptionStatus::default(),
            collected,
        }
    }

    /// With what is wrong in it.
    #[must_use]
    pub fn evaluated(mut self) -> Self {
        self.problems = problems::find(&self);
        self.healthy = self.problems.iter().all(|problem| problem.severity != ProblemSeverity::Critical);
        self
    }

    pub fn parked_aggregates(&self) -> Option<u64> {
        self.parked.as_ref().map(|list| list.iter().map(|parked| parked.aggregates).sum())
    }

    pub fn rejected_events(&self) -> Option<u64> {
        self.rejected.as_ref().map(|list| list.iter().map(|rejected| rejected.events).sum())
    }

    /// Held by all pods that are heard of; `None` while none says.
    pub fn sessions(&self) -> Option<u64> {
        let held = self.pods.iter().filter(|pod| !pod.silent).filter_map(|pod| pod.sessions);
        held.fold(None, |sum, held| Some(sum.unwrap_or(0) + held))
    }
}
