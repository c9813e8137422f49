//! The expiry time of a message in four bytes.

use super::id::Timestamp;

/// 2020-01-01T00:00:00Z. Quarter seconds in 32 bits reach from here to 2054.
const EPOCH: u64 = 1_577_836_800_000;
const TICK: u64 = 250;

/// End of a message's time to live, in quarter seconds, rounded up: never early, at most 250 ms late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ExpiryTime(pub(super) u32);

impl ExpiryTime {
    pub(super) const NEVER: Self = Self(u32::MAX);

    /// `time_to_live` is in milliseconds; `None` means never.
    pub(super) fn after(start: Timestamp, time_to_live: Option<u64>) -> Self {
        let Some(time_to_live) = time_to_live else { return Self::NEVER };
        let ticks = start.0.saturating_add(time_to_live).saturating_sub(EPOCH).div_ceil(TICK);
        u32::try_from(ticks).map_or(Self::NEVER, Self)
    }

    /// The latest expiry time that has passed at `now`.
    pub(super) fn passed_by(now: Timestamp) -> Self {
        let ticks = now.0.saturating_sub(EPOCH) / TICK;
        Self(u32::try_from(ticks).map_or(u32::MAX - 1, |ticks| ticks.min(u32::MAX - 1)))
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp(EPOCH + u64::from(self.0) * TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_100);

    #[test]
    fn a_message_expires_never_early_and_at_most_250_ms_late() {
        for ttl in [1, 249, 250, 251, 60_000] {
            let expires = ExpiryTime::after(NOW, Some(ttl));
            let exact = NOW.0 + ttl;
            assert!(ExpiryTime::passed_by(Timestamp(exact - 1)) < expires, "early at {ttl}");
            assert!(ExpiryTime::passed_by(Timestamp(exact + TICK)) >= expires, "late at {ttl}");
            assert!(expires.timestamp().0 >= exact && ExpiryTime::passed_by(expires.timestamp()) >= expires);
        }
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(ExpiryTime::after(NOW, None), ExpiryTime::NEVER);
        assert_eq!(ExpiryTime::after(NOW, Some(u64::MAX)), ExpiryTime::NEVER);
        assert!(ExpiryTime::passed_by(Timestamp(u64::MAX)) < ExpiryTime::NEVER);
    }
}
