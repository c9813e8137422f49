//! `headwater run`: runs one pod.

use super::shared_args::ConfigArgs;
use crate::exit;
use crate::signal::ShutdownSignal;

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

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = ShutdownSignal::new()?;
    // Boxed: the future is large, and every command would carry its size.
    Box::pin(crate::run::run_pod(args.config.load()?, stop)).await
}
