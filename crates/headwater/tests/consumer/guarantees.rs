//! Short runs of `cargo xtask soak consumer` with their own seeds; and the planted defects that must not pass.

use std::path::Path;

use bench::soak::consumer_soak::{ConsumerSoakOptions, run};
use bench::soak::{SoakViolation, detect_in_consumer, expected_violation};
use pipeline::failpoints::Failpoint;

use super::BINARY;

#[tokio::test]
async fn read_models_equal_a_fold_of_the_source_under_failures() {
    let options = ConsumerSoakOptions::short(3);
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
}

#[tokio::test]
async fn read_models_equal_a_fold_without_a_sequence() {
    let options = ConsumerSoakOptions { sequence: false, ..ConsumerSoakOptions::short(4) };
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
}

/// The faults of the nemesis on a bus that also detaches links, throttles, loses locks and fails over, every few seconds.
#[tokio::test]
async fn read_models_equal_a_fold_of_the_source_on_a_harsh_bus() {
    let mut options = ConsumerSoakOptions::short(5);
    options.base.harsh_scale = Some(100.0);
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
}

/// The failpoint breaks this guarantee within ten seeds, and the same seeds without it are clean.
async fn assert_failpoint_is_found(defect: Failpoint, violation: SoakViolation) {
    assert_eq!(expected_violation(defect), violation);
    detect_in_consumer(Path::new(BINARY), defect, 0..10).await.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn without_the_cursor_check_redelivered_events_apply_twice() {
    assert_failpoint_is_found(Failpoint::NoCursorCheck, SoakViolation::Duplicated).await;
}

#[tokio::test]
async fn settling_before_the_commit_is_found() {
    assert_failpoint_is_found(Failpoint::SettleBeforeCommit, SoakViolation::Lost).await;
}

/// The later transaction moves the cursor, so the events of the earlier one count as duplicates.
#[tokio::test]
async fn overlapping_session_transactions_lose_events() {
    assert_failpoint_is_found(Failpoint::OverlappingTransactions, SoakViolation::Lost).await;
}

#[tokio::test]
async fn without_the_parked_check_the_soak_finds_reordered_events() {
    assert_failpoint_is_found(Failpoint::ParkedCheckSkipped, SoakViolation::ReadModelDiffers).await;
}

#[tokio::test]
async fn an_event_that_cannot_be_applied_must_be_parked() {
    assert_failpoint_is_found(Failpoint::PoisonSkipped, SoakViolation::WronglyParked).await;
}
