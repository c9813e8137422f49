//! Where a queue's receivers are served: the queue, the dead-letter queue behind it, and the tools of one turn, together.
//!
//! The verbs are spread over the files named after them: [`delivery`](super::delivery), [`session_lock`](super::session_lock),
//! [`settle`](super::settle), [`dead_letter`](super::dead_letter), [`expiry`](super::expiry).

use std::sync::Arc;
use std::time::Duration;

use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::core_state::CoreState;
use super::message_overrides::MessageOverrides;
use super::queue::MessageQueue;
use super::sessions::{QueueSessions, TableSlot};
use super::timers::Timer;

/// After the journal refused something that must happen (a message past its time must go), how soon it is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

pub(super) struct QueueContext<'a, 't> {
    pub(super) queue: &'a mut MessageQueue,
    /// `None` at a dead-letter queue's own desk.
    pub(super) dead_letter_queue: Option<&'a mut MessageQueue>,
    pub(super) state: &'a mut CoreState,
    pub(super) call: &'a mut CallContext<'t>,
}

impl<'t> QueueContext<'_, 't> {
    /// Puts a message that is already in the journal into the queue and gives it to whoever waits for it.
    pub(super) fn enqueue(
        &mut self,
        session: Option<&str>,
        counter: u64,
        message: QueuedMessage,
        overrides: Option<Arc<MessageOverrides>>,
    ) {
        let slot = self.queue.add_message(session, counter, message, overrides);
        self.set_expiry_timer();
        self.serve(slot);
    }

    /// Hands out what can be handed out after something changed in a session.
    pub(super) fn serve(&mut self, slot: TableSlot) {
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

    /// Everything again, after a time when nothing could be handed out.
    pub(super) fn serve_all(&mut self) {
        if !self.queue.policy.sessions {
            return self.serve(QueueSessions::ONLY);
        }
        let held: Vec<TableSlot> = self.queue.session_lock_expiries.iter().map(|(_, slot)| *slot).collect();
        for slot in held {
            self.serve_session_holder(slot);
        }
        self.assign_ready_sessions();
    }

    /// Same, at the desk of the dead-letter queue behind this one.
    pub(super) fn dead_letter_context(&mut self) -> Option<QueueContext<'_, 't>> {
        let queue = self.dead_letter_queue.as_deref_mut()?;
        Some(QueueContext { queue, dead_letter_queue: None, state: self.state, call: self.call })
    }

    pub(super) fn retry_later(&mut self) {
        self.state.timers.set(Timer::Retry(self.queue.id), self.call.now.after(RETRY));
    }

    /// Tries again whatever the journal may have refused.
    pub(super) fn retry(&mut self) {
        self.set_expiry_timer();
        self.serve_all();
    }
}
