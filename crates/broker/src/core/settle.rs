//! Settlement: what a receiver says about what it was given, and what a lock that ran out says in its stead.
//!
//! A settlement is in the journal before it is true here. Only the delivery count of a lock that ran out is kept even when
//! the journal refuses it: the lock is over in any case, and a crash would forget the lock as well.

use std::sync::Arc;

use bytes::Bytes;

use super::alterations::Alterations;
use super::dead_letter::Burial;
use super::desk::Desk;
use super::error::Error;
use super::id::{LockToken, Timestamp};
use super::queue::Change;
use super::record::{Altered, Record};
use super::sessions::Slot;
use super::timers::Alarm;

/// Alarms do their work in pieces, so that a million locks that end together do not hold everyone else up.
pub(super) const AT_ONCE: usize = 256;

/// A name and an encoded AMQP value.
pub type Properties = Vec<(Box<str>, Bytes)>;

/// What a receiver says about a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// Deliver again; counts as a failed delivery.
    Abandon {
        properties: Properties,
    },
    /// Deliver again; counts as nothing.
    Release,
    /// Keep aside until asked for by sequence number.
    Defer {
        properties: Properties,
    },
    DeadLetter {
        reason: Option<Box<str>>,
        description: Option<Box<str>>,
        properties: Properties,
    },
}

impl Desk<'_, '_> {
    /// Settles deliveries; returns those whose lock was lost. When the journal refuses, nothing is settled.
    pub(super) fn settle(&mut self, tokens: &[LockToken], outcome: &Outcome) -> Result<Vec<LockToken>, Error> {
        let (held, lost): (Vec<LockToken>, Vec<LockToken>) = tokens.iter().partition(|token| self.is_held(**token));
        let held = self.in_order(held);
        match outcome {
            Outcome::Complete => self.complete(&held)?,
            Outcome::Abandon { properties } => self.abandon(&held, properties)?,
            Outcome::Release => self.give_back(&held),
            Outcome::Defer { properties } => self.defer(&held, properties)?,
            // A message in a dead-letter queue has nowhere further to go; it stays, one failure older.
            Outcome::DeadLetter { properties, .. } if self.dead_letters.is_none() => self.abandon(&held, properties)?,
            Outcome::DeadLetter { reason, description, properties } => {
                let (reason, description) = (reason.as_deref(), description.as_deref());
                self.bury_held(&held, &Burial { reason, description, properties })?;
            }
        }
        Ok(lost)
    }

    /// By sequence number, each once: what is settled together takes effect in the order it was sent.
    fn in_order(&self, mut tokens: Vec<LockToken>) -> Vec<LockToken> {
        if tokens.len() > 1 {
            tokens.sort_by_cached_key(|token| self.queue.locks[token].counter);
            tokens.dedup();
        }
        tokens
    }

    /// Whether a lock stands. One whose time is over does not, even if its end was not yet attended to.
    pub(super) fn is_held(&self, token: LockToken) -> bool {
        self.queue.locks.get(&token).is_some_and(|lock| {
            let session_lock = self.queue.sessions.get(lock.slot).lock.as_deref();
            session_lock.map_or(lock.until, |lock| lock.until) > self.turn.now
        })
    }

    /// Renews message locks, all or none.
    pub(super) fn renew(&mut self, tokens: &[LockToken]) -> Result<Vec<Timestamp>, Error> {
        if self.queue.policy.sessions {
            return Err(Error::NotAllowed(
                "a message of a session is locked with its session: renew the session's lock",
            ));
        }
        if tokens.iter().any(|token| !self.is_held(*token)) {
            return Err(Error::MessageLockLost);
        }
        let until = self.turn.now.after(self.queue.policy.lock_duration);
        for token in tokens {
            let lock = self.queue.locks.get_mut(token).expect("checked above");
            self.queue.lock_ends.remove(&(lock.until, *token));
            self.queue.lock_ends.insert((until, *token));
            lock.until = until;
        }
        self.tools.timers.arm(Alarm::MessageLock(self.queue.id), until);
        Ok(vec![until; tokens.len()])
    }

    /// Ends message locks whose time is over.
    pub(super) fn end_message_locks(&mut self) {
        let late = self.queue.lock_ends.iter().take_while(|(until, _)| *until <= self.turn.now);
        let late: Vec<_> = late.take(AT_ONCE).map(|(_, token)| *token).collect();
        self.count_failures(&late);
        self.give_back(&late);
        if let Some((until, _)) = self.queue.lock_ends.first() {
            self.tools.timers.arm(Alarm::MessageLock(self.queue.id), *until);
        }
    }

    /// One more failed delivery for each, in memory whatever the journal says. The locks still stand.
    pub(super) fn count_failures(&mut self, tokens: &[LockToken]) {
        let changes = self.changes(tokens, |_, change| change.delivery_count = change.delivery_count.saturating_add(1));
        let _ = self.note_changes(&changes);
        self.apply(changes);
    }

