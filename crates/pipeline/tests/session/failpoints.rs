//! Checks the tests: with a mechanism disabled in a process of its own, the test of that mechanism must fail.

use pipeline::failpoints::Failpoint;

async fn passes_with(defect: Failpoint, test: &str) -> bool {
    testkit::failpoints::test_passes_with(Failpoint::VARIABLE, &format!("{defect:?}"), test).await
}

#[tokio::test]
async fn settling_before_the_commit_loses_messages() {
    let test = "shutdown::a_failed_batch_is_not_settled_and_is_redelivered";
    assert!(!passes_with(Failpoint::SettleBeforeCommit, test).await);
}

#[tokio::test]
async fn without_the_cursor_check_a_lost_lock_applies_twice() {
    let test = "lock_loss::a_holder_that_lost_its_lock_settles_nothing";
    assert!(!passes_with(Failpoint::NoCursorCheck, test).await);
}

#[tokio::test]
async fn an_unrelated_failpoint_changes_nothing() {
    let test = "shutdown::a_failed_batch_is_not_settled_and_is_redelivered";
    assert!(passes_with(Failpoint::NoFence, test).await);
}
