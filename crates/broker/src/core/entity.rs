//! What queues, topics and subscriptions are made of.

use std::collections::BTreeMap;

use super::description::{Description, InletDescription};
use super::duplicates::History;
use super::id::{EntityId, QueueId, Subqueue, Timestamp};
use super::queue::{Policy, Queue};
use super::record::EntityRecord;
use super::schedule::Schedule;

#[derive(Debug)]
pub(super) struct Entity {
    pub(super) id: EntityId,
    pub(super) path: Box<str>,
    pub(super) description: Description,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// A subscription's topic.
    pub(super) topic: Option<EntityId>,
    /// A topic's subscriptions.
    pub(super) subscriptions: Vec<EntityId>,
    /// Queues and topics: where messages come in.
    pub(super) inlet: Option<Inlet>,
    /// Queues and subscriptions: where messages go out.
    pub(super) outlet: Option<Outlet>,
}

#[derive(Debug)]
pub(super) struct Inlet {
    /// The last counter given to a message.
    pub(super) counter: u64,
    pub(super) next_partition: u8,
    pub(super) history: Option<History>,
    pub(super) schedule: Schedule,
}

#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) main: Queue,
    pub(super) dead_letter: Queue,
}

impl Outlet {
    pub(super) fn queue(&self, subqueue: Subqueue) -> &Queue {
        match subqueue {
            Subqueue::Main => &self.main,
            Subqueue::DeadLetter => &self.dead_letter,
        }
    }

    pub(super) fn queue_mut(&mut self, subqueue: Subqueue) -> &mut Queue {
        match subqueue {
            Subqueue::Main => &mut self.main,
            Subqueue::DeadLetter => &mut self.dead_letter,
        }
    }

    pub(super) fn queues(&self) -> [&Queue; 2] {
        [&self.main, &self.dead_letter]
    }
}

pub(super) type Entities = BTreeMap<EntityId, Entity>;

/// What the administration API shows of an entity.
#[derive(Debug, Clone)]
pub struct EntityView<'a> {
    pub id: EntityId,
    pub path: &'a str,
    pub description: &'a Description,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub counts: Counts,
    pub subscriptions: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Active and deferred messages.
    pub active: u64,
    pub dead_letter: u64,
    pub scheduled: u64,
    pub sessions: u64,
    pub receivers: u64,
    /// Of all messages, each counted once for each subscription that holds it.
    pub bytes: u64,
}

impl Entity {
    pub(super) fn new(record: &EntityRecord<'_>, description: Description) -> Self {
        let id = record.id;
        let inlet = description.inlet().map(|inlet| Inlet {
            counter: record.counter,
            next_partition: 0,
            history: history(inlet),
            schedule: Schedule::default(),
        });
        let outlet = description.outlet().map(|outlet| {
            let main = Queue::new(QueueId::main(id), Policy::main(description.common(), outlet));
            let policy = Policy::dead_letter(description.common(), outlet);
            let mut dead_letter = Queue::new(QueueId::dead_letter(id), policy);
            dead_letter.counter = record.dead_letter_counter;
            Outlet { main, dead_letter }
        });
        Self {
            id,
            path: record.path.into(),
            description,
            created_at: record.created_at,
            updated_at: record.updated_at,
            topic: record.topic,
            subscriptions: Vec::new(),
            inlet,
            outlet,
        }
    }

    /// Takes on a new description, and what follows from it.
    pub(super) fn redescribe(&mut self, description: Description, now: Timestamp) {
        if let (Some(inlet), Some(new)) = (&mut self.inlet, description.inlet())
            && let Some(history) = &mut inlet.history
            && self
                .description
                .inlet()
                .is_some_and(|old| old.duplicate_detection_window != new.duplicate_detection_window)
        {
            *history = history.with_window(new.duplicate_detection_window, now);
        }
        if let (Some(outlet), Some(new)) = (&mut self.outlet, description.outlet()) {
            outlet.main.policy = Policy::main(description.common(), new);
            outlet.dead_letter.policy = Policy::dead_letter(description.common(), new);
        }
        self.description = description;
        self.updated_at = now;
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        if let Some(inlet) = &self.inlet {
            counts.scheduled = inlet.schedule.len() as u64;
            counts.bytes += inlet.schedule.bytes();
        }
        if let Some(outlet) = &self.outlet {
            counts.active = outlet.main.messages;
            counts.dead_letter = outlet.dead_letter.messages;
            counts.sessions = outlet.main.sessions.len() as u64;
            counts.receivers = outlet.queues().iter().map(|queue| queue.receivers.len() as u64).sum();
            counts.bytes += outlet.queues().iter().map(|queue| queue.bytes).sum::<u64>();
        }
        counts
    }

    pub(super) fn record<'a>(&'a self, description: &'a [u8]) -> EntityRecord<'a> {
        EntityRecord {
            id: self.id,
            topic: self.topic,
            path: &self.path,
            description,
            created_at: self.created_at,
            updated_at: self.updated_at,
            counter: self.inlet.as_ref().map_or(0, |inlet| inlet.counter),
            dead_letter_counter: self.outlet.as_ref().map_or(0, |outlet| outlet.dead_letter.counter),
        }
    }

    pub(super) fn view(&self) -> EntityView<'_> {
        EntityView {
            id: self.id,
            path: &self.path,
            description: &self.description,
            created_at: self.created_at,
            updated_at: self.updated_at,
            counts: self.counts(),
            subscriptions: self.subscriptions.len(),
        }
    }
}

fn history(inlet: &InletDescription) -> Option<History> {
    inlet.requires_duplicate_detection.then(|| History::new(inlet.duplicate_detection_window))
}