    fn complete(&mut self, tokens: &[LockToken]) -> Result<(), Error> {
        let mut by_session: Vec<(Slot, Vec<u64>)> = Vec::new();
        for token in tokens {
            let lock = self.queue.locks[token];
            match by_session.iter_mut().find(|(slot, _)| *slot == lock.slot) {
                Some((_, counters)) => counters.push(lock.counter),
                None => by_session.push((lock.slot, vec![lock.counter])),
            }
        }
        self.note_settled(&by_session)?;
        for token in tokens {
            let lock = self.queue.drop_lock(*token).expect("held: checked by settle()");
            let (message, _) = self.queue.take_out(lock.slot, lock.counter).expect("a locked message is there");
            self.turn.journal.release(message.location);
        }
        self.resume(by_session.iter().map(|(slot, _)| *slot));
        Ok(())
    }

    /// Writes that messages left, one record for each session.
    pub(super) fn note_settled(&mut self, by_session: &[(Slot, Vec<u64>)]) -> Result<(), Error> {
        let ids: Vec<_> = by_session.iter().map(|(slot, _)| self.queue.sessions.get(*slot).id.clone()).collect();
        let records = by_session.iter().zip(&ids).map(|((_, counters), id)| Record::Settled {
            queue: self.queue.id,
            session: id.as_deref(),
            counters: counters.clone(),
        });
        let records: Vec<_> = records.collect();
        Ok(self.tools.note_all(self.turn, &records)?)
    }

    fn abandon(&mut self, tokens: &[LockToken], properties: &Properties) -> Result<(), Error> {
        let changes = self.changes(tokens, |desk, change| {
            change.delivery_count = change.delivery_count.saturating_add(1);
            desk.set(change, properties);
        });
        self.note_changes(&changes)?;
        self.apply(changes);
        self.give_back(tokens);
        Ok(())
    }

    fn defer(&mut self, tokens: &[LockToken], properties: &Properties) -> Result<(), Error> {
        let changes = self.changes(tokens, |desk, change| {
            change.deferred = true;
            desk.set(change, properties);
        });
        self.note_changes(&changes)?;
        self.apply(changes);
        self.give_back(tokens);
        Ok(())
    }

    /// Ends locks and serves the sessions they were in.
    fn give_back(&mut self, tokens: &[LockToken]) {
        let mut slots: Vec<Slot> = tokens.iter().filter_map(|token| self.give_back_one(*token)).collect();
        slots.sort_unstable();
        slots.dedup();
        self.resume(slots.into_iter());
    }

    /// Ends one lock. A message past its time or its attempts leaves now rather than when someone next asks for it.
    pub(super) fn give_back_one(&mut self, token: LockToken) -> Option<Slot> {
        let lock = self.queue.unlock(token)?;
        if self.ought_to_leave(lock.slot, lock.counter) && self.make_leave(lock.slot, lock.counter).is_err() {
            self.retry_later();
        }
        self.arm_expiry();
        Some(lock.slot)
    }

    /// Serves again after deliveries were settled.
    pub(super) fn resume(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.serve(slot);
        }
    }

    fn set(&self, change: &mut Change, properties: &Properties) {
        if !properties.is_empty() {
            change.alterations = Some(Arc::new(Alterations::with(change.alterations.as_ref(), properties)));
        }
    }

    fn changes(&self, tokens: &[LockToken], edit: impl Fn(&Self, &mut Change)) -> Vec<(Slot, u64, Change)> {
        let change = |token: &LockToken| {
            let lock = self.queue.locks.get(token)?;
            let message = self.queue.sessions.get(lock.slot).backlog.get(lock.counter)?;
            let mut change = Change {
                delivery_count: message.delivery_count,
                deferred: message.is_deferred(),
                alterations: self.queue.alterations(lock.counter, message),
            };
            edit(self, &mut change);
            Some((lock.slot, lock.counter, change))
        };
        tokens.iter().filter_map(change).collect()
    }

    fn note_changes(&mut self, changes: &[(Slot, u64, Change)]) -> Result<(), Error> {
        let ids: Vec<_> = changes.iter().map(|(slot, ..)| self.queue.sessions.get(*slot).id.clone()).collect();
        let records = changes.iter().zip(&ids).map(|((_, counter, change), id)| {
            Record::Altered(Altered {
                queue: self.queue.id,
                session: id.as_deref(),
                counter: *counter,
                delivery_count: change.delivery_count,
                deferred: change.deferred,
                alterations: change.alterations.clone(),
            })
        });
        let records: Vec<_> = records.collect();
        Ok(self.tools.note_all(self.turn, &records)?)
    }

    fn apply(&mut self, changes: Vec<(Slot, u64, Change)>) {
        for (slot, counter, change) in changes {
            self.queue.alter(slot, counter, change);
        }
    }
}
