//! The command line: one file per command.

pub(crate) mod advice;
mod broker;
mod check;
mod checkpoint;
mod completions;
mod config;
mod dev;
mod parked;
mod run;
mod status;
mod step_down;
mod table;
pub(crate) mod topology;

use clap::{Parser, Subcommand};

use crate::exit;

const BEGIN: &str = "\
To begin:
  headwater dev                                    see it work, with nothing set up before
  headwater config reference > headwater.yaml      a file to start from, for your own events
  headwater topology apply && headwater check      topic and subscription; what is still to be mended
  headwater run                                    one pod; start as many as you like";

/// MongoDB read models in step with a MongoDB event store, through Azure Service Bus.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, after_help = format!("{BEGIN}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(dev::Arguments),
    Run(run::Arguments),
    Broker(broker::Arguments),
    Check(check::Arguments),
    Topology(topology::Arguments),
    Parked(parked::Arguments),
    Status(status::Arguments),
    Checkpoint(checkpoint::Arguments),
    StepDown(step_down::Arguments),
    Config(config::Arguments),
    Completions(completions::Arguments),
}

impl Command {
    /// What is logged when `RUST_LOG` says nothing: a pod tells its story, a command only what goes wrong.
    pub(crate) fn log_filter(&self) -> &'static str {
        match self {
            Self::Run(_) => "info",
            Self::Dev(_)
            | Self::Broker(_)
            | Self::Check(_)
            | Self::Topology(_)
            | Self::Status(_)
            | Self::Parked(_)
            | Self::Checkpoint(_)
            | Self::StepDown(_)
            | Self::Config(_)
            | Self::Completions(_) => "warn",
        }
    }
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(arguments) => dev::run(arguments).await,
        Command::Run(arguments) => run::run(arguments).await,
        Command::Broker(arguments) => broker::run(arguments).await,
        Command::Check(arguments) => check::run(arguments).await,
        Command::Topology(arguments) => topology::run(arguments).await,
        Command::Parked(arguments) => parked::run(arguments).await,
        Command::StepDown(arguments) => step_down::run(arguments).await,
        Command::Status(arguments) => status::run(arguments).await,
        Command::Checkpoint(arguments) => checkpoint::run(arguments).await,
        Command::Config(arguments) => config::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
