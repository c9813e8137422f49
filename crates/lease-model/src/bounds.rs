//! How much of the protocol one run of the checker covers.
//!
//! Never bounded: pauses, lost answers, heartbeats, time, and the delay of whatever is in flight. A fault whose bound is `None` may
//! happen for ever; that is possible because a state forgets what no longer matters (`forget.rs`, `canon.rs`).

use lease::decide::ElectionRules;

use crate::compact::skew;
use crate::protocol_defect::ProtocolDefect;
use crate::time::{AgeHorizon, PodTiming};

/// The most pods there can be.
pub const PODS: usize = 3;

/// What the pods' boot clocks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockModel {
    /// They keep the drift bound, and may change their rate within it at every tick.
    Drifting,
    /// They lie as badly as clocks can: every wait is over at once, and no leader ever sees its deadline pass. Two pods then lead at
    /// once all the time, and the fence must hold all the same.
    Unreliable,
}

/// How alike states must be to count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateEquivalence {
    /// They behave alike, whatever their pods are called. For searching everything.
    UpToSymmetry,
    /// They behave alike, pod by pod. For histories that are to be read.
    SameBehaviour,
    /// Only names of the dead and distances of heartbeats may differ. For checking the two above.
    NearlyExact,
}

/// The bounds of one run.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub clocks: ClockModel,
    /// The spans of each pod that takes part.
    pub pods: Vec<PodTiming>,
    /// Statements that nobody waits for and that may still arrive, at one time.
    pub late: usize,
    /// Writes a primary may have that a majority has not, at one time.
    pub unreplicated: usize,
    /// Crashes and restarts in a history.
    pub crashes: Option<u8>,
    /// Failovers of the store in a history.
    pub failovers: Option<u8>,
    /// Voluntary step-downs in a history.
    pub step_downs: Option<u8>,
    /// How often an operator deletes the lease. Only with pods of one span: of a passed version, its holder's ttl is forgotten.
    pub deletions: u8,
    /// Whether two pods may be valid at once after a deletion, in the one way that is known (see `model.rs`).
    pub excuse_deletion: bool,
    /// No contender asks for a higher term.
    pub terms: Option<u8>,
    /// By how many ticks a primary's wall clock may be wrong.
    pub offsets: Vec<i8>,
    /// What the operator says about that, in ticks, if anything.
    pub max_clock_skew: Option<u8>,
    /// How far the checkpoint moves. Zero: nothing is led.
    pub positions: u8,
    /// Claims and saves that nobody waits for and that may still arrive, at one time.
    pub late_checkpoint_requests: usize,
    /// Whether to ask of every state that somebody will lead.
    pub liveness: bool,
    pub equivalence: StateEquivalence,
    pub defect: Option<ProtocolDefect>,
}

impl Bounds {
    /// So many pods with the default spans, and no fault bounded but what is in flight.
    pub fn without_limits(pods: usize) -> Self {
        Self {
            clocks: ClockModel::Drifting,
            pods: vec![PodTiming::Short; pods],
            late: 0,
            unreplicated: 1,
            crashes: None,
            failovers: None,
            step_downs: None,
            deletions: 0,
            excuse_deletion: true,
            terms: None,
            offsets: vec![0],
            max_clock_skew: None,
            positions: 0,
            late_checkpoint_requests: 0,
            liveness: false,
            equivalence: StateEquivalence::UpToSymmetry,
            defect: None,
        }
    }

    /// So many pods with the default spans, and neither crash nor failover nor step-down.
    pub fn without_faults(pods: usize) -> Self {
        Self { crashes: Some(0), failovers: Some(0), step_downs: Some(0), ..Self::without_limits(pods) }
    }

    pub fn horizon(&self) -> AgeHorizon {
        let longest = self.pods.iter().map(|timing| timing.ttl()).max().expect("there is a pod");
        // With that defect the deadline is a longer span's.
        AgeHorizon { ttl: if self.has(ProtocolDefect::TtlTooShort) { longest + 1 } else { longest } }
    }

    pub fn rules(&self, timing: PodTiming) -> ElectionRules {
        ElectionRules { timing: timing.to_timing(), max_clock_skew: self.max_clock_skew.map(skew) }
    }

    /// Whether any statement asks what time it is.
    pub fn wall_clocks_matter(&self) -> bool {
        self.max_clock_skew.is_some() || self.has(ProtocolDefect::ClientClock)
    }

    /// A write further back than this has expired on every server.
    pub fn oldest_write(&self) -> i8 {
        let slowest = self.offsets.iter().copied().min().unwrap_or(0);
        let ticks = self.horizon().ttl + self.max_clock_skew.unwrap_or(0) + 1;
        slowest - i8::try_from(ticks).expect("a few ticks")
    }

    /// Whether terms may be written by their order: nothing may count them, nor start them at one again.
    pub fn only_order_of_terms(&self) -> bool {
        self.terms.is_none() && self.deletions == 0 && self.equivalence != StateEquivalence::NearlyExact
    }

    pub fn has(&self, defect: ProtocolDefect) -> bool {
        self.defect == Some(defect)
    }
}
