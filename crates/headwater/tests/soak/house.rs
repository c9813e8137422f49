//! A house stands, every fault really happens, and everything is mended.

use std::path::Path;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use testkit::cluster::{Blueprint, House, Standing, StoreKind};
use testkit::nemesis::{self, BrokerHarm, FarEnd, Fault, LinkHarm, Plan, PodHarm, PrimaryHarm, Report, Strike, Whom};
use testkit::process::Program;
use testkit::wait::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BINARY;

/// A process that does nothing until it is asked to end.
fn idler() -> Program {
    Program::new("/bin/sh").args(["-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"])
}

async fn house_of_idlers(store: StoreKind) -> House {
    let mut house =
        House::build(Blueprint { pods: 2, store, pod: Some(idler()), ..Blueprint::new(BINARY) }).await.unwrap();
    house.start_pods().unwrap();
    all_ready(&house).await;
    house
}

/// Before that, a signal to end ends it badly.
async fn all_ready(house: &House) {
    for pod in house.pods() {
        pod.process().expect("it was started").wait_for_line("ready", Duration::from_secs(30)).await;
    }
}

/// Enters a pod as the leader, as it would itself.
async fn crown(house: &House, pod: &str) {
    let leases = house.coordination().collection::<Document>("leader_leases");
    let lease = doc! { "$set": { "leaderId": pod, "contender": "somebody", "term": 1_i64 } };
    leases.update_one(doc! { "_id": "shop" }, lease).upsert(true).await.unwrap();
}

fn pid(house: &House, pod: usize) -> u32 {
    house.pod(pod).process().expect("it was started").pid()
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}

async fn strike(house: &mut House, fault: Fault) -> Report {
    let (after, lasts) = (Duration::ZERO, Duration::from_millis(100));
    let plan = Plan { strikes: vec![Strike { after, fault, lasts, seed: 1 }] };
    nemesis::haunt(house, &plan, || 1, std::future::pending()).await.unwrap()
}

async fn assert_struck(house: &mut House, fault: Fault) {
    let hits = strike(house, fault).await.hits(fault);
    assert_eq!((hits.struck, hits.in_flight, hits.missed), (1, 1, 0), "{fault}");
}

#[tokio::test]
async fn a_house_ends_without_leaving_anybody_behind() {
    let house = house_of_idlers(StoreKind::Shared).await;
    let pids = [pid(&house, 0), pid(&house, 1)];
    let broker = house.broker().address();
    assert!(pids.iter().all(|pid| runs(*pid)));
    let deaths = house.stop().await;
    assert!(deaths.is_empty(), "{deaths:?}");
    assert!(!pids.iter().any(|pid| runs(*pid)));
    TcpStream::connect(broker).await.expect_err("the broker is gone");
}

#[tokio::test]
async fn what_befalls_pods_befalls_the_one_that_leads_or_one_that_does_not() {
    let mut house = house_of_idlers(StoreKind::Shared).await;
    crown(&house, "pod-1").await;
    assert_eq!(house.leader().await, Some(1));
    let [standby, leader] = [pid(&house, 0), pid(&house, 1)];
    assert_struck(&mut house, Fault::Pod(Whom::Leader, PodHarm::Kill)).await;
    assert_eq!(pid(&house, 0), standby);
    assert_ne!(pid(&house, 1), leader, "it was killed and started again");
    assert!(!runs(leader));
    assert_struck(&mut house, Fault::Pod(Whom::Standby, PodHarm::Terminate)).await;
    assert_ne!(pid(&house, 0), standby);
    assert_struck(&mut house, Fault::Pod(Whom::Leader, PodHarm::Pause)).await;
    assert_eq!(house.pod(1).standing(), Standing::Up);
    assert_struck(&mut house, Fault::Pod(Whom::Leader, PodHarm::Depose)).await;
    assert_eq!(house.leader().await, None);
    let deposed = strike(&mut house, Fault::Pod(Whom::Leader, PodHarm::Kill)).await;
    assert_eq!(deposed.struck(), 0, "there is no leader to kill");
    all_ready(&house).await;
    let deaths = house.stop().await;
    assert!(deaths.is_empty(), "nobody ended on its own: {deaths:?}");
}

