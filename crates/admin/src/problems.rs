//! What is wrong with a pipeline, read off its [`Status`]: pure, and the only place where a threshold stands.

use std::collections::BTreeSet;

use crate::status::{Problem, Severity, Status};

/// A standby sees a crash after `ttl` (15 s by default) and catches up in moments: half a minute behind is no takeover.
const LATE_AFTER: f64 = 30.0;
/// Time for a person to come and mend a leader that stands still, before history is lost.
const HEADROOM_WARNING: f64 = 12.0 * HOUR;
const HEADROOM_CRITICAL: f64 = HOUR;
const HOUR: f64 = 3_600.0;

/// The worst first.
pub fn find(status: &Status) -> Vec<Problem> {
    let mut problems = Vec::new();
    unread(status, &mut problems);
    leader(status, &mut problems);
    pods(status, &mut problems);
    behind(status, &mut problems);
    waiting(status, &mut problems);
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn unread(status: &Status, problems: &mut Vec<Problem>) {
    if !status.gathered.missing.is_empty() {
        problems.push(critical("unread", format!("could not be read: {}", status.gathered.missing.join(", "))));
    }
}

fn leader(status: &Status, problems: &mut Vec<Problem>) {
    // Who leads cannot be said where the lease cannot be read.
    if status.leader.is_none() && status.gathered.missing.is_empty() {
        problems.push(critical("no_leader", "no pod leads: nothing is published".to_owned()));
    }
}

fn pods(status: &Status, problems: &mut Vec<Problem>) {
    for pod in status.pods.iter().filter(|pod| !pod.silent) {
        for trouble in &pod.troubles {
            let text = format!("{} on {}: {}", trouble.service, pod.id, trouble.text);
            problems.push(Problem { page: trouble.page.clone(), ..critical("trouble", text) });
        }
    }
    let silent: Vec<_> = status.pods.iter().filter(|pod| pod.silent).map(|pod| pod.id.as_str()).collect();
    if !silent.is_empty() {
        problems.push(warning("silent_pod", format!("not heard of any more: {}", silent.join(", "))));
    }
    let heard = || status.pods.iter().filter(|pod| !pod.silent);
    let versions: BTreeSet<_> = heard().map(|pod| pod.version.as_str()).collect();
    if versions.len() > 1 {
        let list = versions.into_iter().collect::<Vec<_>>().join(", ");
        problems.push(warning("mixed_versions", format!("pods run different versions: {list}")));
    }
    let generations: BTreeSet<_> = heard().filter_map(|pod| pod.generation.as_deref()).collect();
    if generations.len() > 1 {
        problems.push(warning("mixed_generations", "pods have different sets of read models".to_owned()));
    }
}

fn behind(status: &Status, problems: &mut Vec<Problem>) {
    let snapshot = status.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.phase == "snapshot");
    match status.lag.seconds {
        Some(seconds) if seconds > LATE_AFTER && !snapshot => {
            problems.push(warning("late", format!("the checkpoint is {seconds:.0} s behind the source")));
        }
        _ => {}
    }
    if let Some(ahead) = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.ahead_seconds) {
        let text = format!(
            "the checkpoint is {ahead:.0} s ahead of the source, and nothing that is written until then is published: `headwater checkpoint reset` \
             puts it where it should be"
        );
        problems.push(critical("ahead", text));
    }
    if let Some(seconds) = status.oplog.headroom_seconds {
        let text =
            format!("the checkpoint falls off the oplog in {:.1} h if it stands still", (seconds / HOUR).max(0.0));
        if seconds < HEADROOM_CRITICAL {
            problems.push(Problem { page: Some("E0001".into()), ..critical("oplog_headroom", text) });
        } else if seconds < HEADROOM_WARNING {
            problems.push(Problem { page: Some("E0001".into()), ..warning("oplog_headroom", text) });
        }
    }
}

fn waiting(status: &Status, problems: &mut Vec<Problem>) {
    let mut count = |code, number: Option<u64>, one: &str, many: &str| match number {
        None | Some(0) => {}
        Some(1) => problems.push(warning(code, format!("1 {one}"))),
        Some(number) => problems.push(warning(code, format!("{number} {many}"))),
    };
    count("parked", status.parked_aggregates(), "aggregate is parked", "aggregates are parked");
    count("rejected", status.rejected_events(), "event was rejected", "events were rejected");
    count("dead_letters", status.bus.dead_letters, "dead letter is on the bus", "dead letters are on the bus");
}

fn critical(code: &str, text: String) -> Problem {
    Problem { code: code.to_owned(), severity: Severity::Critical, text, page: None }
}

