//! Derives the problems of a pipeline from its [`PipelineStatus`]. Pure, and the only place that holds thresholds.

use std::collections::BTreeSet;

use crate::status::{
    IncompleteReadModel, PauseStatus, PipelineProblem, PipelineStatus, ProblemSeverity, StorageStatus,
};

/// A standby takes over after `ttl` (15 s by default) and catches up within seconds, so a takeover stays below this.
const LAG_WARNING: f64 = 30.0;
/// Time for an operator to fix a leader that does not publish, before history is lost.
const HEADROOM_WARNING: f64 = 12.0 * HOUR;
const HEADROOM_CRITICAL: f64 = HOUR;
const HOUR: f64 = 3_600.0;

/// The most severe first.
pub fn find_problems(status: &PipelineStatus) -> Vec<PipelineProblem> {
    let mut problems = Vec::new();
    check_unavailable(status, &mut problems);
    check_leader(status, &mut problems);
    check_pauses(status, &mut problems);
    check_pods(status, &mut problems);
    check_checkpoint(status, &mut problems);
    check_generation(status, &mut problems);
    check_read_models(status, &mut problems);
    check_attention(status, &mut problems);
    check_storage(status, &mut problems);
    check_erasure(status, &mut problems);
    check_audit(status, &mut problems);
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn check_unavailable(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    if !status.collected.unavailable.is_empty() {
        problems
            .push(critical("status_unavailable", format!("cannot read {}", status.collected.unavailable.join(", "))));
    }
}

fn check_leader(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    // Without the lease document the leader is unknown, not absent.
    if status.leader.is_none() && status.collected.unavailable.is_empty() {
        problems.push(critical("no_leader", "no pod is the leader: nothing is published".to_owned()));
    }
}

/// A pause is meant, and still critical: read models fall behind until somebody ends it.
fn check_pauses(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    for pause in status.paused.iter().flatten() {
        let PauseStatus { service, name, state, since, by, reason, waiting_events } = pause;
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let (target, argument) = match name {
            Some(name) => (format!("read model `{name}`"), format!("read-model {name}")),
            None => (format!("the {service}"), service.clone()),
        };
        let waiting = match waiting_events {
            None => String::new(),
            Some(1) => "; 1 event waits".to_owned(),
            Some(events) => format!("; {events} events wait"),
        };
        problems.push(if state == "resuming" {
            warning("resuming", format!("{target} applies the events that waited during a pause{waiting}"))
        } else {
            let text =
                format!("{target} is paused by {by} since {since}{reason}{waiting}; run `headwater resume {argument}`");
            critical("paused", text)
        });
    }
}

fn check_pods(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    for pod in status.pods.iter().filter(|pod| !pod.silent) {
        for problem in &pod.problems {
            let text = format!("{} on pod {}: {}", problem.service, pod.id, problem.text);
            problems.push(PipelineProblem { page: problem.page.clone(), ..critical("pod_problem", text) });
        }
    }
    let silent: Vec<_> = status.pods.iter().filter(|pod| pod.silent).map(|pod| pod.id.as_str()).collect();
    if !silent.is_empty() {
        problems.push(warning("silent_pod", format!("no heartbeat from {}", silent.join(", "))));
    }
    let announced = || status.pods.iter().filter(|pod| !pod.silent);
    let versions: BTreeSet<_> = announced().map(|pod| pod.version.as_str()).collect();
    if versions.len() > 1 {
        let list = versions.into_iter().collect::<Vec<_>>().join(", ");
        problems.push(warning("mixed_versions", format!("pods run different versions: {list}")));
    }
    let generations: BTreeSet<_> = announced().filter_map(|pod| pod.generation.as_deref()).collect();
    if generations.len() > 1 {
        problems.push(warning("mixed_generations", "pods run different sets of read models".to_owned()));
    }
}

fn check_checkpoint(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    let snapshot = status.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.phase == "snapshot");
    match status.lag.seconds {
        Some(seconds) if seconds > LAG_WARNING && !snapshot => {
            problems.push(warning("lagging", format!("the checkpoint is {seconds:.0} s behind the source")));
        }
        _ => {}
    }
    if let Some(ahead) = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.ahead_seconds) {
        let text = format!(
            "the checkpoint is {ahead:.0} s ahead of the source, and events written before that time are not published; run \
             `headwater checkpoint reset`"
        );
        problems.push(critical("checkpoint_ahead", text));
    }
    if let Some(seconds) = status.oplog.headroom_seconds {
        let text = format!(
            "the oplog drops the checkpoint position in {:.1} h unless the checkpoint advances",
            (seconds / HOUR).max(0.0)
        );
        if seconds < HEADROOM_CRITICAL {
            problems.push(PipelineProblem { page: Some("E0001".into()), ..critical("oplog_headroom", text) });
        } else if seconds < HEADROOM_WARNING {
            problems.push(PipelineProblem { page: Some("E0001".into()), ..warning("oplog_headroom", text) });
        }
    }
}

