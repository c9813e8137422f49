//! Checks Service Bus: the settings of topic and subscription.

use std::time::Duration;

use servicebus::administration::{EntityDescription, Error, RuleSummary};

use super::{CheckFinding, FindingLevel};
use crate::config::Config;
use crate::topology::{self, EntitySpec, TopologyPlan, fix_for, parse_iso_duration, plan_changes};

const SECTION: &str = "service_bus";

pub(super) async fn check_service_bus(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    let bus = crate::connect::bus_administration(config)?;
    let lock = config.consumer.session.lock_duration;
    // Partitioned or not is the user's choice, and accepted either way.
    let [topic, subscription] = topology::required_entities(config, true);
    let mut findings = vec![];
    let rules_of = subscription.0.clone();
    for (path, spec) in [topic, subscription] {
        let found = match bus.get(&path).await {
            Ok(found) => found,
            Err(error) => {
                findings.push(unreachable_finding(&error));
                return Ok(findings);
            }
        };
        findings.extend(check_entity(&path, &spec, found.as_ref(), lock));
        // Without the topic there is no subscription, and without the subscription there are no rules.
        if found.is_none() {
            return Ok(findings);
        }
    }
    findings.extend(check_rules(&rules_of, bus.rules(&rules_of).await));
    Ok(findings)
}

fn unreachable_finding(error: &Error) -> CheckFinding {
    if error.is_unauthorized() {
        let fix = "use a key with the Manage right (with Entra ID: the role Azure Service Bus Data Owner) for `check` and `topology apply`; pods need only Send and Listen";
        return CheckFinding::warning(SECTION, format!("its settings cannot be read: {error}"), fix);
    }
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let cause: String = causes.map(|cause| format!(" ({cause})")).collect();
    CheckFinding::error(
        SECTION,
        format!("{error}{cause}"),
        "check `service_bus.connection_string` or `service_bus.entra`, and that Service Bus is reachable",
    )
}

fn check_entity(
    path: &str,
    wanted: &EntitySpec,
    found: Option<&EntityDescription>,
    lock: Duration,
) -> Vec<CheckFinding> {
    let (changes, fixed) = match plan_changes(wanted, found) {
        TopologyPlan::Create => {
            let fix = "create it with `headwater topology apply`";
            return vec![CheckFinding::error(SECTION, format!("Service Bus entity `{path}` does not exist"), fix)];
        }
        TopologyPlan::Change { changes, fixed } => (changes, fixed),
    };
    let findings = fixed.into_iter().chain(changes).map(|change| {
        let (level, why) = impact_of(change.name, &change.from, lock);
        let problem = format!("`{path}`: {} is {}: {why}", change.name, change.from);
        CheckFinding::new(level, SECTION, problem, fix_for(change.name))
    });
    findings.collect()
}

/// How serious a wrong property is, and what it causes.
fn impact_of(name: &str, value: &str, lock: Duration) -> (FindingLevel, &'static str) {
    match name {
        "RequiresDuplicateDetection" => (
            FindingLevel::Warning,
            "messages that a new leader republishes reach consumers twice (they skip them, at a cost)",
        ),
        "DuplicateDetectionHistoryTimeWindow" => (
            FindingLevel::Warning,
            "too short: messages republished after a takeover may not be recognised as duplicates",
        ),
        "RequiresSession" => (FindingLevel::Error, "without sessions there is no order, and pods cannot receive"),
        "DefaultMessageTimeToLive" => {
            (FindingLevel::Error, "messages that wait longer expire and never reach the read models")
        }
        "DeadLetteringOnMessageExpiration" => {
            (FindingLevel::Warning, "expired messages are dropped instead of dead-lettered")
        }
        "AutoDeleteOnIdle" => {
            (FindingLevel::Error, "it is deleted with all its messages when it is unused for that long")
        }
        "MaxDeliveryCount" => {
            (FindingLevel::Error, "too low: during an outage messages are dead-lettered out of order")
        }
        "LockDuration" if parse_iso_duration(value).is_some_and(|found| found < lock) => {
            (FindingLevel::Error, "shorter than `consumer.lock_duration`: locks are renewed too late")
        }
        "LockDuration" => {
            (FindingLevel::Note, "longer than `consumer.lock_duration`: sessions of a crashed pod stay locked longer")
        }
        "Status" => (FindingLevel::Error, "it does not accept or deliver messages"),
        _ => (FindingLevel::Warning, "not the required value"),
    }
}

