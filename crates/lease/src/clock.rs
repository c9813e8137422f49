//! The only clock that decides anything in this crate: time since boot, on this machine.
//!
//! It never jumps with the wall clock, and it counts the time a machine spends suspended: a pod that wakes up must know that
//! its lease has expired. The name of that clock depends on the system, see `BOOT_CLOCK`. A [`BootInstant`] is never sent to
//! another pod.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// On Linux, `CLOCK_MONOTONIC` stops while the machine is suspended; this clock does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// Apple's `CLOCK_MONOTONIC` counts suspend. (`CLOCK_UPTIME_RAW`, which `std::time::Instant` reads there, does not.)
#[cfg(target_vendor = "apple")]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
compile_error!("a lease needs a clock that counts suspend: add the clock of this system to clock.rs");

/// An instant of this machine's boot clock. Instants of two machines cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Reads the boot clock. This is a vDSO call of some tens of nanoseconds, so a gate can read it before every write.
    pub fn now() -> Self {
        let read = clock_gettime(BOOT_CLOCK).expect("every supported system has its boot clock");
        Self(read.into())
    }

    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// The source of instants: the boot clock or, in tests, the runtime's clock, which can be paused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    Boot,
    #[cfg(test)]
    Runtime {
        started: tokio::time::Instant,
    },
}

impl Clock {
    pub(crate) fn now(self) -> BootInstant {
        match self {
            Self::Boot => BootInstant::now(),
            #[cfg(test)]
            Self::Runtime { started } => BootInstant::since_boot(started.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_does_not_run_backwards() {
        let earlier = BootInstant::now();
        assert!(BootInstant::now() >= earlier);
    }

    /// A test cannot suspend the machine. It checks at least that this is the clock whose manual page promises it.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_is_the_one_that_counts_suspend() {
        let before = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
        let now = BootInstant::now().as_duration();
        let after = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
        assert!((Duration::from(before)..=Duration::from(after)).contains(&now));
    }

    #[test]
    fn the_time_since_a_later_instant_is_zero() {
        let early = BootInstant::since_boot(Duration::from_secs(1));
        let late = early + Duration::from_secs(2);
        assert_eq!(late.since(early), Duration::from_secs(2));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
