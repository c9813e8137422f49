//! Checks the source: a replica set with change streams, a long enough oplog, and a clock in step with ours.

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
/// A weekend without anybody on call.
const MIN_OPLOG_HOURS: f64 = 48.0;
/// A larger skew makes lag and times in logs wrong.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// In seconds. A younger replica set does not show its usual load yet.
const MIN_OPLOG_SPAN: f64 = 1_800.0;

/// Checks the configuration alone.
pub(super) fn check_configuration(config: &Config) -> Vec<CheckFinding> {
    let mut findings = vec![];
    let events = config.source.kind == SourceKind::Events;
    if events && config.source.sequence.is_none() {
        let problem = "has no `sequence`: events stay in order, but gaps cannot be detected";
        let fix = "if events are numbered per aggregate (1, 2, 3 …), set `source.sequence` to that field";
        findings.push(CheckFinding::note(SECTION, problem, fix));
    }
    if config.read_models.models.is_empty() {
        let fix = "declare read models under `read_models`; docs/read-models.md has recipes";
        findings.push(CheckFinding::note("read_models", "no read model is declared: pods only publish", fix));
    }
    findings
}

/// Checks the server.
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
        let fix = "check every shard: its oplog must cover the longest time without a running pod";
        findings.push(CheckFinding::note(
            SECTION,
            "is a sharded cluster, whose oplogs cannot be read through mongos",
            fix,
        ));
    } else {
        findings.extend(check_oplog(&client).await);
    }
    Ok(findings)
}

/// Runs `hello`, or returns a finding that says why the server cannot be reached.
pub(super) async fn hello(client: &Client) -> Result<Document, CheckFinding> {
    client.database("admin").run_command(doc! { "hello": 1 }).await.map_err(|error| {
        let problem = format!("cannot be reached: {}", describe_driver_error(&error.into()));
        CheckFinding::error("", problem, "check host, port, credentials and TLS in the URI, and that the server runs")
    })
}

pub(super) fn is_router(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

/// The checks that a leader makes before it reads.
async fn check_capture(config: &Config, client: &Client) -> Option<CheckFinding> {
    let config_with_timeout =
        capture::Config { response_timeout: Duration::from_secs(30), ..config.producer.capture.clone() };
    let capture = Capture::new(client, config.source.clone(), config_with_timeout);
    let error = capture.check(&config.producer.start).await.err()?;
    let text = mongo_error::ErrorChain(&error).to_string();
    let fix = if text.contains("error 13 ") {
        "grant the user `read` on the source database (find and changeStream)"
    } else if matches!(error, capture::Error::StartInFuture { .. }) {
        return Some(CheckFinding::error("producer", format!("`producer.start`: {text}"), "fix `producer.start`"));
    } else {
        "fix the cause; until then no pod can publish"
    };
    Some(CheckFinding::error(SECTION, text, fix))
}

fn check_clock(hello: &Document, before: DateTime, after: DateTime) -> Option<CheckFinding> {
    let theirs = hello.get_datetime("localTime").ok()?.timestamp_millis();
    let (before, after) = (before.timestamp_millis(), after.timestamp_millis());
    // The server read its clock between the two readings of ours; only a time outside them is skew.
    let skew = (before - theirs).max(theirs - after).max(0);
    let skew = Duration::from_millis(skew.unsigned_abs());
    (skew > MAX_CLOCK_SKEW).then(|| {
        let problem = format!("its clock differs from that of this machine by {:.1} s", skew.as_secs_f64());
        let fix = "run a time service (chrony, ntp) on both; leader election does not depend on it, but lag and times in logs do";
        CheckFinding::warning(SECTION, problem, fix)
    })
}

/// How far the oplog would reach back with the load so far.
async fn check_oplog(source: &Client) -> Option<CheckFinding> {
    let unknown = |why: String| {
        let fix = "grant the user `read` on `local`, or monitor the oplog window by other means";
        Some(CheckFinding::note(SECTION, format!("the oplog cannot be read ({why}), so its window is unknown"), fix))
    };
    match OplogWindow::read(source).await {
        Ok(Some(ends)) => check_oplog_window(&ends),
        Ok(None) => unknown("it has no timestamps".to_owned()),
        Err(error) => unknown(DriverError::from(error).to_string()),
    }
}

fn check_oplog_window(ends: &OplogWindow) -> Option<CheckFinding> {
    // A full oplog shows the load even if it is young.
    if ends.span() < MIN_OPLOG_SPAN && ends.used < 0.9 * ends.max {
        return None;
    }
    let window = ends.span_when_full() / 3_600.0;
    (window < MIN_OPLOG_HOURS).then(|| {
        let problem = format!(
            "with the current load the oplog covers {window:.1} h; after a longer downtime of all pods events are lost"
        );
        let fix = "enlarge it: db.adminCommand({ replSetResizeOplog: 1, size: <MB>, minRetentionHours: 72 })";
        CheckFinding::warning(SECTION, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_skew_is_reported_and_a_slow_reply_is_not() {
        let at = DateTime::from_millis;
        let hello = |millis| doc! { "localTime": at(millis) };
        assert_eq!(check_clock(&hello(105_000), at(100_000), at(110_000)), None, "the request took ten seconds");
        assert!(check_clock(&hello(113_000), at(100_000), at(110_000)).unwrap().problem.contains("3.0 s"));
        assert!(check_clock(&hello(90_000), at(100_000), at(110_000)).unwrap().problem.contains("10.0 s"));
    }

    #[test]
    fn the_oplog_window_is_that_of_a_full_oplog() {
        let check = |hours: f64, full| {
            check_oplog_window(&OplogWindow { oldest: 0, newest: (hours * 3_600.0) as u32, used: full, max: 1.0 })
        };
        assert_eq!(check(0.1, 0.2), None, "too young");
        assert_eq!(check(10.0, 0.1), None, "a hundred hours, when full");
        assert!(check(10.0, 0.5).unwrap().problem.contains("20.0 h"));
        assert!(check(0.2, 0.99).unwrap().problem.contains("0.2 h"));
    }
}
