//! `headwater config`: prints the effective configuration, the reference file and the JSON schema.

use clap::Subcommand;

use super::shared_args::ConfigArgs;
use crate::{config, output};

const EXAMPLES: &str = "\
Examples:
  headwater config reference > headwater.yaml
  headwater config schema > headwater.schema.json
  HEADWATER__SERVICE_BUS__TOPIC=orders headwater config print --set producer.body=json";

/// Print the configuration, its reference or its schema.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings that a pod would run with, from file, environment, flags and defaults; secrets are masked
    Print {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print every key with its default and description: a file to start from
    Reference,
    /// Print the JSON schema, for editors that validate YAML
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
