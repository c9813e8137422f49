//! The bus: topic and subscription as they should be.

use std::time::Duration;

use servicebus::administration::{EntityDescription, Error, RuleSummary};

use super::{CheckFinding, FindingLevel};
use crate::config::Config;
use crate::topology::{EntitySpec, TopologyPlan, fix_for, parse_iso_duration, plan_changes};

const SECTION: &str = "service_bus";

pub(super) async fn check_service_bus(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    let bus = crate::connect::bus_administration(config)?;
    let lock = config.consumer.session.lock_duration;
    let topic = config.service_bus.topic.clone();
    let subscription = format!("{topic}/Subscriptions/{}", config.service_bus.subscription);
    let mut findings = vec![];
    let found = match bus.get(&topic).await {
        Ok(found) => found,
        Err(error) => return Ok(vec![unreachable_finding(&error)]),
    };
    findings.extend(check_entity(&topic, &EntitySpec::topic(true), found.as_ref(), lock));
    if found.is_some() {
        let found = match bus.get(&subscription).await {
            Ok(found) => found,
            Err(error) => return Ok(findings.into_iter().chain([unreachable_finding(&error)]).collect()),
        };
        findings.extend(check_entity(&subscription, &EntitySpec::subscription(lock), found.as_ref(), lock));
        if found.is_some() {
            findings.extend(check_rules(&subscription, bus.rules(&subscription).await));
        }
    }
    Ok(findings)
}

fn unreachable_finding(error: &Error) -> CheckFinding {
    if error.is_unauthorized() {
        let fix = "use a key with the right to manage for `check` and `topology apply`; pods need only send and listen";
        return CheckFinding::warning(SECTION, format!("its settings cannot be looked at: {error}"), fix);
    }
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(" ({cause})"));
    CheckFinding::error(
        SECTION,
        format!("{error}{cause}"),
        "check `service_bus.connection_string`, and that the bus is there",
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
            return vec![CheckFinding::error(SECTION, format!("`{path}` is not there"), fix)];
        }
        TopologyPlan::Change { changes, fixed } => (changes, fixed),
    };
    let told = fixed.into_iter().chain(changes).map(|change| {
        let (level, why) = impact_of(change.name, &change.from, lock);
        let problem = format!("`{path}`: {} is {}: {why}", change.name, change.from);
        CheckFinding::new(level, SECTION, problem, fix_for(change.name))
    });
    told.collect()
}

/// What it means that a property is as it is.
fn impact_of(name: &str, value: &str, lock: Duration) -> (FindingLevel, &'static str) {
    match name {
        "RequiresDuplicateDetection" => {
            (FindingLevel::Warning, "what a new leader sends again reaches consumers twice (they skip it, at a cost)")
        }
        "DuplicateDetectionHistoryTimeWindow" => {
            (FindingLevel::Warning, "too short: what is sent again after a takeover may not be recognised")
        }
        "RequiresSession" => (FindingLevel::Error, "without sessions there is no order, and no pod can receive"),
        "DefaultMessageTimeToLive" => {
            (FindingLevel::Error, "events that wait longer expire, and are lost to the read models")
        }
        "DeadLetteringOnMessageExpiration" => {
            (FindingLevel::Warning, "should an event expire, it is dropped without a trace")
        }
        "AutoDeleteOnIdle" => {
            (FindingLevel::Error, "it deletes itself, and what it holds, when nobody uses it for that long")
        }
        "MaxDeliveryCount" => {
            (FindingLevel::Error, "too low: while something is broken the bus dead-letters events out of order")
        }
        "LockDuration" if parse_iso_duration(value).is_some_and(|found| found < lock) => {
            (FindingLevel::Error, "shorter than `consumer.lock_duration`, so that locks are renewed too late")
        }
        "LockDuration" => {
            (FindingLevel::Note, "longer than `consumer.lock_duration`: a dead pod's sessions wait longer")
        }
        "Status" => (FindingLevel::Error, "it takes or gives no messages"),
        _ => (FindingLevel::Warning, "not as it should be"),
    }
}

/// What cannot be looked at is not called well.
fn check_rules(subscription: &str, rules: Result<Vec<RuleSummary>, Error>) -> Option<CheckFinding> {
    match rules {
        Ok(rules) => filtering_rules(subscription, &rules),
        Err(error) => {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(" ({cause})"));
            let problem =
                format!("`{subscription}`: its rules cannot be looked at, and may leave events out: {error}{cause}");
            let fix = "look at them with a key that may manage: one rule with a TrueFilter and no action is right";
            Some(CheckFinding::warning(SECTION, problem, fix))
        }
    }
}

/// A subscription gets what any of its rules takes; actions change what arrives.
fn filtering_rules(subscription: &str, rules: &[RuleSummary]) -> Option<CheckFinding> {
    if rules.iter().any(|rule| rule.takes_everything) && rules.len() == 1 {
        return None;
    }
    let names: Vec<_> = rules.iter().map(|rule| format!("`{}` ({})", rule.name, rule.filter)).collect();
    let names = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
    let problem = format!("`{subscription}`: its rules do not let every event through once, as it is: {names}");
    Some(CheckFinding::error(
        SECTION,
        problem,
        "leave it one rule with a TrueFilter and no action; filter with `producer.filter`",
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
    fn each_setting_that_hurts_is_told_with_what_to_do() {
        for (name, value, level, word) in [
            ("RequiresSession", "false", FindingLevel::Error, "name a new subscription"),
            ("DefaultMessageTimeToLive", "P14D", FindingLevel::Error, "expire"),
            ("AutoDeleteOnIdle", "P1D", FindingLevel::Error, "deletes itself"),
            ("MaxDeliveryCount", "10", FindingLevel::Error, "topology apply"),
            ("LockDuration", "PT30S", FindingLevel::Error, "renewed too late"),
            ("LockDuration", "PT2M", FindingLevel::Note, "longer"),
            ("Status", "Disabled", FindingLevel::Error, "takes or gives"),
        ] {
            let found = findings(&[(name, value)]);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(found[0].0, level, "{name}");
            assert!(found[0].1.contains(word) && !found[0].1.contains('\n'), "{found:?}");
        }
        assert_eq!(findings(&[("RequiresSession", "true"), ("LockDuration", "PT1M")]), []);
    }

    #[test]
    fn rules_that_filter_or_change_are_told() {
        let rule = |name: &str, takes_everything| RuleSummary {
            name: name.into(),
            filter: "SqlFilter".into(),
            takes_everything,
        };
        assert_eq!(filtering_rules("s", &[rule("$Default", true)]), None);
        assert!(filtering_rules("s", &[rule("eu", false)]).unwrap().problem.contains("`eu` (SqlFilter)"));
        assert!(filtering_rules("s", &[]).unwrap().problem.contains("none"));
        assert!(
            filtering_rules("s", &[rule("$Default", true), rule("eu", false)]).is_some(),
            "an event would come twice"
        );
        assert_eq!(check_rules("s", Ok(vec![rule("$Default", true)])), None);
        let unseen = check_rules("s", Err(Error::Refused { status: 500, detail: "later".into() })).unwrap();
        assert!(unseen.level == FindingLevel::Warning && unseen.problem.contains("cannot be looked at"), "{unseen}");
    }
}
