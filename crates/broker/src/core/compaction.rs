//! Compaction: appends the live bodies of mostly dead segments again, so that the store can delete the segments.

use std::collections::BTreeSet;

use super::Core;
use super::call_context::CallContext;
use super::entity::Entity;
use super::error::Error;
use super::id::{EntityId, QueueId, Subqueue};
use super::record::{BodyMovedRecord, BodyOwner, JournalRecord};
use super::sessions::TableSlot;
use crate::journal::{JournalEntry, JournalLocation};

/// Progress of one compaction pass over a set of segments.
#[derive(Debug, Clone)]
pub struct Compaction {
    segments: BTreeSet<u32>,
    position: CompactionPosition,
}

#[derive(Debug, Clone, Copy)]
struct CompactionPosition {
    entity: EntityId,
    stage: CompactionPhase,
}

#[derive(Debug, Clone, Copy)]
enum CompactionPhase {
    Scheduled(u64),
    Messages(Subqueue, TableSlot, u64),
}

impl Compaction {
    pub fn of(segments: impl IntoIterator<Item = u32>) -> Self {
        let position = CompactionPosition { entity: EntityId(0), stage: CompactionPhase::Scheduled(0) };
        Self { segments: segments.into_iter().collect(), position }
    }
}

/// A body in one of the segments, with the object that refers to it.
struct LocatedBody {
    location: JournalLocation,
    session: Option<std::sync::Arc<str>>,
    key: BodyOwnerKey,
}

enum BodyOwnerKey {
    Message(QueueId, u64),
    State(QueueId),
    Scheduled(EntityId, u64),
}

impl LocatedBody {
    fn owner<'a>(&self, session: Option<&'a str>) -> BodyOwner<'a> {
        match self.key {
            BodyOwnerKey::State(queue) => BodyOwner::State { queue, session: session.unwrap_or_default() },
            BodyOwnerKey::Scheduled(entity, counter) => BodyOwner::Scheduled { entity, counter },
            BodyOwnerKey::Message(queue, counter) => BodyOwner::Message { queue, session, counter },
        }
    }
}

impl Core {
    /// Scans up to `budget` messages and moves those stored in the segments; returns false when none is left. Any
    /// number of other calls may run between two steps: nothing new is ever stored in these segments.
    pub fn compact(
        &mut self,
        call: &mut CallContext<'_>,
        compaction: &mut Compaction,
        budget: usize,
    ) -> Result<bool, Error> {
        let mut left = budget;
        while left > 0 {
            let Some((id, entity)) = self.entities.range(compaction.position.entity..).next() else { return Ok(false) };
            if *id != compaction.position.entity {
                compaction.position = CompactionPosition { entity: *id, stage: CompactionPhase::Scheduled(0) };
            }
            let (found, next, scanned) = entity.find_bodies(&compaction.segments, compaction.position.stage, left);
            let next_entity = CompactionPosition { entity: EntityId(id.0 + 1), stage: CompactionPhase::Scheduled(0) };
            // Computed before the bodies move, because moving needs `self` mutably.
            let next = next.map_or(next_entity, |stage| CompactionPosition { entity: *id, stage });
            for found in found {
                self.move_body(call, &found)?;
            }
            compaction.position = next;
            left = left.saturating_sub(scanned.max(1));
        }
        Ok(true)
    }

    /// Visits every reference to a body exactly once.
    pub fn visit_bodies(&self, mut visit: impl FnMut(JournalLocation)) {
        self.entities.values().for_each(|entity| entity.visit_bodies(&mut visit));
    }

    /// Points an owner to a body's new location; false if it no longer refers to the old one.
    pub(super) fn relocate(&mut self, owner: &BodyOwner<'_>, from: JournalLocation, to: JournalLocation) -> bool {
        match self.location_of(owner) {
            Some(location) if *location == from => {
                *location = to;
                true
            }
            _ => false,
        }
    }

