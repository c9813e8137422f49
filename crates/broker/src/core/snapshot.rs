//! The state as records, a little at a time.
//!
//! A snapshot does not stop the broker: it may hold a mixture of old and new, mended by replaying what was appended since it
//! began (see [`crate::journal`]). So the cursor only has to pass every thing that was there at the beginning and still is.

use super::Core;
use super::entity::Entity;
use super::id::{EntityId, Subqueue, Timestamp};
use super::queue::Queue;
use super::record::{Altered, BacklogEntry, BacklogPart, Record, ScheduledRecord, SessionState, StatePlace};
use super::sessions::{Session, Slot};

/// Messages in one record: enough to make the session's id and the record's head cheap.
const PART: usize = 512;

/// How far a snapshot has come.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// For turning the history's ages into moments.
    now: Timestamp,
    entity: EntityId,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Entity,
    Scheduled(u64),
    History(usize),
    Messages(Subqueue, Slot, u64),
}

impl Snapshot {
    /// A snapshot that begins here: the store notes the journal's position now.
    pub fn begin(now: Timestamp) -> Self {
        Self { now, entity: EntityId(0), stage: Stage::Entity }
    }
}

impl Core {
    /// Hands about `budget` bytes of records to `sink`; false when the snapshot is complete. The next step may come after
    /// any number of other calls.
    pub fn snapshot(&self, snapshot: &mut Snapshot, budget: usize, mut sink: impl FnMut(&[u8])) -> bool {
        let mut written = 0;
        let mut page = Vec::new();
        let mut write = |record: &Record<'_>| {
            page.clear();
            record.encode(&mut page);
            written += page.len();
            sink(&page);
            written >= budget
        };
        loop {
            let Some((id, entity)) = self.entities.range(snapshot.entity..).next() else { return false };
            if *id != snapshot.entity {
                (snapshot.entity, snapshot.stage) = (*id, Stage::Entity);
            }
            let (next, full) = entity.snapshot_stage(snapshot.stage, snapshot.now, &mut write);
            match next {
                Some(stage) => snapshot.stage = stage,
                None => (snapshot.entity, snapshot.stage) = (EntityId(id.0 + 1), Stage::Entity),
            }
            if full {
                return true;
            }
        }
    }
}

type Write<'a> = &'a mut dyn FnMut(&Record<'_>) -> bool;

impl Entity {
    /// Writes one stage; says which comes next and whether the budget is used up.
    fn snapshot_stage(&self, stage: Stage, now: Timestamp, write: Write<'_>) -> (Option<Stage>, bool) {
        match stage {
            Stage::Entity => {
                let json = serde_json::to_vec(&self.description).expect("a description is plain data");
                (Some(Stage::Scheduled(0)), write(&Record::Entity(self.record(&json))))
            }
            Stage::Scheduled(from) => self.snapshot_scheduled(from, write),
            Stage::History(page) => self.snapshot_history(page, now, write),
            Stage::Messages(subqueue, slot, counter) => self.snapshot_messages(subqueue, slot, counter, write),
        }
    }

    fn snapshot_scheduled(&self, from: u64, write: Write<'_>) -> (Option<Stage>, bool) {
        let schedule = self.inlet.as_ref().map(|inlet| &inlet.schedule);
        for (counter, message) in schedule.into_iter().flat_map(|schedule| schedule.iter_from(from)) {
            let record = ScheduledRecord {
                entity: self.id,
                sequence: message.sequence,
                due_at: message.due_at,
                time_to_live: message.time_to_live,
                session: message.session.as_deref(),
                location: message.location,
            };
            if write(&Record::Scheduled(record)) {
                return (Some(Stage::Scheduled(counter + 1)), true);
            }
        }
        (Some(Stage::History(0)), false)
    }

    fn snapshot_history(&self, page: usize, now: Timestamp, write: Write<'_>) -> (Option<Stage>, bool) {
        let history = self.inlet.as_ref().and_then(|inlet| inlet.history.as_ref());
        let Some(ids) = history.and_then(|history| history.page(page, now)) else {
            return (Some(Stage::Messages(Subqueue::Main, 0, 0)), false);
        };
        let ids: Vec<_> = ids.collect();
        let full = !ids.is_empty() && write(&Record::Remembered { entity: self.id, ids });
        (Some(Stage::History(page + 1)), full)
    }

    fn snapshot_messages(&self, subqueue: Subqueue, slot: Slot, from: u64, write: Write<'_>) -> (Option<Stage>, bool) {
        let Some(outlet) = &self.outlet else { return (None, false) };
        let queue = outlet.queue(subqueue);
        let Some((found, session)) = queue.sessions.iter_from(slot).next() else {
            let next = (subqueue == Subqueue::Main).then_some(Stage::Messages(Subqueue::DeadLetter, 0, 0));
            return (next, false);
        };
        let from = if found == slot { from } else { 0 };
        let mut full = from == 0 && queue.snapshot_state(session, write);
        let (last, used_up) = queue.snapshot_part(session, from, write);
        full |= used_up;
        let next = match last {
            Some(last) => Stage::Messages(subqueue, found, last + 1),
            None => Stage::Messages(subqueue, found + 1, 0),
        };
        (Some(next), full)
    }
}

impl Queue {
    fn snapshot_state(&self, session: &Session, write: Write<'_>) -> bool {
        let (Some(id), Some(state)) = (&session.id, &session.state) else { return false };
        let place = StatePlace::At(state.location);
        write(&Record::SessionState(SessionState { queue: self.id, session: id, at: state.updated_at, state: place }))
    }

    /// Writes the next messages of a session with their alterations; returns the last counter, if there may be more.
    fn snapshot_part(&self, session: &Session, from: u64, write: Write<'_>) -> (Option<u64>, bool) {
        let part: Vec<_> = session.backlog.iter_from(from).take(PART).collect();
        let Some((last, _)) = part.last().copied() else { return (None, false) };
        let id = session.id.as_deref();
        let entry = |(counter, message): &(u64, super::backlog::Message)| BacklogEntry {
            counter: *counter,
            location: message.location,
            expires: message.expires.0,
            delivery_count: message.delivery_count,
            flags: message.lasting_flags(),
        };
        let messages = part.iter().map(entry).collect();
        let mut full = write(&Record::Backlog(BacklogPart { queue: self.id, session: id, messages }));
        for (counter, message) in part.iter().filter(|(_, message)| message.is_altered()) {
            full |= write(&Record::Altered(Altered {
                queue: self.id,
                session: id,
                counter: *counter,
                delivery_count: message.delivery_count,
                deferred: message.is_deferred(),
                alterations: self.alterations(*counter, *message),
            }));
        }
        ((part.len() == PART).then_some(last), full)
    }
}
