//! The sessions of one queue. A queue without sessions has exactly one unnamed session, at [`QueueSessions::ONLY`].
//!
//! A session exists while it has a message, a state or a holder. Then its slot is reused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::backlog::SessionBacklog;
use super::id::{CoreLinkId, LockToken, Timestamp};
use crate::journal::JournalLocation;

/// Slot of a session in its queue's table. Not stable across restarts.
pub(super) type TableSlot = u32;

#[derive(Debug)]
pub(super) struct QueueSession {
    pub(super) id: Option<Arc<str>>,
    pub(super) backlog: SessionBacklog,
    pub(super) lock: Option<Box<SessionLock>>,
    pub(super) state: Option<Box<StoredState>>,
    /// Its key in the queue's ready list: its first available counter.
    pub(super) ready: Option<u64>,
}

/// A receiver's lock on a session.
#[derive(Debug)]
pub(super) struct SessionLock {
    pub(super) link: CoreLinkId,
    pub(super) until: Timestamp,
    /// Unsettled deliveries under this lock.
    pub(super) deliveries: BTreeMap<u64, LockToken>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct StoredState {
    pub(super) location: JournalLocation,
    pub(super) updated_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct QueueSessions {
    named: bool,
    slots: Vec<Option<Box<QueueSession>>>,
    free: Vec<TableSlot>,
    by_id: HashMap<Arc<str>, TableSlot>,
}

impl QueueSessions {
    /// The slot of the unnamed session.
    pub(super) const ONLY: TableSlot = 0;

    pub(super) fn new(named: bool) -> Self {
        let mut sessions = Self { named, slots: Vec::new(), free: Vec::new(), by_id: HashMap::new() };
        if !named {
            sessions.insert(None);
        }
        sessions
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The slot of a session. Without sessions all messages share one slot, whatever their session id.
    pub(super) fn find(&self, id: Option<&str>) -> Option<TableSlot> {
        if self.named { self.by_id.get(id?).copied() } else { Some(Self::ONLY) }
    }

    pub(super) fn find_or_create(&mut self, id: Option<&str>) -> TableSlot {
        debug_assert!(!self.named || id.is_some(), "checked when the message was sent");
        self.find(id).unwrap_or_else(|| self.insert(Some(id.unwrap_or_default())))
    }

    pub(super) fn get(&self, slot: TableSlot) -> &QueueSession {
        self.slots[slot as usize].as_deref().expect("slots are freed only when nothing refers to the session")
    }

    pub(super) fn get_mut(&mut self, slot: TableSlot) -> &mut QueueSession {
        self.slots[slot as usize].as_deref_mut().expect("slots are freed only when nothing refers to the session")
    }

    /// The id of the session at `slot`; `None` without sessions.
    pub(super) fn id(&self, slot: TableSlot) -> Option<&str> {
        self.get(slot).id.as_deref()
    }

    /// Sessions from `slot` on, in slot order.
    pub(super) fn iter_from(&self, slot: TableSlot) -> impl Iterator<Item = (TableSlot, &QueueSession)> {
        let used = self.slots.iter().enumerate().skip(slot as usize);
        used.filter_map(|(slot, session)| Some((slot as TableSlot, session.as_deref()?)))
    }

    /// Removes a session that has no messages, state or holder.
    pub(super) fn remove_if_idle(&mut self, slot: TableSlot) {
        let session = self.get(slot);
        if session.backlog.is_empty() && session.lock.is_none() && session.state.is_none() {
            // The unnamed session is never removed.
            let Some(id) = session.id.clone() else { return };
            debug_assert!(session.ready.is_none());
            self.by_id.remove(&id);
            // A burst of sessions must not keep its memory for ever.
            if self.by_id.len() < self.by_id.capacity() / 8 {
                self.by_id.shrink_to(self.by_id.len() * 2);
            }
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
    }

    fn insert(&mut self, id: Option<&str>) -> TableSlot {
        let id: Option<Arc<str>> = id.map(Into::into);
        let session =
            QueueSession { id: id.clone(), backlog: SessionBacklog::default(), lock: None, state: None, ready: None };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as TableSlot - 1
        });
        self.slots[slot as usize] = Some(Box::new(session));
        if let Some(id) = id {
            self.by_id.insert(id, slot);
        }
        slot
    }
}
