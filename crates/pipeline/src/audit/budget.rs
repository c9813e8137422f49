//! Pure: how long the audit pauses after work, so that its share of the time stays within the budget.

use std::time::Duration;

/// The longest pause: one slow read must not stop the audit for minutes.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The share of the time in which the audit works. The time of the servers counts, too: what takes long costs somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkBudget {
    percent: u32,
}

impl WorkBudget {
    pub(super) fn new(percent: u32) -> Self {
        Self { percent: percent.clamp(1, 100) }
    }

    pub(super) fn pause_after(self, work: Duration) -> Duration {
        (work * (100 - self.percent) / self.percent).min(MAX_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_keep_the_share_of_work_within_the_budget() {
        let pause = |percent, millis| WorkBudget::new(percent).pause_after(Duration::from_millis(millis));
        assert_eq!(pause(3, 30), Duration::from_millis(970));
        assert_eq!(pause(50, 30), Duration::from_millis(30));
        assert_eq!(pause(100, 30), Duration::ZERO);
        assert_eq!(pause(0, 1), Duration::from_millis(99), "a budget of nothing would never end");
        assert_eq!(pause(1, 60_000), MAX_PAUSE);
    }
}
