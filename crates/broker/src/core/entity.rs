//! Queues, topics and subscriptions: what they are made of, and how they come, change and go.

use std::collections::BTreeMap;

use super::Core;
use super::description::{Description, InletDescription};
use super::desk::Desk;
use super::duplicates::History;
use super::error::Error;
use super::id::{EntityId, LinkId, QueueId, Subqueue, Timestamp};
use super::name;
use super::queue::{Policy, Queue};
use super::record::{EntityRecord, Record};
use super::schedule::Schedule;
use super::timers::Alarm;
use super::turn::{Effect, Turn};

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

    fn view(&self) -> EntityView<'_> {
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

impl Core {
    /// Creates a queue or topic at `path`, or a subscription at `topic/Subscriptions/name`.
    pub fn create(&mut self, turn: &mut Turn<'_>, path: &str, description: Description) -> Result<EntityId, Error> {
        self.begin(turn);
        description.check()?;
        let (path, topic) = self.check_place(path, &description)?;
        if self.by_path.contains_key(&name::fold(&path)) {
            return Err(Error::EntityExists { path });
        }
        let json = serde_json::to_vec(&description).expect("a description is plain data");
        let record = EntityRecord {
            id: EntityId(self.next_entity),
            topic,
            path: &path,
            description: &json,
            created_at: turn.now,
            updated_at: turn.now,
            counter: 0,
            dead_letter_counter: 0,
        };
        self.tools.note(turn, &Record::Entity(record.clone()))?;
        self.adopt(Entity::new(&record, description));
        self.arm_history(record.id, turn.now);
        Ok(record.id)
    }

    /// Changes an entity's properties. Links that may no longer be served are closed.
    pub fn update(&mut self, turn: &mut Turn<'_>, path: &str, description: Description) -> Result<(), Error> {
        self.begin(turn);
        let id = self.find(path)?;
        let entity = self.entities.get(&id).expect("found by path");
        entity.description.check_update(&description)?;
        let json = serde_json::to_vec(&description).expect("a description is plain data");
        let record = EntityRecord { updated_at: turn.now, ..entity.record(&json) };
        self.tools.note(turn, &Record::Entity(record))?;
        let entity = self.entities.get_mut(&id).expect("found above");
        entity.redescribe(description, turn.now);
        if !entity.description.common().status.receives() {
            let error = Error::EntityDisabled { path: entity.path.clone() };
            self.detach_all(turn, id, &error);
        }
        Ok(())
    }

    /// Deletes an entity with its messages, and a topic with its subscriptions.
    pub fn delete(&mut self, turn: &mut Turn<'_>, path: &str) -> Result<(), Error> {
        self.begin(turn);
        let id = self.find(path)?;
        let mut ids = self.entities[&id].subscriptions.clone();
        ids.push(id);
        let records: Vec<_> = ids.iter().map(|id| Record::EntityDeleted { id: *id }).collect();
        self.tools.note_all(turn, &records)?;
        for id in ids {
            let error = Error::EntityDeleted { path: self.entities[&id].path.clone() };
            self.detach_all(turn, id, &error);
            let entity = self.disown(id).expect("listed above");
            entity.visit_bodies(&mut |location| turn.journal.release(location));
        }
        Ok(())
    }

