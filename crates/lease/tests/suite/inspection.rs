//! What is found at start, and who is who.

use lease::mongo::{COLLECTION, LeaseName, MongoLeaseStore};
use lease::{Candidate, Error, LeaseStore, TermOutcome};
use mongodb::IndexModel;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{ClientOptions, IndexOptions};
use testkit::mongo::shared;
use testkit::wait::wait_for;

use crate::{contest, quick, secs};

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
    let ended = tokio::time::timeout(secs(30), running.ended()).await.unwrap().unwrap_err();
    assert!(matches!(&ended, Error::TtlIndex { index, .. } if index == "notes"), "{ended}");
}

#[tokio::test]
async fn a_lease_of_another_kind_is_not_contended_for_and_stays_as_it_is() {
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
        running.ended().await.unwrap();
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
        running.ended().await.unwrap();
    }
    assert_eq!(database.collection::<Document>(COLLECTION).count_documents(doc! {}).await.unwrap(), 2);
}

#[tokio::test]
async fn two_processes_with_one_pod_id_are_two_contenders() {
    let shared = shared().await.unwrap();
    let database = shared.database("twins");
    let mut contest = contest(shared.uri(), database.name()).with_checkpoint();
    contest.contender_with("first", "pod", bench::contest::WallClock::True);
    let (leader, term, _) = contest.next_leader(0, None, secs(20)).await;
    contest.contender_with("second", "pod", bench::contest::WallClock::True).starts().await;
    // the twin does not take the lease that bears its name
    tokio::time::sleep(quick().ttl + quick().ttl / 2).await;
    assert_eq!(contest.judge().terms.len(), 1, "{:?}", contest.judge().terms);
    contest.kill(&leader).await;
    let (next, _, _) = contest.next_leader(term, Some(&leader), secs(20)).await;
    assert_ne!(next, leader);
    contest.judge().must_be_clean();
}