fn check_read_models(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    for model in &status.read_models {
        if let Some(IncompleteReadModel { reason, since }) = &model.incomplete {
            let name = &model.name;
            let text = format!(
                "read model `{name}` lacks events: it was {reason} ({since}); build it under a new pipeline, or run \
                 `headwater read-model accept {name}`"
            );
            problems.push(critical("read_model_incomplete", text));
        }
    }
}

fn check_generation(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    if let Some(problem) = status.generation.as_ref().and_then(|generation| generation.problem.as_ref()) {
        problems.push(critical("read_model_change_stopped", format!("the read models are not changed: {problem}")));
    }
}

fn check_attention(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    let mut warn_if_any = |code, number: Option<u64>, one: &str, many: &str| match number {
        None | Some(0) => {}
        Some(1) => problems.push(warning(code, format!("1 {one}"))),
        Some(number) => problems.push(warning(code, format!("{number} {many}"))),
    };
    warn_if_any("parked", status.parked_aggregates(), "aggregate is parked", "aggregates are parked");
    warn_if_any("rejected", status.rejected_events(), "event was rejected", "events were rejected");
    warn_if_any(
        "dead_letters",
        status.subscription.dead_letters,
        "dead letter is on Service Bus",
        "dead letters are on Service Bus",
    );
    warn_if_any(
        "unverified",
        status.unverified_messages(),
        "message was not accepted because of its signature since the pods started",
        "messages were not accepted because of their signature since the pods started",
    );
}

/// By collection: the size that needs an operator. A collection that is not listed grows with the number of aggregates, as read models do.
const STORAGE_LIMITS: [(&str, u64); 4] = [
    ("parked_events", GIB),
    ("rejected_events", GIB / 4),
    ("oversize_events", 10 * GIB),
    ("operator_actions", GIB / 4),
];
const GIB: u64 = 1 << 30;

/// A warning at half of the limit leaves time to act.
fn check_storage(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    for StorageStatus { collection, documents, bytes } in status.storage.iter().flatten() {
        let limit = STORAGE_LIMITS.iter().find(|(name, _)| name == collection).map(|(_, limit)| *limit);
        let Some(limit) = limit.filter(|limit| *bytes > limit / 2) else { continue };
        let mib = |bytes: u64| bytes >> 20;
        let text = format!(
            "`{collection}` has {documents} documents of {} MiB; {} MiB are too many: see \"What is kept, and for how long\" in docs/operations.md",
            mib(*bytes),
            mib(limit)
        );
        problems.push(if *bytes > limit { critical("storage", text) } else { warning("storage", text) });
    }
}

fn check_audit(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    let Some(audit) = &status.audit else { return };
    let aggregates = |number: u64| if number == 1 { "1 aggregate".to_owned() } else { format!("{number} aggregates") };
    if audit.missing > 0 {
        let text =
            format!("events are missing in the read models of {}: they could not be healed", aggregates(audit.missing));
        problems.push(critical("events_missing", text));
    }
    if audit.is_overdue() {
        let hours = audit.age_seconds.unwrap_or_default() / HOUR;
        let text = format!("the audit has not compared every aggregate with the source for {hours:.1} h");
        problems.push(critical("audit_overdue", text));
    }
    if audit.found() > 0 {
        let text = format!(
            "the audit found missing events in {} and applied them: messages are lost on their way",
            aggregates(audit.found())
        );
        problems.push(warning("audit_found", text));
    }
}

