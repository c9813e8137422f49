//! A test cluster starts, every fault takes effect, and every fault is repaired.

use std::path::Path;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use testkit::cluster::{MongoTopology, ProcessState, TestCluster, TestClusterConfig};
use testkit::nemesis::{
    self, BrokerProcessFault, ClusterFault, FaultPlan, FaultReport, LinkFault, LinkTarget, PlannedFault, PodFault,
    PodSelector, PrimaryFault,
};
use testkit::process::Program;
use testkit::wait::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BINARY;

/// A process that does nothing until SIGTERM.
fn idle_program() -> Program {
    Program::new("/bin/sh").args(["-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"])
}

async fn start_idle_cluster(store: MongoTopology) -> TestCluster {
    let mut cluster = TestCluster::start(TestClusterConfig {
        pods: 2,
        mongo: store,
        pod_program: Some(idle_program()),
        ..TestClusterConfig::new(BINARY)
    })
    .await
    .unwrap();
    cluster.start_pods().unwrap();
    wait_until_ready(&cluster).await;
    cluster
}

/// Before that, SIGTERM ends it with a failure.
async fn wait_until_ready(cluster: &TestCluster) {
    for pod in cluster.pods() {
        pod.process().expect("it was started").wait_for_line("ready", Duration::from_secs(30)).await;
    }
}

/// Writes the lease with this pod as holder.
async fn set_leader(cluster: &TestCluster, pod: &str) {
    let leases = cluster.coordination().collection::<Document>("leader_leases");
    let lease = doc! { "$set": { "leaderId": pod, "contender": "somebody", "term": 1_i64 } };
    leases.update_one(doc! { "_id": "shop" }, lease).upsert(true).await.unwrap();
}

fn pid(cluster: &TestCluster, pod: usize) -> u32 {
    cluster.pod(pod).process().expect("it was started").pid()
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}

async fn inject(cluster: &mut TestCluster, fault: ClusterFault) -> FaultReport {
    let (after, duration) = (Duration::ZERO, Duration::from_millis(100));
    let plan = FaultPlan { faults: vec![PlannedFault { after, fault, duration, seed: 1 }] };
    nemesis::run_plan(cluster, &plan, || 1, std::future::pending()).await.unwrap()
}

async fn assert_injected(cluster: &mut TestCluster, fault: ClusterFault) {
    let counts = inject(cluster, fault).await.counts(fault);
    assert_eq!((counts.injected, counts.in_flight, counts.skipped), (1, 1, 0), "{fault}");
}

#[tokio::test]
async fn a_stopped_cluster_leaves_no_process() {
    let cluster = start_idle_cluster(MongoTopology::Shared).await;
    let pids = [pid(&cluster, 0), pid(&cluster, 1)];
    let broker = cluster.broker().address();
    assert!(pids.iter().all(|pid| is_running(*pid)));
    let unexpected_exits = cluster.stop().await;
    assert!(unexpected_exits.is_empty(), "{unexpected_exits:?}");
    assert!(!pids.iter().any(|pid| is_running(*pid)));
    TcpStream::connect(broker).await.expect_err("the broker is gone");
}

#[tokio::test]
async fn pod_faults_hit_the_leader_or_a_standby() {
    let mut cluster = start_idle_cluster(MongoTopology::Shared).await;
    set_leader(&cluster, "pod-1").await;
    assert_eq!(cluster.leader().await, Some(1));
    let [standby, leader] = [pid(&cluster, 0), pid(&cluster, 1)];
    assert_injected(&mut cluster, ClusterFault::Pod(PodSelector::Leader, PodFault::Kill)).await;
    assert_eq!(pid(&cluster, 0), standby);
    assert_ne!(pid(&cluster, 1), leader, "it was killed and restarted");
    assert!(!is_running(leader));
    assert_injected(&mut cluster, ClusterFault::Pod(PodSelector::Standby, PodFault::Terminate)).await;
    assert_ne!(pid(&cluster, 0), standby);
    assert_injected(&mut cluster, ClusterFault::Pod(PodSelector::Leader, PodFault::Pause)).await;
    assert_eq!(cluster.pod(1).state(), ProcessState::Running);
    assert_injected(&mut cluster, ClusterFault::Pod(PodSelector::Leader, PodFault::RevokeLease)).await;
    assert_eq!(cluster.leader().await, None);
    let without_leader = inject(&mut cluster, ClusterFault::Pod(PodSelector::Leader, PodFault::Kill)).await;
    assert_eq!(without_leader.injected(), 0, "there is no leader to kill");
    wait_until_ready(&cluster).await;
    let unexpected_exits = cluster.stop().await;
    assert!(unexpected_exits.is_empty(), "nobody ended on its own: {unexpected_exits:?}");
}

