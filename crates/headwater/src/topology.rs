//! What topic and subscription must be like, and what of that a bus has. Pure.

use std::fmt;
use std::time::Duration;

use servicebus::administration::Description;

/// The most that Service Bus takes.
const MAX_DELIVERY_COUNT: u32 = 2_000;
/// What the service writes where nothing expires.
const NEVER: &str = "P10675199DT2H48M5.4775807S";
/// Longer than anything that was asked for to expire.
const AS_GOOD_AS_NEVER: Duration = Duration::from_secs(3_650 * 86_400);
/// A leader that takes over sends again what its predecessor had not seen acknowledged: seconds, and minutes where the bus was away.
const DUPLICATES_WITHIN: &str = "PT10M";
const FEWEST_DUPLICATES_WITHIN: Duration = Duration::from_secs(60);

/// One entity as it should be: its properties, in the order the service takes them.
pub(crate) struct Wanted {
    kind: Kind,
    properties: Vec<Property>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Topic,
    Subscription,
}

pub(crate) struct Property {
    pub(crate) name: &'static str,
    /// What it is made with.
    create: String,
    rule: Rule,
}

/// What another value than that of creation must satisfy.
enum Rule {
    /// Only this, and it cannot be changed later.
    Fixed,
    /// As good as never.
    Never,
    AtLeast(u64),
    LastsAtLeast(Duration),
    Exactly(Duration),
    Equal,
    /// Whatever it is.
    Any,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Create,
    Change { changes: Vec<Change>, fixed: Vec<Change> },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: &'static str,
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Wanted {
    pub(crate) fn topic(partitioned: bool) -> Self {
        let properties = vec![
            Property::new("DefaultMessageTimeToLive", NEVER, Rule::Never),
            Property::new("RequiresDuplicateDetection", "true", Rule::Fixed),
            Property::new(
                "DuplicateDetectionHistoryTimeWindow",
                DUPLICATES_WITHIN,
                Rule::LastsAtLeast(FEWEST_DUPLICATES_WITHIN),
            ),
            Property::new("EnableBatchedOperations", "true", Rule::Any),
            Property::new("Status", "Active", Rule::Equal),
            Property::new("SupportOrdering", "true", Rule::Any),
            Property::new("AutoDeleteOnIdle", NEVER, Rule::Never),
            Property::new("EnablePartitioning", partitioned.to_string(), Rule::Any),
        ];
        Self { kind: Kind::Topic, properties }
    }

    pub(crate) fn subscription(lock: Duration) -> Self {
        let properties = vec![
            Property::new("LockDuration", iso(lock), Rule::Exactly(lock)),
            Property::new("RequiresSession", "true", Rule::Fixed),
            Property::new("DefaultMessageTimeToLive", NEVER, Rule::Never),
            Property::new("DeadLetteringOnMessageExpiration", "true", Rule::Equal),
            Property::new("DeadLetteringOnFilterEvaluationExceptions", "true", Rule::Any),
            Property::new("MaxDeliveryCount", MAX_DELIVERY_COUNT.to_string(), Rule::AtLeast(MAX_DELIVERY_COUNT.into())),
            Property::new("EnableBatchedOperations", "true", Rule::Any),
            Property::new("Status", "Active", Rule::Equal),
            Property::new("AutoDeleteOnIdle", NEVER, Rule::Never),
        ];
        Self { kind: Kind::Subscription, properties }
    }

    pub(crate) fn description(&self) -> Description {
        let properties: Vec<_> =
            self.properties.iter().map(|property| (property.name, property.create.clone())).collect();
        match self.kind {
            Kind::Topic => Description::topic(&properties),
            Kind::Subscription => Description::subscription(&properties),
        }
    }
}

impl Property {
    fn new(name: &'static str, create: impl Into<String>, rule: Rule) -> Self {
        Self { name, create: create.into(), rule }
    }

