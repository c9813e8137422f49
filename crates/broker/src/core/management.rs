//! Requests to the `$management` node: peek, receive deferred messages, session state, list sessions, delete messages.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::Core;
use super::backlog::QueuedMessage;
use super::call_context::{CallContext, MessageDelivery};
use super::error::Error;
use super::id::{QueueId, SequenceNumber, Subqueue, Timestamp};
use super::property_overrides::PropertyOverrides;
use super::queue::{MessageQueue, STORED_OVERHEAD};
use super::queue_context::QueueContext;
use super::receivers::ReceiveMode;
use super::record::{JournalRecord, SessionStateLocation, SessionStateRecord, StoredEnvelope};
use super::scheduled_messages::ScheduledMessage;
use super::sessions::{QueueSessions, StoredState, TableSlot};
use crate::journal::{JournalEntry, JournalLocation};

/// Azure Service Bus's limit for one bulk delete.
const MAX_DELETED: usize = 4000;

/// Maximum bytes of deferred messages in one response.
const MAX_FETCHED: usize = 16 << 20;

/// A message that was peeked, not received.
#[derive(Debug, Clone)]
pub struct PeekedMessage {
    pub sequence: SequenceNumber,
    pub state: MessageState,
    /// Delivered to a receiver that has not settled it.
    pub is_locked: bool,
    pub delivery_count: u16,
    pub location: JournalLocation,
    pub overrides: Option<Arc<PropertyOverrides>>,
}

/// The value of `x-opt-message-state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageState {
    Active = 0,
    Deferred = 1,
    Scheduled = 2,
}

impl Core {
    /// Up to `max` messages from a sequence number on, in order, including locked, deferred and scheduled ones.
    pub fn peek(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: Option<&str>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<PeekedMessage>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let mut found = self.queue(queue)?.peek(session, from.counter(), max, |_| true);
        let is_wanted = |own: Option<&str>| session.is_none_or(|session| own == Some(session));
        found.extend(self.peek_scheduled(queue, from.counter(), max, is_wanted));
        Ok(found.into_values().take(max).collect())
    }

    /// Scheduled messages of a queue or topic whose session is wanted. A dead-letter queue has none.
    pub(super) fn peek_scheduled(
        &self,
        queue: QueueId,
        from: u64,
        max: usize,
        is_wanted: impl Fn(Option<&str>) -> bool,
    ) -> BTreeMap<u64, PeekedMessage> {
        let ingress = self.entities.get(&queue.entity).and_then(|entity| entity.ingress.as_ref());
        let Some(ingress) = ingress.filter(|_| queue.subqueue == Subqueue::Main) else { return BTreeMap::new() };
        let wanted = ingress.schedule.iter_from(from).filter(|(_, message)| is_wanted(message.session.as_deref()));
        let to_peeked = |(counter, message): (u64, &ScheduledMessage)| {
            let (sequence, location) = (message.sequence, message.location);
            let state = MessageState::Scheduled;
            (counter, PeekedMessage { sequence, state, is_locked: false, delivery_count: 0, location, overrides: None })
        };
        wanted.take(max).map(to_peeked).collect()
    }

    /// Receives deferred messages by sequence number, all or none.
    pub fn receive_deferred(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: Option<&str>,
        sequences: &[SequenceNumber],
        mode: ReceiveMode,
    ) -> Result<Vec<MessageDelivery>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        self.queue_context(call, queue)?.receive_deferred(session, sequences, mode)
    }

    /// Returns a session's state. The session must be locked.
    pub fn session_state(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
    ) -> Result<Option<Bytes>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let context = self.queue_context(call, queue)?;
        let slot = context.locked_session(session)?;
        let state = context.queue.sessions.get(slot).state.as_ref();
        state.map(|state| Ok(context.call.journal.read(state.location)?.body)).transpose()
    }

    /// Sets or clears a session's state. The session must be locked.
    pub fn set_session_state(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
        state: Option<Bytes>,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let limit = self.state.limits.max_message_size;
        if let Some(size) = state.as_ref().map(Bytes::len).filter(|size| *size > limit) {
            return Err(Error::MessageTooLarge { size, limit });
        }
        if let (Some(state), Some(entity)) = (&state, self.entities.get(&queue.entity)) {
            self.check_room(entity, state.len() as u64 + STORED_OVERHEAD)?;
        }
        self.queue_context(call, queue)?.set_state(session, state)
    }

    /// Ids of sessions that have messages or state or, with `updated_since`, of sessions whose state was set since
    /// then.
    pub fn sessions(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        updated_since: Option<Timestamp>,
        skip: usize,
        top: usize,
    ) -> Result<Vec<Arc<str>>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let queue = self.queue(queue)?;
        if !queue.policy.sessions {
            return Err(Error::NotAllowed("the entity has no sessions"));
        }
        let indexed_expiry = queue.sessions.iter_from(0).filter(|(_, session)| match updated_since {
            Some(since) => session.state.as_ref().is_some_and(|state| state.updated_at >= since),
            None => session.state.is_some() || !session.backlog.is_empty(),
        });
        Ok(indexed_expiry.filter_map(|(_, session)| session.id.clone()).skip(skip).take(top).collect())
    }

    /// Deletes up to `max` active messages enqueued before a time, oldest first; returns how many.
    pub fn delete_messages(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: Option<&str>,
        before: Timestamp,
        max: usize,
    ) -> Result<usize, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        self.queue_context(call, queue)?.delete_messages(session, before, max.min(MAX_DELETED))
    }
}