    fn move_body(&mut self, call: &mut CallContext<'_>, found: &LocatedBody) -> Result<(), Error> {
        if !self.is_still_at(found) {
            return Ok(());
        }
        let stored = call.journal.read(found.location)?;
        let original = match JournalRecord::decode(&stored.meta) {
            // Keep the first meta, so that moves do not nest.
            Ok(JournalRecord::BodyMoved(moved)) => moved.original,
            _ => &stored.meta,
        };
        // Owners in subscriptions with sessions are found by session id.
        let session = message_session(original).or(found.session.as_deref());
        let owners = self.current_owners(found, session);
        let mut meta = Vec::new();
        JournalRecord::BodyMoved(BodyMovedRecord { from: found.location, owners: owners.clone(), original })
            .encode(&mut meta);
        let mut locations = Vec::new();
        let entry = JournalEntry { meta: &meta, body: Some(&stored.body), references: owners.len() as u32 };
        call.journal.append(&[entry], &mut locations)?;
        let to = locations.pop().expect("one body, one location");
        for owner in &owners {
            if self.relocate(owner, found.location, to) {
                call.journal.release(found.location);
            }
        }
        Ok(())
    }

    /// Whether the owner still refers to this location. A body shared by several subscriptions is found once per
    /// subscription but moved only once.
    fn is_still_at(&mut self, found: &LocatedBody) -> bool {
        self.refers_to(&found.owner(found.session.as_deref()), found.location)
    }

    /// The owner and, for a topic's message, the other subscriptions that share the body: it is copied once for all.
    fn current_owners<'a>(&mut self, found: &LocatedBody, session: Option<&'a str>) -> Vec<BodyOwner<'a>> {
        let owners: Vec<_> = match found.key {
            BodyOwnerKey::Message(queue, counter) => {
                let queues = self.queues_sharing_body(queue).into_iter();
                queues.map(|queue| BodyOwner::Message { queue, session, counter }).collect()
            }
            BodyOwnerKey::State(_) | BodyOwnerKey::Scheduled(..) => vec![found.owner(session)],
        };
        owners.into_iter().filter(|owner| self.refers_to(owner, found.location)).collect()
    }

    fn refers_to(&mut self, owner: &BodyOwner<'_>, location: JournalLocation) -> bool {
        self.location_of(owner).is_some_and(|current| *current == location)
    }

    fn queues_sharing_body(&self, queue: QueueId) -> Vec<QueueId> {
        let topic = self.entities.get(&queue.entity).and_then(|entity| entity.topic);
        match topic.and_then(|topic| self.entities.get(&topic)) {
            // A dead letter's body may be shared too, but its counter differs per queue: it is moved alone.
            Some(topic) if queue.subqueue == Subqueue::Main => {
                topic.subscriptions.iter().copied().map(QueueId::main).collect()
            }
            _ => vec![queue],
        }
    }

    fn location_of(&mut self, owner: &BodyOwner<'_>) -> Option<&mut JournalLocation> {
        match *owner {
            BodyOwner::Scheduled { entity, counter } => {
                let ingress = self.entities.get_mut(&entity)?.ingress.as_mut()?;
                ingress.schedule.get_mut(counter).map(|message| &mut message.location)
            }
            BodyOwner::State { queue, session } => {
                let queue = self.entities.get_mut(&queue.entity)?.egress.as_mut()?.queue_mut(queue.subqueue);
                let slot = queue.sessions.find(Some(session))?;
                queue.sessions.get_mut(slot).state.as_mut().map(|state| &mut state.location)
            }
            BodyOwner::Message { queue, session, counter } => {
                let queue = self.entities.get_mut(&queue.entity)?.egress.as_mut()?.queue_mut(queue.subqueue);
                let slot = queue.sessions.find(session)?;
                queue.sessions.get_mut(slot).backlog.location_mut(counter)
            }
        }
    }
}

