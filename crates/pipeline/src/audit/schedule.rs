//! Pure: when the next round starts.

use std::time::Duration;

/// The time until the next round starts. It starts half a period after the last one ended, so that it has the other half to come round.
///
/// `unfinished`: a round is to be resumed. `since_last`: since the last round ended; `None` before the first, which starts at once.
pub fn next_round_in(unfinished: bool, since_last: Option<Duration>, period: Duration) -> Duration {
    match since_last {
        Some(since_last) if !unfinished => (period / 2).saturating_sub(since_last),
        Some(_) | None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_starts_half_a_period_after_the_last() {
        let hours = |number: u64| Duration::from_secs(number * 3_600);
        assert_eq!(next_round_in(false, None, hours(24)), Duration::ZERO, "the first starts at once");
        assert_eq!(next_round_in(true, Some(hours(1)), hours(24)), Duration::ZERO, "an unfinished one is resumed");
        assert_eq!(next_round_in(false, Some(hours(1)), hours(24)), hours(11));
        assert_eq!(next_round_in(false, Some(hours(13)), hours(24)), Duration::ZERO);
    }
}
