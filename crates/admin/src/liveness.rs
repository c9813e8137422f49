//! Whether a loop goes round: a sign of life per loop, and the decision that one is wedged.
//!
//! A loop that has nothing to do says so ([`Activity::Idle`]) and may rest for ever; one that does not say so must show a sign of life within its
//! limit. The decision is pure; `now` is an argument. A loop shows its life through a [`Heartbeat`] it holds, or somebody derives it
//! from a number that the loop moves ([`ProgressTracker`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a loop says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing to do, on purpose.
    Idle,
    /// At work; `at` is its last sign of life.
    Active { at: Instant },
}

/// One loop as it is seen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopLiveness {
    pub name: &'static str,
    pub activity: Activity,
    /// How long it may be without a sign of life.
    pub limit: Duration,
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Idle,
    Running,
    /// For so long.
    Stalled(Duration),
}

impl LoopLiveness {
    pub fn evaluate(&self, now: Instant) -> Liveness {
        match self.activity {
            Activity::Idle => Liveness::Idle,
            Activity::Active { at } => {
                let still = now.saturating_duration_since(at);
                if still > self.limit { Liveness::Stalled(still) } else { Liveness::Running }
            }
        }
    }
}

/// For a loop to hold. Cheap to clone and to beat: one atomic store.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Nanoseconds after `origin`, plus one; zero while it rests.
    last: Arc<AtomicU64>,
    origin: Instant,
}

impl Heartbeat {
    /// A loop that has not begun rests.
    pub fn new(now: Instant) -> Self {
        Self { last: Arc::default(), origin: now }
    }

    /// The loop goes round.
    pub fn beat(&self, now: Instant) {
        let nanos = now.saturating_duration_since(self.origin).as_nanos();
        self.last.store(u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1, Relaxed);
    }

    /// The loop waits for something that may never come.
    pub fn set_idle(&self) {
        self.last.store(0, Relaxed);
    }

    pub fn activity(&self) -> Activity {
        match self.last.load(Relaxed) {
            0 => Activity::Idle,
            nanos => Activity::Active { at: self.origin + Duration::from_nanos(nanos - 1) },
        }
    }
}

/// Makes a activity of a number that moves while a loop works. To be looked at often: a change is dated by the look that sees it.
#[derive(Debug, Default)]
pub struct ProgressTracker(Mutex<Option<(u64, Instant)>>);

impl ProgressTracker {
    /// `resting`: whether the loop has nothing to do; a rest counts as a sign of life.
    pub fn activity(&self, number: u64, resting: bool, now: Instant) -> Activity {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match *seen {
            Some((before, at)) if before == number && !resting => at,
            _ => now,
        };
        *seen = Some((number, at));
        if resting { Activity::Idle } else { Activity::Active { at } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn evaluated(activity: Activity, now: Instant) -> Liveness {
        LoopLiveness { name: "capture", activity, limit: LIMIT }.evaluate(now)
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_loop_is_wedged_only_after_its_limit() {
        let start = Instant::now();
        let activity = Activity::Active { at: start };
        assert_eq!(evaluated(activity, start), Liveness::Running);
        assert_eq!(evaluated(activity, after(start, 10)), Liveness::Running);
        assert_eq!(evaluated(activity, after(start, 11)), Liveness::Stalled(Duration::from_secs(11)));
    }

    #[test]
    fn a_loop_that_rests_on_purpose_may_do_so_for_ever() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        assert_eq!(evaluated(heartbeat.activity(), after(start, 1_000_000)), Liveness::Idle);
        heartbeat.beat(after(start, 1_000_000));
        heartbeat.set_idle();
        assert_eq!(evaluated(heartbeat.activity(), after(start, 2_000_000)), Liveness::Idle);
    }

    #[test]
    fn a_beat_after_a_long_rest_counts_from_the_beat() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        heartbeat.beat(after(start, 5_000));
        assert_eq!(evaluated(heartbeat.activity(), after(start, 5_010)), Liveness::Running);
        assert_eq!(evaluated(heartbeat.activity(), after(start, 5_011)), Liveness::Stalled(Duration::from_secs(11)));
    }

    #[test]
    fn a_beat_at_the_very_origin_is_no_rest() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        heartbeat.beat(start);
        assert_eq!(heartbeat.activity(), Activity::Active { at: start });
    }

    #[test]
    fn a_clock_that_is_read_out_of_order_wedges_nobody() {
        let start = Instant::now();
        assert_eq!(evaluated(Activity::Active { at: after(start, 60) }, start), Liveness::Running);
    }

    #[test]
    fn a_number_that_stands_still_is_a_wedge_unless_there_is_nothing_to_do() {
        let start = Instant::now();
        let published = ProgressTracker::default();
        for (second, number, resting, expected) in [
            (0, 7, false, Liveness::Running),
            (8, 7, false, Liveness::Running),
            (11, 7, false, Liveness::Stalled(Duration::from_secs(11))),
            // It moves again.
            (12, 8, false, Liveness::Running),
            // Nothing to do for a long time, then work that does not move: counted from when there was work.
            (13, 8, true, Liveness::Idle),
            (500, 8, true, Liveness::Idle),
            (505, 8, false, Liveness::Running),
            (511, 8, false, Liveness::Stalled(Duration::from_secs(11))),
            // A counter that begins anew with a new term moves as well.
            (512, 0, false, Liveness::Running),
        ] {
            let now = after(start, second);
            assert_eq!(evaluated(published.activity(number, resting, now), now), expected, "at {second} s");
        }
    }
}
