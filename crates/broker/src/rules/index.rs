//! The rules of all subscriptions of a topic, indexed by the values that they require.
//!
//! A rule that requires `property = constant` is looked up by that value; all others are evaluated for every message. So
//! a thousand rules that each require another value cost one lookup per property of the message.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::compiled::CompiledRule;
use super::message::{ChangedMessage, MessageContext};
use super::rule_set::RuleSet;
use super::syntax::{Constant, PropertyName, SystemProperty};
use super::value::SqlValue;
use crate::core::EntityId;

/// Built once after a rule or subscription changes, and then shared by all sends.
#[derive(Debug, Default)]
pub(crate) struct RuleIndex {
    /// Subscriptions that take every message unchanged.
    unconditional: Vec<EntityId>,
    /// The rules that depend on the message, in order of subscription and name.
    rules: Vec<(EntityId, Arc<CompiledRule>)>,
    user: HashMap<Box<str>, ValueIndex>,
    system: Vec<(SystemProperty, ValueIndex)>,
    /// Rules that require no single value.
    scanned: Vec<u32>,
}

/// Positions of rules by the value of one property.
#[derive(Debug, Default)]
struct ValueIndex {
    texts: HashMap<Box<str>, Vec<u32>>,
    numbers: HashMap<i64, Vec<u32>>,
    booleans: [Vec<u32>; 2],
}

/// What the rules of a topic decide about a message.
#[derive(Debug, Default)]
pub(crate) struct MatchedRules {
    /// Subscriptions that get the message as it is, in ascending order: one copy however many rules match.
    pub(crate) subscriptions: Vec<EntityId>,
    /// One for each matching rule with an action.
    pub(crate) copies: Vec<RuleCopy>,
    /// Subscriptions on which a filter or an action failed, and why.
    pub(crate) failures: Vec<(EntityId, String)>,
}

#[derive(Debug)]
pub(crate) struct RuleCopy {
    pub(crate) subscription: EntityId,
    pub(crate) message: ChangedMessage,
}

impl RuleIndex {
    pub(crate) fn new<'a>(subscriptions: impl Iterator<Item = (EntityId, &'a RuleSet)>) -> Self {
        let mut index = Self::default();
        for (subscription, rules) in subscriptions {
            let takes_all = rules.iter().any(|rule| rule.is_unconditional());
            if takes_all {
                index.unconditional.push(subscription);
            }
            // Where one rule takes every message, the others matter only if they make copies.
            for rule in rules.iter().filter(|rule| rule.has_action() || !takes_all) {
                index.add(subscription, rule);
            }
        }
        index
    }

    /// The subscriptions of every message, if none depends on the message.
    pub(crate) fn fixed_subscriptions(&self) -> Option<&[EntityId]> {
        self.rules.is_empty().then_some(&self.unconditional)
    }

    fn add(&mut self, subscription: EntityId, rule: &Arc<CompiledRule>) {
        let position = self.rules.len() as u32;
        // Of several required values, the one that the fewest rules share.
        let required = rule.required_values().into_iter().filter(|(_, value)| is_indexed(value));
        let best = required.min_by_key(|(property, value)| self.bucket(property, value).len());
        match best {
            Some((property, value)) => self.bucket(property, value).push(position),
            None => self.scanned.push(position),
        }
        self.rules.push((subscription, Arc::clone(rule)));
    }

    fn bucket(&mut self, property: &PropertyName, value: &Constant) -> &mut Vec<u32> {
        let index = match property {
            PropertyName::User(name) => self.user.entry(name.to_ascii_lowercase().into()).or_default(),
            PropertyName::System(property) => {
                let found = self.system.iter().position(|(known, _)| known == property);
                let at = found.unwrap_or_else(|| {
                    self.system.push((*property, ValueIndex::default()));
                    self.system.len() - 1
                });
                &mut self.system[at].1
            }
        };
        match value {
            SqlValue::Text(text) => index.texts.entry((&**text).into()).or_default(),
            SqlValue::Long(number) => index.numbers.entry(*number).or_default(),
            SqlValue::Boolean(truth) => &mut index.booleans[usize::from(*truth)],
            _ => unreachable!("checked by is_indexed()"),
        }
    }

    pub(crate) fn matches(&self, message: &MessageContext<'_>, new_id: &mut dyn FnMut() -> Uuid) -> MatchedRules {
        let mut matched = MatchedRules { subscriptions: self.unconditional.clone(), ..MatchedRules::default() };
        for position in self.candidates(message) {
            let (subscription, rule) = &self.rules[position as usize];
            // Rules without actions are alternatives: one of them is enough.
            if !rule.has_action() && matched.subscriptions.last() == Some(subscription) {
                continue;
            }
            match rule.matches(message, new_id).and_then(|selected| match selected {
                true => Ok(Some(rule.change(message, new_id).transpose()?)),
                false => Ok(None),
            }) {
                Ok(None) => {}
                Ok(Some(None)) => matched.subscriptions.push(*subscription),
                Ok(Some(Some(message))) => matched.copies.push(RuleCopy { subscription: *subscription, message }),
                // A message is dead-lettered once, however many rules fail.
                Err(_) if matched.failures.last().is_some_and(|(failed, _)| failed == subscription) => {}
                Err(error) => {
                    let text = format!("Rule '{}': {error}", rule.description.name);
                    matched.failures.push((*subscription, text));
                }
            }
        }
        if !self.unconditional.is_empty() {
            matched.subscriptions.sort_unstable();
        }
        matched
    }

    /// Positions of the rules that can match, in order.
    fn candidates(&self, message: &MessageContext<'_>) -> Vec<u32> {
        let mut found = self.scanned.clone();
        let mut lowered = String::new();
        for (name, value) in message.user_properties() {
            lowered.clear();
            lowered.push_str(name);
            lowered.make_ascii_lowercase();
            if let Some(index) = self.user.get(lowered.as_str()) {
                found.extend_from_slice(index.find(value));
            }
        }
        for (property, index) in &self.system {
            found.extend_from_slice(index.find(&message.system(*property)));
        }
        found.sort_unstable();
        // A message may have two properties whose names differ in case only.
        found.dedup();
        found
    }
}

impl ValueIndex {
    fn find(&self, value: &SqlValue<'_>) -> &[u32] {
        let found = match value {
            SqlValue::Text(text) => self.texts.get(&**text),
            SqlValue::Long(number) => self.numbers.get(number),
            // An integer constant equals a double of the same value.
            SqlValue::Double(number) if number.fract() == 0.0 => self.numbers.get(&(*number as i64)),
            SqlValue::Boolean(truth) => Some(&self.booleans[usize::from(*truth)]),
            _ => None,
        };
        found.map_or(&[], Vec::as_slice)
    }
}

fn is_indexed(value: &Constant) -> bool {
    match value {
        SqlValue::Text(_) | SqlValue::Boolean(_) => true,
        // Above 2^53 several integers equal one double, so a lookup by value would miss some.
        SqlValue::Long(number) => number.unsigned_abs() <= 1 << 53,
        _ => false,
    }
}
