//! `headwater run`: one pod.

use std::path::PathBuf;

use crate::config::Config;
use crate::exit;
use crate::signal::StopSignal;

/// Run one pod.
///
/// Takes part in the election; while it leads, it watches the change stream and publishes every event to the topic. Leading or not, it
/// holds sessions of the subscription and keeps the read models in step. SIGTERM or Ctrl-C stops it in order: what was read is sent, the
/// checkpoint saved, the lease given back, what was received applied and settled; for no longer than `producer.drain` and `consumer.drain`, side
/// by side, whatever the servers do. A second signal ends it at once; one within a quarter of a second of the first is taken for the same,
/// passed on twice.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Where the configuration comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file; without it `HEADWATER_CONFIG`, then `./headwater.yaml`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Set one key, whatever file and environment say: `--set producer.body=json`. May be repeated.
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
