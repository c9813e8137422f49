//! The result of a chaos run, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use testkit::checker::{CheckReport, FencingHistory, ViolationKind};
use testkit::cluster::{CommandResult, MongoTopology, UnexpectedExit};
use testkit::load::LoadResult;
use testkit::nemesis::FaultReport;

use super::TimelineSample;
use crate::soak::SoakViolation;
use crate::soak::consumer_soak::ParkedEvent;
use crate::soak::drain::RunEnd;

/// The exit code of a Rust program that panicked.
const PANICKED: i32 = 101;

/// The result of a run.
#[derive(Debug)]
pub struct ChaosResult {
    pub seed: u64,
    pub mongo: MongoTopology,
    pub pods: usize,
    /// The check of the read model that lists all applied events.
    pub report: CheckReport,
    /// How the pipeline ended after all repairs, or what did not happen in time.
    pub settled: Result<RunEnd, String>,
    pub settled_in: Duration,
    pub written: LoadResult,
    pub differences: Vec<String>,
    pub parked: Vec<ParkedEvent>,
    pub expected_parked: Vec<ParkedEvent>,
    pub replayed: u64,
    pub republished: u64,
    pub fence: FencingHistory,
    pub faults: FaultReport,
    pub commands: Vec<CommandResult>,
    pub rollouts: usize,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub longest_stall: Duration,
    pub timeline: Vec<TimelineSample>,
    pub took: Duration,
}

impl ChaosResult {
    pub fn is_clean(&self) -> bool {
        self.violations().is_empty()
    }

    /// The kinds of guarantees that were broken.
    pub fn violations(&self) -> BTreeSet<SoakViolation> {
        let mut found = SoakViolation::of_history(&self.report);
        let others = [
            (!self.fence.violations().is_empty(), SoakViolation::FenceBreached),
            (!self.fence.regressions().is_empty(), SoakViolation::WentBack),
            (!matches!(self.settled, Ok(RunEnd::Complete | RunEnd::Drained)), SoakViolation::Stalled),
            (!self.differences.is_empty(), SoakViolation::ReadModelDiffers),
            (self.parked != self.expected_parked, SoakViolation::WronglyParked),
            (self.commands.iter().any(is_false_alarm), SoakViolation::FalseAlarm),
            (self.commands.iter().any(has_crashed), SoakViolation::CommandCrashed),
            (!self.unexpected_exits.is_empty(), SoakViolation::PodExited),
        ];
        found.extend(others.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, kind)| kind));
        found
    }

    /// What every run covers: one that did not proves nothing.
    pub fn missing(&self) -> Vec<String> {
        let wanted = [
            (self.report.counts.acknowledged == 0, "an acknowledged write"),
            (self.faults.in_flight() == 0, "a fault while events were in flight"),
            (self.fence.terms() < 2, "a takeover"),
            (self.fence.saves() == 0, "a save of the checkpoint"),
            (self.republished == 0, "a republished message"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()).collect()
    }

    pub fn json(&self) -> serde_json::Value {
        let failed = self.commands.iter().filter(|result| !result.is_success()).count();
        serde_json::json!({
            "chaos": self.seed,
            "mongodb": format!("{:?}", self.mongo),
            "pods": self.pods,
            "violations": self.violations().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "acknowledged": self.report.counts.acknowledged,
            "in_doubt": self.report.in_doubt,
            "lost": self.report.count(ViolationKind::Lost),
            "doubled": self.report.count(ViolationKind::Duplicated),
            "out_of_order": self.report.count(ViolationKind::OutOfOrder),
            "differences": self.differences.len(),
            "terms": self.fence.terms(),
            "faults": self.faults.injected(),
            "faults_in_flight": self.faults.in_flight(),
            "kinds_of_faults": self.faults.faults.values().filter(|counts| counts.injected > 0).count(),
            "rollouts": self.rollouts,
            "commands": self.commands.len(),
            "commands_failed": failed,
            "republished": self.republished,
            "replayed": self.replayed,
            "unexpected_exits": self.unexpected_exits.len(),
            "longest_stall_s": tenths(self.longest_stall),
            "settled_in_s": tenths(self.settled_in),
            "seconds": tenths(self.took),
        })
    }
}

/// `read-model verify` compares up to the cursor, so differences are wrong also while everything fails around it. An error has other words.
fn is_false_alarm(result: &CommandResult) -> bool {
    result.exit_code == Some(1)
        && result.arguments.get(1).is_some_and(|argument| argument == "verify")
        && result.tail.contains("`--repair` replaces what differs")
}

fn has_crashed(result: &CommandResult) -> bool {
    result.exit_code.is_none_or(|code| code == PANICKED)
}

fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 10.0).round() / 10.0
}

impl fmt::Display for ChaosResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}, {} pods\n{}", self.seed, self.mongo, self.pods, self.report)?;
        let Self { parked, expected_parked, replayed, republished, rollouts, settled, .. } = self;
        writeln!(f, "settled: {settled:?} after {:.1} s", self.settled_in.as_secs_f64())?;
        writeln!(
            f,
            "parked {parked:?} (expected {expected_parked:?}), {replayed} replayed, {republished} republished"
        )?;
        writeln!(
            f,
            "{} terms, {rollouts} rollouts, {} commands, at most {:.1} s without progress, {:.1} s",
            self.fence.terms(),
            self.commands.len(),
            self.longest_stall.as_secs_f64(),
            self.took.as_secs_f64()
        )?;
        write!(f, "{}", self.faults)?;
        self.fence.violations().iter().take(10).try_for_each(|violation| write!(f, "\n{violation}"))?;
        self.fence.regressions().iter().take(10).try_for_each(|regression| write!(f, "\n{regression:?}"))?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        for result in self.commands.iter().filter(|result| has_crashed(result) || is_false_alarm(result)) {
            write!(f, "\n`{}` ended with {:?}:\n{}", result.arguments.join(" "), result.exit_code, result.tail)?;
        }
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}
