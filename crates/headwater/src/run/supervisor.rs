//! Keeps one pipeline of a pod running. A pipeline that fails starts again by itself, and does not stop the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::PodContext;
use super::pipeline::run_pipeline;
use crate::admin::PipelineSlot;
use crate::config::Config;
use crate::exit::ExitReason;

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// Runs until `shutdown`. If it is the only pipeline of the pod, it also ends with its services: Kubernetes then restarts the pod, and shows that it
/// failed. So it does if services do not stop in time.
pub(super) async fn supervise(
    config: Arc<Config>,
    pod: Arc<PodContext>,
    slot: Arc<PipelineSlot>,
    is_only: bool,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut backoff = FIRST_BACKOFF;
    loop {
        let started = Instant::now();
        let services_shutdown = shutdown.child_token();
        // Boxed: the future is large.
        let mut services = Box::pin(run_pipeline(&config, &pod, &slot, services_shutdown.clone()));
        let result = tokio::select! {
            // cancel-safe: polled again below
            ended = &mut services => ended,
            // Also the services themselves end it, if one of them cannot go on. The others then drain, which takes a while.
            () = services_shutdown.cancelled() => {
                if is_only { slot.set_stopping() } else { slot.set_draining() }
                services.await
            }
        };
        // Whatever has started stops, even if something else could not start.
        services_shutdown.cancel();
        // Services that did not stop still renew the lease. Only the end of the process ends them, so that another pod can lead.
        let is_overdue = result.as_ref().is_err_and(|error| ExitReason::from_error(error) == ExitReason::Overdue);
        if is_only || is_overdue || shutdown.is_cancelled() {
            slot.set_stopping();
            return result;
        }
        let reason = match result {
            Ok(()) => "its services ended".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if started.elapsed() > LONGEST_BACKOFF {
            backoff = FIRST_BACKOFF;
        }
        tracing::error!(
            pipeline = config.pipeline,
            error = reason,
            "pipeline failed; the other pipelines go on, and it starts again in {backoff:?}"
        );
        slot.set_failed(&reason, backoff);
        if shutdown.run_until_cancelled(tokio::time::sleep(backoff)).await.is_none() {
            return Ok(());
        }
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}
