//! `headwater status` of several pipelines: one line each, then their problems.

use futures_util::future::join_all;
use serde_json::json;

use super::table::{health_text, lag_text, leader_text};
use super::{CLEAR, REFRESH_INTERVAL};
use crate::cli::table::{plural, render_table};
use crate::exit::ExitReason;
use crate::output;
use crate::signal::ShutdownSignal;
use crate::status::{SlowReads, StatusCollector};

pub(super) async fn show(collectors: &[StatusCollector], json: bool, watch: bool) -> anyhow::Result<()> {
    let mut stop = ShutdownSignal::new()?;
    let mut slow: Vec<Option<SlowReads>> = collectors.iter().map(|_| None).collect();
    loop {
        let statuses = tokio::select! {
            () = stop.recv() => return Ok(()),
            // cancel-safe: it only reads
            statuses = join_all(collectors.iter().zip(&mut slow).map(|(collector, slow)| collector.collect(slow))) => statuses,
        };
        let text = render(&statuses, json);
        let printed = output::print(if watch && !json { format!("{CLEAR}{text}") } else { text })?;
        if !watch {
            return check_health(&statuses);
        }
        if !printed {
            return Ok(());
        }
        tokio::select! {
            () = stop.recv() => return Ok(()),
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
        }
    }
}

fn check_health(statuses: &[admin::PipelineStatus]) -> anyhow::Result<()> {
    let unhealthy: Vec<_> =
        statuses.iter().filter(|status| !status.healthy).map(|status| status.pipeline.as_str()).collect();
    if unhealthy.is_empty() {
        return Ok(());
    }
    let names = unhealthy.join("`, `");
    let message = format!("{} of {} pipelines are unhealthy: `{names}`", unhealthy.len(), statuses.len());
    Err(ExitReason::Unhealthy.with_message(message).into())
}

fn render(statuses: &[admin::PipelineStatus], json: bool) -> String {
    if json {
        return format!("{:#}\n", json!({ "pipelines": statuses }));
    }
    let row = |status: &admin::PipelineStatus| {
        let problems = plural(status.problems.len() as u64, "problem");
        [status.pipeline.clone(), health_text(status), leader_text(status), lag_text(status), problems]
    };
    let rows: Vec<_> = statuses.iter().map(row).collect();
    let mut text = render_table(&["PIPELINE", "STATE", "LEADER", "LAG", "PROBLEMS"], &rows);
    for status in statuses {
        for problem in &status.problems {
            text.push_str(&format!("{}: {}\n", status.pipeline, problem.text));
        }
    }
    text
}
