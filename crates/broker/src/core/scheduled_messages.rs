//! Scheduled messages: stored now, receivable later.
//!
//! They belong to the queue or topic they were sent to. A due message gets a new sequence number, as if it were sent
//! then.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use super::call_context::CallContext;
use super::error::Error;
use super::id::{EntityId, SequenceNumber, Timestamp};
use super::queue::quota_size;
use super::queue_context::RETRY;
use super::record::{ActivatedRecord, JournalRecord};
use super::send::PlannedRecord;
use super::settle::MAX_PER_TIMER;
use super::timers::Timer;
use super::topic::{ReservedCounters, TopicMessage};
use crate::journal::JournalLocation;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScheduledMessage {
    pub(super) sequence: SequenceNumber,
    pub(super) due_at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: Option<Box<str>>,
    pub(super) location: JournalLocation,
}

#[derive(Debug, Default)]
pub(super) struct ScheduledMessages {
    by_counter: BTreeMap<u64, ScheduledMessage>,
    by_time: BTreeSet<(Timestamp, u64)>,
    bytes: u64,
}

impl ScheduledMessages {
    pub(super) fn len(&self) -> usize {
        self.by_counter.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn insert(&mut self, message: ScheduledMessage) {
        let counter = message.sequence.counter();
        let (due_at, size) = (message.due_at, quota_size(message.location));
        if self.by_counter.insert(counter, message).is_none() {
            self.by_time.insert((due_at, counter));
            self.bytes += size;
        }
    }

    pub(super) fn remove(&mut self, counter: u64) -> Option<ScheduledMessage> {
        let message = self.by_counter.remove(&counter)?;
        self.by_time.remove(&(message.due_at, counter));
        self.bytes -= quota_size(message.location);
        Some(message)
    }

    pub(super) fn get(&self, counter: u64) -> Option<&ScheduledMessage> {
        self.by_counter.get(&counter)
    }

    pub(super) fn get_mut(&mut self, counter: u64) -> Option<&mut ScheduledMessage> {
        self.by_counter.get_mut(&counter)
    }

    pub(super) fn iter_from(&self, counter: u64) -> impl Iterator<Item = (u64, &ScheduledMessage)> {
        self.by_counter.range(counter..).map(|(counter, message)| (*counter, message))
    }

    pub(super) fn first_due(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(due, _)| *due)
    }

    fn due(&self, now: Timestamp) -> Vec<u64> {
        let due = self.by_time.iter().take_while(|(due, _)| *due <= now);
        due.take(MAX_PER_TIMER).map(|(_, counter)| *counter).collect()
    }
}

impl Core {
    /// Cancels scheduled messages, all or none.
    pub fn cancel(
        &mut self,
        call: &mut CallContext<'_>,
        entity: EntityId,
        sequences: &[SequenceNumber],
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        let schedule = &mut self.ingress_mut(entity)?.schedule;
        let known = |sequence: &&SequenceNumber| {
            schedule.get(sequence.counter()).is_some_and(|message| message.sequence == **sequence)
        };
        if let Some(missing) = sequences.iter().find(|sequence| !known(sequence)) {
            return Err(Error::MessageNotFound(*missing));
        }
        let mut counters: Vec<_> = sequences.iter().map(|sequence| sequence.counter()).collect();
        counters.sort_unstable();
        // A client may name a number twice.
        counters.dedup();
        self.state.append_record(call, &JournalRecord::Cancelled { entity, counters: counters.clone() })?;
        for counter in counters {
            let message = self.ingress_mut(entity)?.schedule.remove(counter).expect("known: checked above");
            call.journal.release(message.location);
        }
        Ok(())
    }

    /// Activates messages that are due.
    pub(super) fn activate_due_messages(&mut self, call: &mut CallContext<'_>, entity: EntityId) {
        let Ok(ingress) = self.ingress_mut(entity) else { return };
        let mut retry = None;
        for counter in ingress.schedule.due(call.now) {
            if self.activate(call, entity, counter).is_err() {
                retry = Some(call.now.after(RETRY));
                break;
            }
        }
        self.set_schedule_timer(entity, retry);
    }

    /// Sets the timer for the next due message, or for a later time after the journal refused an append.
    pub(super) fn set_schedule_timer(&mut self, entity: EntityId, not_before: Option<Timestamp>) {
        let first = self.ingress_mut(entity).ok().and_then(|ingress| ingress.schedule.first_due());
        if let Some(first) = first {
            self.state.timers.set(Timer::ScheduledMessages(entity), not_before.unwrap_or(first));
        }
    }

    fn activate(&mut self, call: &mut CallContext<'_>, entity: EntityId, counter: u64) -> Result<(), Error> {
        let ingress = self.ingress_mut(entity)?;
        let Some(message) = ingress.schedule.get(counter).cloned() else { return Ok(()) };
        // The partition stays; only the counter is new.
        let sequence = SequenceNumber::new(message.sequence.partition() as u8, ingress.counter + 1);
        let session = message.session.as_deref();
        let route = self.route(entity, call.now, message.time_to_live, || {
            call.journal.read(message.location).map(|stored| stored.body)
        })?;
        let mut reserved_counters = ReservedCounters::new();
        let targets = self.select_targets(&route, session, message.time_to_live, &mut reserved_counters);
        let copies = self.plan_copies(call.now, entity, &route, sequence, &mut reserved_counters);
        let record = ActivatedRecord {
            entity,
            scheduled_counter: counter,
            sequence,
            at: call.now,
            time_to_live: message.time_to_live,
            session,
            location: message.location,
            targets,
        };
        let mut group = self.state.begin_group();
        group.push(|page| JournalRecord::ActivatedRecord(record.clone()).encode(page), None, 0);
        for PlannedRecord { record, body } in &copies {
            group.push(|page| record.encode(page), Some(&***body), 1);
        }
        let mut locations = Vec::new();
        self.state.append(call, group, &mut locations)?;
        let ingress = self.ingress_mut(entity)?;
        ingress.schedule.remove(counter);
        ingress.counter = sequence.counter();
        match self.count_references(entity, &record.targets) {
            0 => call.journal.release(message.location),
            // The scheduled message already holds one reference.
            references => call.journal.retain(message.location, references - 1),
        }
        self.enqueue(call, &TopicMessage::from(&record), &record.targets);
        for (copy, location) in copies.iter().zip(locations) {
            self.record_as_seen(&copy.record);
            self.enqueue_or_schedule(call, &copy.record, location);
        }
        Ok(())
    }
}
