//! Typed indices: an event in its group, an event in its session's batch, a model of the applier. They cannot be mixed up.

use std::ops::Index;

use super::plan::PendingEvent;

/// An event in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EventIndex(usize);

/// An event in the batch of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchIndex(usize);

/// A model in the applier's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelIndex(usize);

impl EventIndex {
    pub(super) const fn new(index: usize) -> Self {
        Self(index)
    }

    pub(super) const fn get(self) -> usize {
        self.0
    }
}

impl BatchIndex {
    pub(super) const fn new(index: usize) -> Self {
        Self(index)
    }

    pub(super) const fn get(self) -> usize {
        self.0
    }
}

impl ModelIndex {
    pub(super) const fn new(index: usize) -> Self {
        Self(index)
    }

    pub(super) const fn get(self) -> usize {
        self.0
    }
}

impl Index<EventIndex> for [PendingEvent] {
    type Output = PendingEvent;

    fn index(&self, index: EventIndex) -> &PendingEvent {
        &self[index.0]
    }
}
