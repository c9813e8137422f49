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
use super::topic::{ReservedCounters, reserve_counter};

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
pub(super) struct PendingMove {
    slot: TableSlot,
    counter: u64,
    /// Its counter in the dead-letter queue.
    new_counter: u64,
    message: QueuedMessage,
    overrides: Arc<PropertyOverrides>,
}

impl MessageQueue {
    pub(super) fn move_records(&self, moves: &[PendingMove]) -> Vec<JournalRecord<'_>> {
        let to_record = |pending: &PendingMove| {
            JournalRecord::DeadLettered(DeadLetteredRecord {
                queue: self.id,
                session: self.sessions.id(pending.slot),
                sequence: MessageQueue::sequence_number(pending.counter, pending.message),
                counter: pending.new_counter,
                delivery_count: pending.message.delivery_count,
                location: pending.message.location,
                overrides: pending.overrides.clone(),
            })
        };
        moves.iter().map(to_record).collect()
    }
}

impl QueueContext<'_, '_> {
    /// Moves messages that receivers had locked, after their records are in the journal.
    pub(super) fn apply_dead_letters(&mut self, tokens: &[LockToken], moves: Vec<PendingMove>) {
        for token in tokens {
            self.queue.remove_lock(*token);
        }
        let slots: BTreeSet<_> = moves.iter().map(|pending| pending.slot).collect();
        moves.into_iter().for_each(|pending| self.complete_move(pending));
        self.serve_sessions(slots);
    }

    /// Dead-letters an unlocked message. The caller serves its session afterwards.
    pub(super) fn dead_letter_unlocked(
        &mut self,
        slot: TableSlot,
        counter: u64,
        reason: &DeadLetterReason<'_>,
    ) -> Result<(), Error> {
        let moves = self.plan_moves(&[(slot, counter)], reason, &mut ReservedCounters::new());
        let records = self.queue.move_records(&moves);
        self.state.append_records(self.call, &records)?;
        moves.into_iter().for_each(|pending| self.complete_move(pending));
        Ok(())
    }

    /// Dead-letters unlocked messages together, and serves their sessions.
    pub(super) fn dead_letter_all_unlocked(
        &mut self,
        messages: &[(TableSlot, u64)],
        reason: &DeadLetterReason<'_>,
    ) -> Result<(), Error> {
        let moves = self.plan_moves(messages, reason, &mut ReservedCounters::new());
        let records = self.queue.move_records(&moves);
        self.state.append_records(self.call, &records)?;
        self.apply_dead_letters(&[], moves);
        Ok(())
    }

    pub(super) fn plan_moves(
        &self,
        messages: &[(TableSlot, u64)],
        reason: &DeadLetterReason<'_>,
        reserved_counters: &mut ReservedCounters,
    ) -> Vec<PendingMove> {
        // Counters are assigned before the append, because the records contain them.
        let last = self.dead_letter_queue.as_ref().map_or(0, |queue| queue.counter);
        let plan = |(slot, counter): &(TableSlot, u64)| {
            let message = self.queue.sessions.get(*slot).backlog.get(*counter)?;
            let new_counter = reserve_counter(reserved_counters, self.queue.id.entity, last);
            let mut overrides = reason.overrides(self.queue.overrides(*counter, message).as_ref());
            overrides.enqueued_sequence = Some(MessageQueue::sequence_number(*counter, message));
            Some(PendingMove { slot: *slot, counter: *counter, new_counter, message, overrides: Arc::new(overrides) })
        };
        messages.iter().filter_map(plan).collect()
    }

    fn complete_move(&mut self, pending: PendingMove) {
        let (message, _) = self.queue.remove_message(pending.slot, pending.counter).expect("found by plan_moves()");
        let mut dead_letter = QueuedMessage::new(message.location, message.partition(), ExpiryTime::NEVER);
        dead_letter.delivery_count = message.delivery_count;
        let mut context = self.dead_letter_context().expect("only a main queue dead-letters messages");
        context.enqueue(None, pending.new_counter, dead_letter, Some(pending.overrides));
    }
}
