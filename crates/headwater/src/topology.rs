//! The settings that topic and subscription must have, and how the existing ones differ. Pure.

use std::fmt;
use std::time::Duration;

use servicebus::administration::{self, EntityDescription};

use crate::config::Config;

/// The maximum of Service Bus.
const MAX_DELIVERY_COUNT: u32 = 2_000;
/// The value that Service Bus uses for "never".
const NEVER: &str = "P10675199DT2H48M5.4775807S";
/// Anything above ten years counts as never.
const AS_GOOD_AS_NEVER: Duration = Duration::from_secs(3_650 * 86_400);
/// A new leader republishes what its predecessor had in flight: normally seconds back, minutes if Service Bus was unreachable.
const DUPLICATES_WITHIN: &str = "PT10M";
const FEWEST_DUPLICATES_WITHIN: Duration = Duration::from_secs(60);

/// The required settings of an entity, in the order that the service expects.
pub(crate) struct EntitySpec {
    kind: EntityKind,
    properties: Vec<SpecProperty>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntityKind {
    Topic,
    Subscription,
}

pub(crate) struct SpecProperty {
    pub(crate) name: &'static str,
    /// The value that a new entity gets.
    create: String,
    rule: PropertyRule,
}

/// Which values of an existing entity are acceptable.
enum PropertyRule {
    /// Only this value, and Service Bus cannot change it later.
    Fixed,
    /// Practically never.
    Never,
    AtLeast(u64),
    LastsAtLeast(Duration),
    Exactly(Duration),
    Equal,
    /// Any value.
    Any,
}

/// What must be done to an entity.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TopologyPlan {
    Create,
    Change { changes: Vec<PropertyChange>, fixed: Vec<PropertyChange> },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PropertyChange {
    pub(crate) name: &'static str,
    pub(crate) from: String,
    pub(crate) to: String,
}

impl EntitySpec {
    pub(crate) fn topic(partitioned: bool) -> Self {
        let properties = vec![
            SpecProperty::new("DefaultMessageTimeToLive", NEVER, PropertyRule::Never),
            SpecProperty::new("RequiresDuplicateDetection", "true", PropertyRule::Fixed),
            SpecProperty::new(
                "DuplicateDetectionHistoryTimeWindow",
                DUPLICATES_WITHIN,
                PropertyRule::LastsAtLeast(FEWEST_DUPLICATES_WITHIN),
            ),
            SpecProperty::new("EnableBatchedOperations", "true", PropertyRule::Any),
            SpecProperty::new("Status", "Active", PropertyRule::Equal),
            SpecProperty::new("SupportOrdering", "true", PropertyRule::Any),
            SpecProperty::new("AutoDeleteOnIdle", NEVER, PropertyRule::Never),
            SpecProperty::new("EnablePartitioning", partitioned.to_string(), PropertyRule::Any),
        ];
        Self { kind: EntityKind::Topic, properties }
    }

    pub(crate) fn subscription(lock: Duration) -> Self {
        let properties = vec![
            SpecProperty::new("LockDuration", to_iso_duration(lock), PropertyRule::Exactly(lock)),
            SpecProperty::new("RequiresSession", "true", PropertyRule::Fixed),
            SpecProperty::new("DefaultMessageTimeToLive", NEVER, PropertyRule::Never),
            SpecProperty::new("DeadLetteringOnMessageExpiration", "true", PropertyRule::Equal),
            SpecProperty::new("DeadLetteringOnFilterEvaluationExceptions", "true", PropertyRule::Any),
            SpecProperty::new(
                "MaxDeliveryCount",
                MAX_DELIVERY_COUNT.to_string(),
                PropertyRule::AtLeast(MAX_DELIVERY_COUNT.into()),
            ),
            SpecProperty::new("EnableBatchedOperations", "true", PropertyRule::Any),
            SpecProperty::new("Status", "Active", PropertyRule::Equal),
            SpecProperty::new("AutoDeleteOnIdle", NEVER, PropertyRule::Never),
        ];
        Self { kind: EntityKind::Subscription, properties }
    }

    pub(crate) fn to_description(&self) -> EntityDescription {
        let properties: Vec<_> =
            self.properties.iter().map(|property| (property.name, property.create.clone())).collect();
        match self.kind {
            EntityKind::Topic => EntityDescription::topic(&properties),
            EntityKind::Subscription => EntityDescription::subscription(&properties),
        }
    }
}

impl SpecProperty {
    fn new(name: &'static str, create: impl Into<String>, rule: PropertyRule) -> Self {
        Self { name, create: create.into(), rule }
    }

