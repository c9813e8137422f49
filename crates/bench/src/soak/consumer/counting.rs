//! How far the read models are, all the while, and how long they once stood still.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mongodb::Database;
use testkit::checker::Checker;
use testkit::cluster::House;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Error, models};

/// A store without a primary does not answer; who waits for it would miss what comes after.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(500);
/// Of its time, one part in so many is spent looking: it is the store's, which the pods need.
const LOOKING: u32 = 10;
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Nothing changed for so long: all that will come has come.
const QUIET: Duration = Duration::from_secs(1);

/// Counts what was applied, until it is dropped.
pub(in crate::soak) struct Counting {
    progress: Arc<Mutex<Progress>>,
    _tasks: JoinSet<()>,
}

impl Counting {
    /// Says how far things are, if it is `talkative`.
    pub(in crate::soak) fn start(views: &Database, checker: &Arc<Checker>, talkative: bool) -> Self {
        let progress = Arc::new(Mutex::new(Progress::new(Instant::now())));
        let mut tasks = JoinSet::new();
        tasks.spawn(count(views.clone(), Arc::clone(checker), Arc::clone(&progress)));
        if talkative {
            tasks.spawn(narrate(Arc::clone(checker), Arc::clone(&progress)));
        }
        Self { progress, _tasks: tasks }
    }

    pub(super) fn applied(&self) -> u64 {
        read(&self.progress).applied
    }

    /// The longest time in which events waited and none was applied.
    pub(super) fn standstill(&self) -> Duration {
        read(&self.progress).standstill
    }
}

async fn count(views: Database, checker: Arc<Checker>, progress: Arc<Mutex<Progress>>) {
    loop {
        let asked = Instant::now();
        let looked = timeout(ANSWER_WITHIN, models::applied(&views)).await;
        if let Ok(Ok(applied)) = looked {
            read(&progress).note(applied, checker.tally().acknowledged, Instant::now());
        }
        tokio::time::sleep((asked.elapsed() * (LOOKING - 1)).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY)).await;
    }
}

async fn narrate(checker: Arc<Checker>, progress: Arc<Mutex<Progress>>) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(SAY_EVERY).await;
        let (written, applied) = (checker.tally().acknowledged, read(&progress).applied);
        println!("{:5} s: {written} acknowledged, {applied} applied", began.elapsed().as_secs());
    }
}

fn read(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Progress {
    applied: u64,
    /// When something was last applied, or nothing waited.
    since: Instant,
    standstill: Duration,
}

impl Progress {
    fn new(now: Instant) -> Self {
        Self { applied: 0, since: now, standstill: Duration::ZERO }
    }

    fn note(&mut self, applied: u64, written: u64, now: Instant) {
        let moved = applied != self.applied;
        if moved || applied < written {
            self.standstill = self.standstill.max(now.saturating_duration_since(self.since));
        }
        if moved || applied >= written {
            (self.applied, self.since) = (applied, now);
        }
    }
}

/// Until everything is applied and nothing more changes, or nothing has changed for as long as `patience`; when the last change was.
pub(in crate::soak) async fn until_applied(
    house: &mut House,
    checker: &Checker,
    counting: &Counting,
    patience: Duration,
    written: Instant,
) -> Result<Duration, Error> {
    let (mut seen, mut since) = (counting.applied(), Instant::now());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        house.bury()?;
        let now = counting.applied();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        let enough = if now >= checker.tally().acknowledged { QUIET } else { patience };
        if since.elapsed() > enough {
            return Ok(since.saturating_duration_since(written));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_a_time_in_which_events_wait_and_none_is_applied() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut progress = Progress::new(start);
        progress.note(0, 0, at(30));
        progress.note(0, 10, at(31));
        progress.note(10, 10, at(32));
        assert_eq!(progress.standstill, Duration::from_secs(2), "while nothing waits nothing stands still");
        progress.note(10, 10, at(90));
        progress.note(10, 20, at(91));
        progress.note(10, 20, at(94));
        assert_eq!(progress.standstill, Duration::from_secs(4), "told before it is over");
        progress.note(11, 20, at(97));
        progress.note(20, 20, at(98));
        assert_eq!((progress.standstill, progress.applied), (Duration::from_secs(7), 20));
    }
}
