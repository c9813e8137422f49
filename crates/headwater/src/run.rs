//! One pod: its pipelines, under one signal, one HTTP server and one election thread.
//!
//! [`pipeline`] starts and stops the services of a pipeline, [`supervisor`] starts them again after a failure.

mod pipeline;
mod shutdown;
mod supervisor;

use std::sync::Arc;
use std::time::Duration;

use admin::ServedPipelines;
use anyhow::{Context, bail};
use futures_util::future::join_all;
use lease::ElectionHost;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::{AdminListener, PipelineSlot};
use crate::config::{Config, Deployment};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::exit::ExitReason;
use crate::lease_balance::{LeaseBalancer, PipelineLeases};
use crate::signal::ShutdownSignal;

/// The HTTP server serves when all pipelines have started. A pipeline that waits for a server must not delay it for longer than this.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a pod ended without an error.
pub(crate) enum PodEnd {
    Stopped,
    /// A secret was rotated: run again with this configuration.
    Reconfigured(Box<Deployment>),
}

/// What the pipelines of a pod share.
struct PodContext {
    election: ElectionHost,
    leases: PipelineLeases,
    /// Of the admin server, for other machines.
    address: String,
}

/// Runs until a signal, then stops all pipelines side by side. `/readyz` fails as soon as the stop begins; the HTTP server stops last. A second signal
/// ends the pod at once.
///
/// Ends in the same way with [`PodEnd::Reconfigured`] when `rotated` returns: clients keep their credentials for life.
pub(crate) async fn run_pod(
    Deployment { pipelines, is_list }: Deployment,
    stop: &mut ShutdownSignal,
    rotated: impl Future<Output = Deployment>,
) -> anyhow::Result<PodEnd> {
    let configs: Vec<_> = pipelines.into_iter().map(Arc::new).collect();
    let pod_id = configs[0].pod_id.clone();
    // First: a port that is taken must fail the pod before it touches anything.
    let listener = AdminListener::bind(&configs[0].admin)?;
    let pod = Arc::new(PodContext {
        election: connect::election_host(&configs).await?,
        leases: PipelineLeases::default(),
        address: listener.announced_address(&pod_id),
    });
    let shutdown = CancellationToken::new();
    let slots: Vec<_> = configs.iter().map(|config| Arc::new(PipelineSlot::new(config))).collect();
    let mut running = start_pipelines(&configs, &pod, &slots, &shutdown);
    if configs.len() > 1 {
        let (balancer, pod, shutdown) = (balancer(&configs, &pod).await?, Arc::clone(&pod), shutdown.clone());
        tokio::spawn(async move { balancer.run(&pod.leases, shutdown).await });
    }
    let _ = timeout(START_TIMEOUT, join_all(slots.iter().map(|slot| slot.wait_for_start()))).await;
    if let Some(ended) = running.try_join_next() {
        return ended.context("pipeline task failed")?.map(|()| PodEnd::Stopped);
    }
    let served = ServedPipelines { list: slots.iter().map(PipelineSlot::served).collect(), is_list };
    let mut admin_service = listener.start(served)?;
    let names: Vec<_> = configs.iter().map(|config| config.pipeline.as_str()).collect();
    tracing::info!(pod_id, pipeline = names.join(", "), "pod started");

    let mut result = Ok(PodEnd::Stopped);
    let mut is_signalled = false;
    tokio::select! {
        // cancel-safe: join_next
        Some(ended) = running.join_next() => {
            let stopped = ended.context("pipeline task failed").flatten().map(|()| PodEnd::Stopped);
            if running.is_empty() {
                shutdown.cancel();
                let admin_stopped = admin_service.stop().await;
                return stopped.and_then(|end| admin_stopped.map(|()| end));
            }
            // The other pipelines drain and release their leases.
            result = stopped;
        }
        // A pod without its HTTP server cannot be observed, so it stops.
        error = admin_service.wait_for_failure() => result = Err(error),
        () = stop.recv() => is_signalled = true,
        deployment = rotated => {
            tracing::info!("a secret file has changed; restarting the services of this pod with the new credentials");
            result = Ok(PodEnd::Reconfigured(Box::new(deployment)));
        }
    }
    tracing::info!(pod_id, "stopping");
    slots.iter().for_each(|slot| slot.set_stopping());
    shutdown.cancel();
    let mut failure = None;
    loop {
        tokio::select! {
            // cancel-safe: join_next
            ended = running.join_next() => match ended {
                Some(ended) => failure = failure.or(ended.context("pipeline task failed").flatten().err()),
                None => break,
            },
            () = next_signal(stop, is_signalled) => {
                if is_signalled {
                    bail!(ExitReason::Interrupted.with_message("stopped at once by the second signal"));
                }
                // The stop has begun for another reason. It goes on in order, and after a rotation the pod does not start again.
                is_signalled = true;
                result = result.map(|_| PodEnd::Stopped);
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    admin_service.stop().await?;
    tracing::info!(pod_id, "stopped");
    result
}

fn start_pipelines(
    configs: &[Arc<Config>],
    pod: &Arc<PodContext>,
    slots: &[Arc<PipelineSlot>],
    shutdown: &CancellationToken,
) -> JoinSet<anyhow::Result<()>> {
    let mut running = JoinSet::new();
    for (config, slot) in configs.iter().zip(slots) {
        let (config, pod, slot) = (Arc::clone(config), Arc::clone(pod), Arc::clone(slot));
        running.spawn(supervisor::supervise(config, pod, slot, configs.len() == 1, shutdown.clone()));
    }
    running
}

async fn balancer(configs: &[Arc<Config>], pod: &PodContext) -> anyhow::Result<LeaseBalancer> {
    Ok(LeaseBalancer {
        coordination: connect::coordination_database(&configs[0], SERVER_SELECTION_TIMEOUT).await?,
        pipelines: configs.iter().map(|config| config.pipeline.clone()).collect(),
        pod_id: configs[0].pod_id.clone(),
        spread: pod.election.spread().clone(),
        interval: configs[0].coordination.balance_interval,
    })
}

/// The first signal, or the second one.
async fn next_signal(stop: &mut ShutdownSignal, is_signalled: bool) {
    if is_signalled {
        stop.recv_second().await;
    } else {
        stop.recv().await;
    }
}
