//! Handing messages to receivers: who is next, what may go, and under which lock.

use super::desk::Desk;
use super::error::Error;
use super::id::{LinkId, Timestamp};
use super::queue::{Lock, Queue};
use super::receivers::Mode;
use super::sessions::{Sessions, Slot};
use super::timers::Alarm;
use super::turn::{Delivery, Effect};

impl Desk<'_, '_> {
    /// Takes credit from a link, serves it and, if asked, answers the drain.
    pub(super) fn flow(&mut self, link: LinkId, delivery_count: u32, link_credit: u32, drain: bool) {
        let Some(receiver) = self.queue.receivers.get_mut(link) else {
            return self.queue.waiting.grant(link, delivery_count, link_credit);
        };
        receiver.grant(delivery_count, link_credit);
        receiver.draining = drain;
        self.serve_link(link);
    }

    /// Hands a link what there is for it, as far as its credit goes and there is room on the way.
    pub(super) fn serve_link(&mut self, link: LinkId) {
        let Some(receiver) = self.queue.receivers.get(link) else { return };
        self.tools.outgoing.forget(link);
        match receiver.slot {
            Some(slot) => self.serve_holder(slot),
            None => {
                self.queue.receivers.queue(link, self.tools.limits.max_unsettled);
                self.serve_in_turn();
            }
        }
        // What only waits for room is still to be delivered, and the drain is answered after that.
        if let Some(receiver) = self.queue.receivers.get_mut(link)
            && receiver.draining
            && !self.tools.outgoing.is_waiting(link)
        {
            let (delivery_count, unused) = receiver.drain();
            self.turn.effects.push(Effect::Drained { link, delivery_count, unused });
        }
    }

    /// Without sessions: each message to the next link in the round.
    pub(super) fn serve_in_turn(&mut self) {
        while let Some(link) = self.queue.receivers.front(self.tools.limits.max_unsettled)
            && let Some(counter) = self.next_deliverable(Sessions::ONLY)
        {
            if !self.tools.outgoing.has_room(link) {
                self.tools.outgoing.wait(link);
                self.queue.receivers.pass_over();
            } else if self.deliver(link, Sessions::ONLY, counter) {
                self.queue.receivers.next();
            } else {
                return;
            }
        }
    }

    /// With sessions: all to the holder, as far as its credit goes.
    pub(super) fn serve_holder(&mut self, slot: Slot) {
        let Some(lock) = &self.queue.sessions.get(slot).lock else { return };
        let link = lock.link;
        let max_unsettled = self.tools.limits.max_unsettled;
        while self.queue.receivers.get(link).is_some_and(|receiver| receiver.wants(max_unsettled))
            && let Some(counter) = self.next_deliverable(slot)
        {
            if !self.tools.outgoing.has_room(link) {
                return self.tools.outgoing.wait(link);
            }
            if !self.deliver(link, slot, counter) {
                return;
            }
        }
    }

    /// The next message that may be handed out. Those past their time or their attempts leave on the way.
    fn next_deliverable(&mut self, slot: Slot) -> Option<u64> {
        loop {
            let counter = self.queue.sessions.get_mut(slot).backlog.first_available()?;
            if !self.ought_to_leave(slot, counter) {
                return Some(counter);
            }
            if self.make_leave(slot, counter).is_err() {
                self.retry_later();
                return None;
            }
        }
    }

    /// Delivers one message; false if the journal refused what that takes.
    fn deliver(&mut self, link: LinkId, slot: Slot, counter: u64) -> bool {
        let Some(receiver) = self.queue.receivers.get_mut(link) else { return false };
        let mode = receiver.mode;
        let delivery = match mode {
            Mode::PeekLock => Some(self.lock(Some(link), slot, counter)),
            Mode::ReceiveAndDelete => self.take(slot, vec![counter]).ok().and_then(|mut taken| taken.pop()),
        };
        let Some(delivery) = delivery else {
            self.retry_later();
            return false;
        };
        if let Some(receiver) = self.queue.receivers.get_mut(link) {
            receiver.count_delivery();
        }
        self.tools.outgoing.add(link.connection(), delivery.weight());
        self.turn.effects.push(Effect::Deliver { link, delivery });
        true
    }

    /// Locks a message for a receiver. Locks live in memory only: after a restart every message is free again.
    pub(super) fn lock(&mut self, link: Option<LinkId>, slot: Slot, counter: u64) -> Delivery {
        let token = self.tools.token();
        let until = self.lock_end(slot);
        let session = self.queue.sessions.get_mut(slot);
        let message = session.backlog.lock(counter).expect("the caller has found it");
        match &mut session.lock {
            Some(lock) => drop(lock.held.insert(counter, token)),
            None => {
                self.queue.lock_ends.insert((until, token));
                self.tools.timers.arm(Alarm::MessageLock(self.queue.id), until);
            }
        }
        self.queue.locks.insert(token, Lock { slot, counter, link, until });
        Delivery {
            token,
            sequence: Queue::sequence(counter, message),
            delivery_count: message.delivery_count,
            locked_until: until,
            location: message.location,
            alterations: self.queue.alterations(counter, message),
            settled: false,
        }
    }

    /// Takes messages out at once: receive-and-delete. Their bodies' references pass to whoever reads them.
    pub(super) fn take(&mut self, slot: Slot, counters: Vec<u64>) -> Result<Vec<Delivery>, Error> {
        let settled = [(slot, counters)];
        self.note_settled(&settled)?;
        let [(_, counters)] = settled;
        Ok(counters.into_iter().filter_map(|counter| self.taken(slot, counter)).collect())
    }

    fn taken(&mut self, slot: Slot, counter: u64) -> Option<Delivery> {
        let (message, alterations) = self.queue.take_out(slot, counter)?;
        Some(Delivery {
            token: self.tools.token(),
            sequence: Queue::sequence(counter, message),
            delivery_count: message.delivery_count,
            locked_until: self.turn.now,
            location: message.location,
            alterations,
            settled: true,
        })
    }

    /// When a lock taken now ends: with its session's, or after the entity's lock duration.
    fn lock_end(&self, slot: Slot) -> Timestamp {
        let session_lock = self.queue.sessions.get(slot).lock.as_deref();
        session_lock.map_or_else(|| self.turn.now.after(self.queue.policy.lock_duration), |lock| lock.until)
    }
}