/// Rules that cannot be read are a warning: they may filter events.
fn check_rules(subscription: &str, rules: Result<Vec<RuleSummary>, Error>) -> Option<CheckFinding> {
    match rules {
        Ok(rules) => filtering_rules(subscription, &rules),
        Err(error) => {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(" ({cause})"));
            let problem = format!("`{subscription}`: its rules cannot be read and may filter events: {error}{cause}");
            let fix = "check with a key that has the Manage right: exactly one rule with a TrueFilter and no action is correct";
            Some(CheckFinding::warning(SECTION, problem, fix))
        }
    }
}

/// A subscription receives every message that any of its rules matches, once per rule; actions change messages.
fn filtering_rules(subscription: &str, rules: &[RuleSummary]) -> Option<CheckFinding> {
    if rules.iter().any(|rule| rule.takes_everything) && rules.len() == 1 {
        return None;
    }
    let names: Vec<_> = rules.iter().map(|rule| format!("`{}` ({})", rule.name, rule.filter)).collect();
    let names = if names.is_empty() { "there are no rules".to_owned() } else { names.join(", ") };
    let problem =
        format!("`{subscription}`: its rules do not deliver every message exactly once and unchanged: {names}");
    Some(CheckFinding::error(
        SECTION,
        problem,
        "keep one rule with a TrueFilter and no action; to filter, use `producer.filter`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Duration = Duration::from_secs(60);

    fn findings(properties: &[(&str, &str)]) -> Vec<(FindingLevel, String)> {
        let properties: Vec<_> = properties.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let found = EntityDescription::subscription(&properties);
        let findings = check_entity("t/Subscriptions/s", &EntitySpec::subscription(LOCK), Some(&found), LOCK);
        findings.into_iter().map(|finding| (finding.level, finding.to_string())).collect()
    }

    #[test]
    fn each_harmful_setting_is_reported_with_a_fix() {
        for (name, value, level, word) in [
            ("RequiresSession", "false", FindingLevel::Error, "to a new subscription"),
            ("DefaultMessageTimeToLive", "P14D", FindingLevel::Error, "expire"),
            ("AutoDeleteOnIdle", "P1D", FindingLevel::Error, "is deleted with all its messages"),
            ("MaxDeliveryCount", "10", FindingLevel::Error, "topology apply"),
            ("LockDuration", "PT30S", FindingLevel::Error, "renewed too late"),
            ("LockDuration", "PT2M", FindingLevel::Note, "longer than"),
            ("Status", "Disabled", FindingLevel::Error, "does not accept or deliver"),
        ] {
            let found = findings(&[(name, value)]);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(found[0].0, level, "{name}");
            assert!(found[0].1.contains(word) && !found[0].1.contains('\n'), "{found:?}");
        }
        assert_eq!(findings(&[("RequiresSession", "true"), ("LockDuration", "PT1M")]), []);
    }

    #[test]
    fn rules_that_filter_are_reported() {
        let rule = |name: &str, takes_everything| RuleSummary {
            name: name.into(),
            filter: "SqlFilter".into(),
            takes_everything,
        };
        assert_eq!(filtering_rules("s", &[rule("$Default", true)]), None);
        assert!(filtering_rules("s", &[rule("eu", false)]).unwrap().problem.contains("`eu` (SqlFilter)"));
        assert!(filtering_rules("s", &[]).unwrap().problem.contains("no rules"));
        assert!(
            filtering_rules("s", &[rule("$Default", true), rule("eu", false)]).is_some(),
            "a message would be delivered twice"
        );
        assert_eq!(check_rules("s", Ok(vec![rule("$Default", true)])), None);
        let unseen = check_rules("s", Err(Error::Refused { status: 500, detail: "later".into() })).unwrap();
        assert!(unseen.level == FindingLevel::Warning && unseen.problem.contains("cannot be read"), "{unseen}");
    }
}
