//! The way back to a binary from before read models had generations: once the fence is up, such a pod must not apply events, and must say so.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use mongodb::bson::doc;
use testkit::cluster::TestCluster;
use testkit::wait::try_wait_for;

use super::{Error, RolloutSoakOptions, wait_until_ready};
use crate::soak::stop_soak::{RunningSoak, SoakComparison};

/// The definition that the upgrade adds: the first change raises the fence.
const ADDED_MODEL: &str = "placed: { when: { OrderPlaced: { $inc: { placed: 1 } } } }";
const CURSORS: &str = "_headwater_cursors";
/// The fence waits until no older pod has announced itself for a minute, and the build takes a while.
const FENCE_TIMEOUT: Duration = Duration::from_secs(240);
const HALT_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a run.
pub struct BeforeFenceResult {
    comparison: SoakComparison,
    /// What the older pod logged as warning or error.
    reported: Vec<String>,
    /// Whether the older pod was not ready.
    is_unready: bool,
}

impl BeforeFenceResult {
    /// Whether the older pod stopped and said why, and nothing was lost or applied twice.
    pub fn is_clean(&self) -> bool {
        let SoakComparison { topic, applied, differences, is_stalled, fence_breaches, .. } = &self.comparison;
        let is_correct = topic.is_clean() && applied.is_clean() && differences.is_empty() && *fence_breaches == 0;
        is_correct && !is_stalled && self.is_unready && !self.reported.is_empty()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "rollouts-before-fence",
            "clean": self.is_clean(),
            "acknowledged": self.comparison.topic.counts.acknowledged,
            "unready": self.is_unready,
            "reported": self.reported.len(),
            "differences": self.comparison.differences.len(),
        })
    }
}

impl fmt::Display for BeforeFenceResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SoakComparison { topic, applied, differences, .. } = &self.comparison;
        writeln!(f, "on the topic: {topic}")?;
        writeln!(f, "applied: {applied}")?;
        write!(f, "the older pod was {}; it reported:", if self.is_unready { "not ready" } else { "ready" })?;
        self.reported.iter().take(5).try_for_each(|line| write!(f, "\n  {line}"))?;
        differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))
    }
}

/// Starts with the older binary, upgrades with a further read model, waits for the fence, takes one pod back, and upgrades it again.
pub async fn run_before_fence(
    binary: &Path,
    older: &Path,
    options: &RolloutSoakOptions,
) -> Result<BeforeFenceResult, Error> {
    let mut base = options.base.clone();
    base.added_model = Some(ADDED_MODEL.to_owned());
    let mut soak = RunningSoak::start(binary, Some(older), &base).await?;
    for pod in 0..base.pods {
        wait_until_ready(&soak.cluster, pod).await?;
    }
    // The upgrade stores the read models as they are; the next rollout changes them.
    for pod in (0..base.pods).rev() {
        soak.cluster.pod_mut(pod).set_executable(binary);
        soak.cluster.restart_pod(pod).await?;
        wait_until_ready(&soak.cluster, pod).await?;
    }
    soak.cluster.roll_out().await?;
    wait_for_fence(&soak.cluster).await?;
    if base.verbose {
        println!("the fence is up");
    }

    let back = base.pods - 1;
    soak.cluster.pod_mut(back).set_executable(older);
    soak.cluster.restart_pod(back).await?;
    let unready = async || {
        let metrics = soak.cluster.pod(back).metrics().await.ok_or("no reply")?;
        let is_consuming = metrics.value("headwater_service_ready{service=\"consumer\"}") == 1;
        if is_consuming { Err("ready") } else { Ok(()) }
    };
    let is_unready = try_wait_for("the older pod to be unready", HALT_TIMEOUT, unready).await.is_ok();
    let reported =
        try_wait_for("the older pod to report it", HALT_TIMEOUT, async || match problems_of(&soak.cluster, back) {
            lines if lines.is_empty() => Err("no warning and no error"),
            lines => Ok(lines),
        });
    let reported = reported.await.unwrap_or_default();
    soak.cluster.pod_mut(back).set_executable(binary);
    soak.cluster.restart_pod(back).await?;
    wait_until_ready(&soak.cluster, back).await?;
    Ok(BeforeFenceResult { comparison: soak.finish(&base).await?, reported, is_unready })
}

/// Warnings and errors of a pod that are about cursors.
fn problems_of(cluster: &TestCluster, pod: usize) -> Vec<String> {
    let lines = cluster.pod(pod).process().map(|process| process.lines()).unwrap_or_default();
    let is_problem = |text: &str| {
        (text.contains("\"level\":\"WARN\"") || text.contains("\"level\":\"ERROR\"")) && text.contains("cursor")
    };
    lines.into_iter().map(|line| line.text).filter(|text| is_problem(text)).collect()
}

/// Waits until the collection of cursors refuses what an older pod writes.
async fn wait_for_fence(cluster: &TestCluster) -> Result<(), Error> {
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    let fenced = async || {
        let listed = views.run_command(doc! { "listCollections": 1, "filter": { "name": CURSORS } }).await;
        let listed = listed.map_err(|error| error.to_string())?;
        let text = listed.to_string();
        if text.contains("validator") { Ok(()) } else { Err(text) }
    };
    Ok(try_wait_for("the fence", FENCE_TIMEOUT, fenced).await?)
}
