//! What is wrong with a pipeline, read off its [`PipelineStatus`]: pure, and the only place where a threshold stands.

use std::collections::BTreeSet;

use crate::status::{PipelineProblem, PipelineStatus, ProblemSeverity};

/// A standby sees a crash after `ttl` (15 s by default) and catches up in moments: half a minute behind is no takeover.
const LATE_AFTER: f64 = 30.0;
/// WallTime for a person to come and mend a leader that stands still, before history is lost.
const HEADROOM_WARNING: f64 = 12.0 * HOUR;
const HEADROOM_CRITICAL: f64 = HOUR;
const HOUR: f64 = 3_600.0;

/// The worst first.
pub fn find(status: &PipelineStatus) -> Vec<PipelineProblem> {
    let mut problems = Vec::new();
    unread(status, &mut problems);
    leader(status, &mut problems);
    pods(status, &mut problems);
    behind(status, &mut problems);
    waiting(status, &mut problems);
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn unread(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    if !status.collected.unavailable.is_empty() {
        problems.push(critical("unread", format!("could not be read: {}", status.collected.unavailable.join(", "))));
    }
}

fn leader(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    // Who leads cannot be said where the lease cannot be read.
    if status.leader.is_none() && status.collected.unavailable.is_empty() {
        problems.push(critical("no_leader", "no pod leads: nothing is published".to_owned()));
    }
}

fn pods(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    for pod in status.pods.iter().filter(|pod| !pod.silent) {
        for pod_problem in &pod.problems {
            let text = format!("{} on {}: {}", pod_problem.service, pod.id, pod_problem.text);
            problems.push(PipelineProblem { page: pod_problem.page.clone(), ..critical("pod_problem", text) });
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

fn behind(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
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
            problems.push(PipelineProblem { page: Some("E0001".into()), ..critical("oplog_headroom", text) });
        } else if seconds < HEADROOM_WARNING {
            problems.push(PipelineProblem { page: Some("E0001".into()), ..warning("oplog_headroom", text) });
        }
    }
}

fn waiting(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    let mut count = |code, number: Option<u64>, one: &str, many: &str| match number {
        None | Some(0) => {}
        Some(1) => problems.push(warning(code, format!("1 {one}"))),
        Some(number) => problems.push(warning(code, format!("{number} {many}"))),
    };
    count("parked", status.parked_aggregates(), "aggregate is parked", "aggregates are parked");
    count("rejected", status.rejected_events(), "event was rejected", "events were rejected");
    count("dead_letters", status.subscription.dead_letters, "dead letter is on the bus", "dead letters are on the bus");
}

fn critical(code: &str, text: String) -> PipelineProblem {
    PipelineProblem { code: code.to_owned(), severity: ProblemSeverity::Critical, text, page: None }
}

fn warning(code: &str, text: String) -> PipelineProblem {
    PipelineProblem { severity: ProblemSeverity::Warning, ..critical(code, text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{
        CheckpointStatus, CollectionInfo, LeaderStatus, ParkedCount, PodProblem, PodRole, PodStatus, RejectedCount,
    };
    use crate::time::WallTime;

    fn well() -> PipelineStatus {
        let mut status = PipelineStatus::unknown("shop", CollectionInfo::default());
        status.leader = Some(LeaderStatus {
            pod: "pod-0".into(),
            term: 3,
            since: None,
            for_seconds: None,
            heartbeat_seconds_ago: 1.0,
        });
        status.pods = vec![pod("pod-0"), pod("pod-1")];
        status
    }

    fn pod(id: &str) -> PodStatus {
        PodStatus {
            id: id.into(),
            version: "0.1.0".into(),
            generation: Some("a".into()),
            address: None,
            role: PodRole::Standby,
            started: None,
            last_seen: WallTime::default(),
            last_seen_seconds_ago: 0.0,
            silent: false,
            producer: "standby".into(),
            consumer: "consuming".into(),
            problems: vec![],
            sessions: None,
            published_per_second: None,
            applied_per_second: None,
            latency: None,
        }
    }

    fn codes(change: impl FnOnce(&mut PipelineStatus)) -> Vec<(String, ProblemSeverity)> {
        let mut status = well();
        change(&mut status);
        status.evaluated().problems.into_iter().map(|problem| (problem.code, problem.severity)).collect()
    }

    #[test]
    fn a_pipeline_with_a_leader_and_nothing_that_waits_is_healthy_and_the_unknown_is_no_problem() {
        let status = well().evaluated();
        assert_eq!(status.problems, []);
        assert!(status.healthy);
    }

    #[test]
    fn everything_that_can_be_wrong_is_named() {
        type Change = fn(&mut PipelineStatus);
        let cases: &[(&str, ProblemSeverity, Change)] = &[
            ("no_leader", ProblemSeverity::Critical, |status| status.leader = None),
            ("unread", ProblemSeverity::Critical, |status| status.collected.unavailable = vec!["the lease".into()]),
            ("pod_problem", ProblemSeverity::Critical, |status| {
                status.pods[0].problems =
                    vec![PodProblem { service: "producer".into(), text: "halted".into(), page: Some("E0001".into()) }];
            }),
            ("silent_pod", ProblemSeverity::Warning, |status| status.pods[1].silent = true),
            ("mixed_versions", ProblemSeverity::Warning, |status| status.pods[1].version = "0.2.0".into()),
            ("mixed_generations", ProblemSeverity::Warning, |status| status.pods[1].generation = Some("b".into())),
            ("late", ProblemSeverity::Warning, |status| status.lag.seconds = Some(31.0)),
            ("oplog_headroom", ProblemSeverity::Warning, |status| status.oplog.headroom_seconds = Some(11.0 * HOUR)),
            ("oplog_headroom", ProblemSeverity::Critical, |status| status.oplog.headroom_seconds = Some(-5.0)),
            ("parked", ProblemSeverity::Warning, |status| {
                let parked =
                    ParkedCount { read_model: "orders".into(), aggregates: 1, events: 9, oldest_seconds: None };
                status.parked = Some(vec![parked]);
            }),
            ("rejected", ProblemSeverity::Warning, |status| {
                status.rejected = Some(vec![RejectedCount { reason: "too_large".into(), events: 2 }]);
            }),
            ("dead_letters", ProblemSeverity::Warning, |status| status.subscription.dead_letters = Some(4)),
        ];
        for (code, severity, change) in cases {
            assert_eq!(codes(change), [((*code).to_owned(), *severity)]);
        }
    }

    #[test]
    fn a_snapshot_is_behind_by_nature_and_a_silent_pod_tells_no_troubles() {
        let snapshot = CheckpointStatus {
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
        let pod_problem = PodProblem { service: "consumer".into(), text: "busy".into(), page: None };
        let codes = codes(|status| {
            status.pods[1].problems = vec![pod_problem];
            status.pods[1].silent = true;
        });
        assert_eq!(codes, [("silent_pod".to_owned(), ProblemSeverity::Warning)]);
    }

    #[test]
    fn a_checkpoint_that_is_ahead_of_the_source_is_critical() {
        let ahead = CheckpointStatus {
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
        assert_eq!(found, [("ahead".to_owned(), ProblemSeverity::Critical)]);
    }

    #[test]
    fn the_worst_comes_first() {
        let found = codes(|status| {
            status.subscription.dead_letters = Some(1);
            status.leader = None;
        });
        assert_eq!(found.iter().map(|(code, _)| code.as_str()).collect::<Vec<_>>(), ["no_leader", "dead_letters"]);
    }
}
