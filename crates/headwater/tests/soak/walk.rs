//! Writers, nemesis, drain and checker together, around the simplest publisher there is.

use std::sync::Arc;
use std::time::Duration;

use bench::soak::Drain;
use testkit::checker::{Checker, Duplicates, Kind, Verdict};
use testkit::cluster::{Blueprint, House, StoreKind};
use testkit::load::Load;
use testkit::nemesis::{self, BrokerHarm, Fault, Plan, Strike};
use testkit::wait::try_wait_for;

use super::BINARY;
use super::publisher::{Careless, publish, watch};

const EVENTS: u64 = 1_000;

/// The broker is killed twice while a thousand events go through.
async fn walk(careless: Careless) -> Verdict {
    let blueprint = Blueprint { pods: 0, store: StoreKind::Shared, ..Blueprint::new(BINARY) };
    let mut house = House::build(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    let drain = Drain::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    let changes = watch(&house).await;
    let publishing = tokio::spawn(publish(changes, house.broker().connection_string(), careless));
    let load = Load { events: EVENTS, aggregates: 40, writers: 4, ..Load::default() };
    let (events, ledger) = (house.events(), Arc::clone(&checker));
    let writing = tokio::spawn(async move { load.write(&events, &ledger).await });
    let kill = Fault::Broker(BrokerHarm::Kill);
    let [first, second] = [100, 400].map(|after| Strike {
        after: Duration::from_millis(after),
        fault: kill,
        lasts: Duration::from_millis(50),
        seed: 1,
    });
    let plan = Plan { strikes: vec![first, second] };
    let report = nemesis::haunt(&mut house, &plan, || checker.outstanding(), std::future::pending()).await.unwrap();
    assert_eq!(report.hits(kill).struck, 2);
    let written = writing.await.unwrap();
    assert_eq!((written.events, written.in_doubt), (EVENTS, 0));
    // With one dropped, this many never come: the wait ends with all that will.
    let expected = u64::from(careless == Careless::Drops);
    let _ = try_wait_for("everything to come", Duration::from_secs(60), async || {
        let outstanding = checker.outstanding();
        if outstanding <= expected { Ok(()) } else { Err(outstanding) }
    })
    .await;
    publishing.abort();
    drop(drain);
    checker.judge(Duplicates::Refused)
}

fn counts(verdict: &Verdict) -> [u64; 4] {
    Kind::ALL.map(|kind| verdict.count(kind))
}

#[tokio::test]
async fn a_publisher_that_keeps_its_word_is_found_to_though_the_broker_is_killed() {
    let verdict = walk(Careless::Never).await;
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.tally.acknowledged, EVENTS);
}

#[tokio::test]
async fn an_event_that_was_dropped_is_missed() {
    let verdict = walk(Careless::Drops).await;
    assert_eq!(counts(&verdict), [1, 0, 0, 0], "{verdict}");
}

#[tokio::test]
async fn an_event_that_was_sent_twice_is_seen_twice() {
    let verdict = walk(Careless::SendsTwice).await;
    assert_eq!(counts(&verdict), [0, 1, 0, 0], "{verdict}");
}

#[tokio::test]
async fn an_event_that_overtook_another_is_noticed() {
    let verdict = walk(Careless::SwapsWithTheNext).await;
    assert_eq!(counts(&verdict)[2], 1, "{verdict}");
}
