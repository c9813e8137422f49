//! The status as text.

use std::fmt::Write;

use admin::PipelineStatus;
use admin::status::{
    AuditRound, AuditState, AuditStatus, GenerationStatus, PauseStatus, PodRole, ProblemSeverity, TermState,
    TermStatus, VerificationStatus,
};

use crate::cli::read_model::build_pause;
use crate::cli::table::{plural, render_table};

/// Shown for a value that could not be read.
const UNKNOWN: &str = "unknown";

pub(super) fn render_status(status: &PipelineStatus) -> String {
    let mut text = String::new();
    write_summary(&mut text, status);
    write_pods(&mut text, status);
    write_read_models(&mut text, status);
    write_terms(&mut text, status);
    write_problems(&mut text, status);
    text
}

fn write_summary(text: &mut String, status: &PipelineStatus) {
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<16}{value}\n"));
    line("pipeline", format!("{} ({})", status.pipeline, health_text(status)));
    line("leader", leader_text(status));
    line("lag", lag_text(status));
    let latency = status.latency.as_ref();
    let latency =
        latency.map(|it| format!("p50 {}, p99 {}", format_short(it.p50_seconds), format_short(it.p99_seconds)));
    line("to read model", latency.unwrap_or_else(|| UNKNOWN.to_owned()));
    let rate = |rate: Option<f64>| rate.map_or_else(|| UNKNOWN.to_owned(), |rate| format!("{rate:.0}/s"));
    let throughput = &status.throughput;
    line("published", rate(throughput.published_per_second));
    line("applied", rate(throughput.applied_per_second));
    line("oplog headroom", or_unknown(status.oplog.headroom_seconds.map(|seconds| format_long(seconds.max(0.0)))));
    line("checkpoint", checkpoint_text(status));
    if let Some(paused) = status.paused.as_ref().filter(|paused| !paused.is_empty()) {
        line("paused", paused_text(paused));
    }
    line("sessions", or_unknown(status.sessions()));
    line("parked", or_unknown(status.parked_aggregates().map(|count| plural(count, "aggregate"))));
    line("rejected", or_unknown(status.rejected_events().map(|count| plural(count, "event"))));
    line("dead letters", or_unknown(status.subscription.dead_letters));
    line("read models", or_unknown(status.generation.as_ref().map(generation_text)));
    line("audit", status.audit.as_ref().map_or_else(|| UNKNOWN.to_owned(), audit_text));
}

/// A pipeline that nobody compares with its source is never only "healthy".
pub(super) fn health_text(status: &PipelineStatus) -> String {
    let health = if status.healthy { "healthy" } else { "not healthy" };
    match status.audit.as_ref().map(|audit| audit.state) {
        Some(AuditState::Unaudited) => format!("{health}, unaudited"),
        Some(AuditState::Unauditable) => format!("{health}, unauditable"),
        Some(AuditState::Pending | AuditState::Walking | AuditState::Waiting | AuditState::Resting) | None => {
            health.to_owned()
        }
    }
}

