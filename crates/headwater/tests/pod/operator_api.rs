//! An operator's acts over HTTP, on real pods: what the commands do, for whoever shows the token.

use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, blueprint};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What is no number cannot be added.
const COUNTING: &str = "read_models: { orders: { when: { Placed: { $inc: { count: $$event.payload.customer } } } } }\n";

fn with_token() -> TestClusterConfig {
    let more = format!("{COUNTING}admin: {{ token: {TOKEN} }}\n");
    TestClusterConfig { extra_yaml: more, ..blueprint(MongoTopology::Shared) }
}

async fn parked(fixture: &PodFixture) -> Vec<Json> {
    let list = fixture.ask_with(TOKEN, "GET", "/api/parked", "").await;
    assert_eq!(list.status, 200, "{}", list.body);
    serde_json::from_str(&list.body).unwrap()
}

async fn wait_for_parked(fixture: &PodFixture, events: u64) -> Json {
    wait_for("it to be parked", SOON, async || match &parked(fixture).await[..] {
        [one] if one["events"] == events => Ok(one.clone()),
        list => Err(list.to_vec()),
    })
    .await
}

#[tokio::test]
async fn without_a_token_the_page_listens_on_loopback_and_is_for_reading() {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    assert!(fixture.address_of(0).await.ip().is_loopback(), "{}", fixture.address_of(0).await);
    for path in ["/api/step-down", "/api/parked/retry", "/api/parked/discard"] {
        assert_eq!(fixture.post(path, None, "{}").await.status, 403, "{path}");
        assert_eq!(fixture.post(path, Some(TOKEN), "{}").await.status, 403, "{path}");
    }
    assert_eq!(fixture.json("/api/operator").await["token"], false);
    assert_eq!(fixture.metric("headwater_terms_total").await, Some(1.0));
    fixture.stop().await;
}

#[tokio::test]
async fn whoever_shows_the_token_moves_leadership_and_nobody_else_does() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..with_token() }).await;
    let before = fixture.0.leader().await.expect("one leads");
    for token in [None, Some("0123456789abcdef0123456789abcdeF"), Some("")] {
        assert_eq!(fixture.post("/api/step-down", token, "{}").await.status, 401, "{token:?}");
    }
    let asked = fixture.post("/api/step-down", Some(TOKEN), "{}").await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    assert!(asked.body.contains(&format!("pod-{before} is asked to give term ")), "{}", asked.body);
    let pods = tokio::sync::Mutex::new(&mut fixture);
    wait_for("the other pod to lead", SOON, async || match pods.lock().await.0.leader().await {
        Some(leader) if leader != before => Ok(()),
        other => Err(other),
    })
    .await;
    // Not in any log, whatever was tried.
    for pod in 0..2 {
        let said = fixture.0.pod(pod).process().expect("it runs").lines();
        assert!(!said.iter().any(|line| line.text.contains("0123456789abcde")), "the token is in a log");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_parked_is_retried_and_discarded_over_http() {
    let fixture = PodFixture::start(with_token()).await;
    fixture.insert("order-1", 1).await;
    fixture.insert("order-1", 2).await;
    let one = wait_for_parked(&fixture, 2).await;
    assert_eq!(
        (&one["aggregate"], &one["read_model"], &one["reason"]),
        (&"order-1".into(), &"orders".into(), &"poison".into())
    );
    let which = |all: bool| serde_json::json!({ "read_model": "orders", "id": one["id"], "all": all }).to_string();
    let retry = serde_json::json!({ "read_model": "orders", "id": one["id"] }).to_string();

    assert_eq!(fixture.post("/api/parked/discard", None, &which(true)).await.status, 401);
    let refused = fixture.post("/api/parked/retry", Some(TOKEN), &retry).await;
    assert_eq!(refused.status, 409, "it still cannot be applied: {}", refused.body);
    assert!(refused.body.contains("order-1 stays parked in orders"), "{}", refused.body);
    assert_eq!(parked(&fixture).await.len(), 1);

    let first = fixture.post("/api/parked/discard", Some(TOKEN), &which(false)).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert!(first.body.contains("1 event of order-1 was left out of orders"), "{}", first.body);
    // Somebody mends what waits.
    let views = fixture.0.mongo().client().database(&fixture.views());
    let events = views.collection::<Document>("parked_events");
    let mended = doc! { "$set": { "body.payload.customer": 7 } };
    events.update_one(doc! { "state": "waiting" }, mended).await.unwrap();
    let retried = fixture.post("/api/parked/retry", Some(TOKEN), &retry).await;
    assert_eq!(retried.status, 200, "{}", retried.body);
    assert_eq!(parked(&fixture).await, Vec::<Json>::new());
    let order = views.collection::<Document>("orders").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(order.and_then(|order| order.get_i32("count").ok()), Some(7));
    assert_eq!(fixture.post("/api/parked/retry", Some(TOKEN), &retry).await.status, 404, "it has gone on");
    fixture.stop().await;
}
