//! One place that holds messages: a queue, a subscription, or the dead-letter queue of either.
//!
//! This is the state and its bookkeeping. Who gets what is decided at the [`desk`](super::desk).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::alterations::Alterations;
use super::backlog::{Expiring, Message};
use super::description::{CommonDescription, OutletDescription};
use super::id::{LinkId, LockToken, QueueId, SequenceNumber, Timestamp};
use super::receivers::Receivers;
use super::sessions::{Sessions, Slot, State};
use super::waiting::Waiting;
use crate::journal::Location;

/// What the entity's description means for this queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) lock_duration: Duration,
    pub(super) sessions: bool,
    /// `None` in a dead-letter queue: there is nowhere further to go.
    pub(super) max_delivery_count: Option<u16>,
    pub(super) dead_letter_expired: bool,
    pub(super) receives: bool,
}

impl Policy {
    pub(super) fn main(common: &CommonDescription, outlet: &OutletDescription) -> Self {
        Self {
            lock_duration: outlet.lock_duration,
            sessions: outlet.requires_session,
            max_delivery_count: Some(outlet.max_delivery_count),
            dead_letter_expired: outlet.dead_lettering_on_message_expiration,
            receives: common.status.receives(),
        }
    }

    /// A dead-letter queue has no sessions, whatever its entity has.
    pub(super) fn dead_letter(common: &CommonDescription, outlet: &OutletDescription) -> Self {
        Self { sessions: false, max_delivery_count: None, dead_letter_expired: false, ..Self::main(common, outlet) }
    }
}

/// One delivery that awaits settlement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lock {
    pub(super) slot: Slot,
    pub(super) counter: u64,
    /// Who received it; may be gone. `None` for messages received by sequence number.
    pub(super) link: Option<LinkId>,
    /// Without sessions only: with them the session's lock decides.
    pub(super) until: Timestamp,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: QueueId,
    pub(super) policy: Policy,
    pub(super) sessions: Sessions,
    pub(super) receivers: Receivers,
    /// Attaches that wait for any session.
    pub(super) waiting: Waiting,
    /// Unlocked sessions with something to give, by their first available counter: the longest waiting first.
    pub(super) ready: BTreeMap<u64, Slot>,
    pub(super) locks: HashMap<LockToken, Lock>,
    pub(super) lock_ends: BTreeSet<(Timestamp, LockToken)>,
    pub(super) session_lock_ends: BTreeSet<(Timestamp, Slot)>,
    pub(super) expiring: Expiring,
    pub(super) altered: HashMap<u64, Arc<Alterations>>,
    /// The highest counter that came in here.
    pub(super) counter: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Queue {
    pub(super) fn new(id: QueueId, policy: Policy) -> Self {
        Self {
            id,
            sessions: Sessions::new(policy.sessions),
            policy,
            receivers: Receivers::default(),
            waiting: Waiting::default(),
            ready: BTreeMap::new(),
            locks: HashMap::new(),
            lock_ends: BTreeSet::new(),
            session_lock_ends: BTreeSet::new(),
            expiring: Expiring::new(),
            altered: HashMap::new(),
            counter: 0,
            messages: 0,
            bytes: 0,
        }
    }

    /// Puts a message behind all others of its session.
    pub(super) fn place(
        &mut self,
        session: Option<&str>,
        counter: u64,
        mut message: Message,
        alterations: Option<Arc<Alterations>>,
    ) -> Slot {
        let slot = self.sessions.find_or_create(session);
        message.set_altered(alterations.is_some());
        self.sessions.get_mut(slot).backlog.append(counter, message, slot, &mut self.expiring);
        if let Some(alterations) = alterations {
            self.altered.insert(counter, alterations);
        }
        self.counter = self.counter.max(counter);
        self.messages += 1;
        self.bytes += u64::from(message.location.len);
        slot
    }

    /// Takes a message out for good. Its body is still to be released, unless it goes elsewhere.
    pub(super) fn take_out(&mut self, slot: Slot, counter: u64) -> Option<(Message, Option<Arc<Alterations>>)> {
        let message = self.sessions.get_mut(slot).backlog.remove(counter, slot, &mut self.expiring)?;
        self.messages -= 1;
        self.bytes -= u64::from(message.location.len);
        let alterations = if message.is_altered() { self.altered.remove(&counter) } else { None };
        Some((message, alterations))
    }

    pub(super) fn alterations(&self, counter: u64, message: Message) -> Option<Arc<Alterations>> {
        if message.is_altered() { self.altered.get(&counter).cloned() } else { None }
    }

    /// Sets what a settlement changed.
    pub(super) fn alter(&mut self, slot: Slot, counter: u64, change: Change) {
        let altered = change.alterations.is_some();
        self.sessions.get_mut(slot).backlog.alter(counter, |message| {
            message.delivery_count = change.delivery_count;
            message.set_altered(altered);
            if change.deferred {
                message.set_deferred();
            }
        });
        match change.alterations {
            Some(alterations) => self.altered.insert(counter, alterations),
            None => self.altered.remove(&counter),
        };
    }

    /// Ends a message's lock; the message stays.
    pub(super) fn unlock(&mut self, token: LockToken) -> Option<Lock> {
        let lock = self.drop_lock(token)?;
        self.sessions.get_mut(lock.slot).backlog.unlock(lock.counter, lock.slot, &mut self.expiring);
        Some(lock)
    }

    /// Strikes a lock from every list; what becomes of the message is the caller's business.
    pub(super) fn drop_lock(&mut self, token: LockToken) -> Option<Lock> {
        let lock = self.locks.remove(&token)?;
        match &mut self.sessions.get_mut(lock.slot).lock {
            Some(session_lock) => drop(session_lock.held.remove(&lock.counter)),
            None => drop(self.lock_ends.remove(&(lock.until, token))),
        }
        if let Some(link) = lock.link {
            self.receivers.settled(link);
        }
        Some(lock)
    }

    /// Lists an unlocked session as ready, or not, after its backlog changed.
    pub(super) fn refresh_ready(&mut self, slot: Slot) {
        let session = self.sessions.get_mut(slot);
        let first = if session.lock.is_none() { session.backlog.first_available() } else { None };
        if session.ready != first {
            if let Some(old) = std::mem::replace(&mut session.ready, first) {
                self.ready.remove(&old);
            }
            if let Some(first) = first {
                self.ready.insert(first, slot);
            }
        }
    }

    /// A message found by the number a client names.
    pub(super) fn find(&self, session: Option<&str>, sequence: SequenceNumber) -> Option<(Slot, Message)> {
        let slot = self.sessions.find(session)?;
        let message = self.sessions.get(slot).backlog.get(sequence.counter())?;
        (u64::from(message.partition()) == sequence.partition()).then_some((slot, message))
    }

    pub(super) fn sequence(counter: u64, message: Message) -> SequenceNumber {
        SequenceNumber::new(message.partition(), counter)
    }
}

/// A message's new particulars.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) delivery_count: u16,
    pub(super) deferred: bool,
    pub(super) alterations: Option<Arc<Alterations>>,
}

impl Queue {
    /// Replaces a session's state; returns the old one's place.
    pub(super) fn set_state(&mut self, slot: Slot, state: Option<State>) -> Option<Location> {
        let old = std::mem::replace(&mut self.sessions.get_mut(slot).state, state.map(Box::new));
        self.bytes += state.map_or(0, |state| u64::from(state.location.len));
        let old = old.map(|old| old.location);
        self.bytes -= old.map_or(0, |old| u64::from(old.len));
        old
    }
}
