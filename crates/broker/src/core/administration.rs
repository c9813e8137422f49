//! Entity administration: create, update and delete entities, and resolve addresses to them.

use super::Core;
use super::call_context::{CallContext, LinkEffect};
use super::description::EntityDefinition;
use super::entity::{Entity, EntityView};
use super::error::Error;
use super::id::{CoreLinkId, EntityId, QueueId, Subqueue, Timestamp};
use super::name;
use super::queue_context::QueueContext;
use super::record::{EntityRecord, JournalRecord};
use super::rules::FirstRules;
use super::timers::Timer;
use crate::rules::RuleDescription;

impl Core {
    /// Creates a queue or topic at `path`, or a subscription at `topic/Subscriptions/name`.
    pub fn create(
        &mut self,
        call: &mut CallContext<'_>,
        path: &str,
        description: EntityDefinition,
    ) -> Result<EntityId, Error> {
        self.create_with_rules(call, path, description, Vec::new())
    }

    /// Creates an entity. A subscription gets the default rule unless others are given.
    pub fn create_with_rules(
        &mut self,
        call: &mut CallContext<'_>,
        path: &str,
        mut description: EntityDefinition,
        rules: Vec<RuleDescription>,
    ) -> Result<EntityId, Error> {
        self.handle_due_timers(call);
        description.check()?;
        let tier = self.state.limits.tier;
        tier.apply_defaults(&mut description);
        tier.check(&description)?;
        self.check_forwarding(path, &description)?;
        let (path, topic) = self.check_path(path, &description)?;
        if self.by_path.contains_key(&name::normalize(&path)) {
            return Err(Error::EntityExists { path });
        }
        self.check_entity_count(topic)?;
        self.check_partitioned_count(&description)?;
        let rules = self.compile_first_rules(call.now, &path, topic, rules)?;
        let json = serde_json::to_vec(&description).expect("a description is plain data");
        let record = EntityRecord {
            id: EntityId(self.next_entity),
            topic,
            path: &path,
            description: &json,
            created_at: call.now,
            updated_at: call.now,
            counter: 0,
            dead_letter_counter: 0,
            transfer_dead_letter_counter: 0,
        };
        let rule_records = FirstRules::new(record.id, &rules);
        let mut records = vec![JournalRecord::Entity(record.clone())];
        records.extend(rule_records.records());
        self.state.append_records(call, &records)?;
        self.insert_entity(Entity::new(&record, description));
        self.insert_first_rules(record.id, rules);
        self.set_history_timer(record.id, call.now);
        self.set_idle_timer(record.id);
        Ok(record.id)
    }

    fn check_entity_count(&self, topic: Option<EntityId>) -> Result<(), Error> {
        let (what, limit) = match topic {
            None => ("Queue or Topic", self.state.limits.max_entities),
            Some(_) => ("Subscription", self.state.limits.max_subscriptions),
        };
        let count = self.entities.values().filter(|entity| entity.topic == topic).count();
        if count < limit { Ok(()) } else { Err(Error::TooManyEntities { what, limit }) }
    }

    fn check_partitioned_count(&self, description: &EntityDefinition) -> Result<(), Error> {
        let is_partitioned = |own: &EntityDefinition| own.ingress().is_some_and(|ingress| ingress.enable_partitioning);
        let (what, limit) = ("partitioned Queue or Topic", self.state.limits.max_partitioned);
        let count = || self.entities.values().filter(|entity| is_partitioned(&entity.description)).count();
        match is_partitioned(description) && count() >= limit {
            true => Err(Error::TooManyEntities { what, limit }),
            false => Ok(()),
        }
    }

    /// Updates an entity's properties. Closes links that the new status no longer allows.
    pub fn update(
        &mut self,
        call: &mut CallContext<'_>,
        path: &str,
        mut description: EntityDefinition,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        self.state.limits.tier.apply_defaults(&mut description);
        let id = self.find_entity(path)?;
        let entity = self.entities.get(&id).expect("found by path");
        entity.description.check_update(&description)?;
        // SDKs send all properties back. Those that an earlier version accepted, and that do not change, do not stand in the way of the others.
        let problem = |description| self.state.limits.tier.check(description).err();
        if let Some(error) = problem(&description)
            && problem(&entity.description).is_none_or(|known| known.to_string() != error.to_string())
        {
            return Err(error);
        }
        if entity.description.forwarding() != description.forwarding() {
            self.check_forwarding(path, &description)?;
        }
        let json = serde_json::to_vec(&description).expect("a description is plain data");
        let record = EntityRecord { updated_at: call.now, ..entity.record(&json) };
        self.state.append_record(call, &JournalRecord::Entity(record))?;
        let entity = self.entities.get_mut(&id).expect("found above");
        entity.apply_description(description, call.now);
        if !entity.description.common().status.can_receive() {
            let error = Error::EntityDisabled { path: entity.path.clone() };
            self.detach_all(call, id, &error);
        }
        self.apply_forwarding(call, id);
        self.set_idle_timer(id);
        Ok(())
    }

    /// Deletes an entity with its messages, and a topic with its subscriptions.
    pub fn delete(&mut self, call: &mut CallContext<'_>, path: &str) -> Result<(), Error> {
        self.handle_due_timers(call);
        let id = self.find_entity(path)?;
        self.delete_entity(call, id)
    }

