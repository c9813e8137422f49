//! Holding sessions: attach to the next or a named one, renew, let go, lose.
//!
//! Exactly one link holds a session. Letting go returns its unsettled messages with their counts unchanged; losing the lock
//! counts as a failed delivery of each.

use std::sync::Arc;
use std::time::Duration;

use super::desk::Desk;
use super::error::Error;
use super::id::{LinkId, LockToken, Timestamp};
use super::receivers::{Mode, Receiver};
use super::sessions::{SessionLock, Slot};
use super::settle::AT_ONCE;
use super::timers::Alarm;
use super::turn::Effect;

/// Which session a receiver asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionFilter {
    /// No session filter: for entities without sessions.
    None,
    /// Any session that has something to give; waits so long for one.
    Next {
        timeout: Duration,
    },
    Named(Box<str>),
}

/// The answer to an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// Answer the attach.
    Plain,
    /// Answer the attach with this session.
    Session { id: Arc<str>, locked_until: Timestamp },
    /// Leave the attach unanswered: [`Effect::Attached`] or [`Effect::Refused`] will follow.
    Waiting,
}

impl Desk<'_, '_> {
    pub(super) fn attach(&mut self, link: LinkId, mode: Mode, filter: SessionFilter) -> Result<Attached, Error> {
        let attached = match filter {
            SessionFilter::None if self.queue.policy.sessions => {
                return Err(Error::NotAllowed("the entity requires sessions: attach with a session filter"));
            }
            SessionFilter::None => {
                self.queue.receivers.insert(link, Receiver::new(mode, None));
                Attached::Plain
            }
            _ if !self.queue.policy.sessions => {
                return Err(Error::NotAllowed("the entity has no sessions: attach without a session filter"));
            }
            SessionFilter::Next { timeout } => self.attach_next(link, mode, timeout),
            SessionFilter::Named(id) => self.attach_named(link, mode, &id)?,
        };
        self.tools.links.insert(link, self.queue.id);
        Ok(attached)
    }

    /// A link is gone, by its own wish or with its connection.
    ///
    /// Without sessions its locks stay until they end: the client may still settle by token from elsewhere.
    pub(super) fn detach(&mut self, link: LinkId) {
        self.tools.links.remove(&link);
        self.tools.outgoing.forget(link);
        self.queue.waiting.remove(link);
        if let Some(receiver) = self.queue.receivers.remove(link)
            && let Some(slot) = receiver.slot
        {
            self.let_go(slot);
            self.grant_sessions();
        }
    }

    pub(super) fn renew_session(&mut self, id: &str) -> Result<Timestamp, Error> {
        let until = self.turn.now.after(self.queue.policy.lock_duration);
        let slot = self.held_session(id)?;
        let lock = self.queue.sessions.get_mut(slot).lock.as_deref_mut().expect("held");
        let before = std::mem::replace(&mut lock.until, until);
        self.queue.session_lock_ends.remove(&(before, slot));
        self.queue.session_lock_ends.insert((until, slot));
        self.tools.timers.arm(Alarm::SessionLock(self.queue.id), until);
        Ok(until)
    }

    /// The slot of a session that someone holds.
    pub(super) fn held_session(&self, id: &str) -> Result<Slot, Error> {
        let slot = self.queue.sessions.find(Some(id)).filter(|_| self.queue.policy.sessions);
        slot.filter(|slot| self.is_locked(*slot)).ok_or(Error::SessionLockLost)
    }

    fn is_locked(&self, slot: Slot) -> bool {
        self.queue.sessions.get(slot).lock.as_ref().is_some_and(|lock| lock.until > self.turn.now)
    }

    /// Gives ready sessions to those who wait, first to first.
    pub(super) fn grant_sessions(&mut self) {
        while !self.queue.waiting.is_empty()
            && let Some((_, slot)) = self.queue.ready.first_key_value()
        {
            let slot = *slot;
            let waiter = self.queue.waiting.pop().expect("someone waits: checked above");
            let (session, locked_until) = self.hold(slot, waiter.link, waiter.mode);
            self.turn.effects.push(Effect::Attached { link: waiter.link, session, locked_until });
            let (delivery_count, link_credit) = waiter.credit;
            self.flow(waiter.link, delivery_count, link_credit, false);
        }
    }

