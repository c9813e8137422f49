//! Where a queue's receivers are served: the queue, the dead-letter queue behind it, and the tools of one turn, together.
//!
//! The verbs are spread over the files named after them: [`delivery`](super::delivery), [`session_lock`](super::session_lock),
//! [`settle`](super::settle), [`dead_letter`](super::dead_letter), [`expiry`](super::expiry).

use std::sync::Arc;
use std::time::Duration;

use super::alterations::Alterations;
use super::backlog::Message;
use super::queue::Queue;
use super::sessions::{Sessions, Slot};
use super::timers::Alarm;
use super::tools::Tools;
use super::turn::Turn;

/// After the journal refused something that must happen (a message past its time must go), how soon it is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Desk<'a, 't> {
    pub(super) queue: &'a mut Queue,
    /// `None` at a dead-letter queue's own desk.
    pub(super) dead_letters: Option<&'a mut Queue>,
    pub(super) tools: &'a mut Tools,
    pub(super) turn: &'a mut Turn<'t>,
}

impl<'t> Desk<'_, 't> {
    /// Puts a message that is already in the journal into the queue and gives it to whoever waits for it.
    pub(super) fn arrive(
        &mut self,
        session: Option<&str>,
        counter: u64,
        message: Message,
        alterations: Option<Arc<Alterations>>,
    ) {
        let slot = self.queue.place(session, counter, message, alterations);
        self.arm_expiry();
        self.serve(slot);
    }

    /// Hands out what can be handed out after something changed in a session.
    pub(super) fn serve(&mut self, slot: Slot) {
        if !self.queue.policy.sessions {
            return self.serve_in_turn();
        }
        if self.queue.sessions.get(slot).lock.is_some() {
            return self.serve_holder(slot);
        }
        self.queue.refresh_ready(slot);
        self.queue.sessions.forget_if_idle(slot);
        self.grant_sessions();
    }

    /// Everything again, after a time when nothing could be handed out.
    pub(super) fn serve_all(&mut self) {
        if !self.queue.policy.sessions {
            return self.serve(Sessions::ONLY);
        }
        let held: Vec<Slot> = self.queue.session_lock_ends.iter().map(|(_, slot)| *slot).collect();
        for slot in held {
            self.serve_holder(slot);
        }
        self.grant_sessions();
    }

    /// Same, at the desk of the dead-letter queue behind this one.
    pub(super) fn dead_letter_desk(&mut self) -> Option<Desk<'_, 't>> {
        let queue = self.dead_letters.as_deref_mut()?;
        Some(Desk { queue, dead_letters: None, tools: self.tools, turn: self.turn })
    }

    pub(super) fn retry_later(&mut self) {
        self.tools.timers.arm(Alarm::Retry(self.queue.id), self.turn.now.after(RETRY));
    }

    /// Tries again whatever the journal may have refused.
    pub(super) fn retry(&mut self) {
        self.arm_expiry();
        self.serve_all();
    }
}
