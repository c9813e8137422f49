//! Aggregates that need a document which another transaction keeps locked.
//!
//! Every event in a group with one of them waits until the group is split. So they are remembered, and the next groups exclude them from
//! the start.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::view::identity::Identity;
use crate::view::typed_index::EventIndex;

/// An entry expires, as another pod may have applied the events since.
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

    /// The events whose aggregate is not known to be blocked; `aggregates` has one per event of a group.
    pub(super) fn unblocked<'a>(
        &self,
        aggregates: impl Iterator<Item = &'a Identity>,
        now: Instant,
    ) -> Vec<EventIndex> {
        let mut since = self.lock();
        since.retain(|_, since| now.saturating_duration_since(*since) < EXPIRY);
        let unblocked = aggregates.enumerate().filter(|(_, aggregate)| !since.contains_key(aggregate));
        unblocked.map(|(index, _)| EventIndex::new(index)).collect()
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
        let unblocked =
            |at| blocked.unblocked(aggregates.iter(), at).into_iter().map(EventIndex::get).collect::<Vec<_>>();
        assert_eq!(unblocked(now), [0, 1, 2, 3]);
        blocked.mark(&aggregates[0], now);
        blocked.mark(&aggregates[3], now);
        assert_eq!(unblocked(now), [1]);
        blocked.clear(&aggregates[0]);
        assert_eq!(unblocked(now), [0, 1, 2]);
        assert_eq!(unblocked(now + EXPIRY), [0, 1, 2, 3]);
    }
}
