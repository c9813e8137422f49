//! Rules of subscriptions: add, replace and remove them. `topic` applies them.

use std::sync::Arc;

use super::Core;
use super::call_context::CallContext;
use super::entity::Entity;
use super::error::Error;
use super::id::{EntityId, Timestamp};
use super::record::{JournalRecord, MalformedRecord, RuleRecord};
use crate::rules::{CompiledRule, DEFAULT_RULE, FilterCounts, RuleDescription, RuleIndex};

/// The service's limits per topic.
const MAX_SQL_FILTERS: usize = 2_000;
const MAX_CORRELATION_FILTERS: usize = 100_000;

impl Core {
    /// Adds a rule to a subscription. It applies to messages sent from now on.
    pub fn add_rule(
        &mut self,
        call: &mut CallContext<'_>,
        subscription: &str,
        rule: RuleDescription,
    ) -> Result<Arc<CompiledRule>, Error> {
        self.handle_due_timers(call);
        let id = self.find_subscription(subscription)?;
        let entity = &self.entities[&id];
        if entity.rules.get(&rule.name).is_some() {
            return Err(Error::EntityExists { path: rule_path(entity, &rule.name) });
        }
        self.check_filter_count(entity.topic, FilterCounts::of(&rule))?;
        let rule = CompiledRule::compile(rule, call.now)?;
        self.store_rule(call, id, rule)
    }

    /// Replaces a rule.
    pub fn update_rule(
        &mut self,
        call: &mut CallContext<'_>,
        subscription: &str,
        rule: RuleDescription,
    ) -> Result<Arc<CompiledRule>, Error> {
        self.handle_due_timers(call);
        let id = self.find_subscription(subscription)?;
        let entity = &self.entities[&id];
        let old = entity.rules.get(&rule.name);
        let old = old.ok_or_else(|| Error::EntityNotFound { path: rule_path(entity, &rule.name) })?;
        let (name, created_at) = (old.description.name.clone(), old.created_at);
        if FilterCounts::of(&rule) != FilterCounts::of(&old.description) {
            self.check_filter_count(entity.topic, FilterCounts::of(&rule))?;
        }
        let rule = CompiledRule::compile(RuleDescription { name, ..rule }, created_at)?;
        self.store_rule(call, id, rule)
    }

    pub fn remove_rule(&mut self, call: &mut CallContext<'_>, subscription: &str, name: &str) -> Result<(), Error> {
        self.handle_due_timers(call);
        let id = self.find_subscription(subscription)?;
        let entity = &self.entities[&id];
        if entity.rules.get(name).is_none() {
            return Err(Error::EntityNotFound { path: rule_path(entity, name) });
        }
        self.state.append_record(call, &JournalRecord::RuleRemoved { subscription: id, name })?;
        self.take_rule(id, name);
        self.record_use(id, call.now);
        Ok(())
    }

