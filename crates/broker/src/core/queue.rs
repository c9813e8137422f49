//! One message queue: of a queue, of a subscription, or the dead-letter queue of either.
//!
//! Holds the state and keeps its indexes consistent. [`queue_context`](super::queue_context) decides who receives what.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::backlog::{ExpiryIndex, QueuedMessage};
use super::description::{CommonEntityProperties, ReceiveProperties, forward_path};
use super::id::{CoreLinkId, LockToken, QueueId, SequenceNumber, Timestamp};
use super::property_overrides::PropertyOverrides;
use super::receivers::QueueReceivers;
use super::sessions::{QueueSessions, StoredState, TableSlot};
use super::settle::PropertyUpdates;
use super::waiting_attaches::WaitingAttaches;
use crate::journal::JournalLocation;

/// The parts of an entity's description that apply to this queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueueSettings {
    pub(super) lock_duration: Duration,
    pub(super) sessions: bool,
    /// `None` in a dead-letter queue: its messages cannot be dead-lettered again.
    pub(super) max_delivery_count: Option<u16>,
    pub(super) dead_letter_expired: bool,
    pub(super) receives: bool,
    /// The path of the entity that gets all messages of this queue.
    pub(super) forward_to: Option<Box<str>>,
}

impl QueueSettings {
    pub(super) fn main(common: &CommonEntityProperties, egress: &ReceiveProperties) -> Self {
        Self {
            lock_duration: egress.lock_duration,
            sessions: egress.requires_session,
            max_delivery_count: Some(egress.max_delivery_count),
            dead_letter_expired: egress.dead_lettering_on_message_expiration,
            receives: common.status.can_receive(),
            forward_to: egress.forward_to.as_deref().map(|text| forward_path(text).into()),
        }
    }

    /// A dead-letter queue has no sessions, even if its entity has.
    pub(super) fn dead_letter(common: &CommonEntityProperties, egress: &ReceiveProperties) -> Self {
        Self {
            forward_to: egress.forward_dead_lettered_messages_to.as_deref().map(|text| forward_path(text).into()),
            ..Self::transfer_dead_letter(common, egress)
        }
    }

    pub(super) fn transfer_dead_letter(common: &CommonEntityProperties, egress: &ReceiveProperties) -> Self {
        Self {
            sessions: false,
            max_delivery_count: None,
            dead_letter_expired: false,
            forward_to: None,
            ..Self::main(common, egress)
        }
    }
}

/// What a message or a session state costs besides its bytes, in memory and in the journal. Without it, empty messages
/// would fill the disk of a broker whose quotas say 0 bytes.
pub(super) const STORED_OVERHEAD: u64 = 192;

/// Bytes that a message or a session state counts against the quota of its entity. A message is stored with its header,
/// annotations and properties, so they count.
pub(super) fn quota_size(location: JournalLocation) -> u64 {
    u64::from(location.len) + STORED_OVERHEAD
}

/// One unsettled delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageLock {
    pub(super) slot: TableSlot,
    pub(super) counter: u64,
    /// The receiving link, which may be closed by now. `None` for messages received by sequence number.
    pub(super) link: Option<CoreLinkId>,
    /// Used only without sessions; otherwise the session's lock decides.
    pub(super) until: Timestamp,
}

