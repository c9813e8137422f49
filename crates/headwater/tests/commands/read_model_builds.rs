//! What surrounds a build of a read model: room on the disk, and pods that start in the middle.

use mongodb::bson::{Document, doc};
use testkit::disk_fault::{DiskFault, FaultyDisk};
use testkit::mongo::ReplicaSetConfig;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};
use crate::read_model::{TOTALS, configure, read_models, stop, wait_for_states, wait_for_value};

/// Bytes of the large read model; random, so that the server cannot compress them.
const ORDERS: i64 = 32;
const ORDER_BYTES: usize = 128 * 1024;

#[tokio::test]
async fn a_rebuild_without_disk_space_is_refused_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(&folder.path().join("disk")).unwrap();
    let set = disk
        .variables()
        .into_iter()
        .fold(ReplicaSetConfig::with_members(1), |set, (name, value)| set.variable(0, name, value));
    let set = set.start().await.unwrap();
    let fixture = CliFixture::new("read_model_space", "").await;
    let views = set.client().await.unwrap().database(fixture.views.name());
    let models = format!(
        "read_models: {{ uri: \"{}\", database: VIEWS, change_delay: 0s, texts: {{ when: {{ Added: {{ $set: {{ text: $$event.payload.text }} }} }} }} }}\n",
        set.uri()
    );
    fixture.configure(testkit::mongo::shared().await.unwrap().uri(), &models);
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-0");
    for order in 1..=ORDERS {
        let text: String = (0..ORDER_BYTES).map(|_| char::from(rand::random_range(b' '..=b'~'))).collect();
        fixture.insert(&format!("order-{order}"), 1, "Added", doc! { "text": text }).await;
    }
    let texts = views.collection::<Document>("texts");
    wait_for("the documents", SOON, async || {
        let count = texts.count_documents(doc! {}).await.unwrap();
        if count == ORDERS as u64 { Ok(()) } else { Err(count) }
    })
    .await;
    // The sizes that the server reports are those of its last checkpoint.
    set.client().await.unwrap().database("admin").run_command(doc! { "fsync": 1 }).await.unwrap();

    disk.set(DiskFault { max_free_mebibytes: Some(1), ..DiskFault::default() }).unwrap();
    let refused = fixture.run(&["read-model", "rebuild", "texts", "--wait"]).await.failure();
    assert!(refused.contains("not enough disk space: the build needs about"), "{refused}");
    assert!(refused.contains("and 1 MiB are free"), "{refused}");
    let list = read_models(&fixture).await;
    assert_eq!((&list["generation"], &list["stage"]), (&1.into(), &"active".into()), "{list}");
    let status = fixture.run(&["status", "--json"]).await;
    assert!(status.stdout.contains("not enough disk space"), "{}", status.stdout);
    let names = views.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.starts_with("_headwater_build_")), "{names:?}");
    assert_eq!(texts.count_documents(doc! {}).await.unwrap(), ORDERS as u64);
    fixture.insert("order-1", 2, "Added", doc! { "text": "short" }).await;
    fixture.run(&["wait", "order-1", "--sequence", "2", "--timeout", "60s"]).await.success();

    disk.set(DiskFault::default()).unwrap();
    fixture.run(&["read-model", "rebuild", "texts", "--wait"]).await.success();
    let list = read_models(&fixture).await;
    assert_eq!((&list["problem"], &list["stage"]), (&serde_json::Value::Null, &"active".into()), "{list}");
    assert_eq!(texts.count_documents(doc! {}).await.unwrap(), ORDERS as u64);
    let order = texts.find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(order, Some(doc! { "_id": "order-1", "text": "short" }));
    stop(pod).await;
}