    fn is_met_by(&self, value: &str) -> bool {
        let lasts = |at_least: Duration| parse_iso_duration(value).is_some_and(|lasts| lasts >= at_least);
        match &self.rule {
            PropertyRule::Fixed | PropertyRule::Equal => value.eq_ignore_ascii_case(&self.create),
            PropertyRule::Never => lasts(AS_GOOD_AS_NEVER),
            PropertyRule::AtLeast(least) => value.parse::<u64>().is_ok_and(|number| number >= *least),
            PropertyRule::LastsAtLeast(least) => lasts(*least),
            PropertyRule::Exactly(wanted) => parse_iso_duration(value) == Some(*wanted),
            PropertyRule::Any => true,
        }
    }
}

/// Path and settings of the topic and of the subscription that a pipeline needs.
pub(crate) fn required_entities(config: &Config, partitioned: bool) -> [(String, EntitySpec); 2] {
    let topic = config.service_bus.topic.clone();
    let lock_duration = config.consumer.session.lock_duration;
    [(topic, EntitySpec::topic(partitioned)), (subscription_path(config), EntitySpec::subscription(lock_duration))]
}

pub(crate) fn subscription_path(config: &Config) -> String {
    format!("{}/Subscriptions/{}", config.service_bus.topic, config.service_bus.subscription)
}

/// Compares an existing entity with the required settings.
pub(crate) fn plan_changes(wanted: &EntitySpec, found: Option<&EntityDescription>) -> TopologyPlan {
    let Some(found) = found else { return TopologyPlan::Create };
    let (mut changes, mut fixed) = (vec![], vec![]);
    for property in &wanted.properties {
        let Some(value) = found.value(property.name).filter(|value| !property.is_met_by(value)) else { continue };
        let change = PropertyChange { name: property.name, from: value, to: property.create.clone() };
        // Changing such a property needs a new entity, which only the user can decide.
        if matches!(property.rule, PropertyRule::Fixed) { fixed.push(change) } else { changes.push(change) }
    }
    TopologyPlan::Change { changes, fixed }
}

impl TopologyPlan {
    /// The differences that Service Bus cannot change in place, each with a fix.
    pub(crate) fn refusals(&self, path: &str) -> Vec<String> {
        let Self::Change { fixed, .. } = self else { return vec![] };
        let refusals = fixed.iter().map(|change| {
            let PropertyChange { name, to, .. } = change;
            format!("`{path}`: {name} must be {to}: {}", fix_for(name))
        });
        refusals.collect()
    }
}

/// How to fix a property, for users.
pub(crate) fn fix_for(name: &str) -> &'static str {
    match name {
        "RequiresDuplicateDetection" => {
            "set `service_bus.topic` to a new topic and apply again; or, once this topic is drained, delete it and apply again"
        }
        "RequiresSession" => {
            "set `service_bus.subscription` to a new subscription and apply again; or, once this one is drained, delete it and apply again"
        }
        _ => "run `headwater topology apply`",
    }
}

impl fmt::Display for PropertyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.name, self.from, self.to)
    }
}

fn to_iso_duration(duration: Duration) -> String {
    format!("PT{}S", duration.as_secs())
}

/// `None` if it is not an ISO 8601 duration.
pub(crate) fn parse_iso_duration(text: &str) -> Option<Duration> {
    administration::duration::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(properties: &[(&str, &str)]) -> EntityDescription {
        let properties: Vec<_> = properties.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        EntityDescription::subscription(&properties)
    }

    fn wanted() -> EntitySpec {
        EntitySpec::subscription(Duration::from_secs(60))
    }

    #[test]
    fn a_created_entity_needs_no_change() {
        for wanted in [wanted(), EntitySpec::topic(true)] {
            let made = wanted.to_description();
            assert_eq!(plan_changes(&wanted, Some(&made)), TopologyPlan::Change { changes: vec![], fixed: vec![] });
        }
        assert_eq!(plan_changes(&wanted(), None), TopologyPlan::Create);
    }

    #[test]
    fn only_weaker_settings_are_changed() {
        let better = found(&[("LockDuration", "PT1M"), ("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S")]);
        assert_eq!(plan_changes(&wanted(), Some(&better)), TopologyPlan::Change { changes: vec![], fixed: vec![] });
        let worse = found(&[("LockDuration", "PT30S"), ("MaxDeliveryCount", "10"), ("AutoDeleteOnIdle", "P1D")]);
        let TopologyPlan::Change { changes, fixed } = plan_changes(&wanted(), Some(&worse)) else {
            panic!("the entity exists")
        };
        let names: Vec<_> = changes.iter().map(|change| change.name).collect();
        assert_eq!((names, fixed), (vec!["LockDuration", "MaxDeliveryCount", "AutoDeleteOnIdle"], vec![]));
    }

    #[test]
    fn immutable_settings_are_refused_with_a_fix() {
        let refusals =
            plan_changes(&wanted(), Some(&found(&[("RequiresSession", "false")]))).refusals("t/Subscriptions/s");
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].contains("RequiresSession must be true: set `service_bus.subscription`"), "{refusals:?}");
    }
}
