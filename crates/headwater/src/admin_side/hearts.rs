//! Signs of life of the loops beside the services: those that only tell, and the one that looks for an operator's wish.
//!
//! Each goes round by the clock, whatever happens, and nothing it waits for lasts for ever; so it beats once a round, and need not be
//! understood from outside.

use std::time::{Duration, Instant};

use admin::{Heartbeat, Loop};
use lease::planted;

/// A round takes seconds, with servers that do not answer half a minute.
const LIMIT: Duration = Duration::from_secs(120);

/// One loop's.
#[derive(Clone, Debug)]
pub(crate) struct Heart {
    name: Name,
    beat: Heartbeat,
}

#[derive(Clone, Debug)]
pub(crate) struct Hearts {
    pub(crate) announcer: Heart,
    pub(crate) gather: Heart,
    pub(crate) step_down: Heart,
}

/// As a test names the one it wedges.
#[derive(Clone, Copy, Debug)]
enum Name {
    Announcer,
    Gather,
    StepDown,
}

impl Hearts {
    pub(super) fn new(now: Instant) -> Self {
        let heart = |name| Heart { name, beat: Heartbeat::new(now) };
        Self { announcer: heart(Name::Announcer), gather: heart(Name::Gather), step_down: heart(Name::StepDown) }
    }
}

impl Heart {
    /// For the loop to say at the end of every round.
    pub(crate) async fn beat(&self) {
        self.beat.beat(Instant::now());
        planted::hold(&self.name).await;
    }

    /// The loop has ended, as it was told to.
    pub(crate) fn rest(&self) {
        self.beat.rest();
    }

    pub(super) fn seen(&self) -> Loop {
        let name = match self.name {
            Name::Announcer => "announcer",
            Name::Gather => "gather",
            Name::StepDown => "step-down",
        };
        Loop { name, pulse: self.beat.pulse(), limit: planted::patience(LIMIT) }
    }
}
