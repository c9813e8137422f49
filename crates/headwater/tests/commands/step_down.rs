//! The leader gives its term up when it is asked to.

use crate::house::{House, SOON};

#[tokio::test]
async fn the_leader_steps_down_and_another_pod_leads() {
    let house = House::new("step_down", "").await;
    let nobody = house.ask(&["step-down"]).await.refused();
    assert!(nobody.contains("nobody leads"), "{nobody}");
    let never = house.ask(&["step-down", "--within", "0s"]).await.refused();
    assert!(never.contains("in no time"), "{never}");
    house.ask(&["topology", "apply"]).await.well();
    let first = house.pod("pod-1");
    first.wait_for_line("gained leadership", SOON).await;
    let second = house.pod("pod-2");
    second.wait_for_line("pod started", SOON).await;
    let said = house.ask(&["step-down"]).await.well();
    assert!(said.contains("pod-1 is asked to give term 1 up") && said.contains("pod-2 leads in term 2"), "{said}");
    first.wait_for_line("asked to step down", SOON).await;
    // And back, for a program.
    let said = house.ask(&["step-down", "--json"]).await;
    let told = said.json();
    said.well();
    assert_eq!(told["before"], serde_json::json!({ "leader": "pod-2", "term": 2 }));
    assert_eq!(told["after"], serde_json::json!({ "leader": "pod-1", "term": 3 }));
    assert!(told["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{told}");
    for pod in [first, second] {
        pod.terminate();
        assert!(pod.wait_for_exit(SOON).await.success());
    }
}