    pub(super) fn refuse_late_attaches(&mut self) {
        while let Some(waiter) = self.queue.waiting.pop_late(self.turn.now) {
            self.tools.links.remove(&waiter.link);
            self.turn.effects.push(Effect::Refused { link: waiter.link, error: Error::Timeout });
        }
        if let Some(deadline) = self.queue.waiting.first_deadline() {
            self.tools.timers.arm(Alarm::Attach(self.queue.id), deadline);
        }
    }

    /// Takes sessions from holders whose time is over.
    pub(super) fn end_session_locks(&mut self) {
        let late = self.queue.session_lock_ends.iter().take_while(|(until, _)| *until <= self.turn.now);
        let late: Vec<_> = late.take(AT_ONCE).map(|(_, slot)| *slot).collect();
        late.into_iter().for_each(|slot| self.lose(slot));
        self.grant_sessions();
        if let Some((until, _)) = self.queue.session_lock_ends.first() {
            self.tools.timers.arm(Alarm::SessionLock(self.queue.id), *until);
        }
    }

    /// Takes a session from its holder: its time is over, or a test says so. The caller grants it to others.
    pub(super) fn lose(&mut self, slot: Slot) {
        let lock = self.queue.sessions.get(slot).lock.as_deref().expect("only held sessions have an end listed");
        let link = lock.link;
        let held: Vec<LockToken> = lock.held.values().copied().collect();
        self.count_failures(&held);
        self.queue.receivers.remove(link);
        self.tools.links.remove(&link);
        self.tools.outgoing.forget(link);
        self.turn.effects.push(Effect::Detached { link, error: Error::SessionLockLost });
        self.let_go(slot);
    }

    fn attach_next(&mut self, link: LinkId, mode: Mode, timeout: Duration) -> Attached {
        let Some((_, slot)) = self.queue.ready.first_key_value() else {
            let deadline = self.turn.now.after(timeout);
            self.queue.waiting.push(link, mode, deadline);
            self.tools.timers.arm(Alarm::Attach(self.queue.id), deadline);
            return Attached::Waiting;
        };
        let (id, locked_until) = self.hold(*slot, link, mode);
        Attached::Session { id, locked_until }
    }

    fn attach_named(&mut self, link: LinkId, mode: Mode, id: &str) -> Result<Attached, Error> {
        super::send::check_length("SessionId", Some(id))?;
        if let Some(slot) = self.queue.sessions.find(Some(id)) {
            if self.is_locked(slot) {
                return Err(Error::SessionCannotBeLocked { session: id.into() });
            }
            if self.queue.sessions.get(slot).lock.is_some() {
                // Its time is over, only nobody has attended to that yet.
                self.lose(slot);
            }
        }
        let slot = self.queue.sessions.find_or_create(Some(id));
        let (id, locked_until) = self.hold(slot, link, mode);
        Ok(Attached::Session { id, locked_until })
    }

    fn hold(&mut self, slot: Slot, link: LinkId, mode: Mode) -> (Arc<str>, Timestamp) {
        let until = self.turn.now.after(self.queue.policy.lock_duration);
        let session = self.queue.sessions.get_mut(slot);
        debug_assert!(session.lock.is_none(), "a session has one holder");
        session.lock = Some(Box::new(SessionLock { link, until, held: Default::default() }));
        let id = session.id.clone().expect("sessions that can be held have an id");
        self.queue.refresh_ready(slot);
        self.queue.session_lock_ends.insert((until, slot));
        self.tools.timers.arm(Alarm::SessionLock(self.queue.id), until);
        self.queue.receivers.insert(link, Receiver::new(mode, Some(slot)));
        (id, until)
    }

    /// Ends a hold: what was out comes back to its place. The caller grants the session to others, once all that end
    /// together have ended: the longest waiting is to be next, not the first to be let go.
    fn let_go(&mut self, slot: Slot) {
        let Some(lock) = self.queue.sessions.get(slot).lock.as_deref() else { return };
        let (until, held) = (lock.until, lock.held.values().copied().collect::<Vec<_>>());
        for token in held {
            self.give_back_one(token);
        }
        self.queue.session_lock_ends.remove(&(until, slot));
        self.queue.sessions.get_mut(slot).lock = None;
        self.queue.refresh_ready(slot);
        self.queue.sessions.forget_if_idle(slot);
    }
}
