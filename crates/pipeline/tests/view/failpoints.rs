//! Checks the tests: with a mechanism disabled in a process of its own, the test of that mechanism must fail.

use pipeline::failpoints::Failpoint;

async fn passes_with(defect: Failpoint, test: &str) -> bool {
    testkit::failpoints::test_passes_with(Failpoint::VARIABLE, &format!("{defect:?}"), test).await
}

#[tokio::test]
async fn without_the_cursor_check_events_take_effect_twice() {
    let test = "exactly_once::redelivered_events_take_effect_once_and_in_order";
    assert!(!passes_with(Failpoint::NoCursorCheck, test).await);
}

#[tokio::test]
async fn without_the_parked_check_events_overtake_parked_ones() {
    let test = "parked_aggregates::events_of_a_parked_aggregate_queue_in_order";
    assert!(!passes_with(Failpoint::ParkedCheckSkipped, test).await);
}

#[tokio::test]
async fn overlapping_transactions_of_one_session_lose_events() {
    let test = "exactly_once::a_retried_batch_is_not_split";
    assert!(!passes_with(Failpoint::OverlappingTransactions, test).await);
}

#[tokio::test]
async fn an_unrelated_failpoint_changes_nothing() {
    let test = "exactly_once::a_late_message_of_a_deposed_leader_is_skipped";
    assert!(passes_with(Failpoint::NoFence, test).await);
}
