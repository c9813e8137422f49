//! `headwater status`: the state of the whole pipeline, as a table or as JSON.

mod pipelines;
mod table;

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::doc;

use super::shared_args::ConfigArgs;
use crate::connect;
use crate::exit::ExitReason;
use crate::output;
use crate::signal::ShutdownSignal;
use crate::status::StatusCollector;

/// Show the state of the pipeline: leader, lag, oplog headroom, pods, read models and problems; of several, one line each.
///
/// Reads MongoDB directly, so it works while pods are down. Exits with 4 if there is a critical problem: no leader, a service that requires operator action,
/// a checkpoint that the oplog will soon no longer hold, missing events that could not be healed, or an audit that is overdue. Parked and rejected events,
/// and missing events that the audit has healed, are warnings, and exit with 0. `unaudited` and `unauditable` say that nobody has looked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Print JSON, the same document as `/api/status` of a pod
    #[arg(long)]
    json: bool,

    /// Refresh every second, until Ctrl-C or until the pipe is closed
    #[arg(long)]
    watch: bool,
}

/// Interval of `--watch`.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Shorter than that of other commands: the status of a server that is down is an answer, and the next refresh is due.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Clears the terminal and moves the cursor to the top left.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut collectors = vec![];
    for config in &args.config.load_all()?.pipelines {
        let dependencies = connect::producer_dependencies(config, SERVER_SELECTION_TIMEOUT).await?;
        collectors.push(connect::status_collector(config, &dependencies, SERVER_SELECTION_TIMEOUT).await?);
    }
    match &collectors[..] {
        [collector] if args.watch => watch(collector, args.json).await,
        [collector] => print_once(collector, args.json).await,
        collectors => pipelines::show(collectors, args.json, args.watch).await,
    }
}

/// The error of the first unreachable server. The status itself only says that values are missing.
async fn find_unreachable_server(collector: &StatusCollector) -> Option<DriverError> {
    for server in [collector.coordination.client(), &collector.source] {
        if let Err(error) = server.database("admin").run_command(doc! { "ping": 1 }).await {
            return Some(error.into());
        }
    }
    None
}

async fn print_once(collector: &StatusCollector, json: bool) -> anyhow::Result<()> {
    let status = collector.collect(&mut None).await;
    output::print(render(&status, json)?)?;
    if status.healthy {
        return Ok(());
    }
    let critical =
        status.problems.iter().filter(|problem| problem.severity == admin::status::ProblemSeverity::Critical).count();
    let noun = if critical == 1 { "problem" } else { "problems" };
    let unhealthy =
        ExitReason::Unhealthy.with_message(format!("`{}` is unhealthy: {critical} critical {noun}", status.pipeline));
    // Ask the servers only if values are missing: a ping of a healthy server says nothing new.
    let reason = if status.collected.unavailable.is_empty() { None } else { find_unreachable_server(collector).await };
    Err(match reason {
        Some(reason) => anyhow::Error::from(reason).context(unhealthy),
        None => unhealthy.into(),
    })
}

async fn watch(collector: &StatusCollector, json: bool) -> anyhow::Result<()> {
    let mut stop = ShutdownSignal::new()?;
    let mut slow = None;
    loop {
        let status = tokio::select! {
            () = stop.recv() => return Ok(()),
            // cancel-safe: it only reads
            status = collector.collect(&mut slow) => status,
        };
        let text = render(&status, json)?;
        // JSON is a stream of documents, without control characters.
        if !output::print(if json { text } else { format!("{CLEAR}{text}") })? {
            return Ok(());
        }
        tokio::select! {
            () = stop.recv() => return Ok(()),
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
        }
    }
}

fn render(status: &admin::PipelineStatus, json: bool) -> anyhow::Result<String> {
    if json { Ok(serde_json::to_string_pretty(status)? + "\n") } else { Ok(table::render_status(status)) }
}