    fn is_met_by(&self, value: &str) -> bool {
        let lasts = |at_least: Duration| duration(value).is_some_and(|lasts| lasts >= at_least);
        match &self.rule {
            Rule::Fixed | Rule::Equal => value.eq_ignore_ascii_case(&self.create),
            Rule::Never => lasts(AS_GOOD_AS_NEVER),
            Rule::AtLeast(least) => value.parse::<u64>().is_ok_and(|number| number >= *least),
            Rule::LastsAtLeast(least) => lasts(*least),
            Rule::Exactly(wanted) => duration(value) == Some(*wanted),
            Rule::Any => true,
        }
    }
}

/// What must be done so that what was found is as it should be.
pub(crate) fn plan(wanted: &Wanted, found: Option<&Description>) -> Plan {
    let Some(found) = found else { return Plan::Create };
    let (mut changes, mut fixed) = (vec![], vec![]);
    for property in &wanted.properties {
        let Some(value) = found.value(property.name).filter(|value| !property.is_met_by(value)) else { continue };
        let change = Change { name: property.name, from: value, to: property.create.clone() };
        if matches!(property.rule, Rule::Fixed) { fixed.push(change) } else { changes.push(change) }
    }
    Plan::Change { changes, fixed }
}

impl Plan {
    /// What cannot be changed in place, each with what to do.
    pub(crate) fn refusals(&self, path: &str) -> Vec<String> {
        let Self::Change { fixed, .. } = self else { return vec![] };
        let told = fixed.iter().map(|change| {
            let Change { name, to, .. } = change;
            format!("`{path}`: {name} must be {to}: {}", remedy(name))
        });
        told.collect()
    }
}

/// What to do about a property that is not as it should be, for people.
pub(crate) fn remedy(name: &str) -> &'static str {
    match name {
        "RequiresDuplicateDetection" => {
            "name a new topic in `service_bus.topic` and apply again, or, once it is drained, delete this one and apply again"
        }
        "RequiresSession" => {
            "name a new subscription in `service_bus.subscription` and apply again, or, once it is drained, delete this one and apply again"
        }
        _ => "run `headwater topology apply`",
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.name, self.from, self.to)
    }
}

fn iso(duration: Duration) -> String {
    format!("PT{}S", duration.as_secs())
}

/// `P1DT2H3M4.5S`; years, months and weeks are in use by nobody.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut digits = String::new();
    let mut in_time = false;
    for character in text.strip_prefix('P')?.chars() {
        let unit = match (character, in_time) {
            ('0'..='9' | '.', _) => {
                digits.push(character);
                continue;
            }
            ('T', false) if digits.is_empty() => {
                in_time = true;
                continue;
            }
            ('D', false) => 86_400.0,
            ('H', true) => 3_600.0,
            ('M', true) => 60.0,
            ('S', true) => 1.0,
            _ => return None,
        };
        total += digits.parse::<f64>().ok()? * unit;
        digits.clear();
    }
    if digits.is_empty() { Duration::try_from_secs_f64(total).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(properties: &[(&str, &str)]) -> Description {
        let properties: Vec<_> = properties.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Description::subscription(&properties)
    }

    fn wanted() -> Wanted {
        Wanted::subscription(Duration::from_secs(60))
    }

    #[test]
    fn what_is_made_needs_no_change() {
        for wanted in [wanted(), Wanted::topic(true)] {
            let made = wanted.description();
            assert_eq!(plan(&wanted, Some(&made)), Plan::Change { changes: vec![], fixed: vec![] });
        }
        assert_eq!(plan(&wanted(), None), Plan::Create);
    }

    #[test]
    fn what_differs_is_changed_and_what_is_better_is_left() {
        let better = found(&[("LockDuration", "PT1M"), ("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S")]);
        assert_eq!(plan(&wanted(), Some(&better)), Plan::Change { changes: vec![], fixed: vec![] });
        let worse = found(&[("LockDuration", "PT30S"), ("MaxDeliveryCount", "10"), ("AutoDeleteOnIdle", "P1D")]);
        let Plan::Change { changes, fixed } = plan(&wanted(), Some(&worse)) else { panic!("it is there") };
        let names: Vec<_> = changes.iter().map(|change| change.name).collect();
        assert_eq!((names, fixed), (vec!["LockDuration", "MaxDeliveryCount", "AutoDeleteOnIdle"], vec![]));
    }

    #[test]
    fn what_no_bus_changes_in_place_is_refused_with_what_to_do() {
        let refusals = plan(&wanted(), Some(&found(&[("RequiresSession", "false")]))).refusals("t/Subscriptions/s");
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].contains("RequiresSession must be true: name a new subscription"), "{refusals:?}");
    }

    #[test]
    fn durations_are_read_as_the_service_writes_them() {
        let seconds = |text| duration(text).map(|duration| duration.as_secs());
        for (text, expected) in
            [("PT1M", 60), ("PT60S", 60), ("P1DT2H3M4S", 93_784), ("P10675199DT2H48M5.4775807S", 922_337_203_685)]
        {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for wrong in ["", "P1M", "PT1D", "PT5", "1M"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