fn warning(code: &str, text: String) -> Problem {
    Problem { severity: Severity::Warning, ..critical(code, text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Checkpoint, Gathered, Leader, Parked, Pod, Rejected, Role, Trouble};
    use crate::time::Time;

    fn well() -> Status {
        let mut status = Status::unknown("shop", Gathered::default());
        status.leader =
            Some(Leader { pod: "pod-0".into(), term: 3, since: None, for_seconds: None, heartbeat_seconds_ago: 1.0 });
        status.pods = vec![pod("pod-0"), pod("pod-1")];
        status
    }

    fn pod(id: &str) -> Pod {
        Pod {
            id: id.into(),
            version: "0.1.0".into(),
            generation: Some("a".into()),
            address: None,
            role: Role::Standby,
            started: None,
            seen: Time::default(),
            seen_seconds_ago: 0.0,
            silent: false,
            producer: "standby".into(),
            consumer: "consuming".into(),
            troubles: vec![],
            sessions: None,
            published_per_second: None,
            applied_per_second: None,
            latency: None,
        }
    }

    fn codes(change: impl FnOnce(&mut Status)) -> Vec<(String, Severity)> {
        let mut status = well();
        change(&mut status);
        status.judged().problems.into_iter().map(|problem| (problem.code, problem.severity)).collect()
    }

    #[test]
    fn a_pipeline_with_a_leader_and_nothing_that_waits_is_healthy_and_the_unknown_is_no_problem() {
        let status = well().judged();
        assert_eq!(status.problems, []);
        assert!(status.healthy);
    }

    #[test]
    fn everything_that_can_be_wrong_is_named() {
        type Change = fn(&mut Status);
        let cases: &[(&str, Severity, Change)] = &[
            ("no_leader", Severity::Critical, |status| status.leader = None),
            ("unread", Severity::Critical, |status| status.gathered.missing = vec!["the lease".into()]),
            ("trouble", Severity::Critical, |status| {
                status.pods[0].troubles =
                    vec![Trouble { service: "producer".into(), text: "halted".into(), page: Some("E0001".into()) }];
            }),
            ("silent_pod", Severity::Warning, |status| status.pods[1].silent = true),
            ("mixed_versions", Severity::Warning, |status| status.pods[1].version = "0.2.0".into()),
            ("mixed_generations", Severity::Warning, |status| status.pods[1].generation = Some("b".into())),
            ("late", Severity::Warning, |status| status.lag.seconds = Some(31.0)),
            ("oplog_headroom", Severity::Warning, |status| status.oplog.headroom_seconds = Some(11.0 * HOUR)),
            ("oplog_headroom", Severity::Critical, |status| status.oplog.headroom_seconds = Some(-5.0)),
            ("parked", Severity::Warning, |status| {
                let parked = Parked { read_model: "orders".into(), aggregates: 1, events: 9, oldest_seconds: None };
                status.parked = Some(vec![parked]);
            }),
            ("rejected", Severity::Warning, |status| {
                status.rejected = Some(vec![Rejected { reason: "too_large".into(), events: 2 }]);
            }),
            ("dead_letters", Severity::Warning, |status| status.bus.dead_letters = Some(4)),
        ];
        for (code, severity, change) in cases {
            assert_eq!(codes(change), [((*code).to_owned(), *severity)]);
        }
    }

    #[test]
    fn a_snapshot_is_behind_by_nature_and_a_silent_pod_tells_no_troubles() {
        let snapshot = Checkpoint {
            phase: "snapshot".into(),
            scanned: Some(5),
            term: 3,
            epoch: 1,
            saved: None,
            saved_seconds_ago: None,
            saved_by: "pod-0".into(),
            ahead_seconds: None,
        };
        assert_eq!(
            codes(|status| {
                status.lag.seconds = Some(900.0);
                status.checkpoint = Some(snapshot);
            }),
            []
        );
        let trouble = Trouble { service: "consumer".into(), text: "busy".into(), page: None };
        let codes = codes(|status| {
            status.pods[1].troubles = vec![trouble];
            status.pods[1].silent = true;
        });
        assert_eq!(codes, [("silent_pod".to_owned(), Severity::Warning)]);
    }

    #[test]
    fn a_checkpoint_that_is_ahead_of_the_source_is_critical() {
        let ahead = Checkpoint {
            phase: "stream".into(),
            scanned: None,
            term: 3,
            epoch: 2,
            saved: None,
            saved_seconds_ago: None,
            saved_by: "pod-0".into(),
            ahead_seconds: Some(3_600.0),
        };
        let found = codes(|status| status.checkpoint = Some(ahead));
        assert_eq!(found, [("ahead".to_owned(), Severity::Critical)]);
    }

    #[test]
    fn the_worst_comes_first() {
        let found = codes(|status| {
            status.bus.dead_letters = Some(1);
            status.leader = None;
        });
        assert_eq!(found.iter().map(|(code, _)| code.as_str()).collect::<Vec<_>>(), ["no_leader", "dead_letters"]);
    }
}