impl MessageQueue {
    pub(super) fn peek(
        &self,
        session: Option<&str>,
        from: u64,
        max: usize,
        is_wanted: impl Fn(QueuedMessage) -> bool,
    ) -> BTreeMap<u64, PeekedMessage> {
        let mut found = BTreeMap::new();
        let all = self.policy.sessions && session.is_none();
        let only = if all { None } else { self.sessions.find(session) };
        let sessions = self.sessions.iter_from(only.unwrap_or(0)).take_while(|(slot, _)| all || Some(*slot) == only);
        for (_, session) in sessions {
            let wanted = session.backlog.iter_from(from).filter(|(_, message)| is_wanted(*message));
            for (counter, message) in wanted.take(max) {
                // Every further message of this session comes after the last one needed.
                if found.len() >= max && found.last_key_value().is_some_and(|(last, _)| *last < counter) {
                    break;
                }
                found.insert(counter, self.to_peeked(counter, message));
                if found.len() > max {
                    found.pop_last();
                }
            }
        }
        found
    }

    fn to_peeked(&self, counter: u64, message: QueuedMessage) -> PeekedMessage {
        PeekedMessage {
            sequence: Self::sequence_number(counter, message),
            state: if message.is_deferred() { MessageState::Deferred } else { MessageState::Active },
            is_locked: message.is_locked(),
            delivery_count: message.delivery_count,
            location: message.location,
            overrides: self.overrides(counter, message),
        }
    }
}

impl QueueContext<'_, '_> {
    fn receive_deferred(
        &mut self,
        session: Option<&str>,
        sequences: &[SequenceNumber],
        mode: ReceiveMode,
    ) -> Result<Vec<MessageDelivery>, Error> {
        let slot = self.resolve_session(session)?;
        let mut counters = Vec::with_capacity(sequences.len());
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        for sequence in sequences {
            let message = self.queue.find(session, *sequence).map(|(_, message)| message);
            let here = message.filter(|message| message.is_deferred() && !message.is_locked());
            // A repeated number would be locked twice.
            let here = here.filter(|_| seen.insert(*sequence)).ok_or(Error::MessageNotFound(*sequence))?;
            counters.push(sequence.counter());
            bytes += here.location.len as usize;
        }
        // A single message is always allowed, however large.
        if bytes > MAX_FETCHED && counters.len() > 1 {
            return Err(Error::invalid("sequence-numbers", "must not name messages of more than 16 MiB together"));
        }
        match mode {
            ReceiveMode::PeekLock => {
                Ok(counters.into_iter().map(|counter| self.lock_message(None, slot, counter)).collect())
            }
            ReceiveMode::ReceiveAndDelete => self.receive_and_delete(slot, counters),
        }
    }

    /// The session that a management request reads: the named one, which must be locked, or the only one.
    fn resolve_session(&self, session: Option<&str>) -> Result<TableSlot, Error> {
        match session {
            Some(id) if self.queue.policy.sessions => self.locked_session(id),
            None if self.queue.policy.sessions => Err(Error::NotAllowed("the entity requires sessions: name one")),
            _ => Ok(QueueSessions::ONLY),
        }
    }

    fn set_state(&mut self, id: &str, state: Option<Bytes>) -> Result<(), Error> {
        let slot = self.locked_session(id)?;
        let place = if state.is_some() { SessionStateLocation::Body } else { SessionStateLocation::Cleared };
        let record = SessionStateRecord { queue: self.queue.id, session: id, at: self.call.now, state: place };
        let mut meta = Vec::new();
        JournalRecord::SessionStateRecord(record).encode(&mut meta);
        let entry = JournalEntry { meta: &meta, body: state.as_deref(), references: u32::from(state.is_some()) };
        let mut locations = Vec::new();
        self.call.journal.append(&[entry], &mut locations)?;
        let new = locations.pop().map(|location| StoredState { location, updated_at: self.call.now });
        if let Some(old) = self.queue.set_state(slot, new) {
            self.call.journal.release(old);
        }
        Ok(())
    }

    fn delete_messages(&mut self, session: Option<&str>, before: Timestamp, max: usize) -> Result<usize, Error> {
        let all = self.queue.policy.sessions && session.is_none();
        let slots: Vec<TableSlot> = match all {
            true => self.queue.sessions.iter_from(0).map(|(slot, _)| slot).collect(),
            false => self.queue.sessions.find(session).into_iter().collect(),
        };
        let mut deleted = 0;
        for slot in slots {
            if deleted < max {
                deleted += self.delete_from_session(slot, before, max - deleted)?;
            }
        }
        Ok(deleted)
    }

    fn delete_from_session(&mut self, slot: TableSlot, before: Timestamp, max: usize) -> Result<usize, Error> {
        let mut counters = Vec::new();
        for (counter, message) in self.queue.sessions.get(slot).backlog.iter_from(0) {
            if counters.len() == max || !self.is_older(message, before)? {
                break;
            }
            if !message.is_locked() && !message.is_deferred() {
                counters.push(counter);
            }
        }
        if counters.is_empty() {
            return Ok(0);
        }
        let taken = self.receive_and_delete(slot, counters)?;
        taken.iter().for_each(|delivery| self.call.journal.release(delivery.location));
        self.serve(slot);
        Ok(taken.len())
    }

    fn is_older(&self, message: QueuedMessage, before: Timestamp) -> Result<bool, Error> {
        let stored = self.call.journal.read(message.location)?;
        Ok(StoredEnvelope::decode(&stored.meta).is_ok_and(|envelope| envelope.enqueued_at < before))
    }
}
