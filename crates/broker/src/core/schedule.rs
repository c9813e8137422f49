//! Messages that wait for their time before anyone may receive them.
//!
//! They belong to the queue or topic they were sent to. When due, a message gets a new sequence number, as if sent then.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use super::desk::RETRY;
use super::error::Error;
use super::id::{EntityId, SequenceNumber, Timestamp};
use super::record::{Activated, Record};
use super::settle::AT_ONCE;
use super::timers::Alarm;
use super::topic::Arrival;
use super::turn::Turn;
use crate::journal::Location;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scheduled {
    pub(super) sequence: SequenceNumber,
    pub(super) due_at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: Option<Box<str>>,
    pub(super) location: Location,
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    by_counter: BTreeMap<u64, Scheduled>,
    by_time: BTreeSet<(Timestamp, u64)>,
    bytes: u64,
}

impl Schedule {
    pub(super) fn len(&self) -> usize {
        self.by_counter.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn insert(&mut self, message: Scheduled) {
        let counter = message.sequence.counter();
        let (due_at, len) = (message.due_at, message.location.len);
        if self.by_counter.insert(counter, message).is_none() {
            self.by_time.insert((due_at, counter));
            self.bytes += u64::from(len);
        }
    }

    pub(super) fn remove(&mut self, counter: u64) -> Option<Scheduled> {
        let message = self.by_counter.remove(&counter)?;
        self.by_time.remove(&(message.due_at, counter));
        self.bytes -= u64::from(message.location.len);
        Some(message)
    }

    pub(super) fn get(&self, counter: u64) -> Option<&Scheduled> {
        self.by_counter.get(&counter)
    }

    pub(super) fn get_mut(&mut self, counter: u64) -> Option<&mut Scheduled> {
        self.by_counter.get_mut(&counter)
    }

    pub(super) fn iter_from(&self, counter: u64) -> impl Iterator<Item = (u64, &Scheduled)> {
        self.by_counter.range(counter..).map(|(counter, message)| (*counter, message))
    }

    pub(super) fn first_due(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(due, _)| *due)
    }

    fn due(&self, now: Timestamp) -> Vec<u64> {
        let due = self.by_time.iter().take_while(|(due, _)| *due <= now);
        due.take(AT_ONCE).map(|(_, counter)| *counter).collect()
    }
}

impl Core {
    /// Calls off scheduled messages, all or none.
    pub fn cancel(&mut self, turn: &mut Turn<'_>, entity: EntityId, sequences: &[SequenceNumber]) -> Result<(), Error> {
        self.begin(turn);
        let schedule = &mut self.inlet_mut(entity)?.schedule;
        let known = |sequence: &&SequenceNumber| {
            schedule.get(sequence.counter()).is_some_and(|message| message.sequence == **sequence)
        };
        if let Some(missing) = sequences.iter().find(|sequence| !known(sequence)) {
            return Err(Error::MessageNotFound(*missing));
        }
        let mut counters: Vec<_> = sequences.iter().map(|sequence| sequence.counter()).collect();
        counters.sort_unstable();
        counters.dedup();
        self.tools.note(turn, &Record::Cancelled { entity, counters: counters.clone() })?;
        for counter in counters {
            let message = self.inlet_mut(entity)?.schedule.remove(counter).expect("known: checked above");
            turn.journal.release(message.location);
        }
        Ok(())
    }

    /// Lets messages go whose time has come.
    pub(super) fn activate_due(&mut self, turn: &mut Turn<'_>, entity: EntityId) {
        let Ok(inlet) = self.inlet_mut(entity) else { return };
        let mut retry = None;
        for counter in inlet.schedule.due(turn.now) {
            if self.activate(turn, entity, counter).is_err() {
                retry = Some(turn.now.after(RETRY));
                break;
            }
        }
        self.arm_schedule(entity, retry);
    }

    /// Sets the alarm for the next due message, or for a later moment after a refusal.
    pub(super) fn arm_schedule(&mut self, entity: EntityId, not_before: Option<Timestamp>) {
        let first = self.inlet_mut(entity).ok().and_then(|inlet| inlet.schedule.first_due());
        if let Some(first) = first {
            self.tools.timers.arm(Alarm::Schedule(entity), not_before.unwrap_or(first));
        }
    }

    fn activate(&mut self, turn: &mut Turn<'_>, entity: EntityId, counter: u64) -> Result<(), Error> {
        let inlet = self.inlet_mut(entity)?;
        let Some(message) = inlet.schedule.get(counter).cloned() else { return Ok(()) };
        let sequence = SequenceNumber::new(message.sequence.partition() as u8, inlet.counter + 1);
        let session = message.session.as_deref();
        let targets = self.targets(entity, session, message.time_to_live, &mut Vec::new());
        let record = Activated {
            entity,
            was: counter,
            sequence,
            at: turn.now,
            time_to_live: message.time_to_live,
            session,
            location: message.location,
            targets,
        };
        self.tools.note(turn, &Record::Activated(record.clone()))?;
        let inlet = self.inlet_mut(entity)?;
        inlet.schedule.remove(counter);
        inlet.counter = sequence.counter();
        match self.holders(entity, &record.targets) {
            0 => turn.journal.release(message.location),
            holders => turn.journal.retain(message.location, holders - 1),
        }
        self.arrive(turn, &Arrival::from(&record), &record.targets);
        Ok(())
    }
}
