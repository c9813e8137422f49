//! A part of a group that runs as one transaction, and how it is split.

use std::collections::HashMap;
use std::time::Duration;

use crate::view::error::Error;
use crate::view::identity::Identity;
use crate::view::plan::{PendingEvent, RefusedStatement, RefusedStatements};
use crate::view::typed_index::EventIndex;

/// Some events of a group; those of one aggregate are always together.
pub(super) struct SubGroup {
    pub(super) indices: Vec<EventIndex>,
    pub(super) refused: RefusedStatements,
    /// One command per statement, to find the one that the server refuses.
    pub(super) one_by_one: bool,
    /// How long write conflicts are retried.
    pub(super) conflict_timeout: Duration,
}

/// Pods that compete for a hot document release it far sooner.
const CONFLICT_TIMEOUT: Duration = Duration::from_millis(300);
/// For the halves of a group that has already waited.
const SPLIT_CONFLICT_TIMEOUT: Duration = Duration::from_millis(50);

impl SubGroup {
    pub(super) fn new(indices: Vec<EventIndex>) -> Self {
        Self { indices, refused: RefusedStatements::new(), one_by_one: false, conflict_timeout: CONFLICT_TIMEOUT }
    }

    pub(super) fn one_by_one(indices: Vec<EventIndex>) -> Self {
        Self { one_by_one: true, ..Self::new(indices) }
    }

    /// The events of whole aggregates, in the order of the group.
    fn of_aggregates(aggregates: &[Vec<EventIndex>]) -> Self {
        let mut indices = aggregates.concat();
        indices.sort_unstable();
        Self::new(indices)
    }

    /// Splits by aggregates. `None`: there is only one.
    pub(super) fn split_in_half(&self, events: &[PendingEvent]) -> Option<[Self; 2]> {
        let aggregates = group_by_aggregate(events, &self.indices);
        let (first, second) = aggregates.split_at(aggregates.len() / 2);
        let half = |aggregates| Self { conflict_timeout: SPLIT_CONFLICT_TIMEOUT, ..Self::of_aggregates(aggregates) };
        (!first.is_empty()).then(|| [first, second].map(half))
    }

    /// Replaces a refused sub-group by smaller ones: the culprit's aggregate alone, the others in halves. So one bad event costs the others
    /// only a few more transactions.
    pub(super) fn isolate_refused(
        mut self,
        events: &[PendingEvent],
        culprit: Option<RefusedStatement>,
        error: &Error,
        sub_groups: &mut Vec<Self>,
    ) {
        let aggregates = group_by_aggregate(events, &self.indices);
        if let ([_], Some(culprit), true) = (&aggregates[..], &culprit, self.one_by_one) {
            // Refused twice, the second time alone: the next run parks it.
            let aggregate = &events[culprit.event].event.aggregate;
            tracing::warn!(?aggregate, model = culprit.model, error = %error.detail(), "event cannot be applied; parking its aggregate");
            self.refused.insert(culprit.clone(), error.detail());
            return sub_groups.push(self);
        }
        let culprit = culprit.map(|origin| &events[origin.event].identity);
        let is_culprit = |indices: &Vec<EventIndex>| culprit == Some(&events[indices[0]].identity);
        let (culprits, others): (Vec<_>, Vec<_>) = aggregates.into_iter().partition(is_culprit);
        // A single remaining aggregate runs one by one, even if the server named no culprit.
        let (culprits, others) =
            if others.len() == 1 && culprits.is_empty() { (others, vec![]) } else { (culprits, others) };
        let conflict_timeout = self.conflict_timeout;
        sub_groups.extend(culprits.into_iter().map(|indices| Self { conflict_timeout, ..Self::one_by_one(indices) }));
        let half = others.len().div_ceil(2).max(1);
        sub_groups.extend(others.chunks(half).map(|half| Self { conflict_timeout, ..Self::of_aggregates(half) }));
    }
}

/// In the order of their first events.
pub(in crate::view) fn group_by_aggregate(events: &[PendingEvent], indices: &[EventIndex]) -> Vec<Vec<EventIndex>> {
    let mut known: HashMap<&Identity, usize> = HashMap::new();
    let mut aggregates: Vec<Vec<EventIndex>> = vec![];
    for index in indices {
        let aggregate = *known.entry(&events[*index].identity).or_insert_with(|| {
            aggregates.push(vec![]);
            aggregates.len() - 1
        });
        aggregates[aggregate].push(*index);
    }
    aggregates
}
