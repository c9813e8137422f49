//! `headwater pause` and `headwater resume`: the producer, the consumer, builds of read models, or one read model.

use anyhow::bail;
use clap::Subcommand;
use pipeline::generation::GenerationStore;
use pipeline::view::Projection;

use super::shared_args::ConfigArgs;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::pauses::{PauseStore, PauseTarget};
use crate::{operator_log, output};

const PAUSE_EXAMPLES: &str = "\
Examples:
  headwater pause producer --reason 'topic is being moved'
  headwater pause consumer
  headwater pause build --reason 'the source is busy'
  headwater pause read-model order_summary --reason 'index build'";

const RESUME_EXAMPLES: &str = "\
Examples:
  headwater resume producer
  headwater resume read-model order_summary";

/// Pause the producer, the consumer, builds of read models or one read model, on all pods.
///
/// The pause is stored, so it holds for pods that restart or take over, until `headwater resume`. Pods obey within a second. `headwater status` reports it as a problem.
/// Nothing is lost: a paused producer continues at its checkpoint (the oplog must still hold it), the events of a paused consumer wait on Service Bus, a paused build continues where it was, and the events of a paused
/// read model wait in order in `parked_events`, while the other read models continue.
#[derive(Debug, clap::Args)]
#[command(after_help = PAUSE_EXAMPLES)]
pub(crate) struct PauseArgs {
    #[command(subcommand)]
    target: PauseCommand,
}

/// Resume what `headwater pause` has paused.
///
/// A read model first applies the events that have waited, in order; `headwater status` shows it as resuming until then.
#[derive(Debug, clap::Args)]
#[command(after_help = RESUME_EXAMPLES)]
pub(crate) struct ResumeArgs {
    #[command(subcommand)]
    target: ResumeCommand,
}

#[derive(Debug, Subcommand)]
enum PauseCommand {
    /// Publish nothing; the leader keeps its lease
    Producer {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        reason: ReasonArgs,
    },
    /// Hold no sessions and apply nothing, on any pod
    Consumer {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        reason: ReasonArgs,
    },
    /// Build no read model: a build in progress stops where it is, and a later one waits. The present read models are not concerned
    Build {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        reason: ReasonArgs,
    },
    /// Leave one read model as it is; its events wait
    ReadModel {
        #[command(flatten)]
        config: ConfigArgs,
        /// Read model
        name: String,
        #[command(flatten)]
        reason: ReasonArgs,
    },
}

#[derive(Debug, Subcommand)]
enum ResumeCommand {
    /// Publish again, from the checkpoint on
    Producer {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Hold sessions again
    Consumer {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Continue builds of read models where they were
    Build {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Apply the events of a read model again, the waiting ones first
    ReadModel {
        #[command(flatten)]
        config: ConfigArgs,
        /// Read model
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct ReasonArgs {
    /// Why, for `headwater status` and `headwater history`
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(crate) async fn pause(args: PauseArgs) -> anyhow::Result<()> {
    let (config, target, reason) = match args.target {
        PauseCommand::Producer { config, reason } => (config.load()?, PauseTarget::Producer, reason),
        PauseCommand::Consumer { config, reason } => (config.load()?, PauseTarget::Consumer, reason),
        PauseCommand::Build { config, reason } => (config.load()?, PauseTarget::Build, reason),
        PauseCommand::ReadModel { config, name, reason } => (config.load()?, PauseTarget::ReadModel(name), reason),
    };
    let store = open(&config).await?;
    if let PauseTarget::ReadModel(name) = &target {
        check_model(&config, name).await?;
    }
    let reason = reason.reason.as_deref();
    if !store.pause(&target, &operator_log::who(), reason).await? {
        bail!(ExitReason::Failed.with_message(format!("{target} is paused already")));
    }
    let detail = reason.map_or_else(|| target.argument(), |reason| format!("{}: {reason}", target.argument()));
    operator_log::record(&config, "pause", &detail).await;
    output::print_line(format_args!(
        "paused {target}; pods obey within a second; continue with: headwater resume {}",
        target.argument()
    ))?;
    Ok(())
}

pub(crate) async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let (config, target) = match args.target {
        ResumeCommand::Producer { config } => (config.load()?, PauseTarget::Producer),
        ResumeCommand::Consumer { config } => (config.load()?, PauseTarget::Consumer),
        ResumeCommand::Build { config } => (config.load()?, PauseTarget::Build),
        ResumeCommand::ReadModel { config, name } => (config.load()?, PauseTarget::ReadModel(name)),
    };
    if !open(&config).await?.resume(&target).await? {
        bail!(ExitReason::Failed.with_message(format!("{target} is not paused")));
    }
    operator_log::record(&config, "resume", &target.argument()).await;
    let more = match target {
        PauseTarget::Producer | PauseTarget::Consumer | PauseTarget::Build => "",
        PauseTarget::ReadModel(_) => {
            "; the leader applies the waiting events now, and `headwater status` shows when it is done"
        }
    };
    output::print_line(format_args!("resumed {target}{more}"))?;
    Ok(())
}

async fn open(config: &Config) -> anyhow::Result<PauseStore> {
    Ok(PauseStore::new(&connect::coordination_database(config, COMMAND_TIMEOUT).await?, &config.pipeline))
}

/// A pause of a name that nobody uses would be obeyed by nobody.
async fn check_model(config: &Config, name: &str) -> anyhow::Result<()> {
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    let generation = GenerationStore::new(&coordination, &config.pipeline).load().await?;
    let is_known = match &generation {
        Some(generation) => generation.serving.contains_key(name),
        None => config.read_models.models.iter().any(|model| model.name() == name),
    };
    if !is_known {
        bail!(ExitReason::Usage.with_message(format!(
            "no read model `{name}` is applied by pods; `headwater read-model list` shows those that are"
        )));
    }
    Ok(())
}
