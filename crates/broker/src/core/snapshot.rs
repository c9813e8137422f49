//! Writes the state as records, in steps.
//!
//! A snapshot does not stop the broker, so it may mix old and new state. Replaying everything appended since it began
//! corrects that (see [`crate::journal`]). The cursor only has to visit every object that existed at the start and
//! still exists.

use super::Core;
use super::entity::Entity;
use super::id::{EntityId, Subqueue, Timestamp};
use super::queue::MessageQueue;
use super::record::{
    BacklogEntry, BacklogRecord, JournalRecord, MessageUpdatedRecord, RuleRecord, ScheduledRecord,
    SessionStateLocation, SessionStateRecord,
};
use super::sessions::{QueueSession, TableSlot};
use crate::rules::DEFAULT_RULE;

/// Messages per record: enough that session id and record header cost little.
const MESSAGES_PER_RECORD: usize = 512;

/// Position of a snapshot in progress.
#[derive(Debug, Clone)]
pub struct SnapshotCursor {
    /// Converts ticks of the duplicate history to times.
    now: Timestamp,
    entity: EntityId,
    stage: EntitySnapshotPart,
}

#[derive(Debug, Clone, Copy)]
enum EntitySnapshotPart {
    Entity,
    Rules,
    Scheduled(u64),
    History(usize),
    Messages(Subqueue, TableSlot, u64),
}

impl SnapshotCursor {
    /// Starts a snapshot. The store remembers the journal's position at this moment.
    pub fn new(now: Timestamp) -> Self {
        Self { now, entity: EntityId(0), stage: EntitySnapshotPart::Entity }
    }
}

impl Core {
    /// Passes about `budget` bytes of records to `sink`; returns false when the snapshot is complete. Any number of
    /// other calls may run between two steps.
    pub fn write_snapshot(&self, snapshot: &mut SnapshotCursor, budget: usize, mut sink: impl FnMut(&[u8])) -> bool {
        let mut written = 0;
        let mut page = Vec::new();
        let mut write = |record: &JournalRecord<'_>| {
            page.clear();
            record.encode(&mut page);
            written += page.len();
            sink(&page);
            written >= budget
        };
        loop {
            let Some((id, entity)) = self.entities.range(snapshot.entity..).next() else { return false };
            if *id != snapshot.entity {
                (snapshot.entity, snapshot.stage) = (*id, EntitySnapshotPart::Entity);
            }
            let (next, full) = entity.snapshot_stage(snapshot.stage, snapshot.now, &mut write);
            match next {
                Some(stage) => snapshot.stage = stage,
                None => (snapshot.entity, snapshot.stage) = (EntityId(id.0 + 1), EntitySnapshotPart::Entity),
            }
            if full {
                return true;
            }
        }
    }
}

