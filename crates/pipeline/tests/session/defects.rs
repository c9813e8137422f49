//! The tests find what they are for: the mechanism is left out, in a process of its own, and the test that holds it fails.

use pipeline::failpoints::Failpoint;

async fn passes_with(defect: Failpoint, test: &str) -> bool {
    testkit::planted::passes_with(Failpoint::VARIABLE, &format!("{defect:?}"), test).await
}

#[tokio::test]
async fn messages_settled_before_their_commit_are_lost_when_it_fails() {
    let test = "drains::a_batch_that_fails_is_not_settled_and_comes_again";
    assert!(!passes_with(Failpoint::SettleBeforeCommit, test).await);
}

#[tokio::test]
async fn without_the_cursor_check_a_lost_lock_does_harm() {
    let test = "locks::a_holder_that_is_slow_past_its_lock_settles_nothing_and_the_next_one_skips_what_it_did";
    assert!(!passes_with(Failpoint::NoCursorCheck, test).await);
}

#[tokio::test]
async fn a_defect_that_is_not_ours_changes_nothing() {
    let test = "drains::a_batch_that_fails_is_not_settled_and_comes_again";
    assert!(passes_with(Failpoint::NoFence, test).await);
}
