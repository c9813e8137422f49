//! The command line: one file per command.

mod broker;
mod checkpoint;
mod config;
mod dev;
mod run;
mod status;

use clap::{Parser, Subcommand};

/// MongoDB read models in step with a MongoDB event store, through Azure Service Bus.
#[derive(Debug, Parser)]
#[command(name = "headwater", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(dev::Arguments),
    Run(run::Arguments),
    Broker(broker::Arguments),
    Status(status::Arguments),
    Checkpoint(checkpoint::Arguments),
    Config(config::Arguments),
}

impl Command {
    /// What is logged when `RUST_LOG` says nothing: a pod tells its story, a command only what goes wrong.
    pub(crate) fn log_filter(&self) -> &'static str {
        match self {
            Self::Run(_) => "info",
            Self::Dev(_) | Self::Broker(_) | Self::Status(_) | Self::Checkpoint(_) | Self::Config(_) => "warn",
        }
    }
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(arguments) => dev::run(arguments).await,
        Command::Run(arguments) => run::run(arguments).await,
        Command::Broker(arguments) => broker::run(arguments).await,
        Command::Status(arguments) => status::run(arguments).await,
        Command::Checkpoint(arguments) => checkpoint::run(arguments).await,
        Command::Config(arguments) => config::run(&arguments),
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
