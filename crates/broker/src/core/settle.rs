//! Settlement of deliveries, and expiry of message locks.
//!
//! A settlement is appended to the journal before it takes effect. One exception: the delivery count of an expired lock
//! rises even if the journal refuses the record. The lock has ended in any case, and a crash would lose the lock as
//! well.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::dead_letter::{DeadLetterReason, PendingMove};
use super::error::Error;
use super::id::{LockToken, Timestamp};
use super::queue::{MessageQueue, MessageUpdate};
use super::queue_context::QueueContext;
use super::record::{JournalRecord, MessageUpdatedRecord};
use super::sessions::TableSlot;
use super::timers::Timer;
use super::topic::ReservedCounters;

/// Items per timer call: a million locks that expire together must not delay other calls.
pub(super) const MAX_PER_TIMER: usize = 256;

/// Application property names with encoded AMQP values.
pub type PropertyUpdates = Vec<(Box<str>, Bytes)>;

/// How a receiver settles a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettlementOutcome {
    Complete,
    /// Deliver again; counts as a failed delivery.
    Abandon {
        properties: PropertyUpdates,
    },
    /// Deliver again; not counted.
    Release,
    /// Keep until it is received by sequence number.
    Defer {
        properties: PropertyUpdates,
    },
    DeadLetter {
        reason: Option<Box<str>>,
        description: Option<Box<str>>,
        properties: PropertyUpdates,
    },
}

/// A settlement that is about to be stored.
pub(super) struct PlannedSettlement {
    tokens: Vec<LockToken>,
    changes: SettlementChanges,
}

enum SettlementChanges {
    Complete(Vec<(TableSlot, Vec<u64>)>),
    Release,
    Update(Vec<(TableSlot, u64, MessageUpdate)>),
    DeadLetter(Vec<PendingMove>),
}

impl MessageQueue {
    /// The records of a settlement. A release has none: locks exist only in memory.
    pub(super) fn settlement_records(&self, planned: &PlannedSettlement) -> Vec<JournalRecord<'_>> {
        match &planned.changes {
            SettlementChanges::Complete(by_session) => self.settled_records(by_session),
            SettlementChanges::Release => Vec::new(),
            SettlementChanges::Update(updates) => self.update_records(updates),
            SettlementChanges::DeadLetter(moves) => self.move_records(moves),
        }
    }

    /// That messages were removed, one record per session.
    fn settled_records(&self, by_session: &[(TableSlot, Vec<u64>)]) -> Vec<JournalRecord<'_>> {
        let to_record = |(slot, counters): &(TableSlot, Vec<u64>)| JournalRecord::Settled {
            queue: self.id,
            session: self.sessions.id(*slot),
            counters: counters.clone(),
        };
        by_session.iter().map(to_record).collect()
    }

    fn update_records(&self, updates: &[(TableSlot, u64, MessageUpdate)]) -> Vec<JournalRecord<'_>> {
        let to_record = |(slot, counter, update): &(TableSlot, u64, MessageUpdate)| {
            JournalRecord::MessageUpdated(MessageUpdatedRecord {
                queue: self.id,
                session: self.sessions.id(*slot),
                counter: *counter,
                delivery_count: update.delivery_count,
                deferred: update.deferred,
                overrides: update.overrides.clone(),
            })
        };
        updates.iter().map(to_record).collect()
    }
}

impl QueueContext<'_, '_> {
    /// Settles deliveries; returns the tokens whose lock is lost. If the journal refuses the append, nothing is
    /// settled.
    pub(super) fn settle(
        &mut self,
        tokens: &[LockToken],
        outcome: &SettlementOutcome,
    ) -> Result<Vec<LockToken>, Error> {
        let (valid, lost): (Vec<LockToken>, Vec<LockToken>) =
            tokens.iter().partition(|token| self.is_lock_valid(**token));
        let planned = self.plan_settlement(valid, outcome, &mut ReservedCounters::new())?;
        let records = self.queue.settlement_records(&planned);
        self.state.append_records(self.call, &records)?;
        self.apply_settlement(planned);
        Ok(lost)
    }

    /// Refuses an outcome that this queue does not allow.
    pub(super) fn check_outcome(&self, outcome: &SettlementOutcome) -> Result<(), Error> {
        match outcome {
            SettlementOutcome::DeadLetter { .. } if self.dead_letter_queue.is_none() => {
                Err(Error::NotAllowed("a message in a dead-letter queue cannot be dead-lettered"))
            }
            _ => Ok(()),
        }
    }