    pub(super) fn delete_entity(&mut self, call: &mut CallContext<'_>, id: EntityId) -> Result<(), Error> {
        // Subscriptions first, so that no record refers to a deleted topic.
        let mut ids = self.entities[&id].subscriptions.clone();
        ids.push(id);
        let records: Vec<_> = ids.iter().map(|id| JournalRecord::EntityDeleted { id: *id }).collect();
        self.state.append_records(call, &records)?;
        for id in ids {
            let error = Error::EntityDeleted { path: self.entities[&id].path.clone() };
            self.detach_all(call, id, &error);
            self.detach_management_links(call, id, &error);
            let entity = self.remove_entity(id).expect("listed above");
            // Every message of the entity holds a reference, also scheduled ones and session states.
            entity.visit_bodies(&mut |location| call.journal.release(location));
        }
        Ok(())
    }

    pub fn entity(&self, path: &str) -> Result<EntityView<'_>, Error> {
        self.find_entity(path).map(|id| self.entities[&id].view())
    }

    /// All queues, topics and subscriptions, ordered by path.
    pub fn entities(&self) -> impl Iterator<Item = EntityView<'_>> {
        self.by_path.values().map(|id| self.entities[id].view())
    }

    pub fn subscriptions(&self, topic: &str) -> Result<impl Iterator<Item = EntityView<'_>>, Error> {
        let id = self.find_entity(topic)?;
        let prefix = format!("{}/", self.entities[&id].path);
        let mut views: Vec<_> = self.entities[&id].subscriptions.iter().map(|id| self.entities[id].view()).collect();
        views.sort_by_key(|view| view.path.get(prefix.len()..).map(str::to_lowercase));
        Ok(views.into_iter())
    }

    /// Resolves a sender's address to a queue or topic.
    pub fn resolve_send_address(&self, address: &str) -> Result<EntityId, Error> {
        let id = self.find_entity(address)?;
        match self.entities[&id].ingress {
            Some(_) => Ok(id),
            None => Err(Error::NotAllowed("messages are sent to a queue or a topic, not to a subscription")),
        }
    }

    /// Resolves a receiver's address to a queue, subscription or dead-letter queue.
    pub fn resolve_receive_address(&self, address: &str) -> Result<QueueId, Error> {
        let (_, subqueue) = name::split_subqueue(address);
        let entity = self.find_address(address)?;
        match self.entities[&entity].egress {
            Some(_) => Ok(QueueId { entity, subqueue }),
            None => Err(Error::NotAllowed("messages are received from a queue or a subscription, not from a topic")),
        }
    }

    pub(super) fn insert_entity(&mut self, entity: Entity) {
        self.next_entity = self.next_entity.max(entity.id.0 + 1);
        if let Some(topic) = entity.topic.and_then(|topic| self.entities.get_mut(&topic)) {
            topic.subscriptions.push(entity.id);
            topic.filter_counts.add(entity.rules.counts());
            topic.rule_index = None;
        }
        self.by_path.insert(name::normalize(&entity.path), entity.id);
        self.entities.insert(entity.id, entity);
    }

    pub(super) fn remove_entity(&mut self, id: EntityId) -> Option<Entity> {
        let entity = self.entities.remove(&id)?;
        // Replay over a newer snapshot can find the path already taken by a newer entity: that entry must stay.
        let path = name::normalize(&entity.path);
        if self.by_path.get(&path) == Some(&id) {
            self.by_path.remove(&path);
        }
        if let Some(topic) = entity.topic.and_then(|topic| self.entities.get_mut(&topic)) {
            topic.subscriptions.retain(|subscription| *subscription != id);
            topic.filter_counts.subtract(entity.rules.counts());
            topic.rule_index = None;
        }
        Some(entity)
    }

    pub(super) fn set_history_timer(&mut self, id: EntityId, now: Timestamp) {
        let ingress = self.entities.get(&id).and_then(|entity| entity.ingress.as_ref());
        if let Some(history) = ingress.and_then(|ingress| ingress.history.as_ref()) {
            self.state.timers.set(Timer::History(id), now.after(history.sweep_interval()));
        }
    }

    pub(super) fn find_entity(&self, path: &str) -> Result<EntityId, Error> {
        let id = self.by_path.get(&name::normalize(path)).copied();
        id.ok_or_else(|| Error::EntityNotFound { path: path.trim_matches('/').into() })
    }

    /// Checks the path of a new entity. A subscription's path repeats its topic's path exactly as the topic was
    /// created.
    fn check_path(&self, path: &str, description: &EntityDefinition) -> Result<(Box<str>, Option<EntityId>), Error> {
        let EntityDefinition::Subscription(_) = description else {
            name::check_entity(path)?;
            return Ok((path.into(), None));
        };
        let (topic, name) = name::split_subscription(path)?;
        name::check_subscription(name)?;
        let id = self.find_entity(topic)?;
        match &self.entities[&id] {
            Entity { description: EntityDefinition::Topic(_), path, .. } => {
                Ok((name::subscription_path(path, name), Some(id)))
            }
            _ => Err(Error::NotAllowed("only a topic has subscriptions")),
        }
    }

    fn detach_all(&mut self, call: &mut CallContext<'_>, id: EntityId, error: &Error) {
        for subqueue in [Subqueue::Main, Subqueue::DeadLetter, Subqueue::TransferDeadLetter] {
            let Ok(mut context) = self.queue_context(call, QueueId { entity: id, subqueue }) else { continue };
            context.detach_all(error);
        }
    }
}

impl QueueContext<'_, '_> {
    pub(super) fn detach_all(&mut self, error: &Error) {
        while let Some(waiting_attach) = self.queue.waiting.pop() {
            self.state.links.remove(&waiting_attach.link);
            self.call.effects.push(LinkEffect::Refused { link: waiting_attach.link, error: error.clone() });
        }
        let mut links: Vec<CoreLinkId> = self.queue.receivers.links().collect();
        links.sort_unstable();
        for link in links {
            self.detach(link);
            self.call.effects.push(LinkEffect::Detached { link, error: error.clone() });
        }
    }
}
