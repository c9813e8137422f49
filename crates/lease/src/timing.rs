//! The three durations of a lease, and the inequalities that make it safe.
//!
//! The holder counts `renew_deadline` from the moment it *sent* its last acknowledged renewal. A standby counts `ttl` from the
//! moment it *saw* that renewal's version, which is later. Let every boot clock run at a rate within 1 ± ρ of true time. The
//! holder is then valid for at most `renew_deadline / (1 − ρ)`, and a standby waits at least `ttl / (1 + ρ)`. No two pods are
//! valid at once if the first is shorter than the second. [`Timing::new`] checks exactly that with ρ = [`DRIFT_PERCENT`] %.
//! (Kernels adjust their clocks by at most 0.05 %; the defaults tolerate 20 %.)

use std::time::Duration;

/// The drift bound: no pod's boot clock is faster or slower than true time by more than this.
pub const DRIFT_PERCENT: u32 = 1;

/// The shortest time between a heartbeat and the deadline: two requests of 50 ms; a healthy server replies within a few ms.
const MIN_RENEW_WINDOW: Duration = Duration::from_millis(100);

/// The durations of a lease. The constructor checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    ttl: Duration,
    renew_deadline: Duration,
    heartbeat: Duration,
}

/// The inequality that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTiming {
    #[error("`heartbeat` must be longer than zero")]
    NoHeartbeat,
    #[error("`renew_deadline` must be longer than `heartbeat`, or one late renewal ends the term")]
    DeadlineTooShort,
    #[error(
        "`renew_deadline` must be longer than `heartbeat` by at least {MIN_RENEW_WINDOW:?}, or no renewal is acknowledged in time"
    )]
    NoTimeToRenew,
    #[error(
        "`ttl` must be longer than `renew_deadline` by more than {} % (twice the drift bound), or two pods can lead at once",
        2 * DRIFT_PERCENT
    )]
    TtlTooShort,
}

impl Timing {
    pub fn new(ttl: Duration, renew_deadline: Duration, heartbeat: Duration) -> Result<Self, InvalidTiming> {
        if heartbeat.is_zero() {
            return Err(InvalidTiming::NoHeartbeat);
        }
        if renew_deadline <= heartbeat {
            return Err(InvalidTiming::DeadlineTooShort);
        }
        if renew_deadline - heartbeat < MIN_RENEW_WINDOW {
            return Err(InvalidTiming::NoTimeToRenew);
        }
        // Integer form of `renew_deadline / (1 − ρ) < ttl / (1 + ρ)`, rounded to the safe side.
        let longest_validity = renew_deadline.saturating_mul(100 + DRIFT_PERCENT);
        let shortest_wait = ttl.saturating_mul(100 - DRIFT_PERCENT);
        if shortest_wait <= longest_validity {
            return Err(InvalidTiming::TtlTooShort);
        }
        Ok(Self { ttl, renew_deadline, heartbeat })
    }

    /// How long a standby must see no change before it may take over.
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long the holder may rely on an acknowledged renewal, counted from when it was sent.
    pub const fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// How long the holder waits between an acknowledged renewal and the next one.
    pub const fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// How long one request may take: half of the time between a heartbeat and the deadline, so that a renewal without a
    /// reply can be sent again in time.
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline - self.heartbeat) / 2
    }

    /// The pause after a failed renewal: a tenth of the same time, so that several attempts fit before the deadline.
    pub fn retry_interval(&self) -> Duration {
        (self.renew_deadline - self.heartbeat) / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(ttl: u64, renew_deadline: u64, heartbeat: u64) -> Result<Timing, InvalidTiming> {
        let millis = Duration::from_millis;
        Timing::new(millis(ttl), millis(renew_deadline), millis(heartbeat))
    }

    #[test]
    fn ttl_exceeds_the_deadline_which_exceeds_the_heartbeat() {
        let cases = [
            (15_000, 10_000, 5_000, Ok(())),
            (1_000, 600, 300, Ok(())),
            (15_000, 10_000, 10_000, Err(InvalidTiming::DeadlineTooShort)),
            (15_000, 10_000, 11_000, Err(InvalidTiming::DeadlineTooShort)),
            (10_000, 10_000, 5_000, Err(InvalidTiming::TtlTooShort)),
            (9_000, 10_000, 5_000, Err(InvalidTiming::TtlTooShort)),
            (15_000, 10_000, 0, Err(InvalidTiming::NoHeartbeat)),
            (15_000, 10_000, 9_900, Ok(())),
            (15_000, 10_000, 9_901, Err(InvalidTiming::NoTimeToRenew)),
        ];
        for (ttl, deadline, heartbeat, expected) in cases {
            assert_eq!(timing(ttl, deadline, heartbeat).map(drop), expected, "{ttl} {deadline} {heartbeat}");
        }
    }

    #[test]
    fn ttl_leaves_room_for_clock_drift() {
        assert_eq!(timing(10_202, 10_000, 5_000), Err(InvalidTiming::TtlTooShort));
        assert!(timing(10_203, 10_000, 5_000).is_ok());
    }
}
