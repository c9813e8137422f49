//! The audit of real pods: what Service Bus loses is found and healed, and `status` says what is proven.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use servicebus::Settlement;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const SUBSCRIPTION: &str = "events/Subscriptions/read-models";
const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }\n";
const OFTEN: &str = "audit: { period: 6s, budget_percent: 100 }\n";
const OFF: &str = "audit: { enabled: false }\n";

/// Ten orders of three events are published and acknowledged, and no pod applies them: they are all on the subscription.
async fn publish_without_consumers(fixture: &CliFixture) {
    fixture.run(&["topology", "apply"]).await.success();
    let publisher = fixture.start_pod("publisher");
    publisher.wait_for_line("lease acquired", SOON).await;
    // An event that is written while the snapshot runs is published twice, the second time by the next leader: that would not be lost.
    let checkpoints = fixture.coordination.collection::<Document>("checkpoints");
    wait_for("the snapshot to end", SOON, async || match checkpoints.find_one(doc! { "_id": "shop" }).await.unwrap() {
        Some(checkpoint) if checkpoint.get_str("phase").is_ok_and(|phase| phase == "stream") => Ok(()),
        checkpoint => Err(checkpoint),
    })
    .await;
    for order in 0..10 {
        for version in 1..=3 {
            fixture.insert(&format!("order-{order}"), version, "Added", doc! { "amount": version }).await;
        }
    }
    let administration = fixture.administration();
    wait_for("all events to be on the subscription", SOON, async || {
        let subscription = administration.get(SUBSCRIPTION).await.unwrap().expect("the subscription exists");
        match subscription.count("ActiveMessageCount") {
            Some(30) => Ok(()),
            count => Err(count),
        }
    })
    .await;
    publisher.terminate();
    assert!(publisher.wait_for_exit(SOON).await.success());
}

/// Deletes the subscription with its messages and makes it again.
async fn recreate_subscription(fixture: &CliFixture) {
    fixture.broker.administer("DELETE", &format!("/{SUBSCRIPTION}?api-version=2021-05"), "", "").await;
    fixture.run(&["topology", "apply"]).await.success();
}

/// Receives and completes every message. On a busy machine no session within a moment does not mean that none is left.
async fn purge(fixture: &CliFixture) {
    let client = fixture.broker.client(servicebus::Config::default());
    let administration = fixture.administration();
    wait_for("the subscription to be empty", SOON, async || {
        let wait = Duration::from_millis(500);
        while let Some(mut session) = client.accept_next_session(SUBSCRIPTION, wait).await.unwrap() {
            let messages = session.receive(100, Duration::from_millis(200)).await.unwrap();
            session.settle(&messages, Settlement::Complete).await.unwrap();
            session.close().await.unwrap();
        }
        let subscription = administration.get(SUBSCRIPTION).await.unwrap().expect("the subscription exists");
        match subscription.count("ActiveMessageCount") {
            Some(0) => Ok(()),
            count => Err(count),
        }
    })
    .await;
}

async fn configured(purpose: &str, audit: &str) -> CliFixture {
    let fixture = CliFixture::new(purpose, "").await;
    publish_without_consumers(&fixture).await;
    reconfigure(&fixture, audit).await;
    fixture
}

async fn reconfigure(fixture: &CliFixture, audit: &str) {
    let shared = testkit::mongo::shared().await.unwrap();
    fixture.configure(shared.uri(), &format!("{MODELS}{audit}"));
}

async fn totals(fixture: &CliFixture) -> i64 {
    let collection = fixture.views.collection::<Document>("totals");
    let mut found = collection.find(doc! {}).await.unwrap();
    let mut sum = 0;
    while found.advance().await.unwrap() {
        let total = found.deserialize_current().unwrap().get("total").cloned();
        sum += total.and_then(|total| total.as_i64().or_else(|| total.as_i32().map(i64::from))).unwrap_or_default();
    }
    sum
}

