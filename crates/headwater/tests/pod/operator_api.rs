//! Operator actions over HTTP on real pods: the same as the commands, with the token.

use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Adding a value that is not a number fails, so the event is parked.
const COUNTING: &str = "read_models: { orders: { when: { Placed: { $inc: { count: $$event.payload.customer } } } } }\n";

fn with_token() -> TestClusterConfig {
    let more = format!("{COUNTING}admin: {{ token: {TOKEN} }}\n");
    TestClusterConfig { extra_yaml: more, ..cluster_config(MongoTopology::Shared) }
}

async fn parked(fixture: &PodFixture) -> Vec<Json> {
    let list = fixture.request_with(TOKEN, "GET", "/api/parked", "").await;
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
async fn without_a_token_a_pod_is_read_only_and_on_loopback() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
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
async fn only_the_token_allows_a_step_down() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..with_token() }).await;
    let before = fixture.0.leader().await.expect("there is a leader");
    for token in [None, Some("0123456789abcdef0123456789abcdeF"), Some("")] {
        assert_eq!(fixture.post("/api/step-down", token, "{}").await.status, 401, "{token:?}");
    }
    let reply = fixture.post("/api/step-down", Some(TOKEN), "{}").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.body.contains(&format!("requested that pod-{before} steps down from term ")), "{}", reply.body);
    let pods = tokio::sync::Mutex::new(&mut fixture);
    wait_for("the other pod to lead", SOON, async || match pods.lock().await.0.leader().await {
        Some(leader) if leader != before => Ok(()),
        other => Err(other),
    })
    .await;
    // The token is in no log.
    for pod in 0..2 {
        let log = fixture.0.pod(pod).process().expect("it runs").lines();
        assert!(!log.iter().any(|line| line.text.contains("0123456789abcde")), "the token is in a log");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn parked_events_are_retried_and_discarded_over_http() {
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

    // Whoever waits for an event of a parked aggregate is told at once.
    let parked_wait =
        fixture.request_with(TOKEN, "GET", "/api/applied?aggregate=order-1&sequence=2&timeout=30", "").await;
    assert_eq!(parked_wait.status, 409, "{}", parked_wait.body);
    assert!(parked_wait.body.contains("\"poison\""), "{}", parked_wait.body);

    assert_eq!(fixture.post("/api/parked/discard", None, &which(true)).await.status, 401);
    let refused = fixture.post("/api/parked/retry", Some(TOKEN), &retry).await;
    assert_eq!(refused.status, 409, "it still cannot be applied: {}", refused.body);
    assert!(refused.body.contains("order-1 stays parked in orders"), "{}", refused.body);
    assert_eq!(parked(&fixture).await.len(), 1);

    let first = fixture.post("/api/parked/discard", Some(TOKEN), &which(false)).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert!(first.body.contains("1 event of order-1 was discarded from orders"), "{}", first.body);
    // Fix the parked event.
    let views = fixture.0.mongo().client().database(&fixture.views_database());
    let events = views.collection::<Document>("parked_events");
    let fixed = doc! { "$set": { "body.payload.customer": 7 } };
    events.update_one(doc! { "state": "waiting" }, fixed).await.unwrap();
    let retried = fixture.post("/api/parked/retry", Some(TOKEN), &retry).await;
    assert_eq!(retried.status, 200, "{}", retried.body);
    assert_eq!(parked(&fixture).await, Vec::<Json>::new());
    let applied = fixture.request_with(TOKEN, "GET", "/api/applied?aggregate=order-1&sequence=2", "").await;
    assert_eq!(applied.status, 200, "{}", applied.body);
    assert!(applied.body.contains("\"operation_time\""), "{}", applied.body);
    // The same event, by its `_id` in the source.
    let events = fixture.0.events();
    let event = events.find_one(doc! { "aggregateId": "order-1", "version": 2 }).await;
    let id = event.unwrap().unwrap().get_object_id("_id").unwrap().to_hex();
    let by_id = fixture.request_with(TOKEN, "GET", &format!("/api/applied?event={id}"), "").await;
    assert_eq!(by_id.status, 200, "{}", by_id.body);
    let unknown = fixture.request_with(TOKEN, "GET", "/api/applied?event=nobody", "").await;
    assert!(unknown.status == 404 && unknown.body.contains("no event with this `_id`"), "{}", unknown.body);
    let late = fixture.request_with(TOKEN, "GET", "/api/applied?aggregate=order-1&sequence=3&timeout=0.05", "").await;
    assert_eq!(late.status, 504, "{}", late.body);
    let order = views.collection::<Document>("orders").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(order.and_then(|order| order.get_i32("count").ok()), Some(7));
    assert_eq!(fixture.post("/api/parked/retry", Some(TOKEN), &retry).await.status, 404, "it is no longer parked");
    fixture.stop().await;
}
