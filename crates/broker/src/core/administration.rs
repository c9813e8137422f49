//! How entities come, change and go, and how addresses find them.

use super::Core;
use super::description::Description;
use super::desk::Desk;
use super::entity::{Entity, EntityView};
use super::error::Error;
use super::id::{EntityId, LinkId, QueueId, Subqueue, Timestamp};
use super::name;
use super::record::{EntityRecord, Record};
use super::timers::Alarm;
use super::turn::{Effect, Turn};

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
            self.dismiss_onlookers(turn, id, &error);
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
        // Its name may be another's already, when records are replayed over a snapshot that has the newer one.
        let path = name::fold(&entity.path);
        if self.by_path.get(&path) == Some(&id) {
            self.by_path.remove(&path);
        }
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

    pub(super) fn find(&self, path: &str) -> Result<EntityId, Error> {
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