    /// The rules of a subscription, ordered by name.
    pub fn rules<'a>(
        &'a self,
        subscription: &str,
    ) -> Result<impl Iterator<Item = &'a Arc<CompiledRule>> + use<'a>, Error> {
        Ok(self.entities[&self.find_subscription(subscription)?].rules.iter())
    }

    pub fn rule(&self, subscription: &str, name: &str) -> Result<&Arc<CompiledRule>, Error> {
        let entity = &self.entities[&self.find_subscription(subscription)?];
        entity.rules.get(name).ok_or_else(|| Error::EntityNotFound { path: rule_path(entity, name) })
    }

    /// Compiles the rules of a new entity before anything is created.
    pub(super) fn compile_first_rules(
        &self,
        now: Timestamp,
        path: &str,
        topic: Option<EntityId>,
        rules: Vec<RuleDescription>,
    ) -> Result<Vec<CompiledRule>, Error> {
        if !rules.is_empty() && topic.is_none() {
            return Err(Error::NotAllowed("only a subscription has rules"));
        }
        let mut counts = FilterCounts::default();
        rules.iter().for_each(|rule| counts.add(FilterCounts::of(rule)));
        self.check_filter_count(topic, counts)?;
        let mut compiled: Vec<CompiledRule> = Vec::with_capacity(rules.len());
        for rule in rules {
            if compiled.iter().any(|known| known.description.name.eq_ignore_ascii_case(&rule.name)) {
                return Err(Error::EntityExists { path: format!("{path}/Rules/{}", rule.name).into() });
            }
            compiled.push(CompiledRule::compile(rule, now)?);
        }
        Ok(compiled)
    }

    /// Replaces the default rule of a new subscription.
    pub(super) fn insert_first_rules(&mut self, id: EntityId, rules: Vec<CompiledRule>) {
        if !rules.is_empty() {
            self.take_rule(id, DEFAULT_RULE);
        }
        rules.into_iter().for_each(|rule| self.put_rule(id, Arc::new(rule)));
    }

    /// Removes a rule from the state.
    pub(super) fn take_rule(&mut self, id: EntityId, name: &str) -> Option<Arc<CompiledRule>> {
        let rule = self.entities.get_mut(&id)?.rules.remove(name)?;
        if let Some(topic) = self.topic_of_mut(id) {
            topic.filter_counts.subtract(FilterCounts::of(&rule.description));
            topic.rule_index = None;
        }
        Some(rule)
    }

    pub(super) fn replay_rule(&mut self, record: &RuleRecord<'_>) -> Result<(), MalformedRecord> {
        let description: RuleDescription =
            serde_json::from_slice(record.description).map_err(|_| MalformedRecord("a rule's description"))?;
        let rule = CompiledRule::compile(description, record.created_at).map_err(|_| MalformedRecord("a rule"))?;
        self.put_rule(record.subscription, Arc::new(rule));
        Ok(())
    }

    /// The rules of all subscriptions of a topic. Built after a change, by the first message.
    pub(super) fn rule_index(&mut self, topic: EntityId) -> Arc<RuleIndex> {
        if let Some(index) = &self.entities[&topic].rule_index {
            return Arc::clone(index);
        }
        let subscriptions = self.entities[&topic].subscriptions.iter();
        let index = RuleIndex::new(subscriptions.map(|id| (*id, &self.entities[id].rules)));
        let index = Arc::new(index);
        self.entities.get_mut(&topic).expect("read above").rule_index = Some(Arc::clone(&index));
        index
    }

    fn store_rule(
        &mut self,
        call: &mut CallContext<'_>,
        id: EntityId,
        rule: CompiledRule,
    ) -> Result<Arc<CompiledRule>, Error> {
        let description = to_json(&rule);
        let record = RuleRecord { subscription: id, created_at: rule.created_at, description: &description };
        self.state.append_record(call, &JournalRecord::Rule(record))?;
        let rule = Arc::new(rule);
        self.put_rule(id, Arc::clone(&rule));
        self.record_use(id, call.now);
        Ok(rule)
    }

    /// Adds a rule to the state, or replaces the one of its name.
    fn put_rule(&mut self, id: EntityId, rule: Arc<CompiledRule>) {
        self.take_rule(id, &rule.description.name);
        let counts = FilterCounts::of(&rule.description);
        let Some(entity) = self.entities.get_mut(&id).filter(|entity| entity.topic.is_some()) else { return };
        entity.rules.insert(rule);
        if let Some(topic) = self.topic_of_mut(id) {
            topic.filter_counts.add(counts);
            topic.rule_index = None;
        }
    }

    fn topic_of_mut(&mut self, subscription: EntityId) -> Option<&mut Entity> {
        let topic = self.entities.get(&subscription)?.topic?;
        self.entities.get_mut(&topic)
    }

    fn find_subscription(&self, path: &str) -> Result<EntityId, Error> {
        let id = self.find_entity(path)?;
        match self.entities[&id].topic {
            Some(_) => Ok(id),
            None => Err(Error::NotAllowed("only a subscription has rules")),
        }
    }

    pub(super) fn check_filter_count(&self, topic: Option<EntityId>, added: FilterCounts) -> Result<(), Error> {
        let Some(topic) = topic.and_then(|topic| self.entities.get(&topic)) else { return Ok(()) };
        let Entity { filter_counts: counts, path, .. } = topic;
        let limits = [
            ("SQL", counts.sql + added.sql, MAX_SQL_FILTERS),
            ("correlation", counts.correlation + added.correlation, MAX_CORRELATION_FILTERS),
        ];
        match limits.into_iter().find(|(_, count, limit)| count > limit) {
            Some((kind, _, limit)) => Err(Error::TooManyRules { path: path.clone(), kind, limit }),
            None => Ok(()),
        }
    }
}

/// The records of a new subscription's rules.
pub(super) struct FirstRules {
    subscription: EntityId,
    descriptions: Vec<(Timestamp, Vec<u8>)>,
}

impl FirstRules {
    pub(super) fn new(subscription: EntityId, rules: &[CompiledRule]) -> Self {
        Self { subscription, descriptions: rules.iter().map(|rule| (rule.created_at, to_json(rule))).collect() }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = JournalRecord<'_>> {
        let subscription = self.subscription;
        let removed =
            (!self.descriptions.is_empty()).then_some(JournalRecord::RuleRemoved { subscription, name: DEFAULT_RULE });
        let added = self.descriptions.iter().map(move |(created_at, description)| {
            JournalRecord::Rule(RuleRecord { subscription, created_at: *created_at, description })
        });
        removed.into_iter().chain(added)
    }
}

fn to_json(rule: &CompiledRule) -> Vec<u8> {
    serde_json::to_vec(&rule.description).expect("a rule is plain data")
}

fn rule_path(subscription: &Entity, name: &str) -> Box<str> {
    format!("{}/Rules/{name}", subscription.path).into()
}
