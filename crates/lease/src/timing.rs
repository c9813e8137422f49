//! The three spans a lease lives by, and the inequalities that make it safe.
//!
//! The holder counts `renew_deadline` from the moment it *sent* its last acknowledged renewal; a standby counts `ttl` from
//! the moment it *saw* that renewal's version, which is later. Let every boot clock run at a rate within 1 ± ρ of true
//! time. The holder then believes in itself for at most `renew_deadline / (1 − ρ)`, a standby waits at least
//! `ttl / (1 + ρ)`, and no two are valid at once when the first is shorter than the second. [`Timing::new`] checks exactly
//! that with ρ = [`DRIFT_PERCENT`] %. (Kernels steer their clocks by at most 0.05 %; the defaults bear 20 %.)

use std::time::Duration;

/// The stated drift bound: no pod's boot clock is faster or slower than true time by more than this.
pub const DRIFT_PERCENT: u32 = 1;

/// What must lie between a heartbeat and the deadline: two attempts of 50 ms, which a healthy server answers in a few.
const SHORTEST_GAP: Duration = Duration::from_millis(100);

/// How often, and for how long. Checked when made, so that whoever holds one need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    ttl: Duration,
    renew_deadline: Duration,
    heartbeat: Duration,
}

/// Which inequality does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("`heartbeat` must be longer than zero")]
    NoHeartbeat,
    #[error("`renew_deadline` must be longer than `heartbeat`, or one renewal that is late ends the term")]
    DeadlineTooShort,
    #[error(
        "between `heartbeat` and `renew_deadline` there must be at least {SHORTEST_GAP:?}, or no renewal is answered in time"
    )]
    NoTimeToRenew,
    #[error(
        "`ttl` must be longer than `renew_deadline` by more than {} % (twice the drift bound), or two pods can lead at once",
        2 * DRIFT_PERCENT
    )]
    TtlTooShort,
}

impl Timing {
    pub fn new(ttl: Duration, renew_deadline: Duration, heartbeat: Duration) -> Result<Self, Invalid> {
        if heartbeat.is_zero() {
            return Err(Invalid::NoHeartbeat);
        }
        if renew_deadline <= heartbeat {
            return Err(Invalid::DeadlineTooShort);
        }
        if renew_deadline - heartbeat < SHORTEST_GAP {
            return Err(Invalid::NoTimeToRenew);
        }
        let longest_belief = renew_deadline.saturating_mul(100 + DRIFT_PERCENT);
        let shortest_wait = ttl.saturating_mul(100 - DRIFT_PERCENT);
        if shortest_wait <= longest_belief {
            return Err(Invalid::TtlTooShort);
        }
        Ok(Self { ttl, renew_deadline, heartbeat })
    }

    /// How long a standby must see nothing change before it may take over.
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long the holder may rely on an acknowledged renewal, from when it was sent.
    pub const fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// How long the holder waits between an acknowledged renewal and the next.
    pub const fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// How long one request may take: half of what lies between a heartbeat and the deadline, so that a renewal which
    /// gets no answer can be asked again in time.
    pub fn attempt(&self) -> Duration {
        (self.renew_deadline - self.heartbeat) / 2
    }

    /// The pause after a renewal that failed: a tenth of the same span, so that several fit before the deadline.
    pub fn retry(&self) -> Duration {
        (self.renew_deadline - self.heartbeat) / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(ttl: u64, renew_deadline: u64, heartbeat: u64) -> Result<Timing, Invalid> {
        let millis = Duration::from_millis;
        Timing::new(millis(ttl), millis(renew_deadline), millis(heartbeat))
    }

    #[test]
    fn ttl_is_longer_than_the_deadline_and_that_than_the_heartbeat() {
        let cases = [
            (15_000, 10_000, 5_000, Ok(())),
            (1_000, 600, 300, Ok(())),
            (15_000, 10_000, 10_000, Err(Invalid::DeadlineTooShort)),
            (15_000, 10_000, 11_000, Err(Invalid::DeadlineTooShort)),
            (10_000, 10_000, 5_000, Err(Invalid::TtlTooShort)),
            (9_000, 10_000, 5_000, Err(Invalid::TtlTooShort)),
            (15_000, 10_000, 0, Err(Invalid::NoHeartbeat)),
            (15_000, 10_000, 9_900, Ok(())),
            (15_000, 10_000, 9_901, Err(Invalid::NoTimeToRenew)),
        ];
        for (ttl, deadline, heartbeat, expected) in cases {
            assert_eq!(timing(ttl, deadline, heartbeat).map(drop), expected, "{ttl} {deadline} {heartbeat}");
        }
    }

    #[test]
    fn ttl_leaves_room_for_clocks_that_drift_apart() {
        assert_eq!(timing(10_202, 10_000, 5_000), Err(Invalid::TtlTooShort));
        assert!(timing(10_203, 10_000, 5_000).is_ok());
    }
}
