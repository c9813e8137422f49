//! Changes that an operator makes to messages by sequence number: delete, dead-letter, resubmit. No receiver is needed.
//!
//! Messages that a receiver has locked are never touched: the receiver settles them.

use std::collections::BTreeSet;

use super::Core;
use super::browse::MessageFilter;
use super::call_context::CallContext;
use super::dead_letter::DeadLetterReason;
use super::error::Error;
use super::id::{EntityId, QueueId, SequenceNumber, Subqueue};
use super::queue::MessageQueue;
use super::queue_context::QueueContext;
use super::record::JournalRecord;
use super::send::IncomingMessage;
use super::sessions::TableSlot;
use super::topic::ReservedCounters;

/// Messages that one call deletes, so that other calls do not wait long.
const MAX_DELETED: usize = 4000;

/// Selects one message of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSelector {
    pub sequence: SequenceNumber,
    /// The session of the message, if the queue has sessions.
    pub session: Option<Box<str>>,
}

impl Core {
    /// Deletes messages, and cancels those that are scheduled. Returns how many; the others are locked or gone.
    pub fn delete_selected(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        selectors: &[MessageSelector],
    ) -> Result<usize, Error> {
        self.handle_due_timers(call);
        let scheduled = self.find_scheduled(queue, selectors);
        if !scheduled.is_empty() {
            self.cancel(call, queue.entity, &scheduled)?;
        }
        // A topic holds only scheduled messages.
        let Ok(mut context) = self.queue_context(call, queue) else { return Ok(scheduled.len()) };
        let messages = context.queue.find_unlocked(selectors);
        Ok(scheduled.len() + context.delete_unlocked(messages)?)
    }

    /// Deletes messages that a filter selects, a limited number. Returns how many; 0 means that none is left.
    pub fn purge(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        filter: &MessageFilter,
    ) -> Result<usize, Error> {
        self.handle_due_timers(call);
        let scheduled = self.peek_scheduled(queue, 0, MAX_DELETED, |session| filter.selects_scheduled(session));
        let scheduled: Vec<_> = scheduled.into_values().map(|message| message.sequence).collect();
        if !scheduled.is_empty() {
            self.cancel(call, queue.entity, &scheduled)?;
            return Ok(scheduled.len());
        }
        let Ok(mut context) = self.queue_context(call, queue) else { return Ok(0) };
        let messages = context.queue.select_unlocked(filter, MAX_DELETED);
        context.delete_unlocked(messages)
    }

    /// Moves messages to the dead-letter queue. Returns how many; the others are locked or gone.
    pub fn dead_letter_selected(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        selectors: &[MessageSelector],
        reason: Option<&str>,
        description: Option<&str>,
    ) -> Result<usize, Error> {
        self.handle_due_timers(call);
        let mut context = self.queue_context(call, queue)?;
        if context.dead_letter_queue.is_none() {
            return Err(Error::NotAllowed("a message in a dead-letter queue cannot be dead-lettered"));
        }
        let messages = context.queue.find_unlocked(selectors);
        let reason = DeadLetterReason { reason, description, properties: &Vec::new() };
        context.dead_letter_all_unlocked(&messages, &reason)?;
        Ok(messages.len())
    }

