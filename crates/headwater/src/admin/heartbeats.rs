//! Heartbeats of the background loops beside the services: announcer, status collector, and the watcher for step-down requests.
//!
//! Each of these loops iterates by the clock, and all of its waits have a timeout. So it beats once per iteration, and nothing else about it
//! needs to be known.

use std::time::{Duration, Instant};

use admin::{Heartbeat, LoopLiveness};
use lease::failpoints;

/// An iteration takes seconds, and half a minute while servers do not respond.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(crate) struct LoopHeartbeat {
    name: BackgroundLoopName,
    beat: Heartbeat,
}

#[derive(Clone, Debug)]
pub(crate) struct BackgroundLoopHeartbeats {
    pub(crate) announcer: LoopHeartbeat,
    pub(crate) status_collector: LoopHeartbeat,
    pub(crate) step_down: LoopHeartbeat,
}

/// The `Debug` form is the name by which a test stalls the loop.
#[derive(Clone, Copy, Debug)]
enum BackgroundLoopName {
    Announcer,
    StatusCollector,
    StepDown,
}

impl BackgroundLoopHeartbeats {
    pub(super) fn new(now: Instant) -> Self {
        let heartbeat = |name| LoopHeartbeat { name, beat: Heartbeat::new(now) };
        Self {
            announcer: heartbeat(BackgroundLoopName::Announcer),
            status_collector: heartbeat(BackgroundLoopName::StatusCollector),
            step_down: heartbeat(BackgroundLoopName::StepDown),
        }
    }
}

impl LoopHeartbeat {
    /// Called at the end of every iteration. Hangs if a failpoint stalls this loop.
    pub(crate) async fn beat(&self) {
        self.beat.beat(Instant::now());
        failpoints::stall(&self.name).await;
    }

    /// Called when the loop has stopped as requested.
    pub(crate) fn set_idle(&self) {
        self.beat.set_idle();
    }

    pub(super) fn liveness(&self) -> LoopLiveness {
        let name = match self.name {
            BackgroundLoopName::Announcer => "announcer",
            BackgroundLoopName::StatusCollector => "status-collector",
            BackgroundLoopName::StepDown => "step-down",
        };
        LoopLiveness { name, activity: self.beat.activity(), limit: failpoints::stall_limit(LIMIT) }
    }
}
