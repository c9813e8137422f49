//! The bounds of one run of the checker.
//!
//! Never bounded: pauses, lost replies, heartbeats, time, and the delay of messages in flight. A fault whose bound is `None` may
//! happen without limit; the run still ends, because equivalent states are merged (`prune_superseded.rs`, `canonical.rs`).

use lease::decide::ElectionRules;

use crate::compact::skew;
use crate::protocol_defect::ProtocolDefect;
use crate::time::{AgeHorizon, PodTiming};

/// The maximum number of pods.
pub const PODS: usize = 3;

/// How the pods' boot clocks behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockModel {
    /// Within the drift bound; the rate may change at every tick.
    Drifting,
    /// As wrong as possible: every wait is over at once, and no leader ever sees its deadline pass. Two pods lead at once all the
    /// time, and the fence must still hold.
    Unreliable,
}

/// Which states count as the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateEquivalence {
    /// Same behaviour after any permutation of the pods. For exhaustive runs.
    UpToSymmetry,
    /// Same behaviour, pod by pod. For readable counterexamples.
    SameBehaviour,
    /// Only the names of crashed candidates and the distances of heartbeats may differ. For testing the two above.
    NearlyExact,
}

/// The bounds of one run.
#[derive(Clone, Debug)]
pub struct ModelBounds {
    pub clocks: ClockModel,
    /// The timing of each pod.
    pub pods: Vec<PodTiming>,
    /// How many abandoned statements may still be in flight at one time.
    pub late: usize,
    /// How many writes the primary may have that a majority does not have, at one time.
    pub unreplicated: usize,
    /// Crashes and restarts in a history.
    pub crashes: Option<u8>,
    /// Failovers of the store in a history.
    pub failovers: Option<u8>,
    /// Voluntary step-downs in a history.
    pub step_downs: Option<u8>,
    /// How often an operator deletes the lease. Only with pods of one timing: a superseded version loses its holder's ttl.
    pub deletions: u8,
    /// Whether two pods may be valid at once after a deletion, in the one known way (see `model.rs`).
    pub excuse_deletion: bool,
    /// The highest term that a candidate may request.
    pub terms: Option<u8>,
    /// By how many ticks a primary's wall clock may be wrong.
    pub offsets: Vec<i8>,
    /// The `max_clock_skew` setting, in ticks.
    pub max_clock_skew: Option<u8>,
    /// How far the checkpoint moves. Zero: there is no checkpoint.
    pub positions: u8,
    /// How many abandoned claims and saves may still be in flight at one time.
    pub late_checkpoint_requests: usize,
    /// Whether to check in every state that a pod will lead.
    pub liveness: bool,
    pub equivalence: StateEquivalence,
    pub defect: Option<ProtocolDefect>,
}

impl ModelBounds {
    /// This many pods with the default timing; only messages in flight are bounded.
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

    /// This many pods with the default timing, without crash, failover or step-down.
    pub fn without_faults(pods: usize) -> Self {
        Self { crashes: Some(0), failovers: Some(0), step_downs: Some(0), ..Self::without_limits(pods) }
    }

    pub fn horizon(&self) -> AgeHorizon {
        let longest = self.pods.iter().map(|timing| timing.ttl()).max().expect("there is a pod");
        // With this defect, the deadline is that of a longer timing.
        AgeHorizon { ttl: if self.has(ProtocolDefect::TtlTooShort) { longest + 1 } else { longest } }
    }

    pub fn rules(&self, timing: PodTiming) -> ElectionRules {
        ElectionRules { timing: timing.to_timing(), max_clock_skew: self.max_clock_skew.map(skew) }
    }

    /// Whether any statement reads a wall clock.
    pub fn wall_clocks_matter(&self) -> bool {
        self.max_clock_skew.is_some() || self.has(ProtocolDefect::ClientClock)
    }

    /// A write older than this has expired on every server.
    pub fn oldest_write(&self) -> i8 {
        let slowest = self.offsets.iter().copied().min().unwrap_or(0);
        let ticks = self.horizon().ttl + self.max_clock_skew.unwrap_or(0) + 1;
        slowest - i8::try_from(ticks).expect("a few ticks")
    }

    /// Whether only the order of terms matters: nothing counts terms or restarts them at one.
    pub fn only_order_of_terms(&self) -> bool {
        self.terms.is_none() && self.deletions == 0 && self.equivalence != StateEquivalence::NearlyExact
    }

    pub fn has(&self, defect: ProtocolDefect) -> bool {
        self.defect == Some(defect)
    }
}
