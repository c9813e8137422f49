//! The progress of the read models during a run, and their longest stall.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mongodb::Database;
use testkit::checker::Checker;
use testkit::cluster::TestCluster;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Error, soak_read_models};
use crate::soak::drain::{RunEnd, RunProgress, wait_for_end};

/// A MongoDB without a primary does not respond; a longer wait would miss the progress after it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Polls take one part in this many of the time, because the pods need MongoDB.
const POLL_SHARE: u32 = 10;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Polls the number of applied events until it is dropped.
pub(in crate::soak) struct ApplyProgress {
    progress: Arc<Mutex<ProgressState>>,
    _tasks: JoinSet<()>,
}

impl ApplyProgress {
    /// Also prints the progress if `verbose`.
    pub(in crate::soak) fn start(views: &Database, checker: &Arc<Checker>, verbose: bool) -> Self {
        let progress = Arc::new(Mutex::new(ProgressState::new(Instant::now())));
        let mut tasks = JoinSet::new();
        tasks.spawn(count(views.clone(), Arc::clone(checker), Arc::clone(&progress)));
        if verbose {
            tasks.spawn(print_progress(Arc::clone(checker), Arc::clone(&progress)));
        }
        Self { progress, _tasks: tasks }
    }

    pub(in crate::soak) fn applied(&self) -> u64 {
        read(&self.progress).applied
    }

    /// When the last event was seen applied.
    fn last_change(&self) -> Instant {
        read(&self.progress).changed
    }

    /// The longest time with unprocessed events in which none was applied.
    pub(in crate::soak) fn longest_stall(&self) -> Duration {
        read(&self.progress).longest_stall
    }
}

async fn count(views: Database, checker: Arc<Checker>, progress: Arc<Mutex<ProgressState>>) {
    loop {
        let asked = Instant::now();
        let looked = timeout(RESPONSE_TIMEOUT, soak_read_models::applied(&views)).await;
        if let Ok(Ok(applied)) = looked {
            read(&progress).note(applied, checker.counts().acknowledged, Instant::now());
        }
        tokio::time::sleep((asked.elapsed() * (POLL_SHARE - 1)).clamp(POLL_INTERVAL, MAX_POLL_INTERVAL)).await;
    }
}

async fn print_progress(checker: Arc<Checker>, progress: Arc<Mutex<ProgressState>>) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let (written, applied) = (checker.counts().acknowledged, read(&progress).applied);
        println!("{:5} s: {written} acknowledged, {applied} applied", began.elapsed().as_secs());
    }
}

fn read(progress: &Mutex<ProgressState>) -> MutexGuard<'_, ProgressState> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct ProgressState {
    applied: u64,
    /// When an event was last applied, or when there was no backlog.
    since: Instant,
    /// When an event was last applied.
    changed: Instant,
    longest_stall: Duration,
}

impl ProgressState {
    fn new(now: Instant) -> Self {
        Self { applied: 0, since: now, changed: now, longest_stall: Duration::ZERO }
    }

    fn note(&mut self, applied: u64, written: u64, now: Instant) {
        let moved = applied != self.applied;
        if moved {
            self.changed = now;
        }
        if moved || applied < written {
            self.longest_stall = self.longest_stall.max(now.saturating_duration_since(self.since));
        }
        if moved || applied >= written {
            (self.applied, self.since) = (applied, now);
        }
    }
}

/// Waits until every acknowledged write is applied, see [`wait_for_end`]. Returns also the time from the last write to the last change.
pub(in crate::soak) async fn wait_until_applied(
    cluster: &mut TestCluster,
    checker: &Checker,
    progress: &ApplyProgress,
    stall_timeout: Duration,
    written: Instant,
) -> Result<(RunEnd, Duration), Error> {
    let subscription = cluster.broker().subscription();
    let acknowledged = checker.counts().acknowledged;
    let read = || {
        let arrived = progress.applied();
        RunProgress { arrived, is_complete: arrived >= acknowledged }
    };
    let end = wait_for_end(cluster, &subscription, stall_timeout, read).await?;
    Ok((end, progress.last_change().saturating_duration_since(written)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_time_with_a_backlog_and_no_progress() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut progress = ProgressState::new(start);
        progress.note(0, 0, at(30));
        progress.note(0, 10, at(31));
        progress.note(10, 10, at(32));
        assert_eq!(progress.longest_stall, Duration::from_secs(2), "without a backlog there is no stall");
        progress.note(10, 10, at(90));
        progress.note(10, 20, at(91));
        progress.note(10, 20, at(94));
        assert_eq!(progress.longest_stall, Duration::from_secs(4), "known before it ends");
        progress.note(11, 20, at(97));
        progress.note(20, 20, at(98));
        assert_eq!((progress.longest_stall, progress.applied), (Duration::from_secs(7), 20));
    }
}
