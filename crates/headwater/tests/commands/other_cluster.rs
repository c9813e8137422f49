//! Two clusters with the same database and collection names, and one coordination database.

use mongodb::bson::{Document, doc};
use testkit::mongo::{ReplicaSet, shared};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

async fn wait_for_recorded_cluster(fixture: &CliFixture) -> String {
    let checkpoints = fixture.coordination.collection::<Document>("checkpoints");
    wait_for("the checkpoint to name its cluster", SOON, async || {
        let stored = checkpoints.find_one(doc! { "_id": "shop" }).await.unwrap().unwrap_or_default();
        stored.get_str("cluster").map(str::to_owned).map_err(|_| stored.clone())
    })
    .await
}

#[tokio::test]
async fn a_source_of_the_same_name_on_another_cluster_is_refused() {
    let fixture = CliFixture::new("clusters", "producer: { start: now }").await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    let ours = wait_for_recorded_cluster(&fixture).await;
    assert!(ours.starts_with("replica set "), "{ours}");

    // The checkpoint of an older version has no cluster: the next leader records it.
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    let checkpoints = fixture.coordination.collection::<Document>("checkpoints");
    checkpoints.update_one(doc! { "_id": "shop" }, doc! { "$unset": { "cluster": "" } }).await.unwrap();
    let pod = fixture.start_pod("pod-1");
    assert_eq!(wait_for_recorded_cluster(&fixture).await, ours);

    // The pod of the other cluster never leads, because this one does. It must not wait for years.
    let other = ReplicaSet::start(1).await.unwrap();
    let shared = shared().await.unwrap().uri().to_owned();
    fixture.edit_config(|text| {
        let coordination = format!("coordination: {{ uri: \"{shared}\", ");
        text.replacen(&format!("uri: \"{shared}\""), &format!("uri: \"{}\"", other.uri()), 1)
            .replace("coordination: { ", &coordination)
    });
    let stranger = fixture.start_pod("pod-2");
    let status = stranger.wait_for_exit(SOON).await;
    let output: String = stranger.lines().into_iter().map(|line| line.text + "\n").collect();
    assert!(!status.success(), "{output}");
    for words in ["on another cluster", &ours, "set another `pipeline` name", "headwater checkpoint reset"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    // An operator who has moved the source says so, and then its pods run.
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    fixture.run(&["checkpoint", "reset", "--start", "now", "--yes"]).await.success();
    let moved = fixture.start_pod("pod-2");
    moved.wait_for_line("producer started", SOON).await;
    assert_ne!(wait_for_recorded_cluster(&fixture).await, ours);
    moved.terminate();
    assert!(moved.wait_for_exit(SOON).await.success());
}
