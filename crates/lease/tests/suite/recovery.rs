//! The lease is lost, and what it guards is not.

use bench::contest::Report;
use lease::mongo::COLLECTION;
use mongodb::bson::{Document, doc};
use testkit::mongo::shared;

use crate::{contest, secs};

#[tokio::test]
async fn a_lease_whose_term_fell_behind_is_raised_above_the_checkpoint_s() {
    let shared = shared().await.unwrap();
    let database = shared.database("recovery");
    let mut contest = contest(shared.uri(), database.name()).with_checkpoint();
    contest.contender("a");
    contest.contender("b");
    // two terms, so that a new lease begins below the checkpoint
    let (first, term, _) = contest.next_leader(0, None, secs(20)).await;
    contest.get(&first).terminate();
    let (second, term, _) = contest.next_leader(term, Some(&first), secs(20)).await;
    let saved = |report: &Report| match report {
        Report::Saved { position, .. } => Some(position.clone()),
        _ => None,
    };
    let position = contest.get(&second).says("saved", secs(10), saved).await;
    contest.kill(&second).await;
    contest.judge().must_be_clean();

    database.collection::<Document>(COLLECTION).delete_one(doc! { "_id": "contest" }).await.unwrap();
    let pod = contest.contender("c");
    let claimed = |report: &Report| match report {
        Report::Claimed { term, position, .. } => Some((*term, position.clone())),
        _ => None,
    };
    let (raised, found) = pod.says("claimed the checkpoint", secs(20), claimed).await;
    assert_eq!(raised, term + 1);
    assert!(found >= position, "{found} < {position}: it should go on where the last one was");
    let lease = database.collection::<Document>(COLLECTION).find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(lease.get_i64("term").ok(), i64::try_from(raised).ok());
    assert_eq!(pod.logs(&["lost leadership", "fell behind"], secs(10)).await, 1);
}