fn paused_text(paused: &[PauseStatus]) -> String {
    let one = |pause: &PauseStatus| {
        let target = pause.name.as_ref().unwrap_or(&pause.service);
        if pause.state == "resuming" { format!("{target} (resuming)") } else { target.clone() }
    };
    paused.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn generation_text(generation: &GenerationStatus) -> String {
    let GenerationStatus { number, stage, .. } = generation;
    match (generation.built_aggregates, generation.total_aggregates) {
        (Some(built), Some(total)) => {
            let paused = build_pause(generation);
            format!("generation {number}, {stage}: {built} of about {total} aggregates{paused}")
        }
        _ => format!("generation {number}, {stage}"),
    }
}

fn audit_text(audit: &AuditStatus) -> String {
    let reason = audit.reason.as_deref().unwrap_or_default();
    let last = audit.last.as_ref().map_or_else(
        || "no round has ended yet".to_owned(),
        |last| {
            let ago = last.ended_seconds_ago.map_or_else(String::new, |ago| format!(" {} ago", format_long(ago)));
            format!("last round{ago}: {}", round_text(last))
        },
    );
    let round = |round: &Option<AuditRound>| round.as_ref().map(round_text).unwrap_or_default();
    match audit.state {
        AuditState::Unaudited => "unaudited: the audit is off, or there is no read model".to_owned(),
        AuditState::Unauditable => format!("unauditable: {reason}"),
        AuditState::Pending => "no pod has started it yet".to_owned(),
        AuditState::Resting => last,
        AuditState::Walking => format!("now {}; {last}", round(&audit.round)),
        AuditState::Waiting => {
            let suspects = plural(audit.suspects, "aggregate");
            format!("now {}, waits for the {reason} of {suspects}; {last}", round(&audit.round))
        }
    }
}

fn round_text(round: &AuditRound) -> String {
    let skipped = if round.skipped > 0 { format!(", {} skipped", round.skipped) } else { String::new() };
    format!("{} compared{skipped}, {} found, {} healed", plural(round.compared, "aggregate"), round.found, round.healed)
}

pub(super) fn leader_text(status: &PipelineStatus) -> String {
    match &status.leader {
        Some(leader) => {
            let since =
                leader.for_seconds.map_or_else(String::new, |seconds| format!(", for {}", format_long(seconds)));
            format!("{}, term {}{since}", leader.pod, leader.term)
        }
        None if status.collected.unavailable.is_empty() => "none".to_owned(),
        None => UNKNOWN.to_owned(),
    }
}

pub(super) fn lag_text(status: &PipelineStatus) -> String {
    let lag = &status.lag;
    let seconds = or_unknown(lag.seconds.map(|seconds| format!("{seconds:.0} s")));
    let least = if lag.is_lower_bound { "at least " } else { "" };
    lag.events.map_or(seconds.clone(), |events| format!("{seconds}, {least}{}", plural(events, "event")))
}

fn checkpoint_text(status: &PipelineStatus) -> String {
    let Some(checkpoint) = &status.checkpoint else { return UNKNOWN.to_owned() };
    let scanned =
        checkpoint.scanned.map_or_else(String::new, |scanned| format!(", {} read", plural(scanned, "document")));
    let saved =
        checkpoint.saved_seconds_ago.map_or_else(String::new, |ago| format!(", saved {} ago", format_short(ago)));
    format!("{}{scanned}{saved}, epoch {}", checkpoint.phase, checkpoint.epoch)
}

fn write_pods(text: &mut String, status: &PipelineStatus) {
    let rows = status.pods.iter().map(|pod| {
        // The last values of a silent pod are out of date.
        let if_fresh = |text: Option<String>| text.filter(|_| !pod.silent).unwrap_or_else(|| "-".to_owned());
        let rate = |rate: Option<f64>| if_fresh(rate.map(|rate| format!("{rate:.0}/s")));
        let role = if pod.role == PodRole::Leader { "leader" } else { "standby" };
        let seen = if pod.silent {
            format!("silent for {}", format_long(pod.last_seen_seconds_ago))
        } else {
            "now".to_owned()
        };
        vec![
            pod.id.clone(),
            if_fresh(Some(role.to_owned())),
            if_fresh(Some(pod.producer.clone())),
            if_fresh(Some(pod.consumer.clone())),
            if_fresh(pod.sessions.map(|held| held.to_string())),
            rate(pod.published_per_second),
            rate(pod.applied_per_second),
            seen,
            pod.version.clone(),
            pod.address.clone().unwrap_or_default(),
        ]
    });
    let names =
        ["pod", "role", "producer", "consumer", "sessions", "published", "applied", "seen", "version", "address"];
    write_table(text, &names, &rows.collect::<Vec<_>>());
}

fn write_read_models(text: &mut String, status: &PipelineStatus) {
    let rows = status.read_models.iter().map(|model| {
        vec![
            model.name.clone(),
            or_unknown(model.documents),
            or_unknown(model.applied_seconds_ago.map(|ago| format!("{} ago", format_short(ago)))),
            or_unknown(model.parked_aggregates),
            model.verification.as_ref().map_or_else(|| "never".to_owned(), verification_text),
            or_unknown(model.state.as_deref()),
        ]
    });
    let names = ["read model", "documents", "last applied", "parked", "verified", "state"];
    write_table(text, &names, &rows.collect::<Vec<_>>());
}

fn verification_text(result: &VerificationStatus) -> String {
    let found = match result.different {
        0 => format!("{} equal", result.compared),
        different => format!("{different} of {} differed", result.compared),
    };
    format!("{found}, {} ago", format_long(result.seconds_ago))
}

fn write_terms(text: &mut String, status: &PipelineStatus) {
    let rows =
        status.terms.iter().take(5).map(|term| {
            vec![term.term.to_string(), term.pod.clone(), term.started.to_string(), describe_term_end(term)]
        });
    write_table(text, &["term", "pod", "started", "ended"], &rows.collect::<Vec<_>>());
}

fn describe_term_end(term: &TermStatus) -> String {
    match (term.state, term.ended, term.next_started) {
        (TermState::Ended, Some(ended), _) => ended.to_string(),
        (TermState::Lost, _, Some(next)) => format!("unknown (crashed or lost contact), next term started {next}"),
        (TermState::Lost, ..) => "unknown (crashed or lost contact)".to_owned(),
        (TermState::Current, ..) => "-".to_owned(),
        (TermState::Ended | TermState::Unknown, ..) => UNKNOWN.to_owned(),
    }
}

fn write_problems(text: &mut String, status: &PipelineStatus) {
    if !status.problems.is_empty() {
        text.push('\n');
    }
    for problem in &status.problems {
        let word = if problem.severity == ProblemSeverity::Critical { "critical" } else { "warning" };
        let page = problem.page.as_ref().map_or_else(String::new, |page| format!(" (docs/errors/{page}.md)"));
        let _ = writeln!(text, "{word:<10}{}{page}", problem.text);
    }
}

/// A table after an empty line; nothing if there are no rows.
fn write_table(text: &mut String, names: &[&str], rows: &[Vec<String>]) {
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&render_table(names, rows));
    }
}

fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

fn format_short(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1_000.0) } else { format_long(seconds) }
}

fn format_long(seconds: f64) -> String {
    let whole = seconds as u64;
    match (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use admin::WallTime;
    use admin::status::{CollectionInfo, LeaderStatus, ReadModelStatus};

    use super::*;

    #[test]
    fn the_table_shows_known_and_unknown_values() {
        let mut status = PipelineStatus::unknown("shop", CollectionInfo::default());
        status.leader = Some(LeaderStatus {
            pod: "pod-1".into(),
            term: 4,
            since: None,
            for_seconds: Some(3_725.0),
            heartbeat_seconds_ago: 1.0,
        });
        status.lag.seconds = Some(2.0);
        status.read_models = vec![ReadModelStatus {
            name: "orders".into(),
            documents: Some(12),
            applied_seconds_ago: Some(0.25),
            state: Some("complete".into()),
            verification: Some(VerificationStatus {
                at: WallTime::default(),
                seconds_ago: 61.0,
                by: "ada@desk".into(),
                scope: "a sample of 50".into(),
                compared: 50,
                different: 2,
                repaired: 0,
                skipped: 0,
                kinds: [("different value".to_owned(), 2)].into(),
            }),
            ..ReadModelStatus::default()
        }];
        let term = |term, pod: &str, started, state| TermStatus {
            term,
            pod: pod.into(),
            started: WallTime::from_millis(started),
            ended: None,
            state,
            next_started: None,
        };
        let (started, before) = (1_794_758_400_000, 1_794_754_800_000);
        let next_started = Some(WallTime::from_millis(started));
        status.terms = vec![
            term(4, "pod-1", started, TermState::Current),
            TermStatus { next_started, ..term(3, "pod-0", before, TermState::Lost) },
        ];
        status.subscription.dead_letters = Some(1);
        let expected = "\
pipeline        shop (healthy)
leader          pod-1, term 4, for 1 h 2 min
lag             2 s
to read model   unknown
published       unknown
applied         unknown
oplog headroom  unknown
checkpoint      unknown
sessions        unknown
parked          unknown
rejected        unknown
dead letters    1
read models     unknown
audit           unknown

read model  documents  last applied  parked   verified                         state
orders      12         250 ms ago    unknown  2 of 50 differed, 1 min 1 s ago  complete

term  pod    started                   ended
4     pod-1  2026-11-15T16:00:00.000Z  -
3     pod-0  2026-11-15T15:00:00.000Z  unknown (crashed or lost contact), next term started 2026-11-15T16:00:00.000Z

warning   1 dead letter is on Service Bus
";
        assert_eq!(render_status(&status.evaluated()), expected);
    }

    #[test]
    fn an_unproven_pipeline_is_not_only_healthy() {
        let with_audit = |audit: AuditStatus| PipelineStatus {
            healthy: true,
            audit: Some(audit),
            ..PipelineStatus::unknown("shop", CollectionInfo::default())
        };
        let off = render_status(&with_audit(AuditStatus::new(AuditState::Unaudited)));
        assert!(off.contains("shop (healthy, unaudited)"), "{off}");
        let reason = Some("no sequence".to_owned());
        let impossible =
            render_status(&with_audit(AuditStatus { reason, ..AuditStatus::new(AuditState::Unauditable) }));
        assert!(impossible.contains("shop (healthy, unauditable)"), "{impossible}");
        assert!(impossible.contains("audit           unauditable: no sequence"), "{impossible}");
        let last =
            AuditRound { compared: 9, found: 1, healed: 1, ended_seconds_ago: Some(61.0), ..AuditRound::default() };
        let resting =
            render_status(&with_audit(AuditStatus { last: Some(last), ..AuditStatus::new(AuditState::Resting) }));
        let expected = "audit           last round 1 min 1 s ago: 9 aggregates compared, 1 found, 1 healed";
        assert!(resting.contains(expected), "{resting}");
    }
}
