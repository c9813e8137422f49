//! The recorded history: per aggregate the writes and the observed events. A few dozen bytes per event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use mongodb::bson::oid::ObjectId;

use super::{CheckerCounts, ObservedEvent};

#[derive(Debug, Default)]
pub(super) struct History {
    indexes: HashMap<Box<str>, usize>,
    aggregates: Vec<AggregateHistory>,
    /// Message numbers observed so far.
    message_numbers: HashSet<i64>,
    /// When the first event of each term was observed.
    first_by_term: BTreeMap<u64, Instant>,
    counts: CheckerCounts,
}

#[derive(Debug)]
pub(super) struct AggregateHistory {
    pub(super) name: Box<str>,
    /// The write of sequence n has index n - 1.
    pub(super) written: Vec<RecordedWrite>,
    pub(super) observed: Vec<RecordedEvent>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedWrite {
    pub(super) event: ObjectId,
    pub(super) body: Option<u64>,
    pub(super) acknowledged: bool,
    observed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedEvent {
    pub(super) sequence: i64,
    pub(super) event: Option<ObjectId>,
    pub(super) body: Option<u64>,
    pub(super) term: Option<u64>,
}

impl History {
    pub(super) fn record_intent(&mut self, aggregate: &str, event: ObjectId) -> i64 {
        self.counts.intended += 1;
        let aggregate = self.aggregate(aggregate);
        aggregate.written.push(RecordedWrite { event, body: None, acknowledged: false, observed: false });
        aggregate.written.len() as i64
    }

    pub(super) fn record_body(&mut self, aggregate: &str, sequence: i64, body: u64) {
        let write = self.aggregate(aggregate).write(sequence).expect("a write with a body was recorded as intended");
        write.body = Some(body);
    }

    pub(super) fn record_acknowledged(&mut self, aggregate: &str, sequence: i64) {
        let write = self.aggregate(aggregate).write(sequence).expect("an acknowledged write was recorded as intended");
        let (before, observed) = (std::mem::replace(&mut write.acknowledged, true), write.observed);
        if !before {
            self.counts.acknowledged += 1;
            // An event can be observed before its writer receives the acknowledgement.
            self.counts.outstanding += u64::from(!observed);
        }
    }

    pub(super) fn record_observed(&mut self, event: &ObservedEvent<'_>) {
        if event.message_number.is_some_and(|number| !self.message_numbers.insert(number)) {
            self.counts.redelivered += 1;
            return;
        }
        self.counts.observed += 1;
        let ObservedEvent { aggregate, sequence, event, term, body, .. } = *event;
        if let Some(term) = term {
            self.first_by_term.entry(term).or_insert_with(Instant::now);
        }
        let aggregate = self.aggregate(aggregate);
        aggregate.observed.push(RecordedEvent { sequence, event, body, term });
        let write = aggregate.write(sequence).filter(|write| event.is_none_or(|event| event == write.event));
        let is_first = write.is_some_and(|write| !std::mem::replace(&mut write.observed, true) && write.acknowledged);
        self.counts.outstanding -= u64::from(is_first);
    }

    pub(super) fn first_observed_in(&self, term: u64) -> Option<Instant> {
        self.first_by_term.get(&term).copied()
    }

    pub(super) fn with_same_writes(&self) -> Self {
        let CheckerCounts { intended, acknowledged, .. } = self.counts;
        let unobserved = |aggregate: &AggregateHistory| AggregateHistory {
            name: aggregate.name.clone(),
            written: aggregate.written.iter().map(|write| RecordedWrite { observed: false, ..*write }).collect(),
            observed: vec![],
        };
        Self {
            indexes: self.indexes.clone(),
            aggregates: self.aggregates.iter().map(unobserved).collect(),
            counts: CheckerCounts { intended, acknowledged, outstanding: acknowledged, ..CheckerCounts::default() },
            ..Self::default()
        }
    }

    pub(super) fn counts(&self) -> CheckerCounts {
        self.counts
    }

    pub(super) fn aggregates(&self) -> &[AggregateHistory] {
        &self.aggregates
    }

    fn aggregate(&mut self, name: &str) -> &mut AggregateHistory {
        let index = self.indexes.get(name).copied().unwrap_or_else(|| {
            let index = self.aggregates.len();
            self.indexes.insert(name.into(), index);
            self.aggregates.push(AggregateHistory { name: name.into(), written: vec![], observed: vec![] });
            index
        });
        &mut self.aggregates[index]
    }
}

impl AggregateHistory {
    /// The index of the write with this sequence, if there is one.
    pub(super) fn index_of(&self, sequence: i64) -> Option<usize> {
        let index = usize::try_from(sequence).ok()?.checked_sub(1)?;
        (index < self.written.len()).then_some(index)
    }

    fn write(&mut self, sequence: i64) -> Option<&mut RecordedWrite> {
        let index = self.index_of(sequence)?;
        Some(&mut self.written[index])
    }
}