type RecordSink<'a> = &'a mut dyn FnMut(&JournalRecord<'_>) -> bool;

impl Entity {
    /// Writes one stage; returns the next stage and whether the budget is used up.
    fn snapshot_stage(
        &self,
        stage: EntitySnapshotPart,
        now: Timestamp,
        write: RecordSink<'_>,
    ) -> (Option<EntitySnapshotPart>, bool) {
        match stage {
            EntitySnapshotPart::Entity => {
                let json = serde_json::to_vec(&self.description).expect("a description is plain data");
                (Some(EntitySnapshotPart::Rules), write(&JournalRecord::Entity(self.record(&json))))
            }
            EntitySnapshotPart::Rules => (Some(EntitySnapshotPart::Scheduled(0)), self.snapshot_rules(write)),
            EntitySnapshotPart::Scheduled(from) => self.snapshot_scheduled(from, write),
            EntitySnapshotPart::History(page) => self.snapshot_history(page, now, write),
            EntitySnapshotPart::Messages(subqueue, slot, counter) => {
                self.snapshot_messages(subqueue, slot, counter, write)
            }
        }
    }

    /// All at once: a subscription has few rules, and they are small.
    fn snapshot_rules(&self, write: RecordSink<'_>) -> bool {
        let mut full = false;
        if self.topic.is_some() && !self.rules.has_default_rule() {
            full |= write(&JournalRecord::RuleRemoved { subscription: self.id, name: DEFAULT_RULE });
        }
        for rule in self.rules.iter() {
            let description = serde_json::to_vec(&rule.description).expect("a rule is plain data");
            let (subscription, created_at) = (self.id, rule.created_at);
            full |= write(&JournalRecord::Rule(RuleRecord { subscription, created_at, description: &description }));
        }
        full
    }

    fn snapshot_scheduled(&self, from: u64, write: RecordSink<'_>) -> (Option<EntitySnapshotPart>, bool) {
        let schedule = self.ingress.as_ref().map(|ingress| &ingress.schedule);
        for (counter, message) in schedule.into_iter().flat_map(|schedule| schedule.iter_from(from)) {
            let record = ScheduledRecord {
                entity: self.id,
                sequence: message.sequence,
                due_at: message.due_at,
                time_to_live: message.time_to_live,
                session: message.session.as_deref(),
                location: message.location,
            };
            if write(&JournalRecord::Scheduled(record)) {
                return (Some(EntitySnapshotPart::Scheduled(counter + 1)), true);
            }
        }
        (Some(EntitySnapshotPart::History(0)), false)
    }

    fn snapshot_history(
        &self,
        page: usize,
        now: Timestamp,
        write: RecordSink<'_>,
    ) -> (Option<EntitySnapshotPart>, bool) {
        let history = self.ingress.as_ref().and_then(|ingress| ingress.history.as_ref());
        let Some(ids) = history.and_then(|history| history.page(page, now)) else {
            return (Some(EntitySnapshotPart::Messages(Subqueue::Main, 0, 0)), false);
        };
        let ids: Vec<_> = ids.collect();
        // An empty page needs no record, but the cursor still moves on.
        let full = !ids.is_empty() && write(&JournalRecord::DuplicateIds { entity: self.id, ids });
        (Some(EntitySnapshotPart::History(page + 1)), full)
    }

    fn snapshot_messages(
        &self,
        subqueue: Subqueue,
        slot: TableSlot,
        from: u64,
        write: RecordSink<'_>,
    ) -> (Option<EntitySnapshotPart>, bool) {
        let Some(egress) = &self.egress else { return (None, false) };
        let queue = egress.queue(subqueue);
        let Some((found, session)) = queue.sessions.iter_from(slot).next() else {
            return (subqueue.next().map(|next| EntitySnapshotPart::Messages(next, 0, 0)), false);
        };
        // The session at `slot` may be gone; then the next one starts from its first message.
        let from = if found == slot { from } else { 0 };
        let mut full = from == 0 && queue.snapshot_state(session, write);
        let (last, used_up) = queue.snapshot_backlog(session, from, write);
        full |= used_up;
        let next = match last {
            Some(last) => EntitySnapshotPart::Messages(subqueue, found, last + 1),
            None => EntitySnapshotPart::Messages(subqueue, found + 1, 0),
        };
        (Some(next), full)
    }
}

impl MessageQueue {
    fn snapshot_state(&self, session: &QueueSession, write: RecordSink<'_>) -> bool {
        let (Some(id), Some(state)) = (&session.id, &session.state) else { return false };
        let place = SessionStateLocation::At(state.location);
        write(&JournalRecord::SessionStateRecord(SessionStateRecord {
            queue: self.id,
            session: id,
            at: state.updated_at,
            state: place,
        }))
    }

    /// Writes the next messages of a session with their overrides; returns the last counter if there may be more.
    fn snapshot_backlog(&self, session: &QueueSession, from: u64, write: RecordSink<'_>) -> (Option<u64>, bool) {
        let part: Vec<_> = session.backlog.iter_from(from).take(MESSAGES_PER_RECORD).collect();
        let Some((last, _)) = part.last().copied() else { return (None, false) };
        let id = session.id.as_deref();
        let entry = |(counter, message): &(u64, super::backlog::QueuedMessage)| BacklogEntry {
            counter: *counter,
            location: message.location,
            expires: message.expires.0,
            delivery_count: message.delivery_count,
            flags: message.persistent_flags(),
        };
        let messages = part.iter().map(entry).collect();
        let mut full = write(&JournalRecord::Backlog(BacklogRecord { queue: self.id, session: id, messages }));
        // The compact record has no room for overrides; a second record follows for the few messages that have them.
        for (counter, message) in part.iter().filter(|(_, message)| message.has_overrides()) {
            full |= write(&JournalRecord::MessageUpdated(MessageUpdatedRecord {
                queue: self.id,
                session: id,
                counter: *counter,
                delivery_count: message.delivery_count,
                deferred: message.is_deferred(),
                overrides: self.overrides(*counter, *message),
            }));
        }
        ((part.len() == MESSAGES_PER_RECORD).then_some(last), full)
    }
}
