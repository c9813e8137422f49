//! Messages whose time or whose attempts are over, and what becomes of them.

use super::backlog::Message;
use super::dead_letter::{self, Burial};
use super::desk::Desk;
use super::error::Error;
use super::expires::Expires;
use super::sessions::Slot;
use super::settle::AT_ONCE;
use super::timers::Alarm;

impl Desk<'_, '_> {
    /// Whether an unlocked message may no longer be handed out.
    pub(super) fn ought_to_leave(&self, slot: Slot, counter: u64) -> bool {
        let message = self.queue.sessions.get(slot).backlog.get(counter);
        message.is_some_and(|message| self.is_expired(message) || self.is_exhausted(message))
    }

    /// Drops or dead-letters such a message.
    pub(super) fn make_leave(&mut self, slot: Slot, counter: u64) -> Result<(), Error> {
        let Some(message) = self.queue.sessions.get(slot).backlog.get(counter) else { return Ok(()) };
        if !self.is_expired(message) {
            let description = dead_letter::too_many_attempts(message.delivery_count);
            return self.bury_one(slot, counter, &Burial::by_broker(dead_letter::MAX_DELIVERY_COUNT, &description));
        }
        if self.queue.policy.dead_letter_expired && self.dead_letters.is_some() {
            return self.bury_one(slot, counter, &Burial::by_broker(dead_letter::EXPIRED, dead_letter::EXPIRED_TEXT));
        }
        self.note_settled(&[(slot, vec![counter])])?;
        let (message, _) = self.queue.take_out(slot, counter).expect("found above");
        self.turn.journal.release(message.location);
        Ok(())
    }

    /// Attends to messages whose time is over, some at a time.
    pub(super) fn expire(&mut self) {
        let (due, mut left) = (Expires::due(self.turn.now), AT_ONCE);
        while left > 0
            && let Some((when, slot, base)) = self.queue.expiring.first().copied()
            && when <= due
        {
            let Ok(gone) = self.expire_chunk(slot, base, due) else { return self.retry_later() };
            left = left.saturating_sub(gone.max(1));
        }
        self.arm_expiry();
    }

    /// One chunk of a backlog; says how many left.
    fn expire_chunk(&mut self, slot: Slot, base: u64, due: Expires) -> Result<usize, Error> {
        let backlog = &mut self.queue.sessions.get_mut(slot).backlog;
        let expired = backlog.expired(base, slot, due, &mut self.queue.expiring);
        let refused = expired.iter().find_map(|counter| Some((*counter, self.make_leave(slot, *counter).err()?)));
        if let Some((first, _)) = &refused {
            let backlog = &mut self.queue.sessions.get_mut(slot).backlog;
            let left = expired.iter().filter(|counter| *counter >= first);
            left.for_each(|counter| backlog.list_again(*counter, slot, &mut self.queue.expiring));
        }
        self.serve(slot);
        refused.map_or(Ok(expired.len()), |(_, error)| Err(error))
    }

    pub(super) fn arm_expiry(&mut self) {
        if let Some((first, ..)) = self.queue.expiring.first() {
            self.tools.timers.arm(Alarm::Expiry(self.queue.id), first.moment());
        }
    }

    fn is_expired(&self, message: Message) -> bool {
        message.expires <= Expires::due(self.turn.now)
    }

    fn is_exhausted(&self, message: Message) -> bool {
        self.queue.policy.max_delivery_count.is_some_and(|max| message.delivery_count >= max)
    }
}
