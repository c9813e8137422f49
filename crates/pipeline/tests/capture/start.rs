//! Where a new pipeline starts, and that nothing between its start and its first read is skipped.

use mongodb::bson::{DateTime, Timestamp, doc};
use pipeline::capture::PipelineStart;
use pipeline::checkpoint::CheckpointPhase;

use crate::house::{House, Reading, event, insert_all, versions};

#[tokio::test]
async fn now_is_before_the_next_write() {
    let house = House::new("now").await;
    house.events().insert_one(event("a", 1)).await.unwrap();
    let phase = house.capture(house.source()).initial_phase(&PipelineStart::Now).await.unwrap();
    // The first leader dies here, having stored the phase and read nothing.
    insert_all(&house.events(), (2..5).map(|version| event("a", version))).await;
    let mut reading = Reading::from(house.capture(house.source()), phase);
    assert_eq!(versions(&reading.events(3).await), [2, 3, 4]);
    reading.stop().await;
}

#[tokio::test]
async fn a_time_is_inclusive_and_its_token_skips_nothing() {
    let house = House::new("at").await;
    house.events().insert_one(event("a", 1)).await.unwrap();
    // The cluster's clock counts seconds; what follows is in a later one.
    let first = cluster_second(&house).await;
    while cluster_second(&house).await <= first {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    house.events().insert_one(event("a", 2)).await.unwrap();
    let second = cluster_second(&house).await;
    let at = PipelineStart::At(DateTime::from_millis(i64::from(first + 1) * 1000));
    let phase = house.capture(house.source()).initial_phase(&at).await.unwrap();
    house.events().insert_one(event("a", 3)).await.unwrap();
    assert!(second > first);
    let mut reading = Reading::from(house.capture(house.source()), phase);
    assert_eq!(versions(&reading.events(2).await), [2, 3]);
    reading.stop().await;
}

/// The second of the last write.
async fn cluster_second(house: &House) -> u32 {
    let written = house.database.run_command(doc! { "insert": "ticks", "documents": [{}] }).await.unwrap();
    let Timestamp { time, .. } = written.get_timestamp("operationTime").unwrap();
    time
}

#[tokio::test]
async fn the_beginning_is_a_snapshot_with_a_run_of_its_own() {
    let house = House::new("beginning").await;
    let capture = house.capture(house.source());
    let mut runs = Vec::new();
    for _ in 0..2 {
        match capture.initial_phase(&PipelineStart::Beginning).await.unwrap() {
            CheckpointPhase::Snapshot { progress, .. } => {
                assert_eq!((progress.scanned, &progress.after), (0, &None));
                runs.push(progress.run);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_ne!(runs[0], runs[1]);
}