async fn wait_for_total(fixture: &CliFixture, expected: i64) {
    wait_for("the read model to be complete", SOON, async || match totals(fixture).await {
        total if total == expected => Ok(()),
        total => Err(total),
    })
    .await;
}

async fn audit_document(fixture: &CliFixture) -> Document {
    let audits = fixture.coordination.collection::<Document>("audits");
    audits.find_one(doc! { "_id": "shop" }).await.unwrap().unwrap_or_default()
}

async fn wait_for_rounds(fixture: &CliFixture, number: i64) {
    wait_for("rounds of the audit to end", SOON, async || {
        let audit = audit_document(fixture).await;
        let last = audit.get_document("last").ok().and_then(|last| last.get_i64("number").ok()).unwrap_or_default();
        if last >= number { Ok(()) } else { Err(audit) }
    })
    .await;
}

async fn status(fixture: &CliFixture) -> Value {
    fixture.run(&["status", "--json"]).await.json()
}

/// The codes of the problems that the audit reports; the server of a test may have others.
fn audit_problems(status: &Value) -> Vec<String> {
    let codes =
        status["problems"].as_array().unwrap().iter().map(|problem| problem["code"].as_str().unwrap().to_owned());
    codes.filter(|code| code.starts_with("audit_") || code == "events_missing").collect()
}

#[tokio::test]
async fn a_lost_tail_is_healed_without_an_operator() {
    let fixture = configured("audit_deleted", OFTEN).await;
    recreate_subscription(&fixture).await;
    let pod = fixture.start_pod("pod-1");
    wait_for_total(&fixture, 60).await;
    wait_for("status to say so", SOON, async || {
        let status = status(&fixture).await;
        let audit = &status["audit"];
        let is_found = audit["last"]["found"] == 10 || audit["round"]["found"] == 10;
        if is_found && audit_problems(&status).contains(&"audit_found".to_owned()) { Ok(()) } else { Err(status) }
    })
    .await;
    // The alarm ends with the first round that finds nothing.
    wait_for("the alarm to end", SOON, async || {
        let status = status(&fixture).await;
        let audit = &status["audit"];
        if audit["last"]["found"] == 0 && audit_problems(&status).is_empty() { Ok(()) } else { Err(status) }
    })
    .await;
    assert_eq!(totals(&fixture).await, 60, "nothing is applied twice");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn without_the_audit_a_lost_tail_stays_lost() {
    let fixture = configured("audit_purged", OFF).await;
    purge(&fixture).await;
    let pod = fixture.start_pod("pod-1");
    // Another aggregate flows; nobody looks for the lost ones.
    fixture.insert("another", 1, "Added", doc! { "amount": 100 }).await;
    wait_for_total(&fixture, 100).await;
    let text = fixture.run(&["status"]).await.stdout;
    assert!(text.contains("healthy, unaudited)"), "{text}");
    assert_eq!(status(&fixture).await["audit"]["state"], "unaudited");
    assert_eq!(totals(&fixture).await, 100);
    // A round on request: first only a report, then the healing.
    let before = audit_document(&fixture).await;
    let dry = fixture.run(&["audit", "--all", "--dry-run", "--json"]).await;
    assert_eq!(
        (dry.json()["compared"].clone(), dry.json()["found"].clone(), dry.status.code()),
        (json!(11), json!(10), Some(4))
    );
    assert!(dry.stderr.contains("10 aggregates miss events"), "{}", dry.stderr);
    assert_eq!((totals(&fixture).await, audit_document(&fixture).await), (100, before));
    let healed = fixture.run(&["audit", "--all"]).await;
    assert_eq!(healed.status.code(), Some(4), "{}\n{}", healed.stdout, healed.stderr);
    assert!(healed.stderr.contains("10 aggregates missed 30 events"), "{}", healed.stderr);
    assert_eq!(totals(&fixture).await, 160);
    let again = fixture.run(&["audit", "--all"]).await.success();
    assert!(again.contains("11 aggregates compared, 0 skipped, 0 with missing events"), "{again}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn a_killed_auditor_is_replaced_by_another_pod() {
    let fixture = CliFixture::new("audit_killed", "").await;
    reconfigure(&fixture, OFTEN).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 1 }).await;
    let mut pods = vec![fixture.start_pod("pod-1"), fixture.start_pod("pod-2")];
    wait_for_rounds(&fixture, 1).await;
    let holder = audit_document(&fixture).await.get_document("holder").unwrap().get_str("pod").unwrap().to_owned();
    let auditor = pods.remove(usize::from(holder == "pod-2"));
    auditor.kill().await;
    let ended = audit_document(&fixture).await.get_document("last").unwrap().get_i64("number").unwrap();
    // The other pod takes over after the ttl of the lease, two seconds here, and goes on.
    wait_for_rounds(&fixture, ended + 2).await;
    let other = audit_document(&fixture).await.get_document("holder").unwrap().get_str("pod").unwrap().to_owned();
    assert_ne!(other, holder);
    let pod = pods.remove(0);
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    assert!(!audit_document(&fixture).await.contains_key("holder"), "a pod that stops releases the audit");
}

