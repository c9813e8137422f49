//! Time in the model: true time advances in ticks, and states contain ages instead of clock readings.
//!
//! A tick stands for the default heartbeat of five seconds, so the default 15 / 10 / 5 s become 3 / 2 / 1 ticks. In one tick a
//! pod's boot clock advances by [`SLOW`] or by [`FAST`], the two ends of the drift bound of the production code, and may
//! change at every tick. Rates between the ends add nothing: a slower clock only keeps a leader valid for longer, a faster one only
//! lets a standby take over sooner, and a pod uses its clock for one of the two at a time.
//!
//! Whole ticks suffice because [`PodTiming::to_timing`] makes both bounds closed in ticks: a leader with the slowest clock is still
//! valid *at* its last tick, a standby with the fastest may act *at* tick ttl, and message delays and pauses are not bounded at
//! all. (Integer times are enough for closed bounds: Henzinger, Manna, Pnueli, "What good are digital clocks?", 1992.)

use std::time::Duration;

use lease::Timing;
use lease::clock::BootInstant;
use lease::timing::DRIFT_PERCENT;

/// True milliseconds in a tick.
pub const TICK: u16 = 5_000;
const DRIFT: u16 = TICK / 100 * DRIFT_PERCENT as u16;
/// How far the slowest clock within the drift bound advances in a tick.
pub const SLOW: u16 = TICK - DRIFT;
/// How far the fastest clock within the drift bound advances in a tick.
pub const FAST: u16 = TICK + DRIFT;
/// Due at every tick, on the slowest clock too; short enough for the shortest deadline.
const HEARTBEAT: u16 = SLOW - 200;

/// The constant reading of every boot clock: past events are stored as ages.
const NOW: Duration = Duration::from_secs(600);

/// The present, for the production functions.
pub const fn now() -> BootInstant {
    BootInstant::since_boot(NOW)
}

/// How a pod's clock runs during one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockRate {
    Slow,
    Fast,
    /// Outside the bound: a clock that does not count suspend. Only a planted defect uses it.
    Stopped,
}

/// The age of an event on the clock of one pod: whole ticks, and whether that clock always ran at the rate `PURE`. If not, the age
/// can no longer reach the `PURE` end of the interval, and the `MIXED` end stands for all values: no threshold lies between them (a
/// test checks this).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockAge<const PURE: u16, const MIXED: u16> {
    ticks: u8,
    pure: bool,
}

/// The age of a standby's observation: the fastest clock is the dangerous one.
pub type WaitAge = ClockAge<FAST, SLOW>;
/// The age of a leader's last acknowledged statement: the slowest clock is the dangerous one.
pub type LeaseAge = ClockAge<SLOW, FAST>;

impl<const PURE: u16, const MIXED: u16> ClockAge<PURE, MIXED> {
    pub const ZERO: Self = Self { ticks: 0, pure: true };

    pub fn instant(self) -> BootInstant {
        let rate = if self.pure { PURE } else { MIXED };
        let age = Duration::from_millis(u64::from(self.ticks) * u64::from(rate));
        BootInstant::since_boot(NOW.saturating_sub(age))
    }

    const fn add_tick(self, rate: u16) -> Self {
        Self { ticks: self.ticks + 1, pure: self.pure && rate == PURE }
    }

    fn after_tick(self, rate: ClockRate) -> Self {
        match rate {
            ClockRate::Slow => self.add_tick(SLOW),
            ClockRate::Fast => self.add_tick(FAST),
            ClockRate::Stopped => self,
        }
    }
}

/// The age from which nothing changes. Older ages are replaced by this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeHorizon {
    /// The longest ttl among the pods, in ticks.
    pub ttl: u8,
}

impl AgeHorizon {
    /// A wait that is over even for the longest ttl needs no exact age.
    pub fn after_wait_tick(self, age: WaitAge, rate: ClockRate) -> WaitAge {
        let age = age.after_tick(rate);
        if self.is_over(age) { self.over() } else { age }
    }

    /// The age of every wait that is over.
    pub const fn over(self) -> WaitAge {
        WaitAge { ticks: self.ttl + 1, pure: true }
    }

    pub const fn is_over(self, age: WaitAge) -> bool {
        age.ticks > self.ttl || (age.ticks == self.ttl && age.pure)
    }

    /// A lease that is expired even for the longest deadline needs no exact age.
    pub fn after_lease_tick(self, age: LeaseAge, rate: ClockRate) -> LeaseAge {
        let age = age.after_tick(rate);
        if self.is_expired(age) { LeaseAge { ticks: self.ttl, pure: false } } else { age }
    }

    pub const fn is_expired(self, age: LeaseAge) -> bool {
        let deadline = self.ttl - 1;
        age.ticks > deadline || (age.ticks == deadline && !age.pure)
    }
}

/// The timing of a pod. There are several, because a rolling change of settings is in progress for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodTiming {
    /// ttl 2, deadline 1, heartbeat 1.
    Brief,
    /// ttl 3, deadline 2, heartbeat 1: the defaults.
    Short,
    /// ttl 4, deadline 3, heartbeat 1.
    Long,
}

impl PodTiming {
    pub const ALL: [Self; 3] = [Self::Brief, Self::Short, Self::Long];

    pub const fn ttl(self) -> u8 {
        match self {
            Self::Brief => 2,
            Self::Short => 3,
            Self::Long => 4,
        }
    }

    /// As tight as the production check allows in whole ticks: one tick less of ttl is refused by [`Timing::new`].
    pub fn to_timing(self) -> Timing {
        timing(self.ttl(), self.ttl() - 1).expect("a ttl one tick above the deadline is legal")
    }
}

/// A ttl that the fastest clock reaches at exactly `ttl` ticks, and a deadline that the slowest has not reached after `deadline` ticks.
pub fn timing(ttl: u8, deadline: u8) -> Result<Timing, lease::timing::InvalidTiming> {
    let millis = |count: u16| Duration::from_millis(u64::from(count));
    Timing::new(millis(u16::from(ttl) * FAST), millis(u16::from(deadline) * SLOW + 1), millis(HEARTBEAT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_equal_to_the_deadline_is_refused_by_production() {
        for ticks in 1..10 {
            assert!(timing(ticks + 1, ticks).is_ok());
            assert_eq!(timing(ticks, ticks), Err(lease::timing::InvalidTiming::TtlTooShort));
        }
    }

    /// Every possible clock reading after `ticks`.
    fn readings(ticks: u16) -> impl Iterator<Item = u16> {
        (0..=ticks).map(move |fast| fast * FAST + (ticks - fast) * SLOW)
    }

    #[test]
    fn no_threshold_lies_between_the_readings_of_one_age() {
        for timing in PodTiming::ALL {
            let ttl = u16::from(timing.ttl()) * FAST;
            let deadline = u16::from(timing.ttl() - 1) * SLOW + 1;
            for ticks in 1..8 {
                let mixed = |pure: u16| readings(ticks).filter(move |reading| *reading != pure * ticks);
                assert_eq!(mixed(FAST).any(|r| r >= ttl), mixed(FAST).all(|r| r >= ttl), "waited {ticks}");
                assert_eq!(mixed(SLOW).any(|r| r < deadline), mixed(SLOW).all(|r| r < deadline), "held {ticks}");
                assert_eq!(mixed(SLOW).any(|r| r < HEARTBEAT), mixed(SLOW).all(|r| r < HEARTBEAT), "renewal {ticks}");
            }
        }
    }
}
