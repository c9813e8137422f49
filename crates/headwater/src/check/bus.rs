//! The bus: topic and subscription as they should be.

use std::time::Duration;

use servicebus::administration::{Description, Error, Rule};

use super::{Finding, Level};
use crate::config::Config;
use crate::topology::{Plan, Wanted, duration, plan, remedy};

const ABOUT: &str = "service_bus";

pub(super) async fn ask(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let bus = crate::run::administration(config)?;
    let lock = config.consumer.session.lock_duration;
    let topic = config.service_bus.topic.clone();
    let subscription = format!("{topic}/Subscriptions/{}", config.service_bus.subscription);
    let mut findings = vec![];
    let found = match bus.get(&topic).await {
        Ok(found) => found,
        Err(error) => return Ok(vec![out_of_reach(&error)]),
    };
    findings.extend(judge(&topic, &Wanted::topic(true), found.as_ref(), lock));
    if found.is_some() {
        let found = match bus.get(&subscription).await {
            Ok(found) => found,
            Err(error) => return Ok(findings.into_iter().chain([out_of_reach(&error)]).collect()),
        };
        findings.extend(judge(&subscription, &Wanted::subscription(lock), found.as_ref(), lock));
        if found.is_some() {
            findings.extend(filters(&subscription, bus.rules(&subscription).await));
        }
    }
    Ok(findings)
}

fn out_of_reach(error: &Error) -> Finding {
    if error.is_unauthorized() {
        let remedy =
            "use a key with the right to manage for `check` and `topology apply`; pods need only send and listen";
        return Finding::warning(ABOUT, format!("its settings cannot be looked at: {error}"), remedy);
    }
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(" ({cause})"));
    Finding::error(ABOUT, format!("{error}{cause}"), "check `service_bus.connection_string`, and that the bus is there")
}

fn judge(path: &str, wanted: &Wanted, found: Option<&Description>, lock: Duration) -> Vec<Finding> {
    let (changes, fixed) = match plan(wanted, found) {
        Plan::Create => {
            let remedy = "create it with `headwater topology apply`";
            return vec![Finding::error(ABOUT, format!("`{path}` is not there"), remedy)];
        }
        Plan::Change { changes, fixed } => (changes, fixed),
    };
    let told = fixed.into_iter().chain(changes).map(|change| {
        let (level, why) = meaning(change.name, &change.from, lock);
        let problem = format!("`{path}`: {} is {}: {why}", change.name, change.from);
        Finding::new(level, ABOUT, problem, remedy(change.name))
    });
    told.collect()
}

/// What it means that a property is as it is.
fn meaning(name: &str, value: &str, lock: Duration) -> (Level, &'static str) {
    match name {
        "RequiresDuplicateDetection" => {
            (Level::Warning, "what a new leader sends again reaches consumers twice (they skip it, at a cost)")
        }
        "DuplicateDetectionHistoryTimeWindow" => {
            (Level::Warning, "too short: what is sent again after a takeover may not be recognised")
        }
        "RequiresSession" => (Level::Error, "without sessions there is no order, and no pod can receive"),
        "DefaultMessageTimeToLive" => (Level::Error, "events that wait longer expire, and are lost to the read models"),
        "DeadLetteringOnMessageExpiration" => (Level::Warning, "should an event expire, it is dropped without a trace"),
        "AutoDeleteOnIdle" => (Level::Error, "it deletes itself, and what it holds, when nobody uses it for that long"),
        "MaxDeliveryCount" => {
            (Level::Error, "too low: while something is broken the bus dead-letters events out of order")
        }
        "LockDuration" if duration(value).is_some_and(|found| found < lock) => {
            (Level::Error, "shorter than `consumer.lock_duration`, so that locks are renewed too late")
        }
        "LockDuration" => (Level::Note, "longer than `consumer.lock_duration`: a dead pod's sessions wait longer"),
        "Status" => (Level::Error, "it takes or gives no messages"),
        _ => (Level::Warning, "not as it should be"),
    }
}

/// What cannot be looked at is not called well.
fn filters(subscription: &str, rules: Result<Vec<Rule>, Error>) -> Option<Finding> {
    match rules {
        Ok(rules) => partial(subscription, &rules),
        Err(error) => {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(" ({cause})"));
            let problem =
                format!("`{subscription}`: its rules cannot be looked at, and may leave events out: {error}{cause}");
            let remedy = "look at them with a key that may manage: one rule with a TrueFilter and no action is right";
            Some(Finding::warning(ABOUT, problem, remedy))
        }
    }
}

/// A subscription gets what any of its rules takes; actions change what arrives.
fn partial(subscription: &str, rules: &[Rule]) -> Option<Finding> {
    if rules.iter().any(|rule| rule.takes_everything) && rules.len() == 1 {
        return None;
    }
    let names: Vec<_> = rules.iter().map(|rule| format!("`{}` ({})", rule.name, rule.filter)).collect();
    let names = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
    let problem = format!("`{subscription}`: its rules do not let every event through once, as it is: {names}");
    Some(Finding::error(
        ABOUT,
        problem,
        "leave it one rule with a TrueFilter and no action; filter with `producer.filter`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Duration = Duration::from_secs(60);

    fn findings(properties: &[(&str, &str)]) -> Vec<(Level, String)> {
        let properties: Vec<_> = properties.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let found = Description::subscription(&properties);
        let judged = judge("t/Subscriptions/s", &Wanted::subscription(LOCK), Some(&found), LOCK);
        judged.into_iter().map(|finding| (finding.level, finding.to_string())).collect()
    }

    #[test]
    fn each_setting_that_hurts_is_told_with_what_to_do() {
        for (name, value, level, word) in [
            ("RequiresSession", "false", Level::Error, "name a new subscription"),
            ("DefaultMessageTimeToLive", "P14D", Level::Error, "expire"),
            ("AutoDeleteOnIdle", "P1D", Level::Error, "deletes itself"),
            ("MaxDeliveryCount", "10", Level::Error, "topology apply"),
            ("LockDuration", "PT30S", Level::Error, "renewed too late"),
            ("LockDuration", "PT2M", Level::Note, "longer"),
            ("Status", "Disabled", Level::Error, "takes or gives"),
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
        let rule =
            |name: &str, takes_everything| Rule { name: name.into(), filter: "SqlFilter".into(), takes_everything };
        assert_eq!(partial("s", &[rule("$Default", true)]), None);
        assert!(partial("s", &[rule("eu", false)]).unwrap().problem.contains("`eu` (SqlFilter)"));
        assert!(partial("s", &[]).unwrap().problem.contains("none"));
        assert!(partial("s", &[rule("$Default", true), rule("eu", false)]).is_some(), "an event would come twice");
        assert_eq!(filters("s", Ok(vec![rule("$Default", true)])), None);
        let unseen = filters("s", Err(Error::Refused { status: 500, detail: "later".into() })).unwrap();
        assert!(unseen.level == Level::Warning && unseen.problem.contains("cannot be looked at"), "{unseen}");
    }
}