    pub fn entity(&self, path: &str) -> Result<EntityView<'_>, Error> {
        self.find(path).map(|id| self.entities[&id].view())
    }

    /// Queues, topics and subscriptions, by path.
    pub fn entities(&self) -> impl Iterator<Item = EntityView<'_>> {
        self.by_path.values().map(|id| self.entities[id].view())
    }

    pub fn subscriptions(&self, topic: &str) -> Result<impl Iterator<Item = EntityView<'_>>, Error> {
        let id = self.find(topic)?;
        let prefix = format!("{}/", self.entities[&id].path);
        let mut views: Vec<_> = self.entities[&id].subscriptions.iter().map(|id| self.entities[id].view()).collect();
        views.sort_by_key(|view| view.path.get(prefix.len()..).map(str::to_lowercase));
        Ok(views.into_iter())
    }

    /// The queue or topic a sender's address names.
    pub fn resolve_inlet(&self, address: &str) -> Result<EntityId, Error> {
        let id = self.find(address)?;
        match self.entities[&id].inlet {
            Some(_) => Ok(id),
            None => Err(Error::NotAllowed("messages are sent to a queue or a topic, not to a subscription")),
        }
    }

    /// The queue, subscription or dead-letter queue a receiver's address names.
    pub fn resolve_outlet(&self, address: &str) -> Result<QueueId, Error> {
        let (path, subqueue) = name::split_subqueue(address);
        let entity = self.find(&path)?;
        match self.entities[&entity].outlet {
            Some(_) => Ok(QueueId { entity, subqueue }),
            None => Err(Error::NotAllowed("messages are received from a queue or a subscription, not from a topic")),
        }
    }

    pub(super) fn adopt(&mut self, entity: Entity) {
        self.next_entity = self.next_entity.max(entity.id.0 + 1);
        if let Some(topic) = entity.topic.and_then(|topic| self.entities.get_mut(&topic)) {
            topic.subscriptions.push(entity.id);
        }
        self.by_path.insert(name::fold(&entity.path), entity.id);
        self.entities.insert(entity.id, entity);
    }

    pub(super) fn disown(&mut self, id: EntityId) -> Option<Entity> {
        let entity = self.entities.remove(&id)?;
        self.by_path.remove(&name::fold(&entity.path));
        if let Some(topic) = entity.topic.and_then(|topic| self.entities.get_mut(&topic)) {
            topic.subscriptions.retain(|subscription| *subscription != id);
        }
        Some(entity)
    }

    pub(super) fn arm_history(&mut self, id: EntityId, now: Timestamp) {
        let inlet = self.entities.get(&id).and_then(|entity| entity.inlet.as_ref());
        if let Some(history) = inlet.and_then(|inlet| inlet.history.as_ref()) {
            self.tools.timers.arm(Alarm::History(id), now.after(history.sweep_interval()));
        }
    }

    fn find(&self, path: &str) -> Result<EntityId, Error> {
        let id = self.by_path.get(&name::fold(path)).copied();
        id.ok_or_else(|| Error::EntityNotFound { path: path.trim_matches('/').into() })
    }

    /// Checks the name of a new entity; a subscription's path is spelt with its topic's own letters.
    fn check_place(&self, path: &str, description: &Description) -> Result<(Box<str>, Option<EntityId>), Error> {
        let Description::Subscription(_) = description else {
            name::check_entity(path)?;
            return Ok((path.into(), None));
        };
        let (topic, name) = name::split_subscription(path)?;
        name::check_subscription(name)?;
        let id = self.find(topic)?;
        match &self.entities[&id] {
            Entity { description: Description::Topic(_), path, .. } => {
                Ok((name::subscription_path(path, name), Some(id)))
            }
            _ => Err(Error::NotAllowed("only a topic has subscriptions")),
        }
    }

    fn detach_all(&mut self, turn: &mut Turn<'_>, id: EntityId, error: &Error) {
        for subqueue in [Subqueue::Main, Subqueue::DeadLetter] {
            let Ok(mut desk) = self.desk(turn, QueueId { entity: id, subqueue }) else { continue };
            desk.detach_all(error);
        }
    }
}

impl Desk<'_, '_> {
    fn detach_all(&mut self, error: &Error) {
        while let Some(waiter) = self.queue.waiting.pop() {
            self.tools.links.remove(&waiter.link);
            self.turn.effects.push(Effect::Refused { link: waiter.link, error: error.clone() });
        }
        let mut links: Vec<LinkId> = self.queue.receivers.links().collect();
        links.sort_unstable();
        for link in links {
            self.detach(link);
            self.turn.effects.push(Effect::Detached { link, error: error.clone() });
        }
    }
}

pub(super) type Entities = BTreeMap<EntityId, Entity>;
