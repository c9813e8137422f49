//! Explains a refused save from the majority-committed document. Pure.
//!
//! The fence checks the newest data of the primary; the explanation reads majority-committed data, which may be older and may not show the claim that
//! caused the refusal. A refusal that the document does not explain is [`Error::Indeterminate`]: if it counted as "already ahead", a deposed
//! leader would believe that its save is stored.

use super::document::StoredCheckpoint;
use super::error::Error;
use super::store::{CheckpointClaim, CheckpointPhase, SaveResult};
use crate::event::Epoch;

/// The result of a refused save.
pub(super) fn explain_save(
    pipeline: &str,
    stored: &StoredCheckpoint,
    claim: &CheckpointClaim,
    epoch: Epoch,
    phase: &CheckpointPhase,
) -> Result<SaveResult, Error> {
    check_claim(pipeline, stored, claim)?;
    let pipeline = pipeline.to_owned();
    if stored.checkpoint.epoch != epoch {
        return Err(Error::EpochEnded { pipeline, epoch, stored: stored.checkpoint.epoch });
    }
    match compare(phase, &stored.checkpoint.phase) {
        PhaseOrder::Behind => Ok(SaveResult::AlreadyAhead),
        PhaseOrder::OutOfOrder => Err(Error::SnapshotOutOfOrder { pipeline }),
        PhaseOrder::NotBehind => Err(Error::Indeterminate { pipeline, term: claim.term }),
    }
}

/// The result of a refused new epoch. A retry after a lost reply finds its own epoch and succeeds.
pub(super) fn explain_begin_epoch(
    pipeline: &str,
    stored: &StoredCheckpoint,
    claim: &CheckpointClaim,
    ended: Epoch,
    phase: &CheckpointPhase,
) -> Result<Epoch, Error> {
    check_claim(pipeline, stored, claim)?;
    let pipeline = pipeline.to_owned();
    let (found, begun) = (stored.checkpoint.epoch, ended.next());
    if found == begun && stored.checkpoint.phase == *phase {
        return Ok(begun);
    }
    if found == ended {
        return Err(Error::Indeterminate { pipeline, term: claim.term });
    }
    Err(Error::EpochEnded { pipeline, epoch: ended, stored: found })
}

pub(super) fn check_claim(pipeline: &str, stored: &StoredCheckpoint, claim: &CheckpointClaim) -> Result<(), Error> {
    let StoredCheckpoint { checkpoint, claimant } = stored;
    if checkpoint.term == claim.term && *claimant == claim.claimant.to_string() {
        return Ok(());
    }
    Err(Error::Deposed { pipeline: pipeline.to_owned(), term: claim.term, stored: checkpoint.term })
}

/// A phase compared with the stored one.
enum PhaseOrder {
    Behind,
    NotBehind,
    OutOfOrder,
}

/// Same order as `not_behind` in `mongo.rs`.
fn compare(phase: &CheckpointPhase, stored: &CheckpointPhase) -> PhaseOrder {
    let behind = match (phase, stored) {
        (CheckpointPhase::Unstarted, stored) => *stored != CheckpointPhase::Unstarted,
        (CheckpointPhase::Snapshot { .. } | CheckpointPhase::Stream { .. }, CheckpointPhase::Unstarted) => false,
        (
            CheckpointPhase::Snapshot { start, progress },
            CheckpointPhase::Snapshot { start: from, progress: stored },
        ) if start.key() == from.key() && progress.run == stored.run => progress.scanned < stored.scanned,
        (CheckpointPhase::Snapshot { .. }, CheckpointPhase::Snapshot { .. } | CheckpointPhase::Stream { .. }) => {
            return PhaseOrder::OutOfOrder;
        }
        (
            CheckpointPhase::Stream { token },
            CheckpointPhase::Snapshot { start: stored, .. } | CheckpointPhase::Stream { token: stored },
        ) => token.key() < stored.key(),
    };
    if behind { PhaseOrder::Behind } else { PhaseOrder::NotBehind }
}

#[cfg(test)]
mod tests {
    use lease::CandidateId;
    use mongodb::bson::doc;

    use super::*;
    use crate::checkpoint::{Checkpoint, PipelineIdentity, ReplayCounter, SnapshotProgress};
    use crate::event::{ResumeToken, Term};

    fn token(data: &str) -> ResumeToken {
        ResumeToken::try_from(doc! { "_data": data }).unwrap()
    }

    fn stream(data: &str) -> CheckpointPhase {
        CheckpointPhase::Stream { token: token(data) }
    }

    fn snapshot(start: &str, scanned: u64) -> CheckpointPhase {
        let progress = SnapshotProgress { run: "run".into(), scanned, after: None };
        CheckpointPhase::Snapshot { start: token(start), progress }
    }

    fn claim(term: u64) -> CheckpointClaim {
        CheckpointClaim { term: Term::new(term), claimant: CandidateId::new(1), pod_id: "pod".into() }
    }

    fn stored(term: u64, phase: CheckpointPhase) -> StoredCheckpoint {
        let checkpoint = Checkpoint {
            term: Term::new(term),
            epoch: Epoch::FIRST,
            phase,
            cluster_time: None,
            saved_at: None,
            saved_by: "pod".into(),
            replay: ReplayCounter::default(),
            identity: PipelineIdentity::default(),
        };
        StoredCheckpoint { checkpoint, claimant: CandidateId::new(1).to_string() }
    }

    fn refused(found: CheckpointPhase, phase: &CheckpointPhase) -> Result<SaveResult, Error> {
        explain_save("shop", &stored(1, found), &claim(1), Epoch::FIRST, phase)
    }

    #[test]
    fn an_unexplained_refusal_is_indeterminate() {
        // A newer claim refused the save and is not yet visible to a majority.
        let cases = [
            (CheckpointPhase::Unstarted, CheckpointPhase::Unstarted),
            (CheckpointPhase::Unstarted, stream("8220")),
            (CheckpointPhase::Unstarted, snapshot("8210", 0)),
            (snapshot("8210", 5), snapshot("8210", 5)),
            (snapshot("8210", 5), stream("8210")),
            (stream("8220"), stream("8220")),
            (stream("8220"), stream("8230")),
        ];
        for (found, phase) in cases {
            let result = refused(found.clone(), &phase).unwrap_err();
            assert!(matches!(result, Error::Indeterminate { .. }) && result.is_transient(), "{phase:?} on {found:?}");
        }
    }

    #[test]
    fn a_save_behind_the_stored_position_is_already_ahead() {
        let cases = [
            (stream("8220"), stream("8219")),
            (stream("8220"), CheckpointPhase::Unstarted),
            (snapshot("8210", 5), snapshot("8210", 4)),
            (snapshot("8210", 5), stream("8209")),
        ];
        for (found, phase) in cases {
            assert_eq!(refused(found, &phase).unwrap(), SaveResult::AlreadyAhead, "{phase:?}");
        }
    }

    #[test]
    fn an_epoch_that_still_shows_as_current_is_indeterminate() {
        let found = stored(1, stream("8220"));
        let result = explain_begin_epoch("shop", &found, &claim(1), Epoch::FIRST, &stream("8201")).unwrap_err();
        assert!(matches!(result, Error::Indeterminate { .. }), "{result}");
    }

    #[test]
    fn a_higher_term_is_reported_first() {
        let result =
            explain_save("shop", &stored(2, stream("8299")), &claim(1), Epoch::FIRST, &stream("8220")).unwrap_err();
        assert!(matches!(result, Error::Deposed { stored, .. } if stored == Term::new(2)), "{result}");
    }
}
