//! What happened when: events written and applied, and who led, several times a second.

use std::sync::Arc;
use std::time::Duration;

use testkit::checker::Checker;
use testkit::cluster::CoordinationObserver;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::soak::consumer_soak::ApplyProgress;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// One moment of a run.
#[derive(Clone, Debug)]
pub struct TimelineSample {
    pub at: Instant,
    pub acknowledged: u64,
    pub applied: u64,
    /// The pod that took the lease last, and its term.
    pub leader: Option<(String, i64)>,
}

/// Samples until it is finished.
pub(super) struct TimelineRecorder {
    stop: CancellationToken,
    task: JoinHandle<Vec<TimelineSample>>,
}

impl TimelineRecorder {
    pub(super) fn start(
        checker: &Arc<Checker>,
        progress: &Arc<ApplyProgress>,
        observer: &Arc<CoordinationObserver>,
    ) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(sample(Arc::clone(checker), Arc::clone(progress), Arc::clone(observer), stop.clone()));
        Self { stop, task }
    }

    pub(super) async fn finish(self) -> Vec<TimelineSample> {
        self.stop.cancel();
        self.task.await.unwrap_or_default()
    }
}

async fn sample(
    checker: Arc<Checker>,
    progress: Arc<ApplyProgress>,
    observer: Arc<CoordinationObserver>,
    stop: CancellationToken,
) -> Vec<TimelineSample> {
    let mut samples = vec![];
    let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
    while !stop.is_cancelled() {
        interval.tick().await;
        let leader = observer.read(|fence| fence.last_term().map(|(term, holder)| (holder.name.clone(), term)));
        let (acknowledged, applied) = (checker.counts().acknowledged, progress.applied());
        samples.push(TimelineSample { at: Instant::now(), acknowledged, applied, leader });
    }
    samples
}