/// The session id a message was sent with. A subscription without sessions does not store it.
fn message_session(meta: &[u8]) -> Option<&str> {
    match JournalRecord::decode(meta) {
        Ok(JournalRecord::EnqueuedRecord(record)) => record.session,
        _ => None,
    }
}

impl Entity {
    pub(super) fn visit_bodies(&self, visit: &mut dyn FnMut(JournalLocation)) {
        let scheduled = self.ingress.iter().flat_map(|ingress| ingress.schedule.iter_from(0));
        scheduled.for_each(|(_, message)| visit(message.location));
        for queue in self.egress.iter().flat_map(|egress| egress.queues()) {
            for (_, session) in queue.sessions.iter_from(0) {
                session.state.iter().for_each(|state| visit(state.location));
                session.backlog.iter_from(0).for_each(|(_, message)| visit(message.location));
            }
        }
    }

    /// Finds bodies in the segments from a scan position on. Returns them, the next position if any, and how many
    /// messages were scanned.
    fn find_bodies(
        &self,
        segments: &BTreeSet<u32>,
        stage: CompactionPhase,
        budget: usize,
    ) -> (Vec<LocatedBody>, Option<CompactionPhase>, usize) {
        match stage {
            CompactionPhase::Scheduled(from) => self.find_scheduled_bodies(segments, from, budget),
            CompactionPhase::Messages(subqueue, slot, from) => {
                self.find_message_bodies(segments, subqueue, slot, from, budget)
            }
        }
    }

    fn find_scheduled_bodies(
        &self,
        segments: &BTreeSet<u32>,
        from: u64,
        budget: usize,
    ) -> (Vec<LocatedBody>, Option<CompactionPhase>, usize) {
        let schedule = self.ingress.iter().flat_map(|ingress| ingress.schedule.iter_from(from));
        let scanned: Vec<_> = schedule.take(budget).map(|(counter, message)| (counter, message.location)).collect();
        let here = scanned.iter().filter(|(_, location)| segments.contains(&location.segment));
        let found = here
            .map(|(counter, location)| LocatedBody {
                location: *location,
                session: None,
                key: BodyOwnerKey::Scheduled(self.id, *counter),
            })
            .collect();
        let next = match scanned.last() {
            Some((last, _)) if scanned.len() == budget => CompactionPhase::Scheduled(last + 1),
            _ => CompactionPhase::Messages(Subqueue::Main, 0, 0),
        };
        (found, Some(next), scanned.len())
    }

    fn find_message_bodies(
        &self,
        segments: &BTreeSet<u32>,
        subqueue: Subqueue,
        slot: TableSlot,
        from: u64,
        budget: usize,
    ) -> (Vec<LocatedBody>, Option<CompactionPhase>, usize) {
        let Some(egress) = &self.egress else { return (Vec::new(), None, 0) };
        let queue = egress.queue(subqueue);
        let Some((at, session)) = queue.sessions.iter_from(slot).next() else {
            return (Vec::new(), subqueue.next().map(|next| CompactionPhase::Messages(next, 0, 0)), 0);
        };
        let from = if at == slot { from } else { 0 };
        let mut found = Vec::new();
        let mut add = |location: JournalLocation, key: BodyOwnerKey| {
            if segments.contains(&location.segment) {
                found.push(LocatedBody { location, session: session.id.clone(), key });
            }
        };
        if let Some(state) = session.state.as_ref().filter(|_| from == 0) {
            add(state.location, BodyOwnerKey::State(queue.id));
        }
        let (mut scanned, mut last) = (0, None);
        for (counter, message) in session.backlog.iter_from(from).take(budget) {
            add(message.location, BodyOwnerKey::Message(queue.id, counter));
            (scanned, last) = (scanned + 1, Some(counter));
        }
        let next = match last {
            Some(last) if scanned == budget => CompactionPhase::Messages(subqueue, at, last + 1),
            _ => CompactionPhase::Messages(subqueue, at + 1, 0),
        };
        (found, Some(next), scanned)
    }
}
