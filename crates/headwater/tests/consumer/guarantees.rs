//! Short runs of `cargo xtask soak consumer` with their own seeds; and the planted defects that must not pass.

use std::path::Path;

use bench::soak::consumer_soak::{ConsumerSoakOptions, run};
use bench::soak::{consumer_options_for, find_failing_consumer_seed};
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
    assert!(outcome.is_clean(), "{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
}

/// The defect is found within ten seeds, and the same run without it passes.
async fn is_found(defect: Failpoint) {
    let found = find_failing_consumer_seed(Path::new(BINARY), defect, 0..10).await.unwrap();
    let (seed, outcome) = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
    println!("{defect:?}: seed {seed}\n{outcome}");
    let without = run(Path::new(BINARY), &consumer_options_for(defect, seed)).await.unwrap();
    assert!(without.is_clean(), "{without}");
}

#[tokio::test]
async fn without_the_cursor_check_redelivered_events_apply_twice() {
    is_found(Failpoint::NoCursorCheck).await;
}

#[tokio::test]
async fn settling_before_the_commit_is_found() {
    is_found(Failpoint::SettleBeforeCommit).await;
}

#[tokio::test]
async fn overlapping_session_transactions_break_the_order() {
    is_found(Failpoint::OverlappingTransactions).await;
}

#[tokio::test]
async fn without_the_parked_check_the_soak_finds_reordered_events() {
    is_found(Failpoint::ParkedCheckSkipped).await;
}
