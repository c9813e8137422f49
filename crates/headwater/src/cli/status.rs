//! `headwater status`: how the whole pipeline is, for people and for programs.

mod table;

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::doc;

use super::run::ConfigArgs;
use crate::connect;
use crate::exit::ExitReason;
use crate::output;
use crate::signal::StopSignal;
use crate::status::StatusCollector;

/// Show how the pipeline is: leader, lag, oplog headroom, pods, read models, and what waits for a person.
///
/// Reads MongoDB, so that it answers while pods are down. Ends with 4 when something is critical: nobody leads, a service waits for an operator, the
/// checkpoint is about to fall off the oplog. Parked and rejected events are warnings, and end with 0.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// As JSON: the document that `/api/status` of every pod answers with.
    #[arg(long)]
    json: bool,

    /// Look again every second, until Ctrl-C or until nobody reads it any more.
    #[arg(long)]
    watch: bool,
}

/// Between two looks.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Shorter than that of other commands: the status of a server that is down is an answer, and the next refresh is due.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Clears the screen and goes to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let dependencies = connect::producer_dependencies(&config, SERVER_SELECTION_TIMEOUT).await?;
    let collector = connect::status_collector(&config, &dependencies, SERVER_SELECTION_TIMEOUT).await?;
    if args.watch { watch(&collector, args.json).await } else { print_once(&collector, args.json).await }
}

/// Why nothing could be read, if it is a server that is away: a look only knows that it saw nothing.
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
    let not_well =
        ExitReason::Unhealthy.with_message(format!("`{}` is not healthy: {critical} critical", status.pipeline));
    let reason = if status.collected.unavailable.is_empty() { None } else { find_unreachable_server(collector).await };
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
            () = stop.recv() => return Ok(()),
            // cancel-safe: it only reads
            status = collector.collect(&mut slow) => status,
        };
        let text = render(&status, json)?;
        // Programs get one document after the other.
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
