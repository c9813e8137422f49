//! The result of a consumer soak, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use testkit::checker::{CheckReport, ViolationKind};
use testkit::cluster::UnexpectedExit;
use testkit::nemesis::{self, ClusterFault, PodFault, PodSelector};

use super::{ConsumerSoakOptions, ParkedEvent};
use crate::soak::SoakViolation;
use crate::soak::drain::RunEnd;

/// The result of a run.
#[derive(Debug)]
pub struct ConsumerSoakResult {
    /// The check of the history model; empty without it.
    pub report: CheckReport,
    pub end: RunEnd,
    /// Acknowledged writes.
    pub acknowledged: u64,
    /// Differences between the read models and a fold of the source.
    pub differences: Vec<String>,
    /// Parked events at the end, and the expected ones.
    pub parked: Vec<ParkedEvent>,
    pub expected_parked: Vec<ParkedEvent>,
    /// Events replayed after the cause was removed.
    pub replayed: u64,
    pub republished: u64,
    /// Checkpoint saves that the fence should have refused.
    pub fence_breaches: usize,
    pub terms: usize,
    pub faults: nemesis::FaultReport,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
    /// From the last write to the last applied event.
    pub drained_in: Duration,
    /// The longest time with unprocessed events in which none was applied.
    pub longest_stall: Duration,
    /// Per pod, since its last start.
    pub applied_by: Vec<u64>,
    /// Transactions of these pods that conflicted and were retried.
    pub conflicts: u64,
}

impl ConsumerSoakResult {
    /// Whether every guarantee held.
    pub fn is_clean(&self) -> bool {
        self.violations().is_empty()
    }

    /// The kinds of guarantees that were broken.
    pub fn violations(&self) -> BTreeSet<SoakViolation> {
        let mut found = SoakViolation::of_history(&self.report);
        let others = [
            (self.fence_breaches > 0, SoakViolation::FenceBreached),
            (self.end == RunEnd::Stalled, SoakViolation::Stalled),
            (!self.differences.is_empty(), SoakViolation::ReadModelDiffers),
            (self.parked != self.expected_parked, SoakViolation::WronglyParked),
        ];
        found.extend(others.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, kind)| kind));
        found
    }

    /// What this run was to cover and did not: a run without faults proves nothing.
    pub fn missing(&self, options: &ConsumerSoakOptions) -> Vec<String> {
        let mut missing = options.base.missing_faults(&self.faults);
        let wanted = [
            (self.terms == 0, "a leader"),
            (self.acknowledged == 0, "an acknowledged write"),
            (options.republish && self.republished == 0, "a republished message"),
            (options.poison && self.replayed == 0, "a replayed parked event"),
        ];
        missing.extend(wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()));
        missing
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "consumer",
            "acknowledged": self.acknowledged,
            "in_doubt": self.report.in_doubt,
            "lost": self.report.count(ViolationKind::Lost),
            "doubled": self.report.count(ViolationKind::Duplicated),
            "out_of_order": self.report.count(ViolationKind::OutOfOrder),
            "stalled": self.end == RunEnd::Stalled,
            "fence_breaches": self.fence_breaches,
            "differences": self.differences.len(),
            "parked": self.parked.len(),
            "replayed": self.replayed,
            "republished": self.republished,
            "terms": self.terms,
            "faults": self.faults.injected(),
            "faults_in_flight": self.faults.in_flight(),
            "locks_lost_asleep": self.faults.counts(ClusterFault::Pod(PodSelector::Standby, PodFault::PausePastLocks)).effects,
            "unexpected_exits": self.unexpected_exits.len(),
            "applied_by": self.applied_by,
            "conflicts": self.conflicts,
            "standstill_s": tenths(self.longest_stall),
            "drained_in_s": tenths(self.drained_in),
            "seconds": tenths(self.took),
        })
    }
}

fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 10.0).round() / 10.0
}

impl fmt::Display for ConsumerSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.report.counts.intended {
            0 => writeln!(f, "{} acknowledged; applied events were not listed", self.acknowledged)?,
            _ => writeln!(f, "{}", self.report)?,
        }
        writeln!(f, "the run ended {:?}, {} fence breaches", self.end, self.fence_breaches)?;
        let Self { parked, expected_parked, replayed, republished, terms, .. } = self;
        writeln!(
            f,
            "parked {parked:?} (expected {expected_parked:?}), {replayed} replayed, {republished} republished"
        )?;
        writeln!(f, "{terms} terms, drained in {:?}, {:?} in all", self.drained_in, self.took)?;
        let Self { longest_stall, applied_by, conflicts, .. } = self;
        writeln!(
            f,
            "at most {longest_stall:?} without progress; applied by pods {applied_by:?}, {conflicts} conflicts"
        )?;
        write!(f, "{}", self.faults)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}
