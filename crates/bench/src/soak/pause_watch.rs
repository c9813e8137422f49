//! Measures how long a read model stands still while events flow: the longest time without a newly applied event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mongodb::Database;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::soak_read_models;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Watches the customers, which no deploy and no rebuild changes. Counts only while it [measures](Self::measure).
pub(super) struct PauseWatch {
    is_measuring: Arc<AtomicBool>,
    stop: CancellationToken,
    task: JoinHandle<Duration>,
}

impl PauseWatch {
    pub(super) fn start(views: Database) -> Self {
        let (is_measuring, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let task = tokio::spawn(watch(views, Arc::clone(&is_measuring), stop.clone()));
        Self { is_measuring, stop, task }
    }

    /// A pause that has begun before does not count.
    pub(super) fn measure(&self, is_measuring: bool) {
        self.is_measuring.store(is_measuring, Relaxed);
    }

    /// The longest pause.
    pub(super) async fn finish(self) -> Result<Duration, tokio::task::JoinError> {
        self.stop.cancel();
        self.task.await
    }
}

async fn watch(views: Database, is_measuring: Arc<AtomicBool>, stop: CancellationToken) -> Duration {
    let (mut longest, mut applied, mut since) = (Duration::ZERO, 0, Instant::now());
    while !stop.is_cancelled() {
        let now = soak_read_models::applied(&views).await.unwrap_or(applied);
        if now != applied || !is_measuring.load(Relaxed) {
            (applied, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    longest
}
