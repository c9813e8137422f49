//! The rules of one subscription, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compiled::CompiledRule;
use super::description::{DEFAULT_RULE, RuleDescription, RuleFilter};
use crate::core::Timestamp;

/// Names are compared without case.
#[derive(Debug, Default)]
pub(crate) struct RuleSet(BTreeMap<String, Arc<CompiledRule>>);

/// How many filters of each kind there are. Boolean filters are of neither kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilterCounts {
    pub sql: usize,
    pub correlation: usize,
}

impl FilterCounts {
    pub(crate) fn of(description: &RuleDescription) -> Self {
        match description.filter {
            // To the service a boolean filter is a SQL filter.
            RuleFilter::Sql(_) | RuleFilter::True | RuleFilter::False => Self { sql: 1, correlation: 0 },
            RuleFilter::Correlation(_) => Self { sql: 0, correlation: 1 },
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.sql += other.sql;
        self.correlation += other.correlation;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.sql -= other.sql;
        self.correlation -= other.correlation;
    }
}

impl RuleSet {
    /// Whether one rule selects every message.
    pub(crate) fn accepts_all(&self) -> bool {
        self.0.values().any(|rule| rule.is_unconditional())
    }

    /// The rules of a new subscription.
    pub(crate) fn with_default_rule(created_at: Timestamp) -> Self {
        let mut rules = Self::default();
        let default = CompiledRule::compile(RuleDescription::default_rule(), created_at);
        rules.insert(Arc::new(default.expect("the default rule is valid")));
        rules
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<CompiledRule>> {
        self.0.get(&name.to_lowercase())
    }

    /// Adds a rule, or replaces the one of its name; returns the old one.
    pub(crate) fn insert(&mut self, rule: Arc<CompiledRule>) -> Option<Arc<CompiledRule>> {
        self.0.insert(rule.description.name.to_lowercase(), rule)
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<CompiledRule>> {
        self.0.remove(&name.to_lowercase())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<CompiledRule>> {
        self.0.values()
    }

    pub(crate) fn has_default_rule(&self) -> bool {
        self.get(DEFAULT_RULE).is_some()
    }

    pub(crate) fn counts(&self) -> FilterCounts {
        let mut counts = FilterCounts::default();
        self.iter().for_each(|rule| counts.add(FilterCounts::of(&rule.description)));
        counts
    }
}
