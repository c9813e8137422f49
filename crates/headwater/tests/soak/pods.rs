//! The soak itself, with the plainest pods there are: killed, paused and deposed for real, by the real lease.

use std::path::Path;

use bench::soak::{Defect, Options, find_defect, plain_pod, run};
use testkit::checker::Kind;
use testkit::process::Program;

use super::BINARY;

/// This test's own program serves as a pod: not a second binary that could be missing or stale.
#[test]
fn serves_as_a_pod_if_asked() {
    plain_pod::serve_if_asked();
}

fn plain() -> Program {
    let program = std::env::current_exe().expect("this program has a path");
    Program::new(program)
        .args(["--exact", "pods::serves_as_a_pod_if_asked", "--nocapture"])
        .env(plain_pod::VARIABLE, "1")
}

#[tokio::test]
async fn pods_that_keep_their_word_lose_nothing_while_leaders_fall() {
    let options = Options { pod: Some(plain()), ..Options::cut(20_261_115) };
    let outcome = Box::pin(run(Path::new(BINARY), &options)).await.unwrap();
    assert!(outcome.is_clean() && outcome.deaths.is_empty(), "{outcome}");
    assert_eq!(outcome.verdict.tally.acknowledged + outcome.verdict.in_doubt, options.load.events, "{outcome}");
    assert!(outcome.faults.in_flight() > 0, "no fault hit while events were in flight: {outcome}");
    assert!(outcome.fence.terms() > 1, "nobody took over: {outcome}");
}

#[tokio::test]
async fn a_checkpoint_ahead_of_the_acknowledgements_is_found() {
    let found = Box::pin(find_defect(Path::new(BINARY), Some(plain()), Defect::CheckpointAhead, 1..11)).await.unwrap();
    let (_, outcome) = found.expect("ten seeds show it");
    assert!(outcome.verdict.count(Kind::Lost) > 0, "{outcome}");
}

#[tokio::test]
async fn a_checkpoint_without_a_fence_is_found() {
    let found = Box::pin(find_defect(Path::new(BINARY), Some(plain()), Defect::NoFence, 1..11)).await.unwrap();
    let (_, outcome) = found.expect("ten seeds show it");
    assert!(!outcome.fence.breaches().is_empty(), "{outcome}");
}

#[tokio::test]
async fn two_transfers_in_one_lane_are_found() {
    let found =
        Box::pin(find_defect(Path::new(BINARY), Some(plain()), Defect::TwoTransfersPerLane, 1..11)).await.unwrap();
    let (_, outcome) = found.expect("ten seeds show it");
    assert!(outcome.verdict.count(Kind::OutOfOrder) > 0, "{outcome}");
}
