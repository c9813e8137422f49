//! The result of a stop soak, as text and as JSON.

use std::fmt;
use std::time::Duration;

use testkit::checker::{CheckReport, ViolationKind};
use testkit::cluster::UnexpectedExit;

use super::StopSoakOptions;
use super::rounds::StopTimings;
use crate::soak::ReaderErrors;

#[derive(Debug)]
pub struct StopSoakResult {
    /// The check of the topic.
    pub topic: CheckReport,
    /// The check of the history model.
    pub applied: CheckReport,
    /// Differences between the read models and a fold of the source.
    pub differences: Vec<String>,
    /// Something was left in the pipeline, and it made no progress.
    pub is_stalled: bool,
    pub reader_errors: ReaderErrors,
    /// Checkpoint saves that the fence should have refused.
    pub fence_breaches: usize,
    pub figures: StopTimings,
    /// The deadline of a stop.
    pub deadline: Duration,
    /// Pods that exited on their own, or with a failure.
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
}

impl StopSoakResult {
    /// Whether every guarantee held.
    pub fn is_clean(&self) -> bool {
        let is_correct = self.topic.is_clean() && self.applied.is_clean() && self.differences.is_empty();
        let is_orderly = self.fence_breaches == 0 && self.unexpected_exits.is_empty() && self.is_in_time();
        is_correct && is_orderly && !self.is_stalled && self.reader_errors.fatal.is_empty()
    }

    /// What this run was to cover and did not: a run without stops, or with nothing in flight, proves nothing.
    pub fn missing(&self, options: &StopSoakOptions) -> Vec<&'static str> {
        let wanted = [
            (options.rounds == 0 || self.figures.rounds < options.rounds, "all rounds"),
            (self.figures.in_flight == 0, "a stop while events were in flight"),
            (self.topic.counts.acknowledged == 0, "an acknowledged write"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what).collect()
    }

    /// Whether every stop met its deadline.
    pub fn is_in_time(&self) -> bool {
        self.figures.stops.max() <= self.deadline
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        let StopTimings { rounds, in_flight, stops, leases, first_events } = &self.figures;
        let counts = |report: &CheckReport| {
            serde_json::json!({
                "lost": report.count(ViolationKind::Lost),
                "doubled": report.count(ViolationKind::Duplicated),
                "out_of_order": report.count(ViolationKind::OutOfOrder),
                "altered": report.count(ViolationKind::Altered),
            })
        };
        serde_json::json!({
            "soak": "stops",
            "clean": self.is_clean(),
            "rounds": rounds,
            "in_flight": in_flight,
            "acknowledged": self.topic.counts.acknowledged,
            "topic": counts(&self.topic),
            "applied": counts(&self.applied),
            "differences": self.differences.len(),
            "fence_breaches": self.fence_breaches,
            "stalled": self.is_stalled,
            "reader_errors": self.reader_errors.retryable + self.reader_errors.fatal.len() as u64,
            "unexpected_exits": self.unexpected_exits.len(),
            "deadline_ms": self.deadline.as_millis() as u64,
            "stop": stops.json(),
            "next_lease": leases.json(),
            "first_event": first_events.json(),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for StopSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StopTimings { rounds, in_flight, stops, leases, first_events } = &self.figures;
        writeln!(f, "on the topic: {}", self.topic)?;
        writeln!(f, "applied: {}", self.applied)?;
        writeln!(f, "{rounds} rounds, {in_flight} while events were in flight, {:.1} s", self.took.as_secs_f64())?;
        writeln!(f, "stops ({:?} allowed): {stops}", self.deadline)?;
        writeln!(f, "the next leader's lease: {leases}")?;
        write!(f, "its first event: {first_events}")?;
        self.reader_errors.fatal.iter().try_for_each(|error| write!(f, "\nreader error: {error}"))?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}
