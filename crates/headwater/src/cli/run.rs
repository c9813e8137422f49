//! `headwater run`: runs one pod.

use std::path::PathBuf;

use crate::config::Config;
use crate::exit;
use crate::signal::StopSignal;

/// Run one pod.
///
/// A pod takes part in the leader election. The leader reads the change stream and publishes every event to the topic. Every pod
/// receives sessions of the subscription and applies their events to the read models. SIGTERM or Ctrl-C stops the pod cleanly: it publishes
/// what it has read, saves the checkpoint, releases the lease, and applies and settles received messages. This takes at most the longer of
/// `producer.drain` and `consumer.drain`, even if a server does not respond. A second signal ends the pod at once; a signal within a quarter of a
/// second of the first counts as the same signal.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// The source of the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file; default: `HEADWATER_CONFIG`, then `./headwater.yaml`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Override one key of file and environment, for example `--set producer.body=json`; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

impl ConfigArgs {
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Config::from_process(self.config.as_deref(), &self.set)
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = StopSignal::new()?;
    crate::run::run_pod(args.config.load()?, stop).await
}