#[derive(Debug)]
pub(super) struct MessageQueue {
    pub(super) id: QueueId,
    pub(super) policy: QueueSettings,
    pub(super) sessions: QueueSessions,
    pub(super) receivers: QueueReceivers,
    /// Attaches that wait for any session.
    pub(super) waiting: WaitingAttaches,
    /// Unlocked sessions with available messages, by their first available counter: the oldest message first.
    pub(super) ready: BTreeMap<u64, TableSlot>,
    pub(super) locks: HashMap<LockToken, MessageLock>,
    pub(super) lock_expiries: BTreeSet<(Timestamp, LockToken)>,
    pub(super) session_lock_expiries: BTreeSet<(Timestamp, TableSlot)>,
    pub(super) expiry_index: ExpiryIndex,
    pub(super) overridden: HashMap<u64, Arc<PropertyOverrides>>,
    /// The highest counter ever enqueued here.
    pub(super) counter: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl MessageQueue {
    pub(super) fn new(id: QueueId, policy: QueueSettings) -> Self {
        Self {
            id,
            sessions: QueueSessions::new(policy.sessions),
            policy,
            receivers: QueueReceivers::default(),
            waiting: WaitingAttaches::default(),
            ready: BTreeMap::new(),
            locks: HashMap::new(),
            lock_expiries: BTreeSet::new(),
            session_lock_expiries: BTreeSet::new(),
            expiry_index: ExpiryIndex::new(),
            overridden: HashMap::new(),
            counter: 0,
            messages: 0,
            bytes: 0,
        }
    }

    /// Appends a message to its session.
    pub(super) fn add_message(
        &mut self,
        session: Option<&str>,
        counter: u64,
        mut message: QueuedMessage,
        overrides: Option<Arc<PropertyOverrides>>,
    ) -> TableSlot {
        let slot = self.sessions.find_or_create(session);
        // A flag in the message saves a lookup in the map for the many that have none.
        message.set_has_overrides(overrides.is_some());
        self.sessions.get_mut(slot).backlog.append(counter, message, slot, &mut self.expiry_index);
        if let Some(overrides) = overrides {
            self.overridden.insert(counter, overrides);
        }
        self.counter = self.counter.max(counter);
        self.messages += 1;
        self.bytes += quota_size(message.location);
        slot
    }

    /// Removes a message. The caller releases its body or moves it elsewhere.
    pub(super) fn remove_message(
        &mut self,
        slot: TableSlot,
        counter: u64,
    ) -> Option<(QueuedMessage, Option<Arc<PropertyOverrides>>)> {
        let message = self.sessions.get_mut(slot).backlog.remove(counter, slot, &mut self.expiry_index)?;
        self.messages -= 1;
        self.bytes -= quota_size(message.location);
        let overrides = if message.has_overrides() { self.overridden.remove(&counter) } else { None };
        Some((message, overrides))
    }

    pub(super) fn overrides(&self, counter: u64, message: QueuedMessage) -> Option<Arc<PropertyOverrides>> {
        if message.has_overrides() { self.overridden.get(&counter).cloned() } else { None }
    }

    /// Applies the changes of a settlement.
    pub(super) fn update(&mut self, slot: TableSlot, counter: u64, update: MessageUpdate) {
        let overridden = update.overrides.is_some();
        self.sessions.get_mut(slot).backlog.update(counter, |message| {
            message.delivery_count = update.delivery_count;
            message.set_has_overrides(overridden);
            if update.deferred {
                message.set_deferred();
            }
        });
        match update.overrides {
            Some(overrides) => self.overridden.insert(counter, overrides),
            None => self.overridden.remove(&counter),
        };
    }

    /// Ends a message's lock; the message stays in the queue.
    pub(super) fn unlock(&mut self, token: LockToken) -> Option<MessageLock> {
        let lock = self.remove_lock(token)?;
        self.sessions.get_mut(lock.slot).backlog.unlock(lock.counter, lock.slot, &mut self.expiry_index);
        Some(lock)
    }

    /// Removes a lock from all indexes. The caller decides what happens to the message.
    pub(super) fn remove_lock(&mut self, token: LockToken) -> Option<MessageLock> {
        let lock = self.locks.remove(&token)?;
        match &mut self.sessions.get_mut(lock.slot).lock {
            Some(session_lock) => drop(session_lock.deliveries.remove(&lock.counter)),
            None => drop(self.lock_expiries.remove(&(lock.until, token))),
        }
        if let Some(link) = lock.link {
            self.receivers.record_settled(link);
        }
        Some(lock)
    }

    /// Adds an unlocked session to the ready list or removes it, after its backlog changed.
    pub(super) fn update_ready(&mut self, slot: TableSlot) {
        let session = self.sessions.get_mut(slot);
        // A locked session is never ready, whatever it holds.
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

    /// Finds a message by the sequence number that a client sent.
    pub(super) fn find(&self, session: Option<&str>, sequence: SequenceNumber) -> Option<(TableSlot, QueuedMessage)> {
        let slot = self.sessions.find(session)?;
        let message = self.sessions.get(slot).backlog.get(sequence.counter())?;
        (u64::from(message.partition()) == sequence.partition()).then_some((slot, message))
    }

    pub(super) fn sequence_number(counter: u64, message: QueuedMessage) -> SequenceNumber {
        SequenceNumber::new(message.partition(), counter)
    }
}

/// New values of a message's mutable fields.
#[derive(Debug, Clone)]
pub(super) struct MessageUpdate {
    pub(super) delivery_count: u16,
    pub(super) deferred: bool,
    pub(super) overrides: Option<Arc<PropertyOverrides>>,
}

impl MessageUpdate {
    pub(super) fn count_delivery_if(&mut self, counts: bool) {
        self.delivery_count = self.delivery_count.saturating_add(counts.into());
    }

    pub(super) fn set_properties(&mut self, properties: &PropertyUpdates) {
        if !properties.is_empty() {
            self.overrides = Some(Arc::new(PropertyOverrides::merge(self.overrides.as_ref(), properties)));
        }
    }
}

impl MessageQueue {
    /// Replaces a session's state; returns the location of the old one.
    pub(super) fn set_state(&mut self, slot: TableSlot, state: Option<StoredState>) -> Option<JournalLocation> {
        let old = std::mem::replace(&mut self.sessions.get_mut(slot).state, state.map(Box::new));
        self.bytes += state.map_or(0, |state| quota_size(state.location));
        let old = old.map(|old| old.location);
        self.bytes -= old.map_or(0, quota_size);
        old
    }
}
