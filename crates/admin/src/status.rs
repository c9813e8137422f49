//! The status of one pipeline: the body of `/api/status`, the output of `headwater status --json`, and the data of the dashboard.
//!
//! An unknown value is `None`, and `null` in JSON; it is never 0. Every age is computed by the clock that dated the moment, so that readers
//! need not compare clocks; times are for display. The document never holds ids of aggregates or contents of documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::problems;
use crate::time::WallTime;

/// Version of the document; raised when a field changes its name or meaning.
pub const FORMAT: u32 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineStatus {
    pub format: u32,
    pub pipeline: String,
    /// No problem is critical.
    pub healthy: bool,
    /// The most severe first.
    pub problems: Vec<PipelineProblem>,
    /// The holder of the lease, while the lease is valid.
    pub leader: Option<LeaderStatus>,
    pub lag: LagStatus,
    pub throughput: ThroughputStatus,
    /// From insert to read model, over the last seconds and all pods.
    pub latency: Option<LatencyQuantiles>,
    pub oplog: OplogStatus,
    pub checkpoint: Option<CheckpointStatus>,
    /// Sorted by id. Pods that crashed long ago are left out.
    pub pods: Vec<PodStatus>,
    /// The newest first.
    pub terms: Vec<TermStatus>,
    pub read_models: Vec<ReadModelStatus>,
    /// The stored set of read models, and how far a change of it is.
    #[serde(default)]
    pub generation: Option<GenerationStatus>,
    /// What operators have paused.
    #[serde(default)]
    pub paused: Option<Vec<PauseStatus>>,
    pub parked: Option<Vec<ParkedCount>>,
    pub rejected: Option<Vec<RejectedCount>>,
    /// What pods store besides read models, by collection.
    #[serde(default)]
    pub storage: Option<Vec<StorageStatus>>,
    /// There are tombstones of erased aggregates, and not their key.
    #[serde(default)]
    pub erasure_key_lost: Option<bool>,
    pub subscription: SubscriptionStatus,
    #[serde(default)]
    pub audit: Option<AuditStatus>,
    pub collected: CollectionInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineProblem {
    /// For programs; stays the same when the text changes.
    pub code: String,
    pub severity: ProblemSeverity,
    /// For operators: what is wrong, and where.
    pub text: String,
    /// The error page with the fix, if there is one: `E0001`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemSeverity {
    /// Read models fall behind, or will.
    Critical,
    /// Operator action is required; everything else continues.
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
    /// How far the checkpoint is behind the newest operation of the source; unknown while the checkpoint is ahead of it.
    pub seconds: Option<f64>,
    /// Events read but not acknowledged by Service Bus, plus messages on the subscription.
    pub events: Option<u64>,
    /// `events` is a lower bound: some events are not read or not counted yet.
    pub is_lower_bound: bool,
}

/// The sum over all pods of what each last announced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStatus {
    pub published_per_second: Option<f64>,
    pub applied_per_second: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    pub p50_seconds: f64,
    pub p99_seconds: f64,
    /// The number of measured events.
    pub events: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OplogStatus {
    /// Time until the oplog drops the checkpoint position, if the checkpoint does not advance and writes continue at the present rate.
    pub headroom_seconds: Option<f64>,
    /// The time that the oplog spans now.
    pub window_seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// `unstarted`, `snapshot` or `stream`.
    pub phase: String,
    /// The number of documents that a snapshot has read.
    pub scanned: Option<u64>,
    pub term: u64,
    pub epoch: u64,
    pub saved: Option<WallTime>,
    pub saved_seconds_ago: Option<f64>,
    pub saved_by: String,
    /// Set while the checkpoint is beyond the newest operation of the source: events written before that time are not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_seconds: Option<f64>,
}

/// A pod as it last announced itself. The role comes from the lease, not from the pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodStatus {
    pub id: String,
    pub version: String,
    /// Generation of its set of read models.
    pub generation: Option<String>,
    /// Address of its admin server.
    pub address: Option<String>,
    pub role: PodRole,
    pub started: Option<WallTime>,
    pub last_seen: WallTime,
    pub last_seen_seconds_ago: f64,
    /// Its heartbeat is overdue: the pod crashed, or is cut off.
    pub silent: bool,
    /// The states of its producer and its consumer.
    pub producer: String,
    pub consumer: String,
    pub problems: Vec<PodProblem>,
    pub sessions: Option<u64>,
    /// Messages and bodies not accepted because of their signature, since the pod started.
    #[serde(default)]
    pub unverified: Option<u64>,
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

/// A problem that a pod reports about one of its services.
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
    /// When the leader recorded the end; `None` in every state but [`TermState::Ended`].
    pub ended: Option<WallTime>,
    pub state: TermState,
    /// When the next recorded term started; the latest possible end of a term that is [`TermState::Lost`].
    pub next_started: Option<WallTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TermState {
    /// The term of the present leader.
    Current,
    /// The leader recorded the end.
    Ended,
    /// The leader crashed or lost contact before it could record the end.
    Lost,
    /// The lease cannot be read, so the term may still be current.
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadModelStatus {
    pub name: String,
    pub documents: Option<u64>,
    /// When a pod last applied an event to this read model; unknown until a running pod has.
    pub applied: Option<WallTime>,
    pub applied_seconds_ago: Option<f64>,
    pub parked_aggregates: Option<u64>,
    /// Why it lacks events, if it does by its declaration: it was added or changed after events had been applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<IncompleteReadModel>,
    /// `complete`, `incomplete`, `building` or `removed`; unknown before the first pod has run.
    #[serde(default)]
    pub state: Option<String>,
    /// Whether there is an earlier definition to go back to.
    #[serde(default)]
    pub has_previous: bool,
    /// The last comparison with the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationStatus>,
}

/// A comparison of a read model with the source: counts, never contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerificationStatus {
    pub at: WallTime,
    pub seconds_ago: f64,
    /// `user@host`, or the pod whose dashboard was used.
    pub by: String,
    /// Which aggregates were compared.
    pub scope: String,
    /// In documents, as the next ones.
    pub compared: u64,
    pub different: u64,
    pub repaired: u64,
    pub skipped: u64,
    /// Differences by kind.
    pub kinds: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncompleteReadModel {
    pub reason: String,
    pub since: WallTime,
}

/// The generation of the read models that all pods apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationStatus {
    pub number: u64,
    /// `active`, `building` or `switching`.
    pub stage: String,
    /// Why a change does not go on.
    pub problem: Option<String>,
    /// While it is built: aggregates that are done, of about so many.
    pub built_aggregates: Option<u64>,
    pub total_aggregates: Option<u64>,
    #[serde(default)]
    pub built_events: Option<u64>,
    /// An estimate.
    #[serde(default)]
    pub seconds_left: Option<f64>,
    /// Set while a build pauses because the majority of the source's members is so far behind the primary.
    #[serde(default)]
    pub replication_lag_seconds: Option<f64>,
    /// An operator has paused the build.
    #[serde(default)]
    pub build_paused: bool,
    /// What an operator requested and the leader has not finished.
    #[serde(default)]
    pub request: Option<String>,
}

/// A service or a read model that an operator has paused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PauseStatus {
    /// `producer`, `consumer` or `read_model`.
    pub service: String,
    /// Of the read model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `paused` or `resuming`: the events that have waited are being applied.
    pub state: String,
    pub since: WallTime,
    pub by: String,
    pub reason: Option<String>,
    /// Of a read model: events that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_events: Option<u64>,
}