    /// Plans the settlement of valid locks. Nothing changes yet.
    pub(super) fn plan_settlement(
        &self,
        tokens: Vec<LockToken>,
        outcome: &SettlementOutcome,
        reserved_counters: &mut ReservedCounters,
    ) -> Result<PlannedSettlement, Error> {
        self.check_outcome(outcome)?;
        let tokens = self.sort_by_sequence(tokens);
        let counts = self.counts_deliveries();
        let changes = match outcome {
            SettlementOutcome::Complete => SettlementChanges::Complete(self.group_by_session(&tokens)),
            SettlementOutcome::Release => SettlementChanges::Release,
            SettlementOutcome::Abandon { properties } => {
                SettlementChanges::Update(self.plan_updates(&tokens, |update| {
                    update.count_delivery_if(counts);
                    update.set_properties(properties);
                }))
            }
            SettlementOutcome::Defer { properties } => {
                SettlementChanges::Update(self.plan_updates(&tokens, |update| {
                    update.deferred = true;
                    update.count_delivery_if(counts);
                    update.set_properties(properties);
                }))
            }
            SettlementOutcome::DeadLetter { reason, description, properties } => {
                let (reason, description) = (reason.as_deref(), description.as_deref());
                let reason = DeadLetterReason { reason, description, properties };
                let locks = tokens.iter().map(|token| self.queue.locks[token]);
                let messages: Vec<_> = locks.map(|lock| (lock.slot, lock.counter)).collect();
                SettlementChanges::DeadLetter(self.plan_moves(&messages, &reason, reserved_counters))
            }
        };
        Ok(PlannedSettlement { tokens, changes })
    }

    /// Changes the state after the records of a settlement are in the journal.
    pub(super) fn apply_settlement(&mut self, planned: PlannedSettlement) {
        let PlannedSettlement { tokens, changes } = planned;
        match changes {
            SettlementChanges::Complete(by_session) => self.apply_completion(&tokens, &by_session),
            SettlementChanges::Release => self.unlock_messages(&tokens),
            SettlementChanges::Update(updates) => {
                self.apply_updates(updates);
                self.unlock_messages(&tokens);
            }
            SettlementChanges::DeadLetter(moves) => self.apply_dead_letters(&tokens, moves),
        }
    }

    /// Sorts by sequence number and removes repeated tokens: settlements take effect in the order the messages were
    /// sent.
    fn sort_by_sequence(&self, mut tokens: Vec<LockToken>) -> Vec<LockToken> {
        if tokens.len() > 1 {
            tokens.sort_by_cached_key(|token| self.queue.locks[token].counter);
            tokens.dedup();
        }
        tokens
    }

    /// Whether a lock is valid. An expired lock is not, even if its timer has not run yet.
    pub(super) fn is_lock_valid(&self, token: LockToken) -> bool {
        self.queue.locks.get(&token).is_some_and(|lock| {
            let session_lock = self.queue.sessions.get(lock.slot).lock.as_deref();
            // Renewing a session lock does not touch the locks of its messages.
            session_lock.map_or(lock.until, |lock| lock.until) > self.call.now
        })
    }

    /// Renews message locks, all or none.
    pub(super) fn renew(&mut self, tokens: &[LockToken]) -> Result<Vec<Timestamp>, Error> {
        // In sessions the message locks follow the session lock.
        if self.queue.policy.sessions {
            return Err(Error::NotAllowed(
                "a message of a session is locked with its session: renew the session's lock",
            ));
        }
        if tokens.iter().any(|token| !self.is_lock_valid(*token)) {
            return Err(Error::MessageLockLost);
        }
        let until = self.call.now.after(self.queue.policy.lock_duration);
        for token in tokens {
            let lock = self.queue.locks.get_mut(token).expect("checked above");
            self.queue.lock_expiries.remove(&(lock.until, *token));
            self.queue.lock_expiries.insert((until, *token));
            lock.until = until;
        }
        self.state.timers.set(Timer::MessageLock(self.queue.id), until);
        Ok(vec![until; tokens.len()])
    }

    /// Expires message locks that are due.
    pub(super) fn expire_message_locks(&mut self) {
        let late = self.queue.lock_expiries.iter().take_while(|(until, _)| *until <= self.call.now);
        // Collected first, because ending a lock changes the index.
        let late: Vec<_> = late.take(MAX_PER_TIMER).map(|(_, token)| *token).collect();
        self.count_failed_deliveries(&late);
        self.unlock_messages(&late);
        if let Some((until, _)) = self.queue.lock_expiries.first() {
            self.state.timers.set(Timer::MessageLock(self.queue.id), *until);
        }
    }