#[tokio::test]
async fn a_pod_that_ends_on_its_own_is_noticed_and_started_again() {
    let mut house = house_of_idlers(StoreKind::Shared).await;
    let first = pid(&house, 0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_for("its end", Duration::from_secs(30), async || if runs(first) { Err("it runs") } else { Ok(()) }).await;
    let report = strike(&mut house, Fault::Pod(Whom::Standby, PodHarm::Pause)).await;
    assert_eq!(report.struck(), 1);
    assert_eq!(house.deaths().iter().map(|death| death.pod.as_str()).collect::<Vec<_>>(), ["pod-0"]);
    assert!(house.pods().iter().all(|pod| pod.standing() == Standing::Up));
}

#[tokio::test]
async fn a_link_is_broken_for_one_pod_and_healed() {
    let mut house = house_of_idlers(StoreKind::Shared).await;
    crown(&house, "pod-0").await;
    for far_end in [FarEnd::Store, FarEnd::Broker] {
        let address = house.pod(0).link(far_end).expect("a set of one is reached through a proxy").address();
        let mut before = TcpStream::connect(address).await.unwrap();
        assert_struck(&mut house, Fault::Link(Whom::Leader, far_end, LinkHarm::Cut)).await;
        assert_eq!(before.read(&mut [0]).await.unwrap(), 0, "it was cut");
        TcpStream::connect(address).await.expect("it is healed");
        assert_eq!(house.pod(0).link(far_end).unwrap().counters().cut, 1);
        assert_eq!(house.pod(1).link(far_end).unwrap().counters().cut, 0);
    }
    let held = Fault::Link(Whom::Leader, FarEnd::Broker, LinkHarm::BlackHole);
    let mut stream = TcpStream::connect(house.pod(0).link(FarEnd::Broker).unwrap().address()).await.unwrap();
    let (swallowed, _) = tokio::join!(strike(&mut house, held), async {
        for _ in 0..20 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(swallowed.struck(), 1);
    assert!(house.pod(0).link(FarEnd::Broker).unwrap().counters().to_target.swallowed > 0);
}

#[tokio::test]
async fn the_broker_comes_back_on_its_port_with_what_it_had() {
    let mut house = house_of_idlers(StoreKind::Shared).await;
    let client = servicebus::Client::new(&house.broker().connection_string(), servicebus::Config::default()).unwrap();
    let message = servicebus::Message::new("kept").with_session("a").encode();
    client.sender(house.broker().topic()).send(&message).await.unwrap();
    assert_struck(&mut house, Fault::Broker(BrokerHarm::Kill)).await;
    assert_eq!(house.broker().waiting().await.unwrap(), 1);
    assert_struck(&mut house, Fault::Broker(BrokerHarm::Pause)).await;
    assert_struck(&mut house, Fault::Broker(BrokerHarm::LoseAcknowledgements)).await;
    assert_eq!(house.broker().waiting().await.unwrap(), 1);
    house.broker().arm(r#"{"kind": "server_busy"}"#).await.unwrap();
    let refused = client.sender(house.broker().topic()).send(&message).await.unwrap_err();
    assert_eq!(refused.kind(), servicebus::BusErrorKind::Busy, "{refused}");
    assert_eq!(house.broker().struck().await.unwrap(), 1);
}

#[tokio::test]
async fn the_primary_is_killed_and_comes_back_and_stands_no_second_blow_meanwhile() {
    let mut house = house_of_idlers(StoreKind::Three).await;
    let kill = Fault::Primary(PrimaryHarm::Kill);
    let [first, second] = [Duration::ZERO, Duration::from_millis(10)].map(|after| Strike {
        after,
        fault: kill,
        lasts: Duration::from_millis(500),
        seed: 1,
    });
    let plan = Plan { strikes: vec![first, second] };
    let report = nemesis::haunt(&mut house, &plan, || 0, std::future::pending()).await.unwrap();
    let hits = report.hits(kill);
    assert_eq!((hits.struck, hits.in_flight, hits.missed), (1, 0, 1));
    assert!(house.store().is_whole());
    assert_struck(&mut house, Fault::Primary(PrimaryHarm::StepDown)).await;
    house.events().insert_one(doc! { "aggregateId": "a", "version": 1 }).await.expect("there is a primary again");
}
