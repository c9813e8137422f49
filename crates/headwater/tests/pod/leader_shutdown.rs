//! A leader that stops releases the lease in time, whatever its servers do, and loses nothing.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use testkit::cluster::{self, LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::BINARY;
use crate::fixture::{PodFixture, READ_MODELS, SOON};

/// Drain time of producer and consumer.
const DRAIN: Duration = Duration::from_secs(2);
/// Upper limit for a regular stop on a slow machine.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A lease that does not expire during a test: the next leader got it by release.
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

async fn start_cluster(config: TestClusterConfig) -> (PodFixture, usize) {
    let mut fixture = cluster::TestCluster::start(config).await.unwrap();
    fixture.start_pods().unwrap();
    let leader = fixture.wait_for_leader(SOON).await.unwrap();
    (PodFixture(fixture), leader)
}

/// Waits until the leader's metric is at least `least`.
async fn wait_for_at_least(fixture: &PodFixture, leader: usize, sample: &str, least: f64) {
    wait_for(sample, SOON, async || {
        let page = fixture.get_of(leader, "/metrics").await.body;
        let value = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse::<f64>().ok());
        if value.is_some_and(|value| value >= least) { Ok(()) } else { Err(value) }
    })
    .await;
}

/// Stops the leader: it exits with 0 and in time, and the other pod takes over before the lease would expire.
async fn stop_leader_and_wait_for_takeover(fixture: &mut PodFixture, leader: usize) {
    let other = 1 - leader;
    let signalled = Instant::now();
    fixture.0.pod_mut(leader).terminate();
    let process = fixture.0.pod(leader).process().expect("it was started");
    let status = process.wait_for_exit(SOON).await;
    let took = signalled.elapsed();
    assert!(status.success(), "{status}: {}", process.tail());
    assert!(took < STOP_LIMIT, "{took:?}: {}", process.tail());
    let leases = fixture.0.coordination().collection::<Document>("leader_leases");
    let name = fixture.0.pod(other).name().to_owned();
    wait_for("the other pod to lead", STOP_LIMIT, async || {
        match leases.find_one(doc! { "_id": "shop", "leaderId": &name }).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn stop_leader_without_service_bus(start: &str) {
    // A port that was free a moment ago: nothing listens on it.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bus = format!("Endpoint=sb://{unused};SharedAccessKeyName=any;SharedAccessKey=any");
    let environment = vec![("HEADWATER__SERVICE_BUS__CONNECTION_STRING".to_owned(), bus)];
    let (mut fixture, leader) =
        start_cluster(TestClusterConfig { environment, ..two_pods(&format!("start: {start}")) }).await;
    if start == "now" {
        fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    }
    for order in 0..20 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    wait_for_at_least(&fixture, leader, "headwater_events_captured_total", 1.0).await;
    stop_leader_and_wait_for_takeover(&mut fixture, leader).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_leader_from_beginning_stops_without_service_bus() {
    stop_leader_without_service_bus("beginning").await;
}

#[tokio::test]
async fn a_leader_from_now_stops_without_service_bus() {
    stop_leader_without_service_bus("now").await;
}

#[tokio::test]
async fn a_leader_with_a_full_window_stops_while_the_bus_hangs() {
    let (mut fixture, leader) = start_cluster(two_pods("start: beginning, window: { events: 16 }")).await;
    fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    fixture.insert("order-0", 1).await;
    fixture.wait_for_applied("order-0").await;
    fixture.0.broker_mut().pause().await;
    let orders: Vec<_> = (1..200).map(|order| format!("order-{order}")).collect();
    for order in &orders {
        fixture.insert(order, 1).await;
    }
    wait_for_at_least(&fixture, leader, "headwater_in_flight_events", 16.0).await;
    stop_leader_and_wait_for_takeover(&mut fixture, leader).await;
    fixture.0.broker_mut().resume();
    for order in &orders {
        fixture.wait_for_applied(order).await;
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_service_that_does_not_stop_is_named_and_abandoned() {
    let environment = vec![("HEADWATER_FAILPOINT_STALL".to_owned(), "Publish".to_owned())];
    let (fixture, leader) =
        start_cluster(TestClusterConfig { pods: 1, environment, ..two_pods("start: beginning") }).await;
    fixture.0.wait_for_stream_phase(SOON).await.unwrap();
    fixture.insert("order-1", 1).await;
    wait_for_at_least(&fixture, leader, "headwater_in_flight_events", 1.0).await;
    fixture.pod().terminate();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(1), "{}", fixture.pod().tail());
    let log = fixture.pod().tail().to_string();
    assert!(log.contains("the producer did not stop within 5s"), "{log}");
}
