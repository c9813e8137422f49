//! A pod that is told to stop does, and lets another lead, whatever its servers do; and nothing is lost by that.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use testkit::cluster::{self, LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::BINARY;
use crate::fixture::{PodFixture, READ_MODELS, SOON};

/// Of producer and consumer.
const DRAIN: Duration = Duration::from_secs(2);
/// What a pod that stops in order may take in all, on a slow machine; half of what was seen to be too long for any.
const STOPPED_WITHIN: Duration = Duration::from_secs(15);

/// A lease that does not run out while a test looks: whoever leads next was let.
const LEASE: LeaseTimings = LeaseTimings {
    ttl: Duration::from_secs(120),
    renew_deadline: Duration::from_secs(90),
    heartbeat: Duration::from_secs(1),
};

fn two_pods(producer: &str) -> TestClusterConfig {
    TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        lease: LEASE,
        producer: format!("{producer}, drain: {}s", DRAIN.as_secs()),
        extra_yaml: format!("{READ_MODELS}consumer: {{ drain: {}s }}\n", DRAIN.as_secs()),
        ..TestClusterConfig::new(BINARY)
    }
}

async fn build(blueprint: TestClusterConfig) -> (PodFixture, usize) {
    let mut fixture = cluster::TestCluster::start(blueprint).await.unwrap();
    fixture.start_pods().unwrap();
    let leader = fixture.wait_for_leader(SOON).await.unwrap();
    (PodFixture(fixture), leader)
}

/// Waits until the leader's metric is at least this.
async fn reaches(fixture: &PodFixture, leader: usize, sample: &str, least: f64) {
    wait_for(sample, SOON, async || {
        let page = fixture.get_of(leader, "/metrics").await.body;
        let value = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse::<f64>().ok());
        if value.is_some_and(|value| value >= least) { Ok(()) } else { Err(value) }
    })
    .await;
}

/// Tells the leader to stop: it ends well and in time, and the other pod leads though the lease would not have run out.
async fn stops_and_another_leads(fixture: &mut PodFixture, leader: usize) {
    let other = 1 - leader;
    let told = Instant::now();
    fixture.0.pod_mut(leader).terminate();
    let process = fixture.0.pod(leader).process().expect("it was started");
    let status = process.wait_for_exit(SOON).await;
    let took = told.elapsed();
    assert!(status.success(), "{status}: {}", process.tail());
    assert!(took < STOPPED_WITHIN, "{took:?}: {}", process.tail());
    let leases = fixture.0.coordination().collection::<Document>("leader_leases");
    let name = fixture.0.pod(other).name().to_owned();
    wait_for("the other pod to lead", STOPPED_WITHIN, async || {
        match leases.find_one(doc! { "_id": "shop", "leaderId": &name }).await {
            Ok(Some(_)) => Ok(()),
            nobody => Err(format!("{nobody:?}")),
        }
    })
    .await;
}

async fn with_a_bus_that_is_not_there(start: &str) {
    // A port that was free a moment ago, and nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bus = format!("Endpoint=sb://{nobody};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true");
    let environment = vec![("HEADWATER__SERVICE_BUS__CONNECTION_STRING".to_owned(), bus)];
    let (mut fixture, leader) = build(TestClusterConfig { environment, ..two_pods(&format!("start: {start}")) }).await;
    if start == "now" {
        fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    }
    for order in 0..20 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    reaches(&fixture, leader, "headwater_events_captured_total", 1.0).await;
    stops_and_another_leads(&mut fixture, leader).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_leader_that_never_saw_the_bus_stops_in_time_and_another_leads() {
    with_a_bus_that_is_not_there("beginning").await;
}

#[tokio::test]
async fn a_leader_that_began_now_and_never_saw_the_bus_stops_in_time_and_another_leads() {
    with_a_bus_that_is_not_there("now").await;
}

#[tokio::test]
async fn a_leader_whose_bus_hangs_under_a_full_window_stops_in_time_and_the_next_one_sends_the_rest() {
    let (mut fixture, leader) = build(two_pods("start: beginning, window: { events: 16 }")).await;
    fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    fixture.insert("order-0", 1).await;
    fixture.applied("order-0").await;
    fixture.0.broker_mut().pause().await;
    let orders: Vec<_> = (1..200).map(|order| format!("order-{order}")).collect();
    for order in &orders {
        fixture.insert(order, 1).await;
    }
    reaches(&fixture, leader, "headwater_in_flight_events", 16.0).await;
    stops_and_another_leads(&mut fixture, leader).await;
    fixture.0.broker_mut().resume();
    for order in &orders {
        fixture.applied(order).await;
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_service_that_does_not_end_is_named_and_cannot_keep_the_pod() {
    let environment = vec![("HEADWATER_FAILPOINT_STALL".to_owned(), "Publish".to_owned())];
    let (fixture, leader) = build(TestClusterConfig { pods: 1, environment, ..two_pods("start: beginning") }).await;
    fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    fixture.insert("order-1", 1).await;
    reaches(&fixture, leader, "headwater_in_flight_events", 1.0).await;
    fixture.pod().terminate();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(1), "{}", fixture.pod().tail());
    let said = fixture.pod().tail().to_string();
    assert!(said.contains("the producer did not end within 5s"), "{said}");
}
