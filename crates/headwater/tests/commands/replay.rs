//! An operator sets the checkpoint back, to deliver again what Service Bus lost.

use mongodb::bson::{Document, Timestamp, doc};
use serde_json::Value as Json;
use testkit::process::Process;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";
/// A snapshot needs a sequence. The audit would find the lost events without a replay.
const FROM_NOW: &str = "\nproducer: { start: now }\naudit: { enabled: false }";

/// A pipeline whose pods may run without read models: they publish, and apply nothing.
struct ReplayFixture {
    cli: CliFixture,
    is_sequenced: bool,
}

impl ReplayFixture {
    async fn new(purpose: &str, is_sequenced: bool) -> Self {
        let fixture = Self { cli: CliFixture::new(purpose, "").await, is_sequenced };
        fixture.cli.run(&["topology", "apply"]).await.success();
        fixture
    }

    async fn start_pod(&self, name: &str, models: &str) -> Process {
        let shared = testkit::mongo::shared().await.unwrap();
        self.cli.configure(shared.uri(), &format!("{models}{FROM_NOW}"));
        if !self.is_sequenced {
            self.cli.edit_config(|text| text.replace(", sequence: version", ""));
        }
        self.cli.start_pod(name)
    }

    async fn stop_pod(&self, pod: Process) {
        pod.terminate();
        assert!(pod.wait_for_exit(SOON).await.success());
    }

    /// One event for each of four orders.
    async fn insert(&self, versions: std::ops::RangeInclusive<i64>) {
        for version in versions {
            for order in 1..=4 {
                self.cli.insert(&format!("order-{order}"), version, "Added", doc! { "amount": 1 }).await;
            }
        }
    }

    async fn show(&self) -> Json {
        self.cli.run(&["checkpoint", "show", "--json"]).await.json()
    }

    /// Waits until the checkpoint has passed every event that is in the source now.
    async fn wait_until_published(&self) -> Json {
        let hello = self.cli.source.run_command(doc! { "hello": 1 }).await.unwrap();
        let last: Timestamp = hello
            .get_document("lastWrite")
            .unwrap()
            .get_document("majorityOpTime")
            .unwrap()
            .get_timestamp("ts")
            .unwrap();
        wait_for("the checkpoint to pass the events", SOON, async || {
            let shown = self.show().await;
            let number = |field: &str| shown["cluster_time"][field].as_u64().unwrap_or(0);
            let reached = (number("time"), number("increment")) >= (last.time.into(), last.increment.into());
            if reached { Ok(shown) } else { Err(shown) }
        })
        .await
    }

    async fn wait_for_totals(&self, expected: i32) {
        wait_for("the totals", SOON, async || {
            let mut totals = vec![];
            for order in 1..=4 {
                let id = doc! { "_id": format!("order-{order}") };
                let found = self.cli.views.collection::<Document>("totals").find_one(id).await.unwrap();
                totals.push(found.and_then(|found| found.get_i32("total").ok()).unwrap_or(0));
            }
            if totals == [expected; 4] { Ok(()) } else { Err(totals) }
        })
        .await;
    }

    async fn delete_subscription(&self) {
        let path = "/events/Subscriptions/read-models?api-version=2021-05";
        self.cli.broker.administer("DELETE", path, "", "").await;
    }
}

/// 20 events are applied, and 20 more are lost with the subscription. All are published again: the 20 are applied, and nothing twice.
async fn replay_after_a_deleted_subscription(purpose: &str, is_sequenced: bool) -> (Json, Json) {
    let fixture = ReplayFixture::new(purpose, is_sequenced).await;
    let pod = fixture.start_pod("pod-1", MODELS).await;
    let begin = fixture.wait_until_published().await;
    fixture.insert(1..=5).await;
    fixture.wait_for_totals(5).await;
    fixture.stop_pod(pod).await;

    let pod = fixture.start_pod("pod-2", "").await;
    fixture.insert(6..=10).await;
    fixture.wait_until_published().await;
    fixture.stop_pod(pod).await;
    fixture.delete_subscription().await;
    fixture.cli.run(&["topology", "apply"]).await.success();

    let token = begin["token"].as_str().unwrap();
    let set = fixture.cli.run(&["checkpoint", "set", "--token", token, "--yes", "--json"]).await.json();
    let pod = fixture.start_pod("pod-3", MODELS).await;
    fixture.wait_for_totals(10).await;
    fixture.wait_until_published().await;
    // One more event of each order, behind everything that was published again.
    fixture.insert(11..=11).await;
    fixture.wait_for_totals(11).await;
    fixture.stop_pod(pod).await;
    (begin, set)
}

#[tokio::test]
async fn a_replay_passes_duplicate_detection() {
    let (begin, set) = replay_after_a_deleted_subscription("replay", true).await;
    assert_eq!((begin["replay"].as_u64(), set["replay"].as_u64()), (Some(0), Some(1)));
    assert_eq!((begin["epoch"].as_u64(), set["epoch"].as_u64()), (Some(1), Some(2)));
    assert!(set["consequence"].as_str().unwrap().contains("apply those they lack"), "{set}");
}

#[tokio::test]
async fn a_replay_without_a_sequence_applies_nothing_twice() {
    let (begin, set) = replay_after_a_deleted_subscription("replay_by_position", false).await;
    assert_eq!((begin["epoch"].as_u64(), set["epoch"].as_u64()), (Some(1), Some(1)), "the epoch stays");
    assert_eq!(set["replay"], 1);
    assert!(set["consequence"].as_str().unwrap().contains("even one they never received"), "{set}");
}

#[tokio::test]
async fn sessions_change_on_a_live_pipeline_only_with_a_sequence() {
    for is_sequenced in [true, false] {
        let fixture = ReplayFixture::new("session_scheme", is_sequenced).await;
        let pod = fixture.start_pod("pod-1", "").await;
        fixture.wait_until_published().await;
        fixture.stop_pod(pod).await;
        let config = ["--set", "producer.sessions=buckets(4)"];
        let pod = fixture.cli.start_pod_with("pod-2", &config);
        if is_sequenced {
            pod.wait_for_line("producer started", SOON).await;
        } else {
            let halted = pod.wait_for_line("operator action required", SOON).await.text;
            for words in ["E0003", "producer.sessions: aggregate", "buckets(4)", "source.sequence"] {
                assert!(halted.contains(words), "{words}: {halted}");
            }
        }
        fixture.stop_pod(pod).await;
    }
}
