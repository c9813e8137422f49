//! The reported latency from insert to read model.

use std::time::{Duration, Instant};

use testkit::cluster::MongoTopology;
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};

const COUNT: &str = "headwater_insert_to_read_model_seconds_count";
const SUM: &str = "headwater_insert_to_read_model_seconds_sum";

/// Two clocks in milliseconds may differ by this much.
const ROUNDING: f64 = 0.002;

#[tokio::test]
async fn insert_to_read_model_is_measured_to_the_millisecond() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    assert_eq!(fixture.metric(COUNT).await, Some(0.0));
    // The pod leads by now. A status without a leader is older than this, and says so.
    let led_since = Instant::now();
    let first = fixture.json("/api/status").await;
    let age = first["collected"]["seconds_ago"].as_f64().expect("a status says its age");
    let is_older = age + ROUNDING >= led_since.elapsed().as_secs_f64() && age < 1.0;
    assert!(first["leader"]["pod"].is_string() || is_older, "the first status is from before the election: {first}");
    assert!(first["latency"].is_null());

    // Pause the broker, so that the event takes at least that long.
    let paused = Duration::from_millis(700);
    fixture.0.broker_mut().pause().await;
    let began = Instant::now();
    fixture.insert("order-1", 1).await;
    tokio::time::sleep(paused).await;
    fixture.0.broker_mut().resume();
    let sum = wait_for("one event in the histogram", SOON, async || match fixture.metric(COUNT).await {
        Some(1.0) => Ok(fixture.metric(SUM).await.expect("a histogram has a sum")),
        other => Err(other),
    })
    .await;
    let most = began.elapsed().as_secs_f64() + ROUNDING;
    assert!(paused.as_secs_f64() - ROUNDING <= sum && sum <= most, "{sum} s, of at most {most} s");

    // The status reports the same, over all pods.
    let p50 = wait_for("the latency in the status", SOON, async || {
        let status = fixture.json("/api/status").await;
        status["latency"]["p50_seconds"].as_f64().ok_or(status)
    })
    .await;
    assert!((0.5..=2.0 * most).contains(&p50), "{p50} s");
    let output = fixture.run_command(&["status"]).await;
    assert!(output.contains("to read model   p50 "), "{output}");
    fixture.stop().await;
}
