//! Several pipelines in one process: they work side by side, and their leaders are spread over the pods.

use std::path::Path;

use bench::soak::pipelines_soak::{self, PipelinesSoakOptions};
use mongodb::bson::{Document, doc};
use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::BINARY;
use crate::fixture::{PodFixture, SOON, cluster_config};

fn several(pods: usize, pipelines: &[(&str, &str)]) -> TestClusterConfig {
    let pipelines = pipelines.iter().map(|(name, models)| ((*name).to_owned(), (*models).to_owned())).collect();
    TestClusterConfig { pods, pipelines, ..cluster_config(MongoTopology::Shared) }
}

async fn place_order(fixture: &PodFixture, pipeline: &str, aggregate: &str) {
    let order = doc! { "aggregateId": aggregate, "version": 1, "type": "Placed", "payload": { "customer": "ann" } };
    fixture.0.events_of(pipeline).insert_one(order).await.unwrap();
}

async fn wait_for_order(fixture: &PodFixture, pipeline: &str, aggregate: &str) {
    let orders = fixture.0.views_of(pipeline).collection::<Document>("orders");
    wait_for("the order in its read model", SOON, async || {
        match orders.find_one(doc! { "_id": aggregate }).await.unwrap() {
            Some(_) => Ok(()),
            None => Err("no document"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_pipeline_does_not_stop_another() {
    // The server refuses this read model, which no check of the configuration can know.
    let halted = "bad: { when: { Placed: [ { $set: { a: { $noSuchOperator: 1 } } } ] } }";
    let fixture = PodFixture::start(several(1, &[("halted", halted), ("other", "")])).await;
    place_order(&fixture, "other", "order-1").await;
    wait_for_order(&fixture, "other", "order-1").await;

    wait_for("the problem of the halted pipeline", SOON, async || {
        let reply = fixture.get("/api/status?pipeline=halted").await;
        if reply.body.contains("operator action required") { Ok(()) } else { Err(reply.body) }
    })
    .await;
    assert_eq!(fixture.get("/readyz").await.status, 200, "two of three pipelines work");
    let metrics = fixture.get("/metrics").await.body;
    assert!(metrics.contains("\nheadwater_is_leader{pipeline=\"other\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nheadwater_service_ready{pipeline=\"halted\",service=\"consumer\"} 0\n"), "{metrics}");

    place_order(&fixture, "other", "order-2").await;
    wait_for_order(&fixture, "other", "order-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_names_one_of_several_pipelines() {
    let fixture = PodFixture::start(several(1, &[("other", "")])).await;
    assert_eq!(fixture.get("/api/history").await.status, 400);
    assert_eq!(fixture.get("/api/status?pipeline=none").await.status, 404);
    wait_for("the status of both pipelines", SOON, async || {
        let reply: Json = serde_json::from_str(&fixture.get("/api/status").await.body).unwrap();
        let names: Vec<_> = reply["pipelines"].as_array().unwrap().iter().map(|one| one["pipeline"].clone()).collect();
        if names == ["shop", "other"] { Ok(()) } else { Err(reply.to_string()) }
    })
    .await;
}

/// The checkpoint is of another cluster, until somebody corrects it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pipeline_starts_again_by_itself() {
    let mut fixture = PodFixture::start(several(1, &[("other", ""), ("third", "")])).await;
    let checkpoints = fixture.0.coordination().collection::<Document>("checkpoints");
    let ours = wait_for("the checkpoint to name its cluster", SOON, async || {
        let stored = checkpoints.find_one(doc! { "_id": "other" }).await.unwrap().unwrap_or_default();
        stored.get_str("cluster").map(str::to_owned).map_err(|_| stored.clone())
    })
    .await;
    let set_cluster = async |cluster: &str| {
        checkpoints.update_one(doc! { "_id": "other" }, doc! { "$set": { "cluster": cluster } }).await.unwrap();
    };
    fixture.0.pod_mut(0).stop(SOON).await;
    set_cluster("replica set of somebody else").await;
    fixture.0.restart_pod(0).await.unwrap();

    wait_for("the failure to be counted and reported", SOON, async || {
        let metrics = fixture.get("/metrics").await.body;
        let failures =
            metrics.lines().find(|line| line.starts_with("headwater_pipeline_failures_total{pipeline=\"other\"}"));
        let is_counted = failures.is_some_and(|line| !line.ends_with(" 0"));
        let status = fixture.get("/api/status?pipeline=other").await.body;
        if is_counted && status.contains("pipeline_failed") { Ok(()) } else { Err((metrics, status)) }
    })
    .await;
    place_order(&fixture, "third", "order-1").await;
    wait_for_order(&fixture, "third", "order-1").await;

    set_cluster(&ours).await;
    place_order(&fixture, "other", "order-1").await;
    wait_for_order(&fixture, "other", "order-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_drains_is_not_ready_but_its_pod_is() {
    let mut fixture = PodFixture::start(several(1, &[("other", "")])).await;
    wait_for_order_in(&fixture, "other").await;
    let service = |report: &Json, role: &str| {
        let pipelines = report["pipelines"].as_array().unwrap();
        let services = pipelines.iter().filter(|one| one["pipeline"] == "other").flat_map(|one| {
            one["services"].as_array().unwrap().iter().filter(|service| service["name"] == "pipeline").cloned()
        });
        services.into_iter().any(|service| service["role"] == role)
    };
    // Events of both pipelines wait, so that a drain lasts as long as this test needs.
    fixture.0.broker_mut().pause().await;
    place_order(&fixture, "other", "order-2").await;
    let checkpoints = fixture.0.coordination().collection::<Document>("checkpoints");
    let set = doc! { "$set": { "cluster": "replica set of somebody else" } };
    checkpoints.update_one(doc! { "_id": "other" }, set).await.unwrap();
    wait_for("the pipeline to drain", SOON, async || {
        let report: Json = serde_json::from_str(&fixture.get("/readyz").await.body).unwrap();
        if service(&report, "draining") && report["stopping"] == false { Ok(()) } else { Err(report) }
    })
    .await;
    fixture.0.broker_mut().resume();
    wait_for("the pod to be ready without it", SOON, async || {
        let reply = fixture.get("/readyz").await;
        let report: Json = serde_json::from_str(&reply.body).unwrap();
        if reply.status == 200 && service(&report, "failed") { Ok(()) } else { Err(report) }
    })
    .await;
}

async fn wait_for_order_in(fixture: &PodFixture, pipeline: &str) {
    place_order(fixture, pipeline, "order-1").await;
    wait_for_order(fixture, pipeline, "order-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_spread_again_after_a_pod_restarts() {
    let mut config = several(2, &[("two", ""), ("three", ""), ("four", "")]);
    config.environment.push(("HEADWATER__COORDINATION__BALANCE_INTERVAL".to_owned(), "1s".to_owned()));
    let mut fixture = PodFixture::start(config).await;
    wait_for_leases(&fixture, [2, 2]).await;
    fixture.0.pod_mut(0).stop(SOON).await;
    wait_for_leases(&fixture, [0, 4]).await;
    fixture.0.restart_pod(0).await.unwrap();
    wait_for_leases(&fixture, [2, 2]).await;
    for pipeline in ["two", "three", "four"] {
        place_order(&fixture, pipeline, "order-1").await;
        wait_for_order(&fixture, pipeline, "order-1").await;
    }
}

async fn wait_for_leases(fixture: &PodFixture, expected: [usize; 2]) {
    wait_for("the leases of both pods", SOON, async || match fixture.0.leases_held().await.unwrap() {
        held if held == expected => Ok(()),
        held => Err(held),
    })
    .await;
}

/// A short `cargo xtask soak pipelines`.
#[tokio::test(flavor = "multi_thread")]
async fn bad_pipelines_cost_the_others_nothing() {
    let outcome = pipelines_soak::run(Path::new(BINARY), &PipelinesSoakOptions::short()).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean(), "{outcome}");
}