#[tokio::test]
async fn a_pod_that_starts_during_a_build_adds_no_unique_index() {
    let fixture = CliFixture::new("read_model_joins", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    for number in 0..60 {
        fixture.insert(&format!("order-{number:02}"), 1, "Added", doc! { "amount": number }).await;
    }
    wait_for_value(&fixture, "totals", "order-59", "total", 59).await;
    stop(pod).await;

    let unique = "amounts: { when: { Added: { $set: { amount: $$event.payload.amount } } }, indexes: [ { keys: { amount: 1 }, unique: true }, { keys: { amount: -1 } } ] }";
    configure(&fixture, &[TOTALS, unique]).await;
    fixture.edit_config(|text| text.replace("change_delay: 0s", "change_delay: 0s, on_change: wait"));
    let first = fixture.start_pod("pod-0");
    wait_for_states(&fixture, &[("totals", "complete")]).await;
    // A minute.
    fixture.run(&["read-model", "rebuild", "amounts", "--rate", "1"]).await.success();
    wait_for("the build", SOON, async || {
        let list = read_models(&fixture).await;
        if list["build"]["aggregates"].as_i64().is_some_and(|built| built > 0) { Ok(()) } else { Err(list) }
    })
    .await;
    let second = fixture.start_pod("pod-1");
    wait_for("the second pod", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        let is_there = |pod: &serde_json::Value| pod["id"] == "pod-1" && pod["consumer"] == "consuming";
        if status["pods"].as_array().unwrap().iter().any(is_there) { Ok(()) } else { Err(status["pods"].clone()) }
    })
    .await;
    let list = read_models(&fixture).await;
    assert_eq!(list["stage"], "building", "it started in the middle");
    let building = format!("_headwater_build_{}_amounts", list["generation"]);
    let indexes = fixture.views.collection::<Document>(&building).list_index_names().await.unwrap();
    assert_eq!(indexes, ["_id_", "amount_-1"], "the unique index is left to the build");
    fixture.run(&["read-model", "cancel"]).await.success();
    wait_for_states(&fixture, &[("totals", "complete")]).await;
    stop(first).await;
    stop(second).await;
}

#[tokio::test]
async fn a_paused_build_stands_still_and_is_resumed() {
    let fixture = CliFixture::new("read_model_paused_build", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    let pod = fixture.start_pod("pod-0");
    for number in 0..10 {
        fixture.insert(&format!("order-{number}"), 1, "Added", doc! { "amount": 10 }).await;
    }
    wait_for_value(&fixture, "totals", "order-9", "total", 10).await;

    fixture.run(&["pause", "build", "--reason", "busy"]).await.success();
    fixture.run(&["read-model", "rebuild", "totals"]).await.success();
    wait_for("the build to wait", SOON, async || {
        let list = read_models(&fixture).await;
        if list["build"]["paused"] == true { Ok(()) } else { Err(list) }
    })
    .await;
    let shown = fixture.run(&["read-model", "list"]).await.success();
    assert!(shown.contains("built 0 of about 10 aggregates") && shown.contains("headwater resume build"), "{shown}");
    let status = fixture.run(&["status", "--json"]).await.json();
    assert_eq!(status["generation"]["build_paused"], true, "{status}");
    let problems = status["problems"].to_string();
    assert!(problems.contains("the build is paused by") && problems.contains(": busy"), "{problems}");

    // Live events go on. Whoever takes over waits, too.
    fixture.insert("order-9", 2, "Added", doc! { "amount": 5 }).await;
    wait_for_value(&fixture, "totals", "order-9", "total", 15).await;
    stop(pod).await;
    let pod = fixture.start_pod("pod-1");
    pod.wait_for_line("build paused", SOON).await;
    let list = read_models(&fixture).await;
    assert_eq!((&list["stage"], &list["build"]["aggregates"]), (&"building".into(), &0.into()), "{list}");

    fixture.run(&["resume", "build"]).await.success();
    wait_for_states(&fixture, &[("totals", "complete")]).await;
    wait_for_value(&fixture, "totals", "order-9", "total", 15).await;
    wait_for_value(&fixture, "totals", "order-0", "total", 10).await;
    assert_eq!(fixture.history().await[..3], ["resume", "read-model rebuild", "pause"]);
    let not_paused = fixture.run(&["resume", "build"]).await.failure();
    assert!(not_paused.contains("is not paused"), "{not_paused}");
    stop(pod).await;
}