#[tokio::test]
async fn the_audit_finds_nothing_under_load_and_takeovers() {
    let fixture = CliFixture::new("audit_load", "").await;
    reconfigure(&fixture, "audit: { period: 1s, budget_percent: 100 }\n").await;
    fixture.run(&["topology", "apply"]).await.success();
    let pods = ["pod-1", "pod-2"].map(|name| fixture.start_pod(name));
    pods[0].wait_for_line("pod started", SOON).await;
    let writing = async {
        for version in 1..=60 {
            for order in 0..20 {
                fixture.insert(&format!("order-{order:02}"), version, "Added", doc! { "amount": 1 }).await;
            }
        }
    };
    let takeovers = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            fixture.run(&["step-down"]).await;
        }
    };
    tokio::join!(writing, takeovers);
    wait_for_total(&fixture, 1_200).await;
    let ended = audit_document(&fixture).await.get_document("last").map_or(0, |last| last.get_i64("number").unwrap());
    wait_for_rounds(&fixture, ended + 2).await;
    let audit = audit_document(&fixture).await;
    assert_eq!(audit.get_i64("foundTotal").unwrap_or_default(), 0, "{audit}");
    assert_eq!(status(&fixture).await["audit"]["last"]["compared"], 20);
    for pod in pods {
        pod.terminate();
        assert!(pod.wait_for_exit(SOON).await.success());
    }
}

#[tokio::test]
async fn an_overdue_audit_is_not_healthy() {
    let fixture = CliFixture::new("audit_overdue", "").await;
    reconfigure(&fixture, "audit: { period: 1h }\n").await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 1 }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for_rounds(&fixture, 1).await;
    assert_eq!(audit_problems(&status(&fixture).await), [""; 0]);
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    // As if the last round had ended two hours ago.
    let audits = fixture.coordination.collection::<Document>("audits");
    let long_ago = doc! { "$dateSubtract": { "startDate": "$$NOW", "unit": "hour", "amount": 2 } };
    audits.update_one(doc! { "_id": "shop" }, vec![doc! { "$set": { "last.endedAt": long_ago } }]).await.unwrap();
    let status = fixture.run(&["status", "--json"]).await;
    assert_eq!(audit_problems(&status.json()), ["audit_overdue"]);
    assert_eq!(status.status.code(), Some(4));
}

#[tokio::test]
async fn without_a_sequence_status_says_unauditable() {
    let fixture = CliFixture::new("audit_unauditable", "").await;
    reconfigure(&fixture, "producer: { start: now }\n").await;
    fixture.edit_config(|text| text.replace(", sequence: version", ""));
    let status = status(&fixture).await;
    assert_eq!(status["audit"]["state"], "unauditable");
    assert!(status["audit"]["reason"].as_str().is_some_and(|reason| reason.contains("sequence")), "{status}");
}
