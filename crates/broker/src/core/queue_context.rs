//! One queue during one call: the queue, its dead-letter queue, the shared state and the call.
//!
//! The operations are in the files named after them: [`delivery`](super::delivery),
//! [`session_lock`](super::session_lock), [`settle`](super::settle), [`dead_letter`](super::dead_letter),
//! [`undeliverable_messages`](super::undeliverable_messages), [`forwarding`](super::forwarding).

use std::sync::Arc;
use std::time::Duration;

use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::property_overrides::PropertyOverrides;
use super::queue::MessageQueue;
use super::sessions::{QueueSessions, TableSlot};
use super::shared_state::SharedState;
use super::timers::Timer;

/// Delay before the core repeats a required action (such as removing an expired message) that the journal refused.
pub(super) const RETRY: Duration = Duration::from_secs(1);

pub(super) struct QueueContext<'a, 't> {
    pub(super) queue: &'a mut MessageQueue,
    /// `None` if this queue is itself a dead-letter queue.
    pub(super) dead_letter_queue: Option<&'a mut MessageQueue>,
    pub(super) state: &'a mut SharedState,
    pub(super) call: &'a mut CallContext<'t>,
}

impl<'t> QueueContext<'_, 't> {
    /// Adds a message that is already in the journal, and delivers it if a receiver waits.
    pub(super) fn enqueue(
        &mut self,
        session: Option<&str>,
        counter: u64,
        message: QueuedMessage,
        overrides: Option<Arc<PropertyOverrides>>,
    ) {
        let slot = self.queue.add_message(session, counter, message, overrides);
        self.set_expiry_timer();
        self.serve(slot);
    }

    /// Delivers what can be delivered after a session changed.
    pub(super) fn serve(&mut self, slot: TableSlot) {
        if let Some(postponed) = &mut self.state.postponed {
            postponed.insert((self.queue.id, slot));
            return;
        }
        if self.queue.policy.forward_to.is_some() {
            return self.forward_later(slot);
        }
        if !self.queue.policy.sessions {
            return self.serve_round_robin();
        }
        if self.queue.sessions.get(slot).lock.is_some() {
            return self.serve_session_holder(slot);
        }
        self.queue.update_ready(slot);
        self.queue.sessions.remove_if_idle(slot);
        self.assign_ready_sessions();
    }

    /// Tries to deliver everywhere, after the journal refused appends for a while.
    pub(super) fn serve_all(&mut self) {
        if !self.queue.policy.sessions {
            return self.serve(QueueSessions::ONLY);
        }
        if self.queue.policy.forward_to.is_some() {
            return self.set_forward_timer();
        }
        let held: Vec<TableSlot> = self.queue.session_lock_expiries.iter().map(|(_, slot)| *slot).collect();
        for slot in held {
            self.serve_session_holder(slot);
        }
        self.assign_ready_sessions();
    }

    /// The context of this queue's dead-letter queue.
    pub(super) fn dead_letter_context(&mut self) -> Option<QueueContext<'_, 't>> {
        let queue = self.dead_letter_queue.as_deref_mut()?;
        Some(QueueContext { queue, dead_letter_queue: None, state: self.state, call: self.call })
    }

    pub(super) fn retry_later(&mut self) {
        self.state.timers.set(Timer::Retry(self.queue.id), self.call.now.after(RETRY));
    }

    /// Repeats the actions that the journal may have refused.
    pub(super) fn retry(&mut self) {
        self.set_expiry_timer();
        self.serve_all();
    }
}
