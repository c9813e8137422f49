//! Aggregates that want a document which somebody holds on to.
//!
//! Whoever is in a group with one of them waits until it is found out, so it is remembered: next time it waits apart from the beginning.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::identity::Identity;

/// What is not heard of for so long is forgotten: another pod may have applied it.
const EXPIRY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct BlockedAggregates {
    since: Mutex<HashMap<Identity, Instant>>,
}

impl BlockedAggregates {
    pub(super) fn mark(&self, aggregate: &Identity, now: Instant) {
        self.lock().insert(aggregate.clone(), now);
    }

    pub(super) fn clear(&self, aggregate: &Identity) {
        self.lock().remove(aggregate);
    }

    /// Of these places, those whose aggregate is not known to be stuck.
    pub(super) fn unblocked<'a>(
        &self,
        places: impl Iterator<Item = (usize, &'a Identity)>,
        now: Instant,
    ) -> Vec<usize> {
        let mut since = self.lock();
        since.retain(|_, since| now.saturating_duration_since(*since) < EXPIRY);
        places.filter(|(_, aggregate)| !since.contains_key(aggregate)).map(|(at, _)| at).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Bson;

    use super::*;

    #[test]
    fn blocked_aggregates_are_excluded_until_cleared_or_expired() {
        let (blocked, now) = (BlockedAggregates::default(), Instant::now());
        let aggregates = ["a", "b", "a", "c"].map(|name| Identity::of(&Bson::from(name)));
        let unblocked = |at| blocked.unblocked(aggregates.iter().enumerate(), at);
        assert_eq!(unblocked(now), [0, 1, 2, 3]);
        blocked.mark(&aggregates[0], now);
        blocked.mark(&aggregates[3], now);
        assert_eq!(unblocked(now), [1]);
        blocked.clear(&aggregates[0]);
        assert_eq!(unblocked(now), [0, 1, 2]);
        assert_eq!(unblocked(now + EXPIRY), [0, 1, 2, 3]);
    }
}
