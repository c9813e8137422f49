//! Removes messages that have expired or have reached the maximum delivery count.

use super::backlog::QueuedMessage;
use super::dead_letter::{self, DeadLetterReason};
use super::error::Error;
use super::expiry_time::ExpiryTime;
use super::queue_context::QueueContext;
use super::sessions::TableSlot;
use super::settle::MAX_PER_TIMER;
use super::timers::Timer;

impl QueueContext<'_, '_> {
    /// Whether an unlocked message has expired or has no deliveries left.
    pub(super) fn is_undeliverable(&self, slot: TableSlot, counter: u64) -> bool {
        let message = self.queue.sessions.get(slot).backlog.get(counter);
        message.is_some_and(|message| self.is_expired(message) || self.has_exhausted_deliveries(message))
    }

    /// Drops or dead-letters such a message.
    pub(super) fn remove_undeliverable(&mut self, slot: TableSlot, counter: u64) -> Result<(), Error> {
        let Some(message) = self.queue.sessions.get(slot).backlog.get(counter) else { return Ok(()) };
        if !self.is_expired(message) {
            let description = dead_letter::delivery_count_description(message.delivery_count);
            return self.dead_letter_unlocked(
                slot,
                counter,
                &DeadLetterReason::by_broker(dead_letter::MAX_DELIVERY_COUNT, &description),
            );
        }
        if self.queue.policy.dead_letter_expired && self.dead_letter_queue.is_some() {
            return self.dead_letter_unlocked(
                slot,
                counter,
                &DeadLetterReason::by_broker(dead_letter::EXPIRED, dead_letter::EXPIRED_TEXT),
            );
        }
        // Dropped silently, as Azure Service Bus does without dead-lettering on expiration.
        self.append_settled(&[(slot, vec![counter])])?;
        let (message, _) = self.queue.remove_message(slot, counter).expect("found above");
        self.call.journal.release(message.location);
        Ok(())
    }

    /// Removes expired messages, a limited number per call.
    pub(super) fn expire_messages(&mut self) {
        let (due, mut left) = (ExpiryTime::passed_by(self.call.now), MAX_PER_TIMER);
        while left > 0
            && let Some((when, slot, base)) = self.queue.expiry_index.first().copied()
            && when <= due
        {
            // Retry later: while the journal is full, every further message would fail too.
            let Ok(gone) = self.expire_chunk(slot, base, due) else { return self.retry_later() };
            left = left.saturating_sub(gone.max(1));
        }
        self.set_expiry_timer();
    }

    /// Removes the expired messages of one chunk; returns how many.
    fn expire_chunk(&mut self, slot: TableSlot, base: u64, due: ExpiryTime) -> Result<usize, Error> {
        let backlog = &mut self.queue.sessions.get_mut(slot).backlog;
        let expired = backlog.take_expired(base, slot, due, &mut self.queue.expiry_index);
        let refused =
            expired.iter().find_map(|counter| Some((*counter, self.remove_undeliverable(slot, *counter).err()?)));
        if let Some((first, _)) = &refused {
            let backlog = &mut self.queue.sessions.get_mut(slot).backlog;
            let left = expired.iter().filter(|counter| *counter >= first);
            // `take_expired` has removed these from the index; without this they would never expire.
            left.for_each(|counter| backlog.reindex_expiry(*counter, slot, &mut self.queue.expiry_index));
        }
        self.serve(slot);
        refused.map_or(Ok(expired.len()), |(_, error)| Err(error))
    }

    pub(super) fn set_expiry_timer(&mut self) {
        if let Some((first, ..)) = self.queue.expiry_index.first() {
            self.state.timers.set(Timer::Expiry(self.queue.id), first.timestamp());
        }
    }

    fn is_expired(&self, message: QueuedMessage) -> bool {
        message.expires <= ExpiryTime::passed_by(self.call.now)
    }

    /// A deferral counts as a delivery, but must not dead-letter the message that the client wants to keep.
    fn has_exhausted_deliveries(&self, message: QueuedMessage) -> bool {
        let count = message.delivery_count.saturating_sub(message.is_deferred().into());
        self.queue.policy.max_delivery_count.is_some_and(|max| count >= max)
    }
}
