//! `headwater run`: runs one pod.

use futures_util::FutureExt;

use super::shared_args::ConfigArgs;
use crate::config::Deployment;
use crate::exit;
use crate::run::PodEnd;
use crate::secret_files::{self, SecretFiles};
use crate::signal::ShutdownSignal;

/// Run one pod.
///
/// A pod takes part in the leader election. The leader reads the change stream and publishes every event to the topic. Every pod
/// receives sessions of the subscription and applies their events to the read models. SIGTERM or Ctrl-C stops the pod cleanly: it publishes
/// what it has read, saves the checkpoint, releases the lease, and applies and settles received messages. This takes at most the longer of
/// `producer.drain` and `consumer.drain`, even if a server does not respond. Several pipelines of one configuration run side by side; one that fails
/// starts again by itself. A second signal ends the pod at once; a signal within a quarter of a
/// second of the first counts as the same signal.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut stop = ShutdownSignal::new()?;
    // Hashed before the load that is used: what changes in between is noticed.
    let mut files = SecretFiles::new(&args.config.load_all()?.secret_files());
    let mut deployment = args.config.load_all()?;
    loop {
        // The same files throughout: a secret that changes while the services stop is noticed, too.
        files.watch(&deployment.secret_files());
        let rotated = wait_for_rotation(&args.config, &mut files, deployment.pipelines[0].pod_id.clone());
        // Boxed: the future is large, and every command would carry its size.
        match Box::pin(crate::run::run_pod(deployment, &mut stop, rotated)).await? {
            PodEnd::Stopped => return Ok(()),
            // A signal that came when the services had just stopped: they do not start again.
            PodEnd::Reconfigured(_) if stop.recv().now_or_never().is_some() => return Ok(()),
            PodEnd::Reconfigured(rotated) => deployment = *rotated,
        }
    }
}

/// The configuration after a secret file has changed, if it is valid then.
async fn wait_for_rotation(args: &ConfigArgs, files: &mut SecretFiles, pod_id: String) -> Deployment {
    let mut last_error = None;
    loop {
        // After a failure without waiting for another change: the reason may pass.
        match last_error {
            None => files.changed().await,
            Some(_) => tokio::time::sleep(secret_files::INTERVAL).await,
        }
        match args.load_all() {
            Ok(mut deployment) => {
                // Without HOSTNAME the id is random.
                deployment.pipelines.iter_mut().for_each(|config| config.pod_id.clone_from(&pod_id));
                return deployment;
            }
            Err(error) => {
                let error = format!("{error:#}");
                if last_error.as_ref() != Some(&error) {
                    tracing::error!(
                        error,
                        "a secret file has changed, but the configuration is not valid; keeping the present credentials and retrying"
                    );
                }
                last_error = Some(error);
            }
        }
    }
}