fn check_erasure(status: &PipelineStatus, problems: &mut Vec<PipelineProblem>) {
    if status.erasure_key_lost == Some(true) {
        let text = "the key of the tombstones of erased aggregates is lost (`erasure_keys` of the coordination database): pods that start, and pods that \
                    follow a change of the read models, apply nothing until it is restored";
        problems.push(PipelineProblem { page: Some("E0004".into()), ..critical("erasure_key_lost", text.to_owned()) });
    }
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
        AuditRound, AuditState, AuditStatus, CheckpointStatus, CollectionInfo, GenerationStatus, LeaderStatus,
        ParkedCount, PodProblem, PodRole, PodStatus, ReadModelStatus, RejectedCount,
    };
    use crate::time::WallTime;

    fn healthy_status() -> PipelineStatus {
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
            unverified: None,
            published_per_second: None,
            applied_per_second: None,
            latency: None,
        }
    }

    fn audit(state: AuditState) -> AuditStatus {
        AuditStatus { period_seconds: Some(24.0 * HOUR), age_seconds: Some(HOUR), ..AuditStatus::new(state) }
    }

    #[test]
    fn an_audit_that_is_off_is_not_overdue() {
        for state in [AuditState::Unaudited, AuditState::Unauditable] {
            let late = AuditStatus { age_seconds: Some(25.0 * HOUR), ..audit(state) };
            assert_eq!(codes(|status| status.audit = Some(late)), []);
        }
    }

    fn codes(change: impl FnOnce(&mut PipelineStatus)) -> Vec<(String, ProblemSeverity)> {
        let mut status = healthy_status();
        change(&mut status);
        status.evaluated().problems.into_iter().map(|problem| (problem.code, problem.severity)).collect()
    }

    #[test]
    fn a_pause_is_critical_until_it_is_resumed() {
        let pause = |state: &str| PauseStatus {
            service: "read_model".into(),
            name: Some("orders".into()),
            state: state.into(),
            since: WallTime::default(),
            by: "ann@desk".into(),
            reason: None,
            waiting_events: Some(3),
        };
        let paused = codes(|status| status.paused = Some(vec![pause("paused")]));
        assert_eq!(paused, [("paused".to_owned(), ProblemSeverity::Critical)]);
        let resuming = codes(|status| status.paused = Some(vec![pause("resuming")]));
        assert_eq!(resuming, [("resuming".to_owned(), ProblemSeverity::Warning)]);
    }

    #[test]
    fn a_growing_collection_is_reported_before_it_is_too_large() {
        let storage = |collection: &str, bytes| {
            let found = vec![StorageStatus { collection: collection.into(), documents: 1, bytes }];
            codes(|status| status.storage = Some(found))
        };
        assert_eq!(storage("parked_events", GIB / 2), []);
        assert_eq!(storage("parked_events", GIB / 2 + 1), [("storage".to_owned(), ProblemSeverity::Warning)]);
        assert_eq!(storage("parked_events", GIB + 1), [("storage".to_owned(), ProblemSeverity::Critical)]);
        assert_eq!(storage("_headwater_cursors", 100 * GIB), []);
    }

    #[test]
    fn unknown_figures_are_not_problems() {
        let status = healthy_status().evaluated();
        assert_eq!(status.problems, []);
        assert!(status.healthy);
    }

    #[test]
    fn every_problem_has_its_code_and_severity() {
        type Change = fn(&mut PipelineStatus);
        let cases: &[(&str, ProblemSeverity, Change)] = &[
            ("no_leader", ProblemSeverity::Critical, |status| status.leader = None),
            ("status_unavailable", ProblemSeverity::Critical, |status| {
                status.collected.unavailable = vec!["the lease".into()]
            }),
            ("pod_problem", ProblemSeverity::Critical, |status| {
                status.pods[0].problems =
                    vec![PodProblem { service: "producer".into(), text: "halted".into(), page: Some("E0001".into()) }];
            }),
            ("silent_pod", ProblemSeverity::Warning, |status| status.pods[1].silent = true),
            ("mixed_versions", ProblemSeverity::Warning, |status| status.pods[1].version = "0.2.0".into()),
            ("mixed_generations", ProblemSeverity::Warning, |status| status.pods[1].generation = Some("b".into())),
            ("lagging", ProblemSeverity::Warning, |status| status.lag.seconds = Some(31.0)),
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
            ("read_model_incomplete", ProblemSeverity::Critical, |status| {
                let incomplete = Some(IncompleteReadModel { reason: "added".into(), since: WallTime::default() });
                status.read_models =
                    vec![ReadModelStatus { name: "orders".into(), incomplete, ..ReadModelStatus::default() }];
            }),
            ("read_model_change_stopped", ProblemSeverity::Critical, |status| {
                status.generation = Some(GenerationStatus {
                    number: 2,
                    stage: "building".into(),
                    problem: Some("no disk space".into()),
                    ..GenerationStatus::default()
                });
            }),
            ("erasure_key_lost", ProblemSeverity::Critical, |status| status.erasure_key_lost = Some(true)),
            ("unverified", ProblemSeverity::Warning, |status| status.pods[1].unverified = Some(3)),
            ("events_missing", ProblemSeverity::Critical, |status| {
                status.audit = Some(AuditStatus { missing: 1, ..audit(AuditState::Waiting) });
            }),
            ("audit_overdue", ProblemSeverity::Critical, |status| {
                status.audit = Some(AuditStatus { age_seconds: Some(24.1 * HOUR), ..audit(AuditState::Walking) });
            }),
            ("audit_found", ProblemSeverity::Warning, |status| {
                let last = Some(AuditRound { found: 2, healed: 2, ..AuditRound::default() });
                status.audit = Some(AuditStatus { last, ..audit(AuditState::Resting) });
            }),
        ];
        for (code, severity, change) in cases {
            assert_eq!(codes(change), [((*code).to_owned(), *severity)]);
        }
    }

    #[test]
    fn a_snapshot_may_lag_and_a_silent_pod_reports_nothing() {
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
    fn a_checkpoint_ahead_of_the_source_is_critical() {
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
        assert_eq!(found, [("checkpoint_ahead".to_owned(), ProblemSeverity::Critical)]);
    }

    #[test]
    fn the_most_severe_problem_comes_first() {
        let found = codes(|status| {
            status.subscription.dead_letters = Some(1);
            status.leader = None;
        });
        assert_eq!(found.iter().map(|(code, _)| code.as_str()).collect::<Vec<_>>(), ["no_leader", "dead_letters"]);
    }
}
