use std::sync::Mutex;

use lease::CandidateId;
use mongo_error::DriverError;
use mongodb::bson::Timestamp;

use super::*;
use crate::checkpoint::{Checkpoint, CheckpointClaim, CheckpointPhase, PipelineIdentity, ReplayCounter};
use crate::event::{Epoch, Term};
use crate::publish::acknowledged_prefix::tests::position;

/// A store with a term fence that fails a given number of times.
#[derive(Default)]
struct MemoryStore {
    term: Mutex<Term>,
    saved: Mutex<Vec<CheckpointPhase>>,
    failures: Mutex<u32>,
}

impl CheckpointStore for MemoryStore {
    async fn claim(&self, claim: &CheckpointClaim) -> Result<Checkpoint, Error> {
        *self.term.lock().unwrap() = claim.term;
        Ok(Checkpoint {
            term: claim.term,
            epoch: Epoch::FIRST,
            phase: CheckpointPhase::Unstarted,
            cluster_time: None,
            saved_at: None,
            saved_by: String::new(),
            replay: ReplayCounter::default(),
            identity: PipelineIdentity::default(),
        })
    }

    async fn save(
        &self,
        claim: &CheckpointClaim,
        _: Epoch,
        phase: &CheckpointPhase,
        _: Option<Timestamp>,
    ) -> Result<SaveResult, Error> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            let source = DriverError::from(mongodb::error::Error::custom("away"));
            return Err(Error::Store { operation: "save", pipeline: "shop".into(), source });
        }
        let stored = *self.term.lock().unwrap();
        if stored != claim.term {
            return Err(Error::Deposed { pipeline: "shop".into(), term: claim.term, stored });
        }
        self.saved.lock().unwrap().push(phase.clone());
        Ok(SaveResult::Saved)
    }

    async fn begin_epoch(&self, _: &CheckpointClaim, ended: Epoch, _: &CheckpointPhase) -> Result<Epoch, Error> {
        Ok(ended.next())
    }

    async fn load(&self) -> Result<Option<Checkpoint>, Error> {
        Ok(None)
    }
}

fn saver(store: &Arc<MemoryStore>, now: Instant) -> CheckpointSaver<MemoryStore> {
    let claim = CheckpointClaim { term: Term::new(1), claimant: CandidateId::new(1), pod_id: "a".into() };
    *store.term.lock().unwrap() = claim.term;
    let interval = CheckpointInterval::Every(Duration::from_millis(200));
    CheckpointSaver::new(
        Arc::clone(store),
        &PublishClaim { claim, epoch: Epoch::FIRST, replay: ReplayCounter::default() },
        interval,
        CheckpointInterval::EVENTS,
        now,
    )
}

/// Adds `count` acknowledged events.
fn acknowledged(prefix: &mut AcknowledgedPrefix, count: u64) {
    for number in 0..count {
        let ordinal = prefix.push_event(position(number));
        prefix.acknowledge(ordinal);
    }
}

#[tokio::test]
async fn a_save_is_due_after_the_interval_or_1000_events() {
    let (store, now) = (Arc::new(MemoryStore::default()), Instant::now());
    let (mut saver, mut prefix) = (saver(&store, now), AcknowledgedPrefix::with_failpoint(false));
    assert_eq!(saver.next_due(&prefix, now, false), None, "nothing to save");
    acknowledged(&mut prefix, 999);
    assert_eq!(saver.next_due(&prefix, now, false), Some(now + Duration::from_millis(200)));
    assert_eq!(saver.next_due(&prefix, now, true), Some(now), "a stop does not wait");
    acknowledged(&mut prefix, 1);
    saver.start_if_due(&mut prefix, now, false);
    acknowledged(&mut prefix, 5_000);
    assert_eq!(saver.next_due(&prefix, now, true), None, "one at a time");
    let saved = saver.finished().await;
    assert_eq!(saver.record_result(saved, now).unwrap(), Some((position(0), 1_000)));
    assert_eq!(saver.next_due(&prefix, now, false), Some(now));
    assert_eq!(store.saved.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_failed_save_is_retried_with_the_newest_position() {
    let (store, now) = (Arc::new(MemoryStore { failures: Mutex::new(1), ..MemoryStore::default() }), Instant::now());
    let (mut saver, mut prefix) = (saver(&store, now), AcknowledgedPrefix::with_failpoint(false));
    acknowledged(&mut prefix, 3);
    saver.start_if_due(&mut prefix, now, true);
    let failed = saver.finished().await;
    assert_eq!(saver.record_result(failed, now).unwrap(), None);
    assert!(!saver.is_idle(&prefix));
    let again = saver.next_due(&prefix, now, true).unwrap();
    assert!(again > now);
    acknowledged(&mut prefix, 2);
    saver.start_if_due(&mut prefix, again, false);
    let saved = saver.finished().await;
    assert_eq!(saver.record_result(saved, again).unwrap(), Some((position(1), 5)));
    assert!(saver.is_idle(&prefix));
}

#[tokio::test]
async fn the_save_of_a_deposed_leader_fails_permanently() {
    let (store, now) = (Arc::new(MemoryStore::default()), Instant::now());
    let (mut saver, mut prefix) = (saver(&store, now), AcknowledgedPrefix::with_failpoint(false));
    *store.term.lock().unwrap() = Term::new(7);
    acknowledged(&mut prefix, 1);
    saver.start_if_due(&mut prefix, now, true);
    let result = saver.finished().await;
    assert!(saver.record_result(result, now).is_err());
    assert!(store.saved.lock().unwrap().is_empty());
}
