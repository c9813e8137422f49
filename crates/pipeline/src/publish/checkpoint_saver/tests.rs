use std::sync::Mutex;

use lease::Contender;
use mongo_error::DriverError;
use mongodb::bson::Timestamp;

use super::*;
use crate::checkpoint::{Checkpoint, CheckpointPhase};
use crate::event::Term;
use crate::publish::prefix::tests::stand;

/// A store that keeps its fence, and fails as often as it is told to.
#[derive(Default)]
struct Memory {
    term: Mutex<Term>,
    saved: Mutex<Vec<CheckpointPhase>>,
    failures: Mutex<u32>,
}

impl CheckpointStore for Memory {
    async fn claim(&self, claim: &Claim) -> Result<Checkpoint, Error> {
        *self.term.lock().unwrap() = claim.term;
        Ok(Checkpoint {
            term: claim.term,
            epoch: Epoch::FIRST,
            phase: CheckpointPhase::Unstarted,
            cluster_time: None,
            saved_at: None,
            saved_by: String::new(),
        })
    }

    async fn save(
        &self,
        claim: &Claim,
        _: Epoch,
        phase: &CheckpointPhase,
        _: Option<Timestamp>,
    ) -> Result<SaveResult, Error> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            let source = DriverError::from(mongodb::error::Error::custom("away"));
            return Err(Error::Store { doing: "save", pipeline: "shop".into(), source });
        }
        let stored = *self.term.lock().unwrap();
        if stored != claim.term {
            return Err(Error::Deposed { pipeline: "shop".into(), term: claim.term, stored });
        }
        self.saved.lock().unwrap().push(phase.clone());
        Ok(SaveResult::Saved)
    }

    async fn begin_epoch(&self, _: &Claim, ended: Epoch, _: &CheckpointPhase) -> Result<Epoch, Error> {
        Ok(ended.next())
    }

    async fn load(&self) -> Result<Option<Checkpoint>, Error> {
        Ok(None)
    }
}

fn saves(store: &Arc<Memory>, now: Instant) -> CheckpointSaver<Memory> {
    let claim = Claim { term: Term::new(1), claimant: Contender::new(1), pod_id: "a".into() };
    *store.term.lock().unwrap() = claim.term;
    let rule = CheckpointInterval::Every(Duration::from_millis(200));
    CheckpointSaver::new(Arc::clone(store), (claim, Epoch::FIRST), rule, CheckpointInterval::EVENTS, now)
}

/// So many events, all acknowledged.
fn acknowledged(prefix: &mut AcknowledgedPrefix, count: u64) {
    for number in 0..count {
        let ordinal = prefix.expect(stand(number));
        prefix.acknowledge(ordinal);
    }
}

#[tokio::test]
async fn a_save_waits_for_its_time_or_for_a_thousand_events() {
    let (store, now) = (Arc::new(Memory::default()), Instant::now());
    let (mut saves, mut prefix) = (saves(&store, now), AcknowledgedPrefix::with_defect(false));
    assert_eq!(saves.next(&prefix, now, false), None, "nothing to save");
    acknowledged(&mut prefix, 999);
    assert_eq!(saves.next(&prefix, now, false), Some(now + Duration::from_millis(200)));
    assert_eq!(saves.next(&prefix, now, true), Some(now), "a stop does not wait");
    acknowledged(&mut prefix, 1);
    saves.begin(&mut prefix, now, false);
    acknowledged(&mut prefix, 5_000);
    assert_eq!(saves.next(&prefix, now, true), None, "one at a time");
    let saved = saves.ended().await;
    assert_eq!(saves.note(saved, now).unwrap(), Some((stand(0), 1_000)));
    assert_eq!(saves.next(&prefix, now, false), Some(now));
    assert_eq!(store.saved.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_save_that_may_succeed_later_is_repeated_with_what_is_newest_then() {
    let (store, now) = (Arc::new(Memory { failures: Mutex::new(1), ..Memory::default() }), Instant::now());
    let (mut saves, mut prefix) = (saves(&store, now), AcknowledgedPrefix::with_defect(false));
    acknowledged(&mut prefix, 3);
    saves.begin(&mut prefix, now, true);
    let failed = saves.ended().await;
    assert_eq!(saves.note(failed, now).unwrap(), None);
    assert!(!saves.is_done(&prefix));
    let again = saves.next(&prefix, now, true).unwrap();
    assert!(again > now);
    acknowledged(&mut prefix, 2);
    saves.begin(&mut prefix, again, false);
    let saved = saves.ended().await;
    assert_eq!(saves.note(saved, again).unwrap(), Some((stand(1), 5)));
    assert!(saves.is_done(&prefix));
}

#[tokio::test]
async fn a_deposed_leaders_save_is_refused_for_good() {
    let (store, now) = (Arc::new(Memory::default()), Instant::now());
    let (mut saves, mut prefix) = (saves(&store, now), AcknowledgedPrefix::with_defect(false));
    *store.term.lock().unwrap() = Term::new(7);
    acknowledged(&mut prefix, 1);
    saves.begin(&mut prefix, now, true);
    let result = saves.ended().await;
    assert!(saves.note(result, now).is_err());
    assert!(store.saved.lock().unwrap().is_empty());
}
