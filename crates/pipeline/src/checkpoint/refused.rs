//! Pure: why the fence refused, told from what a majority has.
//!
//! The fence goes by the primary's newest data, and the look afterwards by a majority's, which may be older: a claim that
//! refused a save need not show yet. So a refusal counts for what the look explains, and one that it does not explain is
//! [`Error::Unsettled`]: to call that "kept" would let a deposed leader believe that its save stands.

use super::document::Stored;
use super::error::Error;
use super::store::{Claim, Phase, Saved};
use crate::event::Epoch;

/// What to answer to a save that was refused.
pub(super) fn save(
    pipeline: &str,
    stored: &Stored,
    claim: &Claim,
    epoch: Epoch,
    phase: &Phase,
) -> Result<Saved, Error> {
    is_of(pipeline, stored, claim)?;
    let pipeline = pipeline.to_owned();
    if stored.checkpoint.epoch != epoch {
        return Err(Error::EpochEnded { pipeline, epoch, stored: stored.checkpoint.epoch });
    }
    match compare(phase, &stored.checkpoint.phase) {
        Place::Behind => Ok(Saved::Kept),
        Place::OutOfTurn => Err(Error::SnapshotOutOfTurn { pipeline }),
        Place::NotBehind => Err(Error::Unsettled { pipeline, term: claim.term }),
    }
}

/// What to answer to a new epoch that was refused. Asked again after a lost answer, it finds its own doing.
pub(super) fn begin_epoch(
    pipeline: &str,
    stored: &Stored,
    claim: &Claim,
    ended: Epoch,
    phase: &Phase,
) -> Result<Epoch, Error> {
    is_of(pipeline, stored, claim)?;
    let pipeline = pipeline.to_owned();
    let (found, begun) = (stored.checkpoint.epoch, ended.next());
    if found == begun && stored.checkpoint.phase == *phase {
        return Ok(begun);
    }
    if found == ended {
        return Err(Error::Unsettled { pipeline, term: claim.term });
    }
    Err(Error::EpochEnded { pipeline, epoch: ended, stored: found })
}

fn is_of(pipeline: &str, stored: &Stored, claim: &Claim) -> Result<(), Error> {
    let Stored { checkpoint, claimant } = stored;
    if checkpoint.term == claim.term && *claimant == claim.claimant.to_string() {
        return Ok(());
    }
    Err(Error::Deposed { pipeline: pipeline.to_owned(), term: claim.term, stored: checkpoint.term })
}

/// Where a phase lies, seen from the stored one.
enum Place {
    Behind,
    NotBehind,
    OutOfTurn,
}

/// The order of `not_behind` in `mongo.rs`.
fn compare(phase: &Phase, stored: &Phase) -> Place {
    let behind = match (phase, stored) {
        (Phase::Unstarted, stored) => *stored != Phase::Unstarted,
        (Phase::Snapshot { .. } | Phase::Stream { .. }, Phase::Unstarted) => false,
        (Phase::Snapshot { start, progress }, Phase::Snapshot { start: from, progress: stored })
            if start.key() == from.key() && progress.run == stored.run =>
        {
            progress.scanned < stored.scanned
        }
        (Phase::Snapshot { .. }, Phase::Snapshot { .. } | Phase::Stream { .. }) => return Place::OutOfTurn,
        (Phase::Stream { token }, Phase::Snapshot { start: stored, .. } | Phase::Stream { token: stored }) => {
            token.key() < stored.key()
        }
    };
    if behind { Place::Behind } else { Place::NotBehind }
}

#[cfg(test)]
mod tests {
    use lease::Contender;
    use mongodb::bson::doc;

    use super::*;
    use crate::checkpoint::{Checkpoint, Snapshot};
    use crate::event::{ResumeToken, Term};

    fn token(data: &str) -> ResumeToken {
        ResumeToken::try_from(doc! { "_data": data }).unwrap()
    }

    fn stream(data: &str) -> Phase {
        Phase::Stream { token: token(data) }
    }

    fn snapshot(start: &str, scanned: u64) -> Phase {
        let progress = Snapshot { run: "run".into(), scanned, after: None };
        Phase::Snapshot { start: token(start), progress }
    }

    fn claim(term: u64) -> Claim {
        Claim { term: Term::new(term), claimant: Contender::new(1), pod_id: "pod".into() }
    }

    fn stored(term: u64, phase: Phase) -> Stored {
        let checkpoint = Checkpoint {
            term: Term::new(term),
            epoch: Epoch::FIRST,
            phase,
            cluster_time: None,
            saved_at: None,
            saved_by: "pod".into(),
        };
        Stored { checkpoint, claimant: Contender::new(1).to_string() }
    }

    fn refused(found: Phase, phase: &Phase) -> Result<Saved, Error> {
        save("shop", &stored(1, found), &claim(1), Epoch::FIRST, phase)
    }

    #[test]
    fn a_refusal_that_what_a_majority_has_does_not_explain_is_not_taken_for_kept() {
        // a newer claim refused the save, and is not seen by a majority yet
        let cases = [
            (Phase::Unstarted, Phase::Unstarted),
            (Phase::Unstarted, stream("8220")),
            (Phase::Unstarted, snapshot("8210", 0)),
            (snapshot("8210", 5), snapshot("8210", 5)),
            (snapshot("8210", 5), stream("8210")),
            (stream("8220"), stream("8220")),
            (stream("8220"), stream("8230")),
        ];
        for (found, phase) in cases {
            let answer = refused(found.clone(), &phase).unwrap_err();
            assert!(matches!(answer, Error::Unsettled { .. }) && answer.is_transient(), "{phase:?} on {found:?}");
        }
    }

    #[test]
    fn what_lies_behind_the_stored_position_is_kept() {
        let cases = [
            (stream("8220"), stream("8219")),
            (stream("8220"), Phase::Unstarted),
            (snapshot("8210", 5), snapshot("8210", 4)),
            (snapshot("8210", 5), stream("8209")),
        ];
        for (found, phase) in cases {
            assert_eq!(refused(found, &phase).unwrap(), Saved::Kept, "{phase:?}");
        }
    }

    #[test]
    fn an_epoch_that_still_seems_to_go_on_is_not_called_ended() {
        let found = stored(1, stream("8220"));
        let answer = begin_epoch("shop", &found, &claim(1), Epoch::FIRST, &stream("8201")).unwrap_err();
        assert!(matches!(answer, Error::Unsettled { .. }), "{answer}");
    }

    #[test]
    fn a_higher_term_is_told_before_anything_else() {
        let answer = save("shop", &stored(2, stream("8299")), &claim(1), Epoch::FIRST, &stream("8220")).unwrap_err();
        assert!(matches!(answer, Error::Deposed { stored, .. } if stored == Term::new(2)), "{answer}");
    }
}
