//! The tests above find what they are for: each mechanism is left out, in a process of its own, and the test that holds it fails.

use pipeline::failpoints::Failpoint;

async fn passes_with(defect: Failpoint, test: &str) -> bool {
    testkit::planted::passes_with(Failpoint::VARIABLE, &format!("{defect:?}"), test).await
}

#[tokio::test]
async fn without_the_cursor_check_events_take_effect_twice() {
    let test = "once::every_event_takes_effect_once_and_in_order_however_often_it_comes";
    assert!(!passes_with(Failpoint::NoCursorCheck, test).await);
}

#[tokio::test]
async fn without_the_parked_check_events_pass_those_that_wait() {
    let test = "parking::what_comes_while_an_aggregate_waits_queues_behind";
    assert!(!passes_with(Failpoint::ParkedCheckSkipped, test).await);
}

#[tokio::test]
async fn transactions_of_one_session_that_overlap_lose_events() {
    let test = "once::a_batch_that_must_be_tried_again_stays_in_one_piece";
    assert!(!passes_with(Failpoint::OverlappingTransactions, test).await);
}

#[tokio::test]
async fn a_defect_that_is_not_ours_changes_nothing() {
    let test = "once::a_late_message_of_a_deposed_leader_is_skipped";
    assert!(passes_with(Failpoint::NoFence, test).await);
}