/// The parked aggregates of one read model; without those that only a pause has parked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParkedCount {
    pub read_model: String,
    pub aggregates: u64,
    pub events: u64,
    pub oldest_seconds: Option<f64>,
}

/// Every rejection code.
pub const REJECTION_REASONS: [&str; 4] = ["no_aggregate_id", "no_sequence", "refused", "too_large"];

/// The events rejected for one of the [`REJECTION_REASONS`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedCount {
    pub reason: String,
    pub events: u64,
}

/// The size of one collection that pods write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageStatus {
    pub collection: String,
    pub documents: u64,
    /// Without indexes and compression.
    pub bytes: u64,
}

/// The message counts that Service Bus reports for the subscription.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// Messages that are not settled yet.
    pub active_messages: Option<u64>,
    pub dead_letters: Option<u64>,
}

/// The audit, which proves that the read models miss no event of the source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditStatus {
    pub state: AuditState,
    /// Why nothing can be proven, or what the round waits for: `checkpoint`, `backlog` or `healing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pod that audits.
    pub pod: Option<String>,
    /// Every aggregate is compared once in this time.
    pub period_seconds: Option<f64>,
    /// Since the last round ended, or since the audit was first enabled.
    pub age_seconds: Option<f64>,
    /// Aggregates that are behind and wait for their messages.
    pub suspects: u64,
    /// Aggregates that miss events and could not be healed yet.
    pub missing: u64,
    /// Aggregates that missed events, in all finished rounds.
    pub found_total: u64,
    /// The unfinished round.
    pub round: Option<AuditRound>,
    /// The last finished round.
    pub last: Option<AuditRound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditState {
    /// The audit is off.
    Unaudited,
    /// Nothing can be proven about this pipeline.
    Unauditable,
    /// No pod has started it yet.
    Pending,
    Walking,
    Waiting,
    /// Between two rounds.
    Resting,
}

