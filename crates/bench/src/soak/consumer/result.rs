//! What came of a consumer's soak, for people and for programs.

use std::fmt;
use std::time::Duration;

use testkit::checker::{CheckReport, ViolationKind};
use testkit::cluster::UnexpectedExit;
use testkit::nemesis::{self, ClusterFault, PodFault, PodSelector};

use super::ConsumerSoakOptions;

/// What came of it.
#[derive(Debug)]
pub struct ConsumerSoakResult {
    /// Of the model that lists what was applied; says nothing without it.
    pub report: CheckReport,
    /// Writes the source has acknowledged.
    pub acknowledged: u64,
    /// Read models against a fold of the source.
    pub differences: Vec<String>,
    /// What was parked when everything had come, and what must have been.
    pub parked: Vec<(String, String, Option<i64>)>,
    pub expected_parked: Vec<(String, String, Option<i64>)>,
    /// Events replayed when the cause was gone.
    pub replayed: u64,
    pub republished: u64,
    pub violations: usize,
    pub terms: usize,
    pub faults: nemesis::FaultReport,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
    /// From the last write to the last event applied.
    pub drained_in: Duration,
    /// The longest time in which events waited and none was applied.
    pub longest_stall: Duration,
    /// By each pod, since it was started last.
    pub applied_by: Vec<u64>,
    /// Transactions of these pods that met another's writes, and were run again.
    pub conflicts: u64,
}

impl ConsumerSoakResult {
    /// Every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.report.is_clean()
            && self.differences.is_empty()
            && self.parked == self.expected_parked
            && self.violations == 0
    }

    /// What should have happened in such a run and did not: a run in which nothing was broken shows nothing.
    pub fn missing(&self, options: &ConsumerSoakOptions) -> Vec<String> {
        let mut missing = options.base.missing_faults(&self.faults);
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (options.republish && self.republished == 0, "a message that was republished again"),
            (options.poison && self.replayed == 0, "a parked event that was replayed"),
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
            "differences": self.differences.len(),
            "parked": self.parked.len(),
            "replayed": self.replayed,
            "said_again": self.republished,
            "terms": self.terms,
            "faults": self.faults.injected(),
            "faults_in_flight": self.faults.in_flight(),
            "locks_lost_asleep": self.faults.counts(ClusterFault::Pod(PodSelector::Standby, PodFault::PausePastLocks)).effects,
            "pod_deaths": self.unexpected_exits.len(),
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
            0 => writeln!(f, "{} acknowledged; what was applied was not listed", self.acknowledged)?,
            _ => writeln!(f, "{}", self.report)?,
        }
        let Self { parked, expected_parked, replayed, republished, terms, .. } = self;
        writeln!(
            f,
            "parked {parked:?} (expected {expected_parked:?}), {replayed} replayed, {republished} republished again"
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
