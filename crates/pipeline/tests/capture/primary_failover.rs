//! A primary that is killed, or stops responding, during capture.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use pipeline::capture::{Capture, Config, StartPosition};
use pipeline::source::SourceConfig;
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;

use crate::fixture::{CaptureRun, direct, event, index, majority, short_await, versions};

/// For an election on a slow machine.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(150);

#[tokio::test]
async fn a_failed_or_silent_primary_loses_and_repeats_no_event() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    // The monitors of the driver are too slow to notice a silent member, so only the timeout of capture does. They must notice a returning
    // member soon: it may be the next primary.
    let slow = "heartbeatFrequencyMS=500&connectTimeoutMS=120000";
    let client = direct(&format!("{}&{slow}", set.uri())).await;
    let config = Config { response_timeout: Duration::from_secs(2), ..Config::default() };
    let mut reading = CaptureRun::start(Capture::new(&client, source(), short_await(config)), StartPosition::Now).await;
    let (written, done) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(set.client().await.unwrap(), Arc::clone(&written), Arc::clone(&done)));

    wait_for_writes(50, &written).await;
    let killed = set.primary().await.unwrap();
    set.kill(killed).await.unwrap();
    wait_for_writes(50, &written).await;
    set.restart(killed).await.unwrap();
    set.wait_until_secondary(killed).await.unwrap();

    let paused = set.primary().await.unwrap();
    set.pause(paused).await.unwrap();
    // Only a few: for half a minute the other two members replicate by heartbeat alone, about three events per second.
    wait_for_writes(10, &written).await;
    // Its connections stay open without a response. A reader without a timeout would wait until it resumes.
    let known = written.load(Ordering::SeqCst) as u64;
    wait_for("what was written meanwhile to be read", ELECTION_TIMEOUT, async || {
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
    kill_primary_during_snapshot(&mut set, all).await;
}

/// The cursor dies with the server; the scan resumes after the last captured document.
async fn kill_primary_during_snapshot(set: &mut ReplicaSet, held: i32) {
    let client = set.client().await.unwrap();
    index(&majority(&client.database("shop"), "events")).await;
    let few = NonZeroU32::new(10).unwrap();
    let config = Config {
        batch_size: few,
        read_ahead_events: few,
        response_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let mut reading =
        CaptureRun::start(Capture::new(&client, source(), short_await(config)), StartPosition::Beginning).await;
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

/// Writes one event after the other, and retries each until a majority has it. The version is the key, so a retry writes no duplicate.
async fn write(client: mongodb::Client, written: Arc<AtomicI32>, done: Arc<AtomicBool>) {
    let events = majority(&client.database("shop"), "events");
    while !done.load(Ordering::SeqCst) {
        let version = written.load(Ordering::SeqCst);
        let mut event = event("a", version);
        event.insert("_id", version);
        let inserted = tokio::time::timeout(Duration::from_secs(2), async { events.insert_one(&event).await }).await;
        let acknowledged = match &inserted {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => mongo_error::error_code(error) == Some(11000) && is_committed(&events, version).await,
            Err(_) => false,
        };
        if acknowledged {
            written.fetch_add(1, Ordering::SeqCst);
        } else {
            // Helps to explain a failed test.
            let answer = inserted.map(|inserted| inserted.err().and_then(|error| mongo_error::error_code(&error)));
            println!("version {version} is written again: {answer:?}");
        }
    }
}

/// A duplicate may still be rolled back; only a majority read proves it.
async fn is_committed(events: &mongodb::Collection<mongodb::bson::Document>, version: i32) -> bool {
    let found =
        events.find_one(mongodb::bson::doc! { "_id": version }).read_concern(mongodb::options::ReadConcern::majority());
    matches!(tokio::time::timeout(Duration::from_secs(2), async { found.await }).await, Ok(Ok(Some(_))))
}

async fn wait_for_writes(many: i32, written: &AtomicI32) {
    let before = written.load(Ordering::SeqCst);
    wait_for("more events to be written", ELECTION_TIMEOUT, async || {
        let now = written.load(Ordering::SeqCst);
        if now > before + many { Ok(()) } else { Err(now) }
    })
    .await;
}
