//! The start of a new pipeline skips nothing between the start and the first read.

use mongodb::bson::{DateTime, Timestamp, doc};
use pipeline::capture::StartPosition;
use pipeline::checkpoint::CheckpointPhase;

use crate::fixture::{CaptureFixture, CaptureRun, event, insert_all, versions};

#[tokio::test]
async fn start_now_includes_the_next_write() {
    let fixture = CaptureFixture::new("now").await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    let phase = fixture.capture(fixture.source()).initial_phase(&StartPosition::Now).await.unwrap();
    // The first leader is killed here: it has saved the phase and read nothing.
    insert_all(&fixture.events(), (2..5).map(|version| event("a", version))).await;
    let mut reading = CaptureRun::resume(fixture.capture(fixture.source()), phase);
    assert_eq!(versions(&reading.events(3).await), [2, 3, 4]);
    reading.stop().await;
}

#[tokio::test]
async fn a_start_time_is_inclusive_and_skips_nothing() {
    let fixture = CaptureFixture::new("at").await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    // Cluster time counts seconds; wait for the next one.
    let first = cluster_second(&fixture).await;
    while cluster_second(&fixture).await <= first {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    fixture.events().insert_one(event("a", 2)).await.unwrap();
    let second = cluster_second(&fixture).await;
    let at = StartPosition::At(DateTime::from_millis(i64::from(first + 1) * 1000));
    let phase = fixture.capture(fixture.source()).initial_phase(&at).await.unwrap();
    fixture.events().insert_one(event("a", 3)).await.unwrap();
    assert!(second > first);
    let mut reading = CaptureRun::resume(fixture.capture(fixture.source()), phase);
    assert_eq!(versions(&reading.events(2).await), [2, 3]);
    reading.stop().await;
}

/// The second of the last write.
async fn cluster_second(fixture: &CaptureFixture) -> u32 {
    let written = fixture.database.run_command(doc! { "insert": "ticks", "documents": [{}] }).await.unwrap();
    let Timestamp { time, .. } = written.get_timestamp("operationTime").unwrap();
    time
}

#[tokio::test]
async fn each_start_at_the_beginning_is_a_new_snapshot_run() {
    let fixture = CaptureFixture::new("beginning").await;
    let capture = fixture.capture(fixture.source());
    let mut runs = Vec::new();
    for _ in 0..2 {
        match capture.initial_phase(&StartPosition::Beginning).await.unwrap() {
            CheckpointPhase::Snapshot { progress, .. } => {
                assert_eq!((progress.scanned, &progress.after), (0, &None));
                runs.push(progress.run);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_ne!(runs[0], runs[1]);
}