/// Counts of one round, in aggregates if not named otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditRound {
    pub number: u64,
    pub started: Option<WallTime>,
    pub ended: Option<WallTime>,
    pub ended_seconds_ago: Option<f64>,
    pub compared: u64,
    /// Events were missing.
    pub found: u64,
    pub healed: u64,
    pub healed_events: u64,
    /// Parked, regressed, older than the pipeline, or without a usable sequence.
    pub skipped: u64,
}

impl AuditStatus {
    /// Without any round.
    pub fn new(state: AuditState) -> Self {
        Self {
            state,
            reason: None,
            pod: None,
            period_seconds: None,
            age_seconds: None,
            suspects: 0,
            missing: 0,
            found_total: 0,
            round: None,
            last: None,
        }
    }

    /// Whether read models are compared with the source at all.
    pub fn is_proving(&self) -> bool {
        !matches!(self.state, AuditState::Unaudited | AuditState::Unauditable)
    }

    /// Not every aggregate was compared within the period.
    pub fn is_overdue(&self) -> bool {
        let late = self.age_seconds.zip(self.period_seconds).is_some_and(|(age, period)| age > period);
        self.is_proving() && late
    }

    /// Aggregates that missed events, in the unfinished round and in the last one.
    pub fn found(&self) -> u64 {
        [&self.round, &self.last].into_iter().flatten().map(|round| round.found).sum()
    }
}

/// When and by whom this status was collected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectionInfo {
    pub at: WallTime,
    /// The pod that collected it.
    pub by: String,
    pub seconds_ago: f64,
    /// The parts that could not be read, for example `the lease`.
    pub unavailable: Vec<String>,
}

impl PipelineStatus {
    /// A status without any known value.
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
            paused: None,
            parked: None,
            rejected: None,
            storage: None,
            erasure_key_lost: None,
            subscription: SubscriptionStatus::default(),
            generation: None,
            audit: None,
            collected,
        }
    }

    /// Fills `problems` and `healthy`.
    #[must_use]
    pub fn evaluated(mut self) -> Self {
        self.problems = problems::find_problems(&self);
        self.healthy = self.problems.iter().all(|problem| problem.severity != ProblemSeverity::Critical);
        self
    }

    pub fn parked_aggregates(&self) -> Option<u64> {
        self.parked.as_ref().map(|list| list.iter().map(|parked| parked.aggregates).sum())
    }

    pub fn rejected_events(&self) -> Option<u64> {
        self.rejected.as_ref().map(|list| list.iter().map(|rejected| rejected.events).sum())
    }

    /// Messages and bodies not accepted because of their signature, since the pods started.
    pub fn unverified_messages(&self) -> Option<u64> {
        self.pods.iter().filter_map(|pod| pod.unverified).reduce(u64::saturating_add)
    }

    /// Sessions held by all pods that are not silent; `None` if none of them reports any.
    pub fn sessions(&self) -> Option<u64> {
        self.pods.iter().filter(|pod| !pod.silent).filter_map(|pod| pod.sessions).reduce(u64::saturating_add)
    }
}
