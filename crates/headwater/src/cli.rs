//! The command line: one file per command.

mod broker;
mod dev;

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
    Broker(broker::Arguments),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(arguments) => dev::run(arguments).await,
        Command::Broker(arguments) => broker::run(arguments).await,
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
