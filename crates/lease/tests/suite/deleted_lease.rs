//! The lease is deleted, and the checkpoint is not.

use election_test::CandidateReport;
use lease::mongo::COLLECTION;
use mongodb::bson::{Document, doc};
use testkit::mongo::shared;

use crate::{election, secs};

#[tokio::test]
async fn a_lease_behind_the_checkpoint_gets_a_higher_term() {
    let shared = shared().await.unwrap();
    let database = shared.database("recovery");
    let mut election = election(shared.uri(), database.name()).with_checkpoint();
    election.start_candidate("a");
    election.start_candidate("b");
    // Two terms, so that a new lease starts below the checkpoint.
    let (first, term, _) = election.next_leader(0, None, secs(20)).await;
    election.get(&first).terminate();
    let (second, term, _) = election.next_leader(term, Some(&first), secs(20)).await;
    let saved = |report: &CandidateReport| match report {
        CandidateReport::Saved { position, .. } => Some(position.clone()),
        _ => None,
    };
    let position = election.get(&second).wait_for_report("saved", secs(10), saved).await;
    election.kill(&second).await;
    election.evaluate().assert_clean();

    database.collection::<Document>(COLLECTION).delete_one(doc! { "_id": "election" }).await.unwrap();
    let pod = election.start_candidate("c");
    let claimed = |report: &CandidateReport| match report {
        CandidateReport::Claimed { term, position, .. } => Some((*term, position.clone())),
        _ => None,
    };
    let (raised, found) = pod.wait_for_report("claimed the checkpoint", secs(20), claimed).await;
    assert_eq!(raised, term + 1);
    assert!(found >= position, "{found} < {position}: it continues at the last position");
    let lease = database.collection::<Document>(COLLECTION).find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(lease.get_i64("term").ok(), i64::try_from(raised).ok());
    assert_eq!(pod.wait_for_log(&["lease lost", "fell behind"], secs(10)).await, 1);
}
