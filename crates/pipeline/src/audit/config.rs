//! Audit settings, each default with its reason.

use std::time::Duration;

/// A loss is found within a day, and the load of a round is spread over half of it.
const PERIOD: Duration = Duration::from_secs(24 * 3_600);
/// The share of time in which the audit reads: a few percent of a core, here and at the servers.
const BUDGET_PERCENT: u32 = 3;
/// As the lease of the leader: an auditor that has shown no sign of life for this long is replaced.
const TAKEOVER: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub enabled: bool,
    /// Every aggregate is compared at least once in this time.
    pub period: Duration,
    /// Percent of the time in which the audit may work; 100: without pauses.
    pub budget_percent: u32,
    /// Another pod takes over from an auditor that has been silent for this long.
    pub takeover: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, period: PERIOD, budget_percent: BUDGET_PERCENT, takeover: TAKEOVER }
    }
}

impl Config {
    /// How often the auditor shows that it is alive.
    pub(super) fn heartbeat(&self) -> Duration {
        self.takeover / 3
    }
}