#[tokio::test]
async fn a_pod_that_exits_on_its_own_is_recorded_and_restarted() {
    let mut cluster = start_idle_cluster(MongoTopology::Shared).await;
    let first = pid(&cluster, 0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_for("its end", Duration::from_secs(30), async || if is_running(first) { Err("it runs") } else { Ok(()) })
        .await;
    let report = inject(&mut cluster, ClusterFault::Pod(PodSelector::Standby, PodFault::Pause)).await;
    assert_eq!(report.injected(), 1);
    assert_eq!(cluster.unexpected_exits().iter().map(|exit| exit.name.as_str()).collect::<Vec<_>>(), ["pod-0"]);
    assert!(cluster.pods().iter().all(|pod| pod.state() == ProcessState::Running));
}

#[tokio::test]
async fn a_link_is_broken_for_one_pod_and_healed() {
    let mut cluster = start_idle_cluster(MongoTopology::Shared).await;
    set_leader(&cluster, "pod-0").await;
    for target in [LinkTarget::Mongo, LinkTarget::Broker] {
        let address = cluster.pod(0).link(target).expect("a single node is reached through a proxy").address();
        let mut before = TcpStream::connect(address).await.unwrap();
        assert_injected(&mut cluster, ClusterFault::Link(PodSelector::Leader, target, LinkFault::Cut)).await;
        assert_eq!(before.read(&mut [0]).await.unwrap(), 0, "it was cut");
        TcpStream::connect(address).await.expect("it is healed");
        assert_eq!(cluster.pod(0).link(target).unwrap().counters().cut, 1);
        assert_eq!(cluster.pod(1).link(target).unwrap().counters().cut, 0);
    }
    let held = ClusterFault::Link(PodSelector::Leader, LinkTarget::Broker, LinkFault::BlackHole);
    let mut stream = TcpStream::connect(cluster.pod(0).link(LinkTarget::Broker).unwrap().address()).await.unwrap();
    let (swallowed, _) = tokio::join!(inject(&mut cluster, held), async {
        for _ in 0..20 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(swallowed.injected(), 1);
    assert!(cluster.pod(0).link(LinkTarget::Broker).unwrap().counters().to_target.dropped > 0);
}

#[tokio::test]
async fn a_killed_broker_restarts_with_its_port_and_messages() {
    let mut cluster = start_idle_cluster(MongoTopology::Shared).await;
    let client = cluster.broker().client(servicebus::Config::default());
    let message = servicebus::Message::new("kept").with_session("a").encode();
    client.sender(cluster.broker().topic()).send(&message).await.unwrap();
    assert_injected(&mut cluster, ClusterFault::Broker(BrokerProcessFault::Kill)).await;
    assert_eq!(cluster.broker().active_messages().await.unwrap(), 1);
    assert_injected(&mut cluster, ClusterFault::Broker(BrokerProcessFault::Pause)).await;
    assert_injected(&mut cluster, ClusterFault::Broker(BrokerProcessFault::LoseAcknowledgements)).await;
    assert_eq!(cluster.broker().active_messages().await.unwrap(), 1);
    cluster.broker().inject_fault(r#"{"kind": "server_busy"}"#).await.unwrap();
    let refused = client.sender(cluster.broker().topic()).send(&message).await.unwrap_err();
    assert_eq!(refused.kind(), servicebus::BusErrorKind::Busy, "{refused}");
    assert_eq!(cluster.broker().injected_faults().await.unwrap(), 1);
}

#[tokio::test]
async fn a_killed_primary_is_restarted_and_not_hit_twice() {
    let mut cluster = start_idle_cluster(MongoTopology::ThreeNodes).await;
    let kill = ClusterFault::Primary(PrimaryFault::Kill);
    let [first, second] = [Duration::ZERO, Duration::from_millis(10)].map(|after| PlannedFault {
        after,
        fault: kill,
        duration: Duration::from_millis(500),
        seed: 1,
    });
    let plan = FaultPlan { faults: vec![first, second] };
    let report = nemesis::run_plan(&mut cluster, &plan, || 0, std::future::pending()).await.unwrap();
    let counts = report.counts(kill);
    assert_eq!((counts.injected, counts.in_flight, counts.skipped), (1, 0, 1));
    assert!(cluster.mongo().is_whole());
    assert_injected(&mut cluster, ClusterFault::Primary(PrimaryFault::StepDown)).await;
    cluster.events().insert_one(doc! { "aggregateId": "a", "version": 1 }).await.expect("there is a primary again");
}
