//! Checks at start, and the identity of candidates.

use lease::mongo::{COLLECTION, LeaseName, MongoLeaseStore};
use lease::{Candidate, Error, LeaseStore, TermOutcome};
use mongodb::IndexModel;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{ClientOptions, IndexOptions};
use testkit::mongo::shared;
use testkit::wait::wait_for;

use crate::{election, quick, secs};

async fn candidate(uri: &str, database: &str, key: &str) -> Candidate {
    let name = LeaseName {
        database: database.into(),
        key: key.into(),
        pod_id: format!("pod-of-{key}"),
        fingerprint: "shop.events".into(),
    };
    Candidate { name, config: quick(), client: ClientOptions::parse(uri).await.unwrap() }
}

#[tokio::test]
async fn a_ttl_index_on_the_leases_is_an_error_at_start() {
    let shared = shared().await.unwrap();
    let database = shared.database("ttl_index");
    let options = IndexOptions::builder().expire_after(secs(0)).name("notes".to_owned()).build();
    let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(options).build();
    database.collection::<Document>(COLLECTION).create_index(index).await.unwrap();
    let candidate = candidate(shared.uri(), database.name(), "shop").await;
    let running = candidate.start(|_| async { TermOutcome::Done }, std::future::pending()).unwrap();
    let error = tokio::time::timeout(secs(30), running.join()).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::TtlIndex { index, .. } if index == "notes"), "{error}");
}

#[tokio::test]
async fn a_foreign_lease_is_neither_taken_nor_changed() {
    let shared = shared().await.unwrap();
    let database = shared.database("foreign");
    let leases = database.collection::<Document>(COLLECTION);
    let notes = doc! { "_id": "shop", "leaderId": "old", "expiresAt": DateTime::from_millis(0), "heartbeatAt": DateTime::from_millis(0) };
    let at = DateTime::from_millis(0);
    let other = doc! {
        "_id": "bank", "format": 1_i64, "term": 4_i64, "heartbeat": 9_i64, "heartbeatAt": at, "expiresAt": at,
        "fingerprint": "bank.events",
    };
    leases.insert_many([&notes, &other]).await.unwrap();
    for (document, expected) in [(&notes, "field `format` is missing"), (&other, "its fingerprint is `bank.events`")] {
        let key = document.get_str("_id").unwrap();
        let candidate = candidate(shared.uri(), database.name(), key).await;
        let timing = quick().validate().unwrap().timing;
        let lease = MongoLeaseStore::open(candidate.client.clone(), candidate.name.clone(), &timing).unwrap();
        let refused = lease.read().await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        let running = candidate.start(|_| async { TermOutcome::Done }, tokio::time::sleep(secs(3))).unwrap();
        let handle = running.handle();
        running.join().await.unwrap();
        assert!(!handle.is_leader());
        assert_eq!(leases.find_one(doc! { "_id": key }).await.unwrap().as_ref(), Some(document));
    }
}

#[tokio::test]
async fn two_pipelines_in_one_database_have_a_leader_each() {
    let shared = shared().await.unwrap();
    let database = shared.database("two");
    let stop = tokio_util::sync::CancellationToken::new();
    let mut running = vec![];
    for key in ["shop", "bank"] {
        let candidate = candidate(shared.uri(), database.name(), key).await;
        let work = |leadership: lease::Leadership| async move {
            leadership.wait_for_stop().await;
            TermOutcome::Done
        };
        running.push(candidate.start(work, stop.clone().cancelled_owned()).unwrap());
    }
    wait_for("both to lead", secs(20), async || {
        let leaders = running.iter().filter(|running| running.handle().is_leader()).count();
        if leaders == 2 { Ok(()) } else { Err(leaders) }
    })
    .await;
    stop.cancel();
    for running in running {
        running.join().await.unwrap();
    }
    assert_eq!(database.collection::<Document>(COLLECTION).count_documents(doc! {}).await.unwrap(), 2);
}

#[tokio::test]
async fn two_processes_with_one_pod_id_are_two_candidates() {
    let shared = shared().await.unwrap();
    let database = shared.database("same_pod_id");
    let mut election = election(shared.uri(), database.name()).with_checkpoint();
    election.start_candidate_with("first", "pod", election_test::WallClock::Accurate);
    let (leader, term, _) = election.next_leader(0, None, secs(20)).await;
    election.start_candidate_with("second", "pod", election_test::WallClock::Accurate).wait_until_started().await;
    // The second process does not take the lease that names its pod id.
    tokio::time::sleep(quick().ttl + quick().ttl / 2).await;
    assert_eq!(election.evaluate().terms.len(), 1, "{:?}", election.evaluate().terms);
    election.kill(&leader).await;
    let (next, _, _) = election.next_leader(term, Some(&leader), secs(20)).await;
    assert_ne!(next, leader);
    election.evaluate().assert_clean();
}
