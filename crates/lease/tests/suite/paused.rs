//! A leader that sleeps past its lease.

use bench::contest::{LateSave, Report};
use testkit::mongo::shared;

use crate::{contest, secs};

#[tokio::test]
async fn a_leader_stopped_past_its_lease_wakes_to_a_shut_gate_and_a_refused_save() {
    let shared = shared().await.unwrap();
    let database = shared.database("paused");
    let mut contest = contest(shared.uri(), database.name()).with_checkpoint();
    for name in ["a", "b", "c"] {
        contest.contender(name);
    }
    let (first, term, _) = contest.next_leader(0, None, secs(20)).await;
    let saved = |report: &Report| matches!(report, Report::Saved { .. }).then_some(());
    contest.get(&first).says("saved", secs(10), saved).await;

    contest.get(&first).pause().await;
    let (second, _, _) = contest.next_leader(term, Some(&first), secs(20)).await;
    contest.get(&second).says("saved", secs(10), saved).await;
    contest.get(&first).resume();

    let woke = |report: &Report| match report {
        Report::Woke { gate_open, .. } => Some(*gate_open),
        _ => None,
    };
    assert!(!contest.get(&first).says("woke", secs(10), woke).await, "its gate should be shut at the first look");
    let late = |report: &Report| match report {
        Report::SavedLate { outcome, .. } => Some(*outcome),
        _ => None,
    };
    assert_eq!(contest.get(&first).says("tried to save", secs(10), late).await, LateSave::Refused);
    contest.judge().must_be_clean();
    assert_eq!(contest.get(&first).logs(&["lost leadership", "\"pod_id\"", "\"reason\""], secs(10)).await, 1);
}
