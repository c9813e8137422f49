//! The command line: one file per command.

pub(crate) mod advice;
mod audit;
mod broker;
mod check;
mod checkpoint;
mod completions;
mod config;
mod dead_letters;
mod dev;
mod erase;
mod explain;
mod history;
mod man;
mod parked;
mod pause;
pub(crate) mod read_model;
mod rejected;
mod run;
mod shared_args;
mod status;
mod step_down;
mod table;
pub(crate) mod topology;
mod version;
mod wait;

use clap::{Parser, Subcommand};

use crate::exit;

const GETTING_STARTED: &str = "\
Getting started:
  headwater dev                                    try everything on this machine, without any setup
  headwater config reference > headwater.yaml      write a configuration file to start from
  headwater topology apply && headwater check      create topic and subscription, then check the setup
  headwater run                                    run one pod; start as many as you need";

/// Keep MongoDB read models in step with a MongoDB event store, through Azure Service Bus.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, after_help = format!("{GETTING_STARTED}\n\n{}", exit::HELP))]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Dev(dev::Args),
    Run(run::Args),
    Broker(broker::Args),
    Check(check::Args),
    Topology(topology::Args),
    Parked(parked::Args),
    Audit(audit::Args),
    ReadModel(read_model::Args),
    Rejected(rejected::Args),
    DeadLetters(dead_letters::Args),
    Explain(explain::Args),
    Wait(wait::Args),
    Erase(erase::Args),
    History(history::Args),
    Status(status::Args),
    Checkpoint(checkpoint::Args),
    StepDown(step_down::Args),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
    Version(version::Args),
}

impl CliCommand {
    /// The log level if `RUST_LOG` is not set: a pod logs what it does, a command logs only problems.
    pub(crate) fn log_filter(&self) -> &'static str {
        if matches!(self, Self::Run(_)) { "info" } else { "warn" }
    }
}

pub(crate) async fn run(command: CliCommand) -> anyhow::Result<()> {
    match command {
        CliCommand::Dev(args) => dev::run(args).await,
        CliCommand::Run(args) => Box::pin(run::run(args)).await,
        CliCommand::Broker(args) => broker::run(args).await,
        CliCommand::Check(args) => check::run(args).await,
        CliCommand::Topology(args) => topology::run(args).await,
        CliCommand::Parked(args) => parked::run(args).await,
        CliCommand::Audit(args) => audit::run(args).await,
        CliCommand::ReadModel(args) => read_model::run(args).await,
        CliCommand::Rejected(args) => Box::pin(rejected::run(args)).await,
        CliCommand::DeadLetters(args) => Box::pin(dead_letters::run(args)).await,
        CliCommand::Explain(args) => explain::run(args).await,
        CliCommand::Wait(args) => wait::run(args).await,
        CliCommand::Erase(args) => Box::pin(erase::run(args)).await,
        CliCommand::History(args) => history::run(args).await,
        CliCommand::StepDown(args) => step_down::run(args).await,
        CliCommand::Pause(args) => pause::pause(args).await,
        CliCommand::Resume(args) => pause::resume(args).await,
        CliCommand::Status(args) => status::run(args).await,
        CliCommand::Checkpoint(args) => checkpoint::run(args).await,
        CliCommand::Config(args) => config::run(&args),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
        CliCommand::Version(args) => version::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
