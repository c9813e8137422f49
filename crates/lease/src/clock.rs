//! The only clock that decides anything here: time since boot, on this machine.
//!
//! It never jumps with the wall clock, and it counts the time a machine spends suspended: a pod that wakes up must know that
//! its lease has run out. Systems call that clock by different names, see `BOOT_CLOCK`. A [`Moment`] is never sent to
//! another pod.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Linux stops `CLOCK_MONOTONIC` while it is suspended, and has this one beside it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// Apple's `CLOCK_MONOTONIC` counts suspend. (`CLOCK_UPTIME_RAW`, which `std::time::Instant` reads there, does not.)
#[cfg(target_vendor = "apple")]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
compile_error!("a lease needs a clock that counts suspend: name this system's in clock.rs");

/// A moment on one pod's boot clock. Comparing the moments of two machines means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Reads the boot clock; a vDSO call of some tens of nanoseconds, so a gate may ask it before every write.
    pub fn now() -> Self {
        let read = clock_gettime(BOOT_CLOCK).expect("every system named above has its clock");
        Self(read.into())
    }

    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// How long from `earlier` to here; nothing when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// Where moments come from: the boot clock, or in tests the runtime's own clock, which can be paused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    Boot,
    #[cfg(test)]
    Runtime {
        started: tokio::time::Instant,
    },
}

impl Clock {
    pub(crate) fn now(self) -> Moment {
        match self {
            Self::Boot => Moment::now(),
            #[cfg(test)]
            Self::Runtime { started } => Moment::since_boot(started.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_does_not_run_backwards() {
        let earlier = Moment::now();
        assert!(Moment::now() >= earlier);
    }

    /// No test can suspend the machine: at least it is the clock whose manual page says so.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_is_the_one_that_counts_suspend() {
        let before = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
        let now = Moment::now().as_duration();
        let after = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
        assert!((Duration::from(before)..=Duration::from(after)).contains(&now));
    }

    #[test]
    fn a_span_to_an_earlier_moment_is_nothing() {
        let early = Moment::since_boot(Duration::from_secs(1));
        let late = early + Duration::from_secs(2);
        assert_eq!(late.since(early), Duration::from_secs(2));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
