//! Moves messages to the dead-letter queue. The body keeps its location; the message gets a new counter and a reason.
//!
//! A dead-lettered message has no session and no time to live.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::backlog::QueuedMessage;
use super::error::Error;
use super::expiry_time::ExpiryTime;
use super::id::LockToken;
use super::property_overrides::PropertyOverrides;
use super::queue::MessageQueue;
use super::queue_context::QueueContext;
use super::record::{DeadLetteredRecord, JournalRecord};
use super::sessions::TableSlot;
use super::settle::PropertyUpdates;

pub(super) const MAX_DELIVERY_COUNT: &str = "MaxDeliveryCountExceeded";
pub(super) const EXPIRED: &str = "TTLExpiredException";
pub(super) const EXPIRED_TEXT: &str = "The message expired and was dead lettered.";
pub(super) const FILTER_FAILED: &str = "FilterEvaluationException";
pub(super) const NO_SESSION: &str = "Session id is null";
pub(super) const NO_SESSION_TEXT: &str =
    "Session enabled entity doesn't allow a message whose session identifier is null.";

pub(super) fn delivery_count_description(count: u16) -> String {
    format!("Message could not be consumed after {count} delivery attempts.")
}

/// Why a message is dead-lettered.
pub(super) struct DeadLetterReason<'a> {
    pub(super) reason: Option<&'a str>,
    pub(super) description: Option<&'a str>,
    pub(super) properties: &'a PropertyUpdates,
}

impl<'a> DeadLetterReason<'a> {
    pub(super) fn by_broker(reason: &'a str, description: &'a str) -> Self {
        const NOTHING: &PropertyUpdates = &Vec::new();
        Self { reason: Some(reason), description: Some(description), properties: NOTHING }
    }

    pub(super) fn overrides(&self, earlier: Option<&Arc<PropertyOverrides>>) -> PropertyOverrides {
        let mut new = PropertyOverrides::merge(earlier, self.properties);
        new.reason = self.reason.map(Into::into);
        new.description = self.description.map(Into::into);
        new
    }
}

/// A message that is about to move to the dead-letter queue.
struct PendingMove {
    slot: TableSlot,
    counter: u64,
    /// Its counter in the dead-letter queue.
    new_counter: u64,
    message: QueuedMessage,
    overrides: Arc<PropertyOverrides>,
}

impl QueueContext<'_, '_> {
    /// Dead-letters messages that receivers have locked.
    pub(super) fn dead_letter_locked(
        &mut self,
        tokens: &[LockToken],
        reason: &DeadLetterReason<'_>,
    ) -> Result<(), Error> {
        let locks = tokens.iter().map(|token| self.queue.locks[token]);
        let messages: Vec<_> = locks.map(|lock| (lock.slot, lock.counter)).collect();
        let moves = self.plan_moves(&messages, reason);
        self.append_moves(&moves)?;
        for token in tokens {
            self.queue.remove_lock(*token);
        }
        moves.into_iter().for_each(|pending| self.complete_move(pending));
        let slots: BTreeSet<_> = messages.into_iter().map(|(slot, _)| slot).collect();
        self.serve_sessions(slots);
        Ok(())
    }

    /// Dead-letters an unlocked message. The caller serves its session afterwards.
    pub(super) fn dead_letter_unlocked(
        &mut self,
        slot: TableSlot,
        counter: u64,
        reason: &DeadLetterReason<'_>,
    ) -> Result<(), Error> {
        let moves = self.plan_moves(&[(slot, counter)], reason);
        self.append_moves(&moves)?;
        moves.into_iter().for_each(|pending| self.complete_move(pending));
        Ok(())
    }

    fn plan_moves(&self, messages: &[(TableSlot, u64)], reason: &DeadLetterReason<'_>) -> Vec<PendingMove> {
        // Counters are assigned before the append, because the records contain them.
        let last = self.dead_letter_queue.as_ref().map_or(0, |queue| queue.counter);
        let plan = |((slot, counter), new_counter): (&(TableSlot, u64), u64)| {
            let message = self.queue.sessions.get(*slot).backlog.get(*counter)?;
            let mut overrides = reason.overrides(self.queue.overrides(*counter, message).as_ref());
            overrides.enqueued_sequence = Some(MessageQueue::sequence_number(*counter, message));
            Some(PendingMove { slot: *slot, counter: *counter, new_counter, message, overrides: Arc::new(overrides) })
        };
        messages.iter().zip(last + 1..).filter_map(plan).collect()
    }

    fn append_moves(&mut self, moves: &[PendingMove]) -> Result<(), Error> {
        let queue = &*self.queue;
        let to_record = |pending: &PendingMove| {
            JournalRecord::DeadLettered(DeadLetteredRecord {
                queue: queue.id,
                session: queue.sessions.id(pending.slot),
                sequence: MessageQueue::sequence_number(pending.counter, pending.message),
                counter: pending.new_counter,
                delivery_count: pending.message.delivery_count,
                location: pending.message.location,
                overrides: pending.overrides.clone(),
            })
        };
        let records: Vec<_> = moves.iter().map(to_record).collect();
        Ok(self.state.append_records(self.call, &records)?)
    }

    fn complete_move(&mut self, pending: PendingMove) {
        let (message, _) = self.queue.remove_message(pending.slot, pending.counter).expect("found by plan_moves()");
        let mut dead_letter = QueuedMessage::new(message.location, message.partition(), ExpiryTime::NEVER);
        dead_letter.delivery_count = message.delivery_count;
        let mut context = self.dead_letter_context().expect("only a main queue dead-letters messages");
        context.enqueue(None, pending.new_counter, dead_letter, Some(pending.overrides));
    }
}
