//! Session locks: attach to the next or a named session, renew, release, expire.
//!
//! Exactly one link holds a session. Releasing it unlocks its unsettled messages with unchanged delivery counts; if its
//! lock expires, each of them counts as a failed delivery.

use std::sync::Arc;
use std::time::Duration;

use super::call_context::LinkEffect;
use super::error::Error;
use super::id::{CoreLinkId, LockToken, Timestamp};
use super::queue_context::QueueContext;
use super::receivers::{QueueReceiver, ReceiveMode};
use super::sessions::{SessionLock, TableSlot};
use super::settle::MAX_PER_TIMER;
use super::timers::Timer;

/// The session a receiver requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionFilter {
    /// No session filter, for entities without sessions.
    None,
    /// Any session with available messages; waits up to `timeout`.
    Next {
        timeout: Duration,
    },
    Named(Box<str>),
}

/// The result of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachResult {
    /// Attached, without a session.
    Plain,
    /// Attached, with this session.
    Session { id: Arc<str>, locked_until: Timestamp },
    /// No reply yet: [`LinkEffect::Attached`] or [`LinkEffect::Refused`] follows.
    Waiting,
}

impl QueueContext<'_, '_> {
    pub(super) fn attach(
        &mut self,
        link: CoreLinkId,
        mode: ReceiveMode,
        filter: SessionFilter,
    ) -> Result<AttachResult, Error> {
        let attached = match filter {
            SessionFilter::None if self.queue.policy.sessions => {
                return Err(Error::NotAllowed(
                    "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
                ));
            }
            SessionFilter::None => {
                self.queue.receivers.insert(link, QueueReceiver::new(mode, None));
                AttachResult::Plain
            }
            _ if !self.queue.policy.sessions => {
                return Err(Error::NotAllowed(
                    "A sessionful message receiver cannot be created on an entity that does not require sessions.",
                ));
            }
            SessionFilter::Next { timeout } => self.attach_next(link, mode, timeout),
            SessionFilter::Named(id) => self.attach_named(link, mode, &id)?,
        };
        self.state.links.insert(link, self.queue.id);
        Ok(attached)
    }

    /// Removes a link that detached or lost its connection.
    ///
    /// Without sessions its message locks stay until they expire: the client may still settle by token over another
    /// link.
    pub(super) fn detach(&mut self, link: CoreLinkId) {
        self.state.links.remove(&link);
        self.state.outgoing.stop_waiting(link);
        self.queue.waiting.remove(link);
        if let Some(receiver) = self.queue.receivers.remove(link)
            && let Some(slot) = receiver.slot
        {
            self.release_session(slot);
            self.assign_ready_sessions();
        }
    }

    pub(super) fn renew_session(&mut self, id: &str) -> Result<Timestamp, Error> {
        let slot = self.locked_session(id)?;
        Ok(self.extend_lock(slot))
    }

    /// The full duration again, from now on.
    fn extend_lock(&mut self, slot: TableSlot) -> Timestamp {
        let until = self.call.now.after(self.queue.policy.lock_duration);
        let lock = self.queue.sessions.get_mut(slot).lock.as_deref_mut().expect("the callers have found the lock");
        let before = std::mem::replace(&mut lock.until, until);
        self.queue.session_lock_expiries.remove(&(before, slot));
        self.queue.session_lock_expiries.insert((until, slot));
        self.state.timers.set(Timer::SessionLock(self.queue.id), until);
        until
    }

    /// The slot of a locked session.
    pub(super) fn locked_session(&self, id: &str) -> Result<TableSlot, Error> {
        let slot = self.queue.sessions.find(Some(id)).filter(|_| self.queue.policy.sessions);
        slot.filter(|slot| self.is_locked(*slot)).ok_or(Error::SessionLockLost)
    }

    fn is_locked(&self, slot: TableSlot) -> bool {
        let lock = self.queue.sessions.get(slot).lock.as_ref();
        lock.is_some_and(|lock| lock.until > self.call.now || self.deletes_on_delivery(lock.link))
    }

    /// True for a receiver that has nothing to settle. The service does not take its session away while it is attached.
    fn deletes_on_delivery(&self, link: CoreLinkId) -> bool {
        self.queue.receivers.get(link).is_some_and(|receiver| receiver.mode == ReceiveMode::ReceiveAndDelete)
    }

    /// Assigns ready sessions to waiting attaches, both in their order.
    pub(super) fn assign_ready_sessions(&mut self) {
        while !self.queue.waiting.is_empty()
            && let Some((_, slot)) = self.queue.ready.first_key_value()
        {
            let slot = *slot;
            let waiting_attach = self.queue.waiting.pop().expect("not empty: checked above");
            let (session, locked_until) = self.lock_session(slot, waiting_attach.link, waiting_attach.mode);
            self.call.effects.push(LinkEffect::Attached { link: waiting_attach.link, session, locked_until });
            // The client may have sent its flow right after the attach.
            let (delivery_count, link_credit) = waiting_attach.credit;
            self.flow(waiting_attach.link, delivery_count, link_credit, false);
        }
    }

