//! The source: a replica set with change streams, an oplog that reaches back far enough, a clock that is ours.

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use pipeline::capture::{self, Capture};
use pipeline::source::SourceKind;

use super::CheckFinding;
use crate::cli::advice::describe_driver_error;
use crate::config::Config;
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::oplog::OplogWindow;

const SECTION: &str = "source";
/// A weekend in which nobody looks.
const MIN_OPLOG_HOURS: f64 = 48.0;
/// Clocks that differ by more make lag and times in logs untrue.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// A set that is younger than this many seconds says nothing yet of its load.
const MIN_OPLOG_SPAN: f64 = 1_800.0;

/// What can be told without asking anybody.
pub(super) fn check_configuration(config: &Config) -> Vec<CheckFinding> {
    let mut findings = vec![];
    let events = config.source.kind == SourceKind::Events;
    if events && config.source.sequence.is_none() {
        let problem = "has no `sequence`: order is kept, and a gap cannot be seen";
        let fix = "if events count per aggregate (1, 2, 3 …), name that field in `source.sequence`";
        findings.push(CheckFinding::note(SECTION, problem, fix));
    }
    if config.read_models.models.is_empty() {
        let fix = "declare some under `read_models`; docs/read-models.md has recipes";
        findings.push(CheckFinding::note("read_models", "none are declared: pods only publish", fix));
    }
    findings
}

/// What the server says.
pub(super) async fn check_source(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    let client = connect::mongo_client(&config.source_uri, "source.uri", SERVER_SELECTION_TIMEOUT).await?;
    let began = DateTime::now();
    let hello = match hello(&client).await {
        Ok(hello) => hello,
        Err(finding) => return Ok(vec![CheckFinding { about: SECTION, ..finding }]),
    };
    let mut findings: Vec<_> = check_clock(&hello, began, DateTime::now()).into_iter().collect();
    if !hello.contains_key("setName") && !is_router(&hello) {
        let fix = "start mongod with `--replSet rs0` and run `rs.initiate()` once; one member is enough";
        findings.push(CheckFinding::error(SECTION, "is a standalone mongod, which has no change streams", fix));
        return Ok(findings);
    }
    findings.extend(check_capture(config, &client).await);
    if is_router(&hello) {
        let fix = "ask each shard: its oplog must outlast the longest time all pods may be away";
        findings.push(CheckFinding::note(SECTION, "is a sharded cluster, whose oplogs cannot be seen from here", fix));
    } else {
        findings.extend(check_oplog(&client).await);
    }
    Ok(findings)
}

/// Greets a server, or says why that cannot be done.
pub(super) async fn hello(client: &Client) -> Result<Document, CheckFinding> {
    client.database("admin").run_command(doc! { "hello": 1 }).await.map_err(|error| {
        let problem = format!("cannot be reached: {}", describe_driver_error(&error.into()));
        CheckFinding::error("", problem, "check host, port, credentials and TLS in the URI, and that the server runs")
    })
}

pub(super) fn is_router(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

/// The same questions a leader asks before it reads.
async fn check_capture(config: &Config, client: &Client) -> Option<CheckFinding> {
    let patient = capture::Config { response_timeout: Duration::from_secs(30), ..config.producer.capture.clone() };
    let capture = Capture::new(client, config.source.clone(), patient);
    let error = capture.check(&config.producer.start).await.err()?;
    let told = mongo_error::ErrorChain(&error).to_string();
    let fix = if told.contains("error 13 ") {
        "grant the user `read` on the source's database (find and changeStream)"
    } else if matches!(error, capture::Error::StartInFuture { .. }) {
        return Some(CheckFinding::error("producer", format!("`producer.start`: {told}"), "mend `producer.start`"));
    } else {
        "mend that; no pod can publish before"
    };
    Some(CheckFinding::error(SECTION, told, fix))
}

fn check_clock(hello: &Document, before: DateTime, after: DateTime) -> Option<CheckFinding> {
    let theirs = hello.get_datetime("localTime").ok()?.timestamp_millis();
    let (before, after) = (before.timestamp_millis(), after.timestamp_millis());
    let skew = (before - theirs).max(theirs - after).max(0);
    let skew = Duration::from_millis(skew.unsigned_abs());
    (skew > MAX_CLOCK_SKEW).then(|| {
        let problem = format!("its clock and this machine's differ by {:.1} s", skew.as_secs_f64());
        let fix = "run a time service (chrony, ntp) on both; who leads does not depend on it, lag and times in logs do";
        CheckFinding::warning(SECTION, problem, fix)
    })
}

/// How long the oplog would reach back if the load stayed as it was.
async fn check_oplog(source: &Client) -> Option<CheckFinding> {
    let unknown = |why: String| {
        let fix = "grant the user `read` on `local`, or watch the oplog window elsewhere";
        Some(CheckFinding::note(
            SECTION,
            format!("the oplog cannot be looked at ({why}), so its window is unknown"),
            fix,
        ))
    };
    match OplogWindow::read(source).await {
        Ok(Some(ends)) => check_oplog_window(&ends),
        Ok(None) => unknown("it says nothing of its time".to_owned()),
        Err(error) => unknown(DriverError::from(error).to_string()),
    }
}

fn check_oplog_window(ends: &OplogWindow) -> Option<CheckFinding> {
    if ends.span() < MIN_OPLOG_SPAN && ends.used < 0.9 * ends.max {
        return None;
    }
    let window = ends.span_when_full() / 3_600.0;
    (window < MIN_OPLOG_HOURS).then(|| {
        let problem = format!("under this load the oplog reaches back {window:.1} h; pods away for longer lose events");
        let fix = "enlarge it: db.adminCommand({ replSetResizeOplog: 1, size: <MB>, minRetentionHours: 72 })";
        CheckFinding::warning(SECTION, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_or_behind_is_told_and_a_slow_answer_is_not() {
        let at = DateTime::from_millis;
        let hello = |millis| doc! { "localTime": at(millis) };
        assert_eq!(check_clock(&hello(105_000), at(100_000), at(110_000)), None, "it was asked for ten seconds");
        assert!(check_clock(&hello(113_000), at(100_000), at(110_000)).unwrap().problem.contains("3.0 s"));
        assert!(check_clock(&hello(90_000), at(100_000), at(110_000)).unwrap().problem.contains("10.0 s"));
    }

    #[test]
    fn an_oplog_is_judged_by_how_long_it_would_last_when_full() {
        let judge = |hours: f64, full| {
            check_oplog_window(&OplogWindow { oldest: 0, newest: (hours * 3_600.0) as u32, used: full, max: 1.0 })
        };
        assert_eq!(judge(0.1, 0.2), None, "too young to tell");
        assert_eq!(judge(10.0, 0.1), None, "a hundred hours, when full");
        assert!(judge(10.0, 0.5).unwrap().problem.contains("20.0 h"));
        assert!(judge(0.2, 0.99).unwrap().problem.contains("0.2 h"));
    }
}
