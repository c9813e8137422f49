//! `headwater step-down`: the leader steps down and another pod leads.

use crate::fixture::{CliFixture, SOON};

#[tokio::test]
async fn the_leader_steps_down_and_another_pod_leads() {
    let fixture = CliFixture::new("step_down", "").await;
    let nobody = fixture.run(&["step-down"]).await.failure();
    assert!(nobody.contains("has no leader"), "{nobody}");
    let never = fixture.run(&["step-down", "--within", "0s"]).await.failure();
    assert!(never.contains("longer than 0"), "{never}");
    fixture.run(&["topology", "apply"]).await.success();
    let first = fixture.start_pod("pod-1");
    first.wait_for_line("lease acquired", SOON).await;
    let second = fixture.start_pod("pod-2");
    second.wait_for_line("pod started", SOON).await;
    let output = fixture.run(&["step-down"]).await.success();
    assert!(
        output.contains("requested: pod-1 steps down from term 1") && output.contains("pod-2 leads in term 2"),
        "{output}"
    );
    first.wait_for_line("step-down requested", SOON).await;
    // And back, as JSON.
    let output = fixture.run(&["step-down", "--json"]).await;
    let text = output.json();
    output.success();
    assert_eq!(text["before"], serde_json::json!({ "leader": "pod-2", "term": 2 }));
    assert_eq!(text["after"], serde_json::json!({ "leader": "pod-1", "term": 3 }));
    assert_eq!(fixture.history().await[..2], ["step-down", "step-down"]);
    assert!(text["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{text}");
    for pod in [first, second] {
        pod.terminate();
        assert!(pod.wait_for_exit(SOON).await.success());
    }
}
