//! After the faults: what an operator paused is resumed, the last rollout is completed, and the pipeline catches up.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pipeline::audit::AuditStore;
use pipeline::generation::{GenerationStage, GenerationStore};
use testkit::checker::Checker;
use testkit::cluster::TestCluster;

use super::{ChaosOptions, Error, PIPELINE};
use crate::soak::audit_soak::wait_for_a_clean_round;
use crate::soak::consumer_soak::{ApplyProgress, wait_until_applied};
use crate::soak::drain::RunEnd;

const RESUME_TIMEOUT: Duration = Duration::from_secs(60);
const GENERATION_TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What the nemesis pauses.
const RESUMES: [&[&str]; 3] = [&["resume", "producer"], &["resume", "consumer"], &["resume", "read-model", "chain"]];

/// The read models that must serve in the end.
pub(super) struct WantedModels {
    pub(super) generations: GenerationStore,
    pub(super) names: BTreeSet<String>,
}

/// How the pipeline ended; an error says what did not happen in time, which counts as stalled.
pub(super) async fn settle(
    cluster: &mut TestCluster,
    options: &ChaosOptions,
    wanted: WantedModels,
    checker: &Checker,
    progress: &ApplyProgress,
) -> Result<RunEnd, String> {
    let text = |error: Error| error.to_string();
    cluster.command_results().await;
    if cluster.rollout_count() > 0 {
        cluster.finish_rollout().await.map_err(|error| error.to_string())?;
    }
    resume_all(cluster).await?;
    wait_for_generation(cluster, &wanted).await?;
    let (written, stall_timeout) = (Instant::now(), options.base.stall_timeout);
    let (end, _) = wait_until_applied(cluster, checker, progress, stall_timeout, written).await.map_err(text)?;
    if !options.audit {
        return Ok(end);
    }
    // The audit applies what Service Bus lost; the last round finds nothing.
    let audits = AuditStore::new(&cluster.coordination(), PIPELINE);
    wait_for_a_clean_round(cluster, &audits).await.map_err(text)?;
    let (end, _) = wait_until_applied(cluster, checker, progress, stall_timeout, written).await.map_err(text)?;
    Ok(end)
}

/// A pause may have been stored after its resume.
async fn resume_all(cluster: &mut TestCluster) -> Result<(), String> {
    for arguments in RESUMES {
        let began = Instant::now();
        loop {
            let result = cluster.run_command(arguments).await.map_err(|error| error.to_string())?;
            if result.is_success() || result.tail.contains("is not paused") {
                break;
            }
            if began.elapsed() > RESUME_TIMEOUT {
                return Err(format!("`{}` fails: {}", arguments.join(" "), result.tail));
            }
            cluster.restart_exited_pods().map_err(|error| error.to_string())?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

async fn wait_for_generation(cluster: &mut TestCluster, wanted: &WantedModels) -> Result<(), String> {
    let began = Instant::now();
    loop {
        cluster.restart_exited_pods().map_err(|error| error.to_string())?;
        let stored = wanted.generations.load().await;
        if let Ok(Some(generation)) = &stored
            && generation.stage == GenerationStage::Active
            && generation.serving.keys().cloned().collect::<BTreeSet<_>>() == wanted.names
        {
            return Ok(());
        }
        if began.elapsed() > GENERATION_TIMEOUT {
            return Err(format!("the last rollout does not serve after {GENERATION_TIMEOUT:?}: {stored:?}"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
