//! `docs/migrate-from-nestjs.md`, step by step, from documents as the NestJS publisher writes them.

use futures_util::StreamExt;
use mongodb::IndexModel;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::IndexOptions;
use std::time::Duration;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "producer: { start: now }
read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

/// The name that the publisher gives its lease. It is also the default of `pipeline`, so both use the same document.
const NAME: &str = "changeStreamPublisher";
const PIPELINE: [&str; 2] = ["--set", "pipeline=changeStreamPublisher"];

/// `LeaderElectionService.startElectionProcess`, and the TTL index of `onModuleInit`.
async fn write_lease(fixture: &CliFixture) {
    let leases = fixture.coordination.collection::<Document>("leader_leases");
    let ttl = IndexOptions::builder().expire_after(Duration::ZERO).build();
    leases.create_index(IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(ttl).build()).await.unwrap();
    let now = DateTime::now();
    // Far in the future: the server's TTL thread must not remove it during the test.
    let expires = DateTime::from_millis(now.timestamp_millis() + 3_600_000);
    let lease = doc! { "_id": NAME, "leaderId": "my-app-0", "expiresAt": expires, "heartbeatAt": now };
    leases.insert_one(lease).await.unwrap();
}

/// `ChangeStreamProducerService`: publishes two orders, and stores the `_id` of the last change as the resume token.
async fn publish_two_orders(fixture: &CliFixture) {
    let mut changes = fixture.source.collection::<Document>("events").watch().await.unwrap();
    for version in 1..=2 {
        fixture.insert("order-1", version, "Added", doc! { "amount": 1 }).await;
    }
    let mut token = None;
    for _ in 1..=2 {
        token = Some(changes.next().await.unwrap().unwrap().id);
    }
    let token = mongodb::bson::serialize_to_document(&token.unwrap()).unwrap();
    let tokens = fixture.coordination.collection::<Document>("resume_tokens");
    tokens.insert_one(doc! { "_id": NAME, "resumeToken": token }).await.unwrap();
}

async fn run(fixture: &CliFixture, arguments: &[&str]) -> crate::fixture::CommandOutput {
    fixture.run(&[arguments, &PIPELINE].concat()).await
}

#[tokio::test]
async fn a_nestjs_publisher_is_followed_from_its_token() {
    let fixture = CliFixture::new("migration", MODELS).await;
    write_lease(&fixture).await;
    publish_two_orders(&fixture).await;
    // Its pods are gone. These orders wait for Headwater.
    fixture.insert("order-1", 3, "Added", doc! { "amount": 10 }).await;
    fixture.insert("order-2", 1, "Added", doc! { "amount": 100 }).await;
    run(&fixture, &["topology", "apply"]).await.success();

    // The TTL index would delete our lease, so nothing starts.
    let findings = run(&fixture, &["check"]).await;
    assert_eq!(findings.status.code(), Some(4), "{}", findings.stdout);
    assert!(findings.stdout.contains("TTL index"), "{}", findings.stdout);
    let refused = fixture.start_pod_with("pod-1", &PIPELINE);
    assert!(!refused.wait_for_exit(SOON).await.success());
    let leases = fixture.coordination.collection::<Document>("leader_leases");
    leases.drop_index("expiresAt_1").await.unwrap();
    leases.delete_one(doc! { "_id": NAME }).await.unwrap();

    let tokens = fixture.coordination.collection::<Document>("resume_tokens");
    let stored = tokens.find_one(doc! { "_id": NAME }).await.unwrap().unwrap();
    let token = stored.get_document("resumeToken").unwrap().get_str("_data").unwrap();
    let unconfirmed = run(&fixture, &["checkpoint", "set", "--token", token]).await.failure();
    assert!(unconfirmed.contains("events before that token are never published"), "{unconfirmed}");
    run(&fixture, &["checkpoint", "set", "--token", token, "--yes"]).await.success();

    let pod = fixture.start_pod_with("pod-1", &PIPELINE);
    fixture.insert("order-1", 4, "Added", doc! { "amount": 1_000 }).await;
    let totals = fixture.views.collection::<Document>("totals");
    let total = async |order: &str| {
        let found = totals.find_one(doc! { "_id": order }).await.unwrap();
        found.and_then(|found| found.get_i32("total").ok())
    };
    wait_for("the orders after the token, and none before it", SOON, async || {
        match (total("order-1").await, total("order-2").await) {
            (Some(1_010), Some(100)) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    drop(pod);
}
