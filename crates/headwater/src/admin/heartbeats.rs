//! Signs of life of the loops beside the services: those that only tell, and the one that looks for an operator's wish.
//!
//! Each goes round by the clock, whatever happens, and nothing it waits for lasts for ever; so it beats once a round, and need not be
//! understood from outside.

use std::time::{Duration, Instant};

use admin::{Heartbeat, LoopLiveness};
use lease::failpoints;

/// A round takes seconds, with servers that do not answer half a minute.
const LIMIT: Duration = Duration::from_secs(120);

/// One loop's.
#[derive(Clone, Debug)]
pub(crate) struct LoopHeartbeat {
    name: BackgroundLoop,
    beat: Heartbeat,
}

#[derive(Clone, Debug)]
pub(crate) struct BackgroundHeartbeats {
    pub(crate) announcer: LoopHeartbeat,
    pub(crate) gather: LoopHeartbeat,
    pub(crate) step_down: LoopHeartbeat,
}

/// As a test names the one it wedges.
#[derive(Clone, Copy, Debug)]
enum BackgroundLoop {
    Announcer,
    Gather,
    StepDown,
}

impl BackgroundHeartbeats {
    pub(super) fn new(now: Instant) -> Self {
        let heartbeat = |name| LoopHeartbeat { name, beat: Heartbeat::new(now) };
        Self {
            announcer: heartbeat(BackgroundLoop::Announcer),
            gather: heartbeat(BackgroundLoop::Gather),
            step_down: heartbeat(BackgroundLoop::StepDown),
        }
    }
}

impl LoopHeartbeat {
    /// For the loop to say at the end of every round.
    pub(crate) async fn beat(&self) {
        self.beat.beat(Instant::now());
        failpoints::stall(&self.name).await;
    }

    /// The loop has ended, as it was told to.
    pub(crate) fn set_idle(&self) {
        self.beat.set_idle();
    }

    pub(super) fn seen(&self) -> LoopLiveness {
        let name = match self.name {
            BackgroundLoop::Announcer => "announcer",
            BackgroundLoop::Gather => "gather",
            BackgroundLoop::StepDown => "step-down",
        };
        LoopLiveness { name, activity: self.beat.activity(), limit: failpoints::stall_limit(LIMIT) }
    }
}
