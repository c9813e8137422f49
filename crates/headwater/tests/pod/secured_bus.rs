//! A pod on a bus that requires TLS and a key: refused keys and tokens are reported, and nothing is lost until they are corrected.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use testkit::bus::{credential, sign_token};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};

const ALL_KEYS: [&str; 4] = ["root", "pods", "listener", "sender"];

fn secured() -> TestClusterConfig {
    TestClusterConfig { pods_key: Some("pods"), ..cluster_config(MongoTopology::Shared) }
}

/// A cluster whose pod has this credential, and has been started.
async fn start_with(credential: &str) -> PodFixture {
    let mut cluster = TestCluster::start(secured()).await.unwrap();
    replace_credential(&cluster, credential);
    cluster.start_pods().unwrap();
    cluster.wait_for_leader(SOON).await.unwrap();
    PodFixture(cluster)
}

/// Rewrites the connection string in the pod's configuration file; the pod reads it when it starts.
fn replace_credential(cluster: &TestCluster, credential: &str) {
    let file = cluster.pod(0).config();
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once(";SharedAccess").unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    std::fs::write(file, format!("{before};{credential}\"{after}")).unwrap();
}

/// Waits until the status reports that the bus refuses this service, and what to check.
async fn wait_for_refusal(fixture: &PodFixture, service: &str, right: &str) {
    let words = format!("check `service_bus.connection_string`: the key, its right {right}");
    wait_for(format!("the refusal of the {service}"), SOON, async || {
        let status = fixture.json("/api/status").await;
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let matches = |problem: &Json| problem["text"].as_str().is_some_and(|text| text.contains(&words));
        if problems.iter().any(matches) { Ok(()) } else { Err(problems) }
    })
    .await;
}

/// Waits for a log line with these words; it must not contain a key.
async fn assert_logged(fixture: &PodFixture, words: &str) {
    fixture.pod().wait_for_line(words, SOON).await;
    let leaked = fixture.pod().lines().into_iter().find(|line| line.text.contains("-key"));
    assert!(leaked.is_none(), "a key in the log: {leaked:?}");
}

/// Every event of an order is applied, and each one once.
pub(crate) async fn wait_for_sequence(fixture: &PodFixture, aggregate: &str, sequence: i64) {
    let views = fixture.0.mongo().client().database(&fixture.views_database());
    let cursors = views.collection::<Document>("_headwater_cursors");
    wait_for(format!("event {sequence} of {aggregate}"), SOON, async || {
        let cursor = cursors.find_one(doc! { "_id.aggregate": aggregate }).await.unwrap().ok_or("no cursor")?;
        assert!(!cursor.contains_key("parked"), "{cursor}");
        if cursor.get_i64("sequence").is_ok_and(|at| at == sequence) { Ok(()) } else { Err("behind") }
    })
    .await;
    fixture.wait_for_applied(aggregate).await;
}

#[tokio::test]
async fn events_flow_with_tls_and_a_key_without_manage() {
    let fixture = PodFixture::start(secured()).await;
    fixture.insert("order-1", 1).await;
    fixture.insert("order-1", 2).await;
    wait_for_sequence(&fixture, "order-1", 2).await;
    // The proof that the bus is locked: the same client without the key is refused.
    let address = fixture.0.broker().address();
    let plain = servicebus::Client::new(
        &local_cluster::connection_string(address),
        servicebus::Config {
            connect_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(5),
            ..servicebus::Config::default()
        },
    )
    .unwrap();
    assert!(plain.connect().await.is_err(), "a connection without TLS");
    fixture.stop().await;
}

#[tokio::test]
async fn a_wrong_key_is_reported_until_it_is_corrected() {
    let mut fixture = start_with("SharedAccessKeyName=pods;SharedAccessKey=wrong-key").await;
    fixture.insert("order-1", 1).await;
    wait_for_refusal(&fixture, "producer", "Send").await;
    wait_for_refusal(&fixture, "consumer", "Listen").await;
    assert_logged(&fixture, "InvalidSignature").await;
    replace_credential(&fixture.0, &credential("pods"));
    fixture.0.restart_pod(0).await.unwrap();
    wait_for_sequence(&fixture, "order-1", 1).await;
    fixture.stop().await;
}

#[tokio::test]
async fn an_expired_token_is_reported_until_it_is_replaced() {
    let token = |valid_for| format!("SharedAccessSignature={}", sign_token("pods", valid_for));
    let mut fixture = start_with(&token(Duration::ZERO)).await;
    fixture.insert("order-1", 1).await;
    wait_for_refusal(&fixture, "producer", "Send").await;
    wait_for_refusal(&fixture, "consumer", "Listen").await;
    assert_logged(&fixture, "ExpiredToken").await;
    replace_credential(&fixture.0, &token(Duration::from_secs(3_600)));
    fixture.0.restart_pod(0).await.unwrap();
    wait_for_sequence(&fixture, "order-1", 1).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_token_that_expires_in_use_stops_nothing_for_good() {
    let mut fixture = PodFixture::start(secured()).await;
    fixture.insert("order-1", 1).await;
    wait_for_sequence(&fixture, "order-1", 1).await;
    // The broker's clock is a day ahead: open links are cut, and every new token counts as expired.
    fixture.0.broker().advance_clock(Duration::from_secs(86_400)).await.unwrap();
    wait_for_refusal(&fixture, "consumer", "Listen").await;
    fixture.insert("order-1", 2).await;
    wait_for_refusal(&fixture, "producer", "Send").await;
    assert_logged(&fixture, "ExpiredToken").await;
    fixture.0.broker_mut().restart_with_keys(&ALL_KEYS).await.unwrap();
    wait_for_sequence(&fixture, "order-1", 2).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_key_without_a_right_stops_only_what_needs_it() {
    let mut fixture = start_with(&credential("listener")).await;
    fixture.insert("order-1", 1).await;
    wait_for_refusal(&fixture, "producer", "Send").await;
    assert_logged(&fixture, "publishing paused: Service Bus refuses the key or token").await;
    // The events are published now, and cannot be received.
    replace_credential(&fixture.0, &credential("sender"));
    fixture.0.restart_pod(0).await.unwrap();
    wait_for("the message on the bus", SOON, async || match fixture.0.broker().active_messages().await {
        // An event that is written while the snapshot runs may be there twice.
        Ok(1..) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    wait_for_refusal(&fixture, "consumer", "Listen").await;
    assert_logged(&fixture, "failed to accept session").await;
    replace_credential(&fixture.0, &credential("pods"));
    fixture.0.restart_pod(0).await.unwrap();
    wait_for_sequence(&fixture, "order-1", 1).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_revoked_key_loses_nothing_and_recovers_by_itself() {
    let mut fixture = PodFixture::start(secured()).await;
    fixture.insert("order-1", 1).await;
    wait_for_sequence(&fixture, "order-1", 1).await;
    fixture.0.broker_mut().restart_with_keys(&["root"]).await.unwrap();
    for version in 2..=4 {
        fixture.insert("order-1", version).await;
    }
    wait_for_refusal(&fixture, "producer", "Send").await;
    wait_for_refusal(&fixture, "consumer", "Listen").await;
    assert_logged(&fixture, "InvalidSignature").await;
    // The pod is not restarted.
    fixture.0.broker_mut().restart_with_keys(&ALL_KEYS).await.unwrap();
    wait_for_sequence(&fixture, "order-1", 4).await;
    fixture.stop().await;
}
