//! The result of a stop soak, as text and as JSON.

use std::fmt;
use std::time::Duration;

use testkit::checker::{CheckReport, ViolationKind};
use testkit::cluster::UnexpectedExit;

use super::rounds::StopTimings;

#[derive(Debug)]
pub struct StopSoakResult {
    /// The check of the topic.
    pub topic: CheckReport,
    /// The check of the history model.
    pub applied: CheckReport,
    /// Differences between the read models and a fold of the source.
    pub differences: Vec<String>,
    /// Checkpoint saves that the fence should have refused.
    pub violations: usize,
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
        is_correct && self.violations == 0 && self.unexpected_exits.is_empty() && self.is_in_time()
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
            "fence_breaches": self.violations,
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
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}
