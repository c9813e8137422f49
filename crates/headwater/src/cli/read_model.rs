//! `headwater read-model`: lists read models, accepts one that lacks events, and compares one with the source.

mod junit;
mod preview;
mod test;
mod test_file;
mod verify;

use anyhow::bail;
use clap::Subcommand;
use pipeline::view::Projection;
use serde_json::{Value as Json, json};

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::render_table;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::parked::format_time;
use crate::read_model_records::{ReadModelRecord, ReadModelRecordStore};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater read-model list
  headwater read-model verify order_summary --all
  headwater read-model accept order_summary --yes";

/// List and verify read models, and accept one that lacks events.
///
/// A read model that is added or changed after events have been applied lacks those events, or holds them as the earlier declaration had it: it is
/// incomplete, and `status` is not healthy. Build it anew under another pipeline name, or `accept` it if its past does not matter.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ReadModelCommand,
}

#[derive(Debug, Subcommand)]
enum ReadModelCommand {
    /// List the read models of the configuration: complete, or why not and since when
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Record that a read model is complete: it was built by other means, or its past does not matter
    Accept {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name of the read model
        name: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    Verify(verify::Args),
    Test(test::Args),
    Preview(preview::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        ReadModelCommand::List { config, json } => list(&config.load()?, json).await,
        ReadModelCommand::Accept { config, name, confirm } => accept(&config.load()?, &name, &confirm).await,
        ReadModelCommand::Verify(args) => verify::run(args).await,
        ReadModelCommand::Test(args) => test::run(args).await,
        ReadModelCommand::Preview(args) => preview::run(args).await,
    }
}

async fn open(config: &Config) -> anyhow::Result<ReadModelRecordStore> {
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    Ok(ReadModelRecordStore::new(&coordination, &config.pipeline))
}

async fn list(config: &Config, json: bool) -> anyhow::Result<()> {
    let records = open(config).await?.load().await?;
    let models = config.read_models.models.iter().map(|model| (model.name(), records.get(model.name())));
    if json {
        output::print_json(&models.map(|(name, record)| to_json(name, record)).collect::<Json>())?;
        return Ok(());
    }
    let rows: Vec<_> = models.map(|(name, record)| to_row(name, record)).collect();
    output::print_line(render_table(&["read model", "state", "since"], &rows).trim_end())?;
    Ok(())
}

fn to_json(name: &str, record: Option<&ReadModelRecord>) -> Json {
    let (state, incomplete) = (state(record), record.and_then(|record| record.incomplete));
    let reason = incomplete.map(|(reason, _)| reason.to_string());
    json!({ "name": name, "state": state, "reason": reason, "since": incomplete.map(|(_, since)| format_time(since)) })
}

fn to_row(name: &str, record: Option<&ReadModelRecord>) -> [String; 3] {
    match record.and_then(|record| record.incomplete) {
        Some((reason, since)) => [name.to_owned(), format!("incomplete: {reason}"), format_time(since)],
        None => [name.to_owned(), state(record).to_owned(), String::new()],
    }
}

fn state(record: Option<&ReadModelRecord>) -> &'static str {
    match record {
        None => "unknown",
        Some(record) if record.incomplete.is_some() => "incomplete",
        Some(_) => "complete",
    }
}

async fn accept(config: &Config, name: &str, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let records = open(config).await?;
    match records.load().await?.get(name) {
        None => bail!(ExitReason::Usage.with_message(format!(
            "no pod has recorded a read model `{name}`; `headwater read-model list` shows those of the configuration"
        ))),
        Some(record) if record.incomplete.is_none() => {
            output::print_line(format_args!("`{name}` is complete: nothing to do"))?;
            return Ok(());
        }
        Some(_) => {}
    }
    confirm.require(&format!("records that read model `{name}` is complete, although it may lack events"))?;
    records.accept(name).await?;
    operator_log::record(config, "read-model accept", &format!("`{name}`")).await;
    output::print_line(format_args!("accepted: `{name}` counts as complete"))?;
    Ok(())
}
