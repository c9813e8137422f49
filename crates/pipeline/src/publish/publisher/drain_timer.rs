//! The deadlines of a drain.
//!
//! Service Bus or MongoDB may be unreachable, and must not keep a pod from stopping: a leader that does not stop keeps its lease, and no other pod can
//! lead. Unpublished events are not lost: the checkpoint is before them, and the next leader publishes them.

use std::time::{Duration, Instant};

/// Part of the drain that is reserved for the last save: one majority write.
const LAST_SAVE_RESERVE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct DrainTimer {
    deadlines: Option<DrainDeadlines>,
    has_stopped_sending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrainDeadlines {
    /// After this nothing is sent; acknowledged events are still saved.
    send_until: Instant,
    end_at: Instant,
}

impl DrainDeadlines {
    fn new(now: Instant, within: Duration) -> Self {
        let end_at = now + within;
        Self { send_until: end_at - LAST_SAVE_RESERVE.min(within / 4), end_at }
    }
}

impl DrainTimer {
    /// `false` if the drain has begun before.
    pub(super) fn begin(&mut self, now: Instant, within: Duration) -> bool {
        let is_first = self.deadlines.is_none();
        if is_first {
            self.deadlines = Some(DrainDeadlines::new(now, within));
        }
        is_first
    }

    pub(super) fn is_active(&self) -> bool {
        self.deadlines.is_some()
    }

    /// Returns whether the time to send is over.
    pub(super) fn check_send_deadline(&mut self, now: Instant) -> bool {
        self.has_stopped_sending |= self.deadlines.is_some_and(|deadlines| now >= deadlines.send_until);
        self.has_stopped_sending
    }

    pub(super) fn has_stopped_sending(&self) -> bool {
        self.has_stopped_sending
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadlines.is_some_and(|deadlines| now >= deadlines.end_at)
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let deadlines = self.deadlines?;
        Some(if self.has_stopped_sending { deadlines.end_at } else { deadlines.send_until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_reserves_time_for_the_last_save() {
        let now = Instant::now();
        for (within, send) in [(0, 0), (400, 300), (2_000, 1_500), (10_000, 9_000), (60_000, 59_000)] {
            let [within, send] = [within, send].map(Duration::from_millis);
            let expected = DrainDeadlines { send_until: now + send, end_at: now + within };
            assert_eq!(DrainDeadlines::new(now, within), expected);
        }
    }
}
