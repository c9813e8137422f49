//! `headwater config`: what a pod would run with, and every key there is.

use clap::{Args, Subcommand};

use super::run::ConfigArguments;
use crate::{config, out};

const EXAMPLES: &str = "\
Examples:
  headwater config reference > headwater.yaml
  headwater config schema > headwater.schema.json
  HEADWATER__SERVICE_BUS__TOPIC=orders headwater config print --set producer.body=json";

/// Show the configuration.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a pod would run with: file, environment and flags together, defaults included; passwords, keys and tokens masked.
    Print {
        #[command(flatten)]
        config: ConfigArguments,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print every key with its default and its reason: a file to start from.
    Reference,
    /// Print a JSON schema, for editors that check YAML as it is written.
    Schema,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = match &arguments.command {
        Command::Print { config, json } => {
            let effective = config::effective(config.config.as_deref(), &config.set)?;
            if *json { format!("{:#}\n", effective.to_json()) } else { effective.to_yaml() }
        }
        Command::Reference => config::reference_file(),
        Command::Schema => format!("{:#}\n", config::json_schema()),
    };
    out::print(text)?;
    Ok(())
}
