//! A primary that dies, or falls silent, while it is read.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use pipeline::capture::{Capture, Config, PipelineStart};
use pipeline::source::SourceConfig;
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;

use crate::house::{Reading, direct, event, index, majority, quick, versions};

/// An election on a machine where everything takes its time.
const LONG: Duration = Duration::from_secs(150);

#[tokio::test]
async fn a_primary_that_is_killed_or_falls_silent_costs_no_event_and_repeats_none_of_a_stream_or_a_snapshot() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    // Its monitors are too slow to notice a silent member, for which they wait both times together: only capture's own deadline does. A member
    // that is back they must notice soon: it may be the next primary.
    let slow = "heartbeatFrequencyMS=500&connectTimeoutMS=120000";
    let client = direct(&format!("{}&{slow}", set.uri())).await;
    let config = Config { response_timeout: Duration::from_secs(2), ..Config::default() };
    let mut reading = Reading::of(Capture::new(&client, source(), quick(config)), PipelineStart::Now).await;
    let (written, done) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(set.client().await.unwrap(), Arc::clone(&written), Arc::clone(&done)));

    more_are_written(50, &written).await;
    let killed = set.primary().await.unwrap();
    set.kill(killed).await.unwrap();
    more_are_written(50, &written).await;
    set.restart(killed).await.unwrap();
    set.wait_until_secondary(killed).await.unwrap();

    let paused = set.primary().await.unwrap();
    set.pause(paused).await.unwrap();
    // Few: for half a minute the other two hear of each other by heartbeat alone, and acknowledge three events a second.
    more_are_written(10, &written).await;
    // Its connections are open still and nothing answers on them; who waits for that reads nothing until it wakes up.
    let known = written.load(Ordering::SeqCst) as u64;
    wait_for("what was written meanwhile to be read", LONG, async || {
        let status = reading.handle.status();
        if status.events >= known { Ok(()) } else { Err((known, status)) }
    })
    .await;
    set.resume(paused).unwrap();

    done.store(true, Ordering::SeqCst);
    writer.await.unwrap();
    let all = written.load(Ordering::SeqCst);
    let events = reading.events(all as usize).await;
    assert_eq!(versions(&events), (0..i64::from(all)).collect::<Vec<_>>());
    assert!(reading.handle.status().reopens >= 2, "{:?}", reading.handle.status());
    reading.stop().await;
    set.wait_until_secondary(paused).await.unwrap();
    the_primary_is_killed_during_a_snapshot(&mut set, all).await;
}

/// The server's cursor dies with it; the scan goes on after the last document that was handed on.
async fn the_primary_is_killed_during_a_snapshot(set: &mut ReplicaSet, held: i32) {
    let client = set.client().await.unwrap();
    index(&majority(&client.database("shop"), "events")).await;
    let few = NonZeroU32::new(10).unwrap();
    let config = Config {
        batch_size: few,
        read_ahead_events: few,
        response_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let mut reading = Reading::of(Capture::new(&client, source(), quick(config)), PipelineStart::Beginning).await;
    let mut scanned = reading.events(20).await;
    let primary = set.primary().await.unwrap();
    set.kill(primary).await.unwrap();
    scanned.extend(reading.snapshot().await.into_iter().map(|(event, _)| event));
    assert_eq!(versions(&scanned), (0..i64::from(held)).collect::<Vec<_>>());
    assert!(reading.handle.status().reopens >= 1, "{:?}", reading.handle.status());
    reading.stop().await;
}

fn source() -> SourceConfig {
    SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") }
}

/// One event after the other, each written again until a majority has it; the version is the key, so that none is written twice.
async fn write(client: mongodb::Client, written: Arc<AtomicI32>, done: Arc<AtomicBool>) {
    let events = majority(&client.database("shop"), "events");
    while !done.load(Ordering::SeqCst) {
        let version = written.load(Ordering::SeqCst);
        let mut event = event("a", version);
        event.insert("_id", version);
        let inserted = tokio::time::timeout(Duration::from_secs(2), async { events.insert_one(&event).await }).await;
        let acknowledged = match &inserted {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => mongo_error::error_code(error) == Some(11000) && is_there(&events, version).await,
            Err(_) => false,
        };
        if acknowledged {
            written.fetch_add(1, Ordering::SeqCst);
        } else {
            // Shown with the test's output, should it fail.
            let answer = inserted.map(|inserted| inserted.err().and_then(|error| mongo_error::error_code(&error)));
            println!("version {version} is written again: {answer:?}");
        }
    }
}

/// A duplicate may still be rolled back; a majority read tells.
async fn is_there(events: &mongodb::Collection<mongodb::bson::Document>, version: i32) -> bool {
    let found =
        events.find_one(mongodb::bson::doc! { "_id": version }).read_concern(mongodb::options::ReadConcern::majority());
    matches!(tokio::time::timeout(Duration::from_secs(2), async { found.await }).await, Ok(Ok(Some(_))))
}

async fn more_are_written(many: i32, written: &AtomicI32) {
    let before = written.load(Ordering::SeqCst);
    wait_for("more events to be written", LONG, async || {
        let now = written.load(Ordering::SeqCst);
        if now > before + many { Ok(()) } else { Err(now) }
    })
    .await;
}
