//! `headwater status`: how the whole pipeline is, for people and for programs.

mod table;

use std::time::Duration;

use clap::Args;
use mongo_error::DriverError;
use mongodb::bson::doc;

use super::run::ConfigArguments;
use crate::exit::Exit;
use crate::out;
use crate::signal::StopSignal;
use crate::status::StatusCollector;

/// Show how the pipeline is: leader, lag, oplog headroom, pods, read models, and what waits for a person.
///
/// Reads MongoDB, so that it answers while pods are down. Ends with 4 when something is critical: nobody leads, a service waits for an operator, the
/// checkpoint is about to fall off the oplog. Parked and rejected events are warnings, and end with 0.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,

    /// As JSON: the document that `/api/status` of every pod answers with.
    #[arg(long)]
    json: bool,

    /// Look again every second, until Ctrl-C or until nobody reads it any more.
    #[arg(long)]
    watch: bool,
}

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Clears the screen and goes to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = arguments.config.load()?;
    let places = crate::run::places(&config, Some(EVERY * 3)).await?;
    let collector = crate::run::status_collector(&config, &places, Some(EVERY * 3)).await?;
    if arguments.watch { watch(&collector, arguments.json).await } else { once(&collector, arguments.json).await }
}

/// Why nothing could be read, if it is a server that is away: a look only knows that it saw nothing.
async fn reason(collector: &StatusCollector) -> Option<DriverError> {
    for server in [collector.coordination.client(), &collector.source] {
        if let Err(error) = server.database("admin").run_command(doc! { "ping": 1 }).await {
            return Some(error.into());
        }
    }
    None
}

async fn once(collector: &StatusCollector, json: bool) -> anyhow::Result<()> {
    let status = collector.collect(&mut None).await;
    out::print(told(&status, json)?)?;
    if status.healthy {
        return Ok(());
    }
    let critical =
        status.problems.iter().filter(|problem| problem.severity == admin::status::ProblemSeverity::Critical).count();
    let not_well = Exit::NotWell.because(format!("`{}` is not healthy: {critical} critical", status.pipeline));
    let reason = if status.collected.unavailable.is_empty() { None } else { reason(collector).await };
    Err(match reason {
        Some(reason) => anyhow::Error::from(reason).context(not_well),
        None => not_well.into(),
    })
}

async fn watch(collector: &StatusCollector, json: bool) -> anyhow::Result<()> {
    let mut stop = StopSignal::new()?;
    let mut slow = None;
    loop {
        let status = tokio::select! {
            () = stop.received() => return Ok(()),
            // cancel-safe: it only reads
            status = collector.collect(&mut slow) => status,
        };
        let text = told(&status, json)?;
        // Programs get one document after the other.
        if !out::print(if json { text } else { format!("{CLEAR}{text}") })? {
            return Ok(());
        }
        tokio::select! {
            () = stop.received() => return Ok(()),
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

fn told(status: &admin::PipelineStatus, json: bool) -> anyhow::Result<String> {
    if json { Ok(serde_json::to_string_pretty(status)? + "\n") } else { Ok(table::of(status)) }
}
