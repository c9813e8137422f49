//! What came of a consumer's soak, for people and for programs.

use std::fmt;
use std::time::Duration;

use testkit::checker::{Kind, Verdict};
use testkit::cluster::Death;
use testkit::nemesis::{self, Fault, PodHarm, Whom};

use super::Options;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Of the model that lists what was applied; says nothing without it.
    pub verdict: Verdict,
    /// Writes the source has acknowledged.
    pub acknowledged: u64,
    /// Read models against a fold of the source.
    pub differences: Vec<String>,
    /// What was parked when everything had come, and what must have been.
    pub parked: Vec<(String, String, Option<i64>)>,
    pub to_be_parked: Vec<(String, String, Option<i64>)>,
    /// Events replayed when the cause was gone.
    pub replayed: u64,
    pub echoed: u64,
    pub breaches: usize,
    pub terms: usize,
    pub faults: nemesis::Report,
    pub deaths: Vec<Death>,
    pub took: Duration,
    /// From the last write to the last event applied.
    pub drained_in: Duration,
    /// The longest time in which events waited and none was applied.
    pub standstill: Duration,
    /// By each pod, since it was started last.
    pub applied_by: Vec<u64>,
    /// Transactions of these pods that met another's writes, and were run again.
    pub conflicts: u64,
}

impl Outcome {
    /// Every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.differences.is_empty() && self.parked == self.to_be_parked && self.breaches == 0
    }

    /// What should have happened in such a run and did not: a run in which nothing was broken shows nothing.
    pub fn missing(&self, options: &Options) -> Vec<String> {
        let mut missing = options.walk.unstruck(&self.faults);
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (options.echo && self.echoed == 0, "a message that was said again"),
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
            "in_doubt": self.verdict.in_doubt,
            "lost": self.verdict.count(Kind::Lost),
            "doubled": self.verdict.count(Kind::Doubled),
            "out_of_order": self.verdict.count(Kind::OutOfOrder),
            "differences": self.differences.len(),
            "parked": self.parked.len(),
            "replayed": self.replayed,
            "said_again": self.echoed,
            "terms": self.terms,
            "faults": self.faults.struck(),
            "faults_in_flight": self.faults.in_flight(),
            "locks_lost_asleep": self.faults.hits(Fault::Pod(Whom::Standby, PodHarm::Oversleep)).bites,
            "pod_deaths": self.deaths.len(),
            "applied_by": self.applied_by,
            "conflicts": self.conflicts,
            "standstill_s": tenths(self.standstill),
            "drained_in_s": tenths(self.drained_in),
            "seconds": tenths(self.took),
        })
    }
}

fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 10.0).round() / 10.0
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict.tally.intended {
            0 => writeln!(f, "{} acknowledged; what was applied was not listed", self.acknowledged)?,
            _ => writeln!(f, "{}", self.verdict)?,
        }
        let Self { parked, to_be_parked, replayed, echoed, terms, .. } = self;
        writeln!(f, "parked {parked:?} (expected {to_be_parked:?}), {replayed} replayed, {echoed} said again")?;
        writeln!(f, "{terms} terms, drained in {:?}, {:?} in all", self.drained_in, self.took)?;
        let Self { standstill, applied_by, conflicts, .. } = self;
        writeln!(f, "at most {standstill:?} without progress; applied by pods {applied_by:?}, {conflicts} conflicts")?;
        write!(f, "{}", self.faults)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.deaths.iter().try_for_each(|death| write!(f, "\n{death}"))
    }
}
