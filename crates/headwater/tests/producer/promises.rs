//! Cuts of `cargo xtask soak producer`, with seeds of their own; and the defects that must not pass it.

use std::path::Path;

use bench::soak::{Options, find_defect, hunting, run};
use pipeline::planted::Defect;
use testkit::cluster::Topic;

use super::BINARY;

#[tokio::test]
async fn while_leaders_fall_every_event_is_on_the_topic_once_and_in_order() {
    let outcome = run(Path::new(BINARY), &Options::cut(5)).await.unwrap();
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.faults.in_flight() > 0 && outcome.fence.terms() > 1, "nothing happened: {outcome}");
    assert!(outcome.deaths.is_empty(), "{:?}", outcome.deaths);
}

#[tokio::test]
async fn on_a_partitioned_topic_too() {
    let topic = Topic { partitioned: true, ..Topic::default() };
    let outcome = run(Path::new(BINARY), &Options { topic, ..Options::cut(6) }).await.unwrap();
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.faults.in_flight() > 0 && outcome.fence.terms() > 1, "nothing happened: {outcome}");
    assert!(outcome.deaths.is_empty(), "{:?}", outcome.deaths);
}

/// What a takeover sends again is what was under way: never more than the window.
#[tokio::test]
async fn without_duplicate_detection_a_takeover_repeats_no_more_than_the_window() {
    const WINDOW: u64 = 64;
    let topic = Topic { duplicate_window: None, ..Topic::default() };
    let producer = format!("start: beginning, window: {{ events: {WINDOW}, bytes: 1MiB }}");
    let outcome = run(Path::new(BINARY), &Options { topic, producer, ..Options::cut(7) }).await.unwrap();
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.faults.in_flight() > 0 && outcome.fence.terms() > 1, "nothing happened: {outcome}");
    let copies = outcome.verdict.most_duplicates_in_a_term();
    assert!((1..=WINDOW).contains(&copies), "{:?}", outcome.verdict.duplicates);
}

/// The defect is found within ten seeds, and the same run without it is clean.
async fn is_found(defect: Defect) {
    let found = find_defect(Path::new(BINARY), defect, 0..10).await.unwrap();
    let (seed, outcome) = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
    println!("{defect:?}: seed {seed}\n{outcome}");
    let without = run(Path::new(BINARY), &hunting(defect, seed)).await.unwrap();
    assert!(without.is_clean(), "{without}");
}

#[tokio::test]
async fn without_the_fence_a_deposed_leader_saves() {
    is_found(Defect::NoFence).await;
}

#[tokio::test]
async fn a_checkpoint_ahead_of_the_acknowledgements_loses_events() {
    is_found(Defect::CheckpointAhead).await;
}

#[tokio::test]
async fn two_transfers_in_one_lane_break_the_order() {
    is_found(Defect::TwoTransfersPerLane).await;
}
