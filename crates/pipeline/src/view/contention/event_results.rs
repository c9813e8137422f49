//! The results of the events of one group, as far as they are known.

use std::sync::Arc;

use crate::view::error::Error;
use crate::view::plan::PlannedOutcome;
use crate::view::typed_index::EventIndex;

/// The result of one event, as its session gets it.
#[derive(Clone, Debug)]
pub(in crate::view) enum EventResult {
    /// Its transaction has committed.
    Planned(PlannedOutcome),
    Failed(Arc<Error>),
    /// The commit result of its transaction is unknown.
    Unknown,
}

/// One result per event of a group; unresolved events have none yet.
pub(in crate::view) struct EventResults(Vec<Option<EventResult>>);

impl EventResults {
    pub(in crate::view) fn unresolved(events: usize) -> Self {
        Self(vec![None; events])
    }

    pub(in crate::view) fn set(&mut self, index: EventIndex, result: EventResult) {
        self.0[index.get()] = Some(result);
    }

    pub(super) fn set_all(&mut self, indices: &[EventIndex], result: &EventResult) {
        for index in indices {
            self.set(*index, result.clone());
        }
    }

    pub(in crate::view) fn unresolved_indices(&self) -> Vec<EventIndex> {
        let unresolved = self.0.iter().enumerate().filter(|(_, result)| result.is_none());
        unresolved.map(|(index, _)| EventIndex::new(index)).collect()
    }

    pub(in crate::view) fn into_resolved(self) -> impl Iterator<Item = (EventIndex, EventResult)> {
        self.0.into_iter().enumerate().filter_map(|(index, result)| Some((EventIndex::new(index), result?)))
    }

    /// The results of consecutive events; `None` if one of them is unresolved.
    pub(super) fn resolved_range(&self, start: usize, len: usize) -> Option<Vec<EventResult>> {
        let results = &self.0[start..start + len];
        // Checked first: most groups are asked once per submission, and a partial copy would be wasted.
        results.iter().all(Option::is_some).then(|| results.iter().flatten().cloned().collect())
    }
}

impl Extend<Option<EventResult>> for EventResults {
    fn extend<I: IntoIterator<Item = Option<EventResult>>>(&mut self, results: I) {
        self.0.extend(results);
    }
}

impl IntoIterator for EventResults {
    type Item = Option<EventResult>;
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