    /// Sends a message in place of one in a queue, which is deleted. Both happen or neither.
    pub fn resubmit(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        selector: &MessageSelector,
        target: EntityId,
        message: IncomingMessage,
    ) -> Result<SequenceNumber, Error> {
        self.handle_due_timers(call);
        let found = self.queue(queue)?.find_unlocked(std::slice::from_ref(selector));
        let (slot, counter) = *found.first().ok_or(Error::MessageNotFound(selector.sequence))?;
        let messages = [message];
        self.check_send(target, &messages)?;
        let routes = self.route_messages(call.now, target, &messages);
        self.check_copies(target, &routes)?;
        let planned = self.plan_messages(call.now, target, &messages, &routes, &mut ReservedCounters::new())?;
        let Some(sequence) = planned[0].as_ref().and_then(|records| records.first()).map(|first| first.record.sequence)
        else {
            return Err(Error::NotAllowed(
                "a message with this id was sent within the duplicate detection window: give it another id",
            ));
        };
        let mut group = self.state.begin_group();
        self.push_messages(&mut group, target, &planned);
        let session = self.queue(queue)?.sessions.id(slot);
        let record = JournalRecord::Settled { queue, session, counters: vec![counter] };
        group.push(|buffer| record.encode(buffer), None, 0);
        let mut locations = Vec::new();
        self.state.append(call, group, &mut locations)?;
        // Receivers are served at the end, so that none sees half of it.
        self.state.postponed = Some(BTreeSet::new());
        self.apply_messages(call, target, &planned, &mut locations.into_iter());
        self.with_queue_context(call, queue, |context| {
            context.remove_unlocked(slot, &[counter]);
            context.serve(slot);
        });
        self.serve_postponed(call);
        Ok(sequence)
    }

    fn find_scheduled(&self, queue: QueueId, selectors: &[MessageSelector]) -> Vec<SequenceNumber> {
        let ingress = self.entities.get(&queue.entity).and_then(|entity| entity.ingress.as_ref());
        let Some(ingress) = ingress.filter(|_| queue.subqueue == Subqueue::Main) else { return Vec::new() };
        let is_scheduled = |sequence: &SequenceNumber| {
            ingress.schedule.get(sequence.counter()).is_some_and(|message| message.sequence == *sequence)
        };
        selectors.iter().map(|selector| selector.sequence).filter(is_scheduled).collect()
    }
}

impl MessageQueue {
    /// The selected messages that no receiver has locked, each once.
    fn find_unlocked(&self, selectors: &[MessageSelector]) -> Vec<(TableSlot, u64)> {
        let mut seen = BTreeSet::new();
        let found = selectors.iter().filter_map(|selector| {
            let (slot, message) = self.find(selector.session.as_deref(), selector.sequence)?;
            let counter = selector.sequence.counter();
            (!message.is_locked() && seen.insert(counter)).then_some((slot, counter))
        });
        found.collect()
    }

    fn select_unlocked(&self, filter: &MessageFilter, max: usize) -> Vec<(TableSlot, u64)> {
        let all = !self.policy.sessions || filter.session.is_none();
        let only = self.sessions.find(filter.session.as_deref());
        let sessions = self.sessions.iter_from(0).filter(|(slot, _)| all || Some(*slot) == only);
        let messages = sessions.flat_map(|(slot, session)| {
            session.backlog.iter_from(0).map(move |(counter, message)| (slot, counter, message))
        });
        let wanted = messages.filter(|(_, _, message)| !message.is_locked() && filter.selects(*message));
        wanted.take(max).map(|(slot, counter, _)| (slot, counter)).collect()
    }
}

impl QueueContext<'_, '_> {
    fn delete_unlocked(&mut self, messages: Vec<(TableSlot, u64)>) -> Result<usize, Error> {
        let count = messages.len();
        let mut by_session: Vec<(TableSlot, Vec<u64>)> = Vec::new();
        for (slot, counter) in messages {
            match by_session.iter_mut().rfind(|(known, _)| *known == slot) {
                Some((_, counters)) => counters.push(counter),
                None => by_session.push((slot, vec![counter])),
            }
        }
        if count > 0 {
            self.append_settled(&by_session)?;
        }
        for (slot, counters) in by_session {
            self.remove_unlocked(slot, &counters);
            self.serve(slot);
        }
        Ok(count)
    }

    /// Removes messages whose removal is in the journal. The caller serves the session.
    fn remove_unlocked(&mut self, slot: TableSlot, counters: &[u64]) {
        for counter in counters {
            if let Some((message, _)) = self.queue.remove_message(slot, *counter) {
                self.call.journal.release(message.location);
            }
        }
    }
}
