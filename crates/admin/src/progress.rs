//! Whether a loop goes round: a sign of life per loop, and the decision that one is wedged.
//!
//! A loop that has nothing to do says so ([`Pulse::Resting`]) and may rest for ever; one that does not say so must show a sign of life within its
//! limit. The decision is pure; `now` is an argument. A loop shows its life through a [`Heartbeat`] it holds, or somebody derives it
//! from a number that the loop moves ([`Movement`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a loop says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// Nothing to do, on purpose.
    Resting,
    /// At work; `at` is its last sign of life.
    Alive { at: Instant },
}

/// One loop as it is seen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    pub name: &'static str,
    pub pulse: Pulse,
    /// How long it may be without a sign of life.
    pub limit: Duration,
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Resting,
    Moving,
    /// For so long.
    Wedged(Duration),
}

impl Loop {
    pub fn judge(&self, now: Instant) -> Verdict {
        match self.pulse {
            Pulse::Resting => Verdict::Resting,
            Pulse::Alive { at } => {
                let still = now.saturating_duration_since(at);
                if still > self.limit { Verdict::Wedged(still) } else { Verdict::Moving }
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
    pub fn rest(&self) {
        self.last.store(0, Relaxed);
    }

    pub fn pulse(&self) -> Pulse {
        match self.last.load(Relaxed) {
            0 => Pulse::Resting,
            nanos => Pulse::Alive { at: self.origin + Duration::from_nanos(nanos - 1) },
        }
    }
}

/// Makes a pulse of a number that moves while a loop works. To be looked at often: a change is dated by the look that sees it.
#[derive(Debug, Default)]
pub struct Movement(Mutex<Option<(u64, Instant)>>);

impl Movement {
    /// `resting`: whether the loop has nothing to do; a rest counts as a sign of life.
    pub fn pulse(&self, number: u64, resting: bool, now: Instant) -> Pulse {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match *seen {
            Some((before, at)) if before == number && !resting => at,
            _ => now,
        };
        *seen = Some((number, at));
        if resting { Pulse::Resting } else { Pulse::Alive { at } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn judged(pulse: Pulse, now: Instant) -> Verdict {
        Loop { name: "capture", pulse, limit: LIMIT }.judge(now)
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_loop_is_wedged_only_after_its_limit() {
        let start = Instant::now();
        let pulse = Pulse::Alive { at: start };
        assert_eq!(judged(pulse, start), Verdict::Moving);
        assert_eq!(judged(pulse, after(start, 10)), Verdict::Moving);
        assert_eq!(judged(pulse, after(start, 11)), Verdict::Wedged(Duration::from_secs(11)));
    }

    #[test]
    fn a_loop_that_rests_on_purpose_may_do_so_for_ever() {
        let start = Instant::now();
        let heart = Heartbeat::new(start);
        assert_eq!(judged(heart.pulse(), after(start, 1_000_000)), Verdict::Resting);
        heart.beat(after(start, 1_000_000));
        heart.rest();
        assert_eq!(judged(heart.pulse(), after(start, 2_000_000)), Verdict::Resting);
    }

    #[test]
    fn a_beat_after_a_long_rest_counts_from_the_beat() {
        let start = Instant::now();
        let heart = Heartbeat::new(start);
        heart.beat(after(start, 5_000));
        assert_eq!(judged(heart.pulse(), after(start, 5_010)), Verdict::Moving);
        assert_eq!(judged(heart.pulse(), after(start, 5_011)), Verdict::Wedged(Duration::from_secs(11)));
    }

    #[test]
    fn a_beat_at_the_very_origin_is_no_rest() {
        let start = Instant::now();
        let heart = Heartbeat::new(start);
        heart.beat(start);
        assert_eq!(heart.pulse(), Pulse::Alive { at: start });
    }

    #[test]
    fn a_clock_that_is_read_out_of_order_wedges_nobody() {
        let start = Instant::now();
        assert_eq!(judged(Pulse::Alive { at: after(start, 60) }, start), Verdict::Moving);
    }

    #[test]
    fn a_number_that_stands_still_is_a_wedge_unless_there_is_nothing_to_do() {
        let start = Instant::now();
        let published = Movement::default();
        for (second, number, resting, expected) in [
            (0, 7, false, Verdict::Moving),
            (8, 7, false, Verdict::Moving),
            (11, 7, false, Verdict::Wedged(Duration::from_secs(11))),
            // It moves again.
            (12, 8, false, Verdict::Moving),
            // Nothing to do for a long time, then work that does not move: counted from when there was work.
            (13, 8, true, Verdict::Resting),
            (500, 8, true, Verdict::Resting),
            (505, 8, false, Verdict::Moving),
            (511, 8, false, Verdict::Wedged(Duration::from_secs(11))),
            // A counter that begins anew with a new term moves as well.
            (512, 0, false, Verdict::Moving),
        ] {
            let now = after(start, second);
            assert_eq!(judged(published.pulse(number, resting, now), now), expected, "at {second} s");
        }
    }
}
