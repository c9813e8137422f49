//! A leader that is paused past its lease.

use election_test::{CandidateReport, LateSave};
use testkit::mongo::shared;

use crate::{election, secs};

#[tokio::test]
async fn a_leader_paused_past_its_lease_cannot_write() {
    let shared = shared().await.unwrap();
    let database = shared.database("paused");
    let mut election = election(shared.uri(), database.name()).with_checkpoint();
    for name in ["a", "b", "c"] {
        election.start_candidate(name);
    }
    let (first, term, _) = election.next_leader(0, None, secs(20)).await;
    let saved = |report: &CandidateReport| matches!(report, CandidateReport::Saved { .. }).then_some(());
    election.get(&first).wait_for_report("saved", secs(10), saved).await;

    election.get(&first).pause().await;
    let (second, _, _) = election.next_leader(term, Some(&first), secs(20)).await;
    election.get(&second).wait_for_report("saved", secs(10), saved).await;
    election.get(&first).resume();

    let woke = |report: &CandidateReport| match report {
        CandidateReport::Woke { gate_open, .. } => Some(*gate_open),
        _ => None,
    };
    assert!(
        !election.get(&first).wait_for_report("woke", secs(10), woke).await,
        "its gate is closed at the first check"
    );
    let late = |report: &CandidateReport| match report {
        CandidateReport::SavedLate { outcome, .. } => Some(*outcome),
        _ => None,
    };
    assert_eq!(election.get(&first).wait_for_report("tried to save", secs(10), late).await, LateSave::Refused);
    election.evaluate().assert_clean();
    assert_eq!(election.get(&first).wait_for_log(&["lease lost", "\"pod_id\"", "\"reason\""], secs(10)).await, 1);
}
