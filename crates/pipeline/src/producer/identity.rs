//! What must not change unnoticed while a pipeline runs: the cluster of the source, and the mapping of aggregates to sessions.
//!
//! The checkpoint records both. A checkpoint of an older version, or of a user who could not read the cluster, takes over what is known now.

use crate::checkpoint::{CheckpointPhase, Error, PipelineIdentity};

/// Decides whether `ours` may continue a checkpoint in `phase` with the identity `stored`. Returns the identity to record.
pub(super) fn check_identity(
    pipeline: &str,
    phase: &CheckpointPhase,
    stored: &PipelineIdentity,
    ours: &PipelineIdentity,
    is_sequenced: bool,
) -> Result<PipelineIdentity, Error> {
    if let (Some(found), Some(ours)) = (&stored.cluster, &ours.cluster)
        && found != ours
    {
        let (found, ours) = (found.clone(), ours.clone());
        return Err(Error::OtherCluster { pipeline: pipeline.to_owned(), found, ours });
    }
    // Nothing is published yet, or the sequence orders the events of an aggregate whatever session they are in.
    let may_change_sessions = *phase == CheckpointPhase::Unstarted || is_sequenced;
    if let (Some(found), Some(ours)) = (&stored.sessions, &ours.sessions)
        && found != ours
        && !may_change_sessions
    {
        let (found, ours) = (found.clone(), ours.clone());
        return Err(Error::OtherSessions { pipeline: pipeline.to_owned(), found, ours });
    }
    let cluster = ours.cluster.clone().or_else(|| stored.cluster.clone());
    Ok(PipelineIdentity { cluster, sessions: ours.sessions.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ResumeToken;
    use mongodb::bson::doc;

    fn identity(cluster: Option<&str>, sessions: Option<&str>) -> PipelineIdentity {
        PipelineIdentity { cluster: cluster.map(str::to_owned), sessions: sessions.map(str::to_owned) }
    }

    fn stream() -> CheckpointPhase {
        CheckpointPhase::Stream { token: ResumeToken::try_from(doc! { "_data": "8201" }).unwrap() }
    }

    #[test]
    fn a_checkpoint_without_an_identity_takes_over_ours() {
        let ours = identity(Some("replica set a"), Some("aggregate"));
        let recorded = check_identity("shop", &stream(), &PipelineIdentity::default(), &ours, false).unwrap();
        assert_eq!(recorded, ours);
        let unreadable = identity(None, Some("aggregate"));
        let recorded = check_identity("shop", &stream(), &ours, &unreadable, false).unwrap();
        assert_eq!(recorded, ours, "an unknown cluster does not erase a known one");
    }

    #[test]
    fn another_cluster_is_refused_and_the_setting_is_named() {
        let (stored, ours) =
            (identity(Some("replica set a"), None), identity(Some("replica set b"), Some("aggregate")));
        let error = check_identity("shop", &stream(), &stored, &ours, true).unwrap_err().to_string();
        for words in ["replica set a", "replica set b", "`pipeline`", "checkpoint reset"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn sessions_change_only_with_a_sequence_or_before_the_start() {
        let (stored, ours) = (identity(None, Some("aggregate")), identity(None, Some("buckets(64)")));
        assert_eq!(check_identity("shop", &stream(), &stored, &ours, true).unwrap(), ours);
        assert_eq!(check_identity("shop", &CheckpointPhase::Unstarted, &stored, &ours, false).unwrap(), ours);
        let error = check_identity("shop", &stream(), &stored, &ours, false).unwrap_err().to_string();
        for words in ["`producer.sessions: aggregate`", "`buckets(64)`", "source.sequence"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
