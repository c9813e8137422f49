//! Whether a loop still runs: its last heartbeat, and the decision that it is stalled.
//!
//! A loop without work reports [`LoopActivity::Idle`] and may stay idle for ever. An active loop must send a heartbeat within its limit. A loop either
//! holds a [`Heartbeat`], or a [`ProgressTracker`] derives its activity from a counter that the loop moves. Pure: `now` is an argument.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a loop reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopActivity {
    /// Has no work.
    Idle,
    /// Has work; `at` is its last heartbeat.
    Active { at: Instant },
}

/// A loop at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopLiveness {
    pub name: &'static str,
    pub activity: LoopActivity,
    /// The longest allowed time between heartbeats.
    pub limit: Duration,
}

/// The evaluation of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Idle,
    Running,
    /// With the time since the last heartbeat.
    Stalled(Duration),
}

impl LoopLiveness {
    pub fn evaluate(&self, now: Instant) -> Liveness {
        match self.activity {
            LoopActivity::Idle => Liveness::Idle,
            LoopActivity::Active { at } => {
                let silence = now.saturating_duration_since(at);
                if silence > self.limit { Liveness::Stalled(silence) } else { Liveness::Running }
            }
        }
    }
}

/// Held by a loop. Cheap to clone; a beat is one atomic store.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Nanoseconds since `origin`, plus one; zero means idle.
    last: Arc<AtomicU64>,
    origin: Instant,
}

impl Heartbeat {
    /// Idle until the first beat.
    pub fn new(now: Instant) -> Self {
        Self { last: Arc::default(), origin: now }
    }

    /// Called once per iteration.
    pub fn beat(&self, now: Instant) {
        let nanos = now.saturating_duration_since(self.origin).as_nanos();
        self.last.store(u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1, Relaxed);
    }

    /// The loop waits for work that may never come.
    pub fn set_idle(&self) {
        self.last.store(0, Relaxed);
    }

    pub fn activity(&self) -> LoopActivity {
        match self.last.load(Relaxed) {
            0 => LoopActivity::Idle,
            nanos => LoopActivity::Active { at: self.origin + Duration::from_nanos(nanos - 1) },
        }
    }
}

/// Derives the activity of a loop from a counter that the loop moves. Needs frequent calls: a change is dated by the call that sees it.
#[derive(Debug, Default)]
pub struct ProgressTracker(Mutex<Option<(u64, Instant)>>);

impl ProgressTracker {
    /// An idle loop counts as alive at `now`, so that the limit starts when work arrives.
    pub fn observe(&self, counter: u64, idle: bool, now: Instant) -> LoopActivity {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match *last {
            Some((before, at)) if before == counter && !idle => at,
            _ => now,
        };
        *last = Some((counter, at));
        if idle { LoopActivity::Idle } else { LoopActivity::Active { at } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn evaluated(activity: LoopActivity, now: Instant) -> Liveness {
        LoopLiveness { name: "capture", activity, limit: LIMIT }.evaluate(now)
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_loop_is_stalled_only_after_its_limit() {
        let start = Instant::now();
        let activity = LoopActivity::Active { at: start };
        assert_eq!(evaluated(activity, start), Liveness::Running);
        assert_eq!(evaluated(activity, after(start, 10)), Liveness::Running);
        assert_eq!(evaluated(activity, after(start, 11)), Liveness::Stalled(Duration::from_secs(11)));
    }

    #[test]
    fn an_idle_loop_is_never_stalled() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        assert_eq!(evaluated(heartbeat.activity(), after(start, 1_000_000)), Liveness::Idle);
        heartbeat.beat(after(start, 1_000_000));
        heartbeat.set_idle();
        assert_eq!(evaluated(heartbeat.activity(), after(start, 2_000_000)), Liveness::Idle);
    }

    #[test]
    fn the_limit_counts_from_the_last_beat() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        heartbeat.beat(after(start, 5_000));
        assert_eq!(evaluated(heartbeat.activity(), after(start, 5_010)), Liveness::Running);
        assert_eq!(evaluated(heartbeat.activity(), after(start, 5_011)), Liveness::Stalled(Duration::from_secs(11)));
    }

    #[test]
    fn a_beat_at_the_origin_is_not_idle() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        heartbeat.beat(start);
        assert_eq!(heartbeat.activity(), LoopActivity::Active { at: start });
    }

    #[test]
    fn a_heartbeat_from_the_future_is_not_stalled() {
        let start = Instant::now();
        assert_eq!(evaluated(LoopActivity::Active { at: after(start, 60) }, start), Liveness::Running);
    }

    #[test]
    fn a_constant_counter_is_stalled_unless_idle() {
        let start = Instant::now();
        let published = ProgressTracker::default();
        for (second, number, idle, expected) in [
            (0, 7, false, Liveness::Running),
            (8, 7, false, Liveness::Running),
            (11, 7, false, Liveness::Stalled(Duration::from_secs(11))),
            // The counter moves again.
            (12, 8, false, Liveness::Running),
            // Idle for a long time, then work without progress: the limit starts with the work.
            (13, 8, true, Liveness::Idle),
            (500, 8, true, Liveness::Idle),
            (505, 8, false, Liveness::Running),
            (511, 8, false, Liveness::Stalled(Duration::from_secs(11))),
            // A counter that restarts with a new term moves as well.
            (512, 0, false, Liveness::Running),
        ] {
            let now = after(start, second);
            assert_eq!(evaluated(published.observe(number, idle, now), now), expected, "at {second} s");
        }
    }
}