    pub(super) fn refuse_timed_out_attaches(&mut self) {
        while let Some(waiting_attach) = self.queue.waiting.pop_timed_out(self.call.now) {
            self.state.links.remove(&waiting_attach.link);
            self.call.effects.push(LinkEffect::Refused { link: waiting_attach.link, error: Error::Timeout });
        }
        if let Some(deadline) = self.queue.waiting.first_deadline() {
            self.state.timers.set(Timer::Attach(self.queue.id), deadline);
        }
    }

    /// Expires session locks that are due.
    pub(super) fn expire_session_locks(&mut self) {
        let late = self.queue.session_lock_expiries.iter().take_while(|(until, _)| *until <= self.call.now);
        let late: Vec<_> = late.take(MAX_PER_TIMER).map(|(_, slot)| *slot).collect();
        for slot in late {
            let lock = self.queue.sessions.get(slot).lock.as_deref().expect("only locked sessions have an expiry");
            match self.deletes_on_delivery(lock.link) {
                true => drop(self.extend_lock(slot)),
                false => self.expire_session(slot),
            }
        }
        self.assign_ready_sessions();
        if let Some((until, _)) = self.queue.session_lock_expiries.first() {
            self.state.timers.set(Timer::SessionLock(self.queue.id), *until);
        }
    }

    /// Takes a session from its holder: its lock expired, or a test asks for it. The caller assigns it to others.
    pub(super) fn expire_session(&mut self, slot: TableSlot) {
        let lock = self.queue.sessions.get(slot).lock.as_deref().expect("only locked sessions have an expiry");
        let link = lock.link;
        let tokens: Vec<LockToken> = lock.deliveries.values().copied().collect();
        // Before the release: it needs the locks to find the messages.
        self.count_failed_deliveries(&tokens);
        // The client learns of it by the detach, so the core forgets the link first.
        self.queue.receivers.remove(link);
        self.state.links.remove(&link);
        self.state.outgoing.stop_waiting(link);
        self.call.effects.push(LinkEffect::Detached { link, error: Error::SessionLockLost });
        self.release_session(slot);
    }

    fn attach_next(&mut self, link: CoreLinkId, mode: ReceiveMode, timeout: Duration) -> AttachResult {
        let Some((_, slot)) = self.queue.ready.first_key_value() else {
            let deadline = self.call.now.after(timeout);
            self.queue.waiting.push(link, mode, deadline);
            self.state.timers.set(Timer::Attach(self.queue.id), deadline);
            return AttachResult::Waiting;
        };
        let (id, locked_until) = self.lock_session(*slot, link, mode);
        AttachResult::Session { id, locked_until }
    }

    fn attach_named(&mut self, link: CoreLinkId, mode: ReceiveMode, id: &str) -> Result<AttachResult, Error> {
        // An attach can create the session, so its id obeys the same limit as in a send.
        super::send::check_length("SessionId", Some(id))?;
        if let Some(slot) = self.queue.sessions.find(Some(id)) {
            if self.is_locked(slot) {
                return Err(Error::SessionCannotBeLocked { session: id.into() });
            }
            if self.queue.sessions.get(slot).lock.is_some() {
                // The lock has expired, but its timer has not run yet.
                self.expire_session(slot);
            }
        }
        // A session may be locked before its first message exists.
        let slot = self.queue.sessions.find_or_create(Some(id));
        let (id, locked_until) = self.lock_session(slot, link, mode);
        Ok(AttachResult::Session { id, locked_until })
    }

    fn lock_session(&mut self, slot: TableSlot, link: CoreLinkId, mode: ReceiveMode) -> (Arc<str>, Timestamp) {
        let until = self.call.now.after(self.queue.policy.lock_duration);
        let session = self.queue.sessions.get_mut(slot);
        debug_assert!(session.lock.is_none(), "a session is locked by one link");
        session.lock = Some(Box::new(SessionLock { link, until, deliveries: Default::default() }));
        let id = session.id.clone().expect("only sessions with an id can be locked");
        self.queue.update_ready(slot);
        self.queue.session_lock_expiries.insert((until, slot));
        self.state.timers.set(Timer::SessionLock(self.queue.id), until);
        self.queue.receivers.insert(link, QueueReceiver::new(mode, Some(slot)));
        (id, until)
    }

    /// Releases a session and unlocks its messages. The caller assigns sessions to others after all sessions of the
    /// same step are released: the session with the oldest message must come first, not the first one released.
    fn release_session(&mut self, slot: TableSlot) {
        let Some(lock) = self.queue.sessions.get(slot).lock.as_deref() else { return };
        let (until, tokens) = (lock.until, lock.deliveries.values().copied().collect::<Vec<_>>());
        for token in tokens {
            self.unlock_message(token);
        }
        self.queue.session_lock_expiries.remove(&(until, slot));
        self.queue.sessions.get_mut(slot).lock = None;
        self.queue.update_ready(slot);
        self.queue.sessions.remove_if_idle(slot);
    }
}
