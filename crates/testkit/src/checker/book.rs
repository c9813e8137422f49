//! The book: per aggregate what was written and what was seen. A few dozen bytes an event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use mongodb::bson::oid::ObjectId;

use super::{Sighting, Tally};

#[derive(Debug, Default)]
pub(super) struct Book {
    names: HashMap<Box<str>, usize>,
    aggregates: Vec<Aggregate>,
    /// Of all that was seen and has one.
    slots: HashSet<i64>,
    /// By term, when the first of it was seen.
    firsts: BTreeMap<u64, Instant>,
    tally: Tally,
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub(super) name: Box<str>,
    /// The write of sequence n stands at n - 1.
    pub(super) written: Vec<Write>,
    pub(super) seen: Vec<Sight>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) event: ObjectId,
    pub(super) acknowledged: bool,
    seen: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) sequence: i64,
    pub(super) event: Option<ObjectId>,
    pub(super) term: Option<u64>,
}

impl Book {
    pub(super) fn intend(&mut self, aggregate: &str, event: ObjectId) -> i64 {
        self.tally.intended += 1;
        let aggregate = self.aggregate(aggregate);
        aggregate.written.push(Write { event, acknowledged: false, seen: false });
        aggregate.written.len() as i64
    }

    pub(super) fn acknowledge(&mut self, aggregate: &str, sequence: i64) {
        let write = self.aggregate(aggregate).write(sequence).expect("what is acknowledged was intended");
        let (before, seen) = (std::mem::replace(&mut write.acknowledged, true), write.seen);
        if !before {
            self.tally.acknowledged += 1;
            self.tally.outstanding += u64::from(!seen);
        }
    }

    pub(super) fn observe(&mut self, sighting: &Sighting<'_>) {
        if sighting.slot.is_some_and(|slot| !self.slots.insert(slot)) {
            self.tally.redelivered += 1;
            return;
        }
        self.tally.seen += 1;
        let Sighting { sequence, event, term, .. } = *sighting;
        if let Some(term) = term {
            self.firsts.entry(term).or_insert_with(Instant::now);
        }
        let aggregate = self.aggregate(sighting.aggregate);
        aggregate.seen.push(Sight { sequence, event, term });
        let found = aggregate.write(sequence).filter(|write| event.is_none_or(|event| event == write.event));
        let first = found.is_some_and(|write| !std::mem::replace(&mut write.seen, true) && write.acknowledged);
        self.tally.outstanding -= u64::from(first);
    }

    pub(super) fn first_of(&self, term: u64) -> Option<Instant> {
        self.firsts.get(&term).copied()
    }

    pub(super) fn afresh(&self) -> Self {
        let Tally { intended, acknowledged, .. } = self.tally;
        let unseen = |aggregate: &Aggregate| Aggregate {
            name: aggregate.name.clone(),
            written: aggregate.written.iter().map(|write| Write { seen: false, ..*write }).collect(),
            seen: vec![],
        };
        Self {
            names: self.names.clone(),
            aggregates: self.aggregates.iter().map(unseen).collect(),
            tally: Tally { intended, acknowledged, outstanding: acknowledged, ..Tally::default() },
            ..Self::default()
        }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    pub(super) fn aggregates(&self) -> &[Aggregate] {
        &self.aggregates
    }

    fn aggregate(&mut self, name: &str) -> &mut Aggregate {
        let number = self.names.get(name).copied().unwrap_or_else(|| {
            let number = self.aggregates.len();
            self.names.insert(name.into(), number);
            self.aggregates.push(Aggregate { name: name.into(), written: vec![], seen: vec![] });
            number
        });
        &mut self.aggregates[number]
    }
}

impl Aggregate {
    /// Where the write of this sequence stands, if there is one.
    pub(super) fn place(&self, sequence: i64) -> Option<usize> {
        let place = usize::try_from(sequence).ok()?.checked_sub(1)?;
        (place < self.written.len()).then_some(place)
    }

    fn write(&mut self, sequence: i64) -> Option<&mut Write> {
        let place = self.place(sequence)?;
        Some(&mut self.written[place])
    }
}
