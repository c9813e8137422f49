//! `headwater config`: what a pod would run with, and every key there is.

use clap::Subcommand;

use super::run::ConfigArgs;
use crate::{config, output};

const EXAMPLES: &str = "\
Examples:
  headwater config reference > headwater.yaml
  headwater config schema > headwater.schema.json
  HEADWATER__SERVICE_BUS__TOPIC=orders headwater config print --set producer.body=json";

/// Show the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print what a pod would run with: file, environment and flags together, defaults included; passwords, keys and tokens masked.
    Print {
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print every key with its default and its reason: a file to start from.
    Reference,
    /// Print a JSON schema, for editors that check YAML as it is written.
    Schema,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let text = match &args.command {
        ConfigCommand::Print { config, json } => {
            let effective = config::effective_config(config.config.as_deref(), &config.set)?;
            if *json { format!("{:#}\n", effective.to_json()) } else { effective.to_yaml() }
        }
        ConfigCommand::Reference => config::reference_file(),
        ConfigCommand::Schema => format!("{:#}\n", config::json_schema()),
    };
    output::print(text)?;
    Ok(())
}
