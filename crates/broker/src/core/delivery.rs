//! Delivers messages to receivers: picks the next receiver and message, and locks the message.

use super::call_context::{LinkEffect, MessageDelivery};
use super::error::Error;
use super::id::{CoreLinkId, Timestamp};
use super::queue::{MessageLock, MessageQueue};
use super::queue_context::QueueContext;
use super::receivers::ReceiveMode;
use super::sessions::{QueueSessions, TableSlot};
use super::timers::Timer;

impl QueueContext<'_, '_> {
    /// Handles an AMQP flow: sets the link's credit, delivers, and replies to a drain.
    pub(super) fn flow(&mut self, link: CoreLinkId, delivery_count: u32, link_credit: u32, drain: bool) {
        let Some(receiver) = self.queue.receivers.get_mut(link) else {
            return self.queue.waiting.set_credit(link, delivery_count, link_credit);
        };
        receiver.set_credit(delivery_count, link_credit);
        receiver.draining = drain;
        self.serve_link(link);
    }

    /// Delivers messages to one link, as far as its credit and the outgoing budget allow.
    pub(super) fn serve_link(&mut self, link: CoreLinkId) {
        let Some(receiver) = self.queue.receivers.get(link) else { return };
        self.state.outgoing.stop_waiting(link);
        match receiver.slot {
            Some(slot) => self.serve_session_holder(slot),
            None => {
                self.queue.receivers.join_round_robin(link, self.state.limits.max_unsettled);
                self.serve_round_robin();
            }
        }
        // Messages that wait for outgoing budget are still to be delivered; the drain reply follows them.
        if let Some(receiver) = self.queue.receivers.get_mut(link)
            && receiver.draining
            && !self.state.outgoing.is_waiting(link)
        {
            let (delivery_count, unused) = receiver.drain();
            self.call.effects.push(LinkEffect::Drained { link, delivery_count, unused });
        }
    }

    /// Without sessions: each message goes to the next receiver in turn.
    pub(super) fn serve_round_robin(&mut self) {
        while let Some(link) = self.queue.receivers.next_receiver(self.state.limits.max_unsettled)
            && let Some(counter) = self.next_deliverable(QueueSessions::ONLY)
        {
            if !self.state.outgoing.has_room(link) {
                self.state.outgoing.wait_for_room(link);
                // The link rejoins when its connection has written something. Others go on meanwhile.
                self.queue.receivers.skip_front();
            } else if self.deliver(link, QueueSessions::ONLY, counter) {
                self.queue.receivers.rotate();
            } else {
                return;
            }
        }
    }

    /// With sessions: all messages go to the link that holds the session, as far as its credit allows.
    pub(super) fn serve_session_holder(&mut self, slot: TableSlot) {
        let Some(lock) = &self.queue.sessions.get(slot).lock else { return };
        let link = lock.link;
        let max_unsettled = self.state.limits.max_unsettled;
        while self.queue.receivers.get(link).is_some_and(|receiver| receiver.can_take_more(max_unsettled))
            && let Some(counter) = self.next_deliverable(slot)
        {
            if !self.state.outgoing.has_room(link) {
                return self.state.outgoing.wait_for_room(link);
            }
            if !self.deliver(link, slot, counter) {
                return;
            }
        }
    }

    /// The next deliverable message. Removes expired messages and those over the delivery count on the way.
    fn next_deliverable(&mut self, slot: TableSlot) -> Option<u64> {
        loop {
            let counter = self.queue.sessions.get_mut(slot).backlog.first_available()?;
            if !self.is_undeliverable(slot, counter) {
                return Some(counter);
            }
            if self.remove_undeliverable(slot, counter).is_err() {
                self.retry_later();
                return None;
            }
        }
    }

    /// Delivers one message; false if the journal refused the append.
    fn deliver(&mut self, link: CoreLinkId, slot: TableSlot, counter: u64) -> bool {
        let Some(receiver) = self.queue.receivers.get_mut(link) else { return false };
        let mode = receiver.mode;
        let delivery = match mode {
            ReceiveMode::PeekLock => Some(self.lock_message(Some(link), slot, counter)),
            ReceiveMode::ReceiveAndDelete => {
                self.receive_and_delete(slot, vec![counter]).ok().and_then(|mut taken| taken.pop())
            }
        };
        let Some(delivery) = delivery else {
            self.retry_later();
            return false;
        };
        if let Some(receiver) = self.queue.receivers.get_mut(link) {
            receiver.count_delivery();
        }
        self.state.outgoing.add(link.connection(), delivery.outgoing_size());
        self.call.effects.push(LinkEffect::Deliver { link, delivery });
        true
    }

    /// Locks a message for a receiver. Locks exist only in memory: after a restart every message is unlocked.
    pub(super) fn lock_message(&mut self, link: Option<CoreLinkId>, slot: TableSlot, counter: u64) -> MessageDelivery {
        let token = self.state.next_token();
        let until = self.lock_expiry(slot);
        let session = self.queue.sessions.get_mut(slot);
        let message = session.backlog.lock(counter).expect("found by the caller");
        match &mut session.lock {
            // With sessions the session's lock has the expiry; the message has none of its own.
            Some(lock) => drop(lock.deliveries.insert(counter, token)),
            None => {
                self.queue.lock_expiries.insert((until, token));
                self.state.timers.set(Timer::MessageLock(self.queue.id), until);
            }
        }
        self.queue.locks.insert(token, MessageLock { slot, counter, link, until });
        MessageDelivery {
            token,
            sequence: MessageQueue::sequence_number(counter, message),
            delivery_count: message.delivery_count,
            locked_until: until,
            location: message.location,
            overrides: self.queue.overrides(counter, message),
            settled: false,
        }
    }

    /// Removes messages at once (receive-and-delete). The caller takes over the references to their bodies.
    pub(super) fn receive_and_delete(
        &mut self,
        slot: TableSlot,
        counters: Vec<u64>,
    ) -> Result<Vec<MessageDelivery>, Error> {
        let settled = [(slot, counters)];
        self.append_settled(&settled)?;
        let [(_, counters)] = settled;
        Ok(counters.into_iter().filter_map(|counter| self.remove_for_delivery(slot, counter)).collect())
    }

    fn remove_for_delivery(&mut self, slot: TableSlot, counter: u64) -> Option<MessageDelivery> {
        let (message, overrides) = self.queue.remove_message(slot, counter)?;
        Some(MessageDelivery {
            token: self.state.next_token(),
            sequence: MessageQueue::sequence_number(counter, message),
            delivery_count: message.delivery_count,
            locked_until: self.call.now,
            location: message.location,
            overrides,
            settled: true,
        })
    }

    /// When a lock taken now expires: with the session's lock, or after the entity's lock duration.
    fn lock_expiry(&self, slot: TableSlot) -> Timestamp {
        let session_lock = self.queue.sessions.get(slot).lock.as_deref();
        session_lock.map_or_else(|| self.call.now.after(self.queue.policy.lock_duration), |lock| lock.until)
    }
}