    /// Counts one failed delivery for each message, in memory even if the journal refuses the record. The locks stay.
    pub(super) fn count_failed_deliveries(&mut self, tokens: &[LockToken]) {
        let counts = self.counts_deliveries();
        let updates = self.plan_updates(tokens, |update| update.count_delivery_if(counts));
        // The lock ends even if the journal refuses the record, see the module docs.
        let _ = self.append_updates(&updates);
        self.apply_updates(updates);
    }

    fn group_by_session(&self, tokens: &[LockToken]) -> Vec<(TableSlot, Vec<u64>)> {
        let mut by_session: Vec<(TableSlot, Vec<u64>)> = Vec::new();
        for token in tokens {
            let lock = self.queue.locks[token];
            match by_session.iter_mut().find(|(slot, _)| *slot == lock.slot) {
                Some((_, counters)) => counters.push(lock.counter),
                None => by_session.push((lock.slot, vec![lock.counter])),
            }
        }
        by_session
    }

    fn apply_completion(&mut self, tokens: &[LockToken], by_session: &[(TableSlot, Vec<u64>)]) {
        for token in tokens {
            let lock = self.queue.remove_lock(*token).expect("lock is valid: checked by settle()");
            let (message, _) =
                self.queue.remove_message(lock.slot, lock.counter).expect("a locked message is in its backlog");
            self.call.journal.release(message.location);
        }
        self.serve_sessions(by_session.iter().map(|(slot, _)| *slot));
    }

    /// Appends that messages were removed, one record per session.
    pub(super) fn append_settled(&mut self, by_session: &[(TableSlot, Vec<u64>)]) -> Result<(), Error> {
        let records = self.queue.settled_records(by_session);
        Ok(self.state.append_records(self.call, &records)?)
    }

    /// Whether a delivery that did not complete its message counts. In a dead-letter queue it does not, as in Azure
    /// Service Bus: the count stays what it was in the main queue.
    fn counts_deliveries(&self) -> bool {
        self.dead_letter_queue.is_some()
    }

    /// Unlocks messages and serves their sessions.
    fn unlock_messages(&mut self, tokens: &[LockToken]) {
        let slots: BTreeSet<_> = tokens.iter().filter_map(|token| self.unlock_message(*token)).collect();
        self.serve_sessions(slots);
    }

    /// Unlocks one message. If it has expired or has no deliveries left, it is removed now, not when it is next
    /// requested.
    pub(super) fn unlock_message(&mut self, token: LockToken) -> Option<TableSlot> {
        let lock = self.queue.unlock(token)?;
        if self.is_undeliverable(lock.slot, lock.counter) && self.remove_undeliverable(lock.slot, lock.counter).is_err()
        {
            self.retry_later();
        }
        self.set_expiry_timer();
        Some(lock.slot)
    }

    /// Delivers again in each of these sessions, after settlements.
    pub(super) fn serve_sessions(&mut self, slots: impl IntoIterator<Item = TableSlot>) {
        slots.into_iter().for_each(|slot| self.serve(slot));
    }

    fn plan_updates(
        &self,
        tokens: &[LockToken],
        edit: impl Fn(&mut MessageUpdate),
    ) -> Vec<(TableSlot, u64, MessageUpdate)> {
        let update = |token: &LockToken| {
            let lock = self.queue.locks.get(token)?;
            let message = self.queue.sessions.get(lock.slot).backlog.get(lock.counter)?;
            let mut update = MessageUpdate {
                delivery_count: message.delivery_count,
                deferred: message.is_deferred(),
                overrides: self.queue.overrides(lock.counter, message),
            };
            edit(&mut update);
            Some((lock.slot, lock.counter, update))
        };
        tokens.iter().filter_map(update).collect()
    }

    fn append_updates(&mut self, updates: &[(TableSlot, u64, MessageUpdate)]) -> Result<(), Error> {
        let records = self.queue.update_records(updates);
        Ok(self.state.append_records(self.call, &records)?)
    }

    fn apply_updates(&mut self, updates: Vec<(TableSlot, u64, MessageUpdate)>) {
        for (slot, counter, update) in updates {
            self.queue.update(slot, counter, update);
        }
    }
}
