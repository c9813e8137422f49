//! A short `cargo xtask soak stops` and a short `cargo xtask soak rollouts` with their own seeds; and a leader that does not flush what it has read, which must not pass.

use std::path::Path;
use std::time::Duration;

use bench::soak::rollout_soak::{self, RolloutSoakOptions};
use bench::soak::stop_soak::{StopSoakOptions, run};
use testkit::checker::ViolationKind;
use testkit::load::Load;

use super::BINARY;

#[tokio::test]
async fn a_leader_stopped_under_load_publishes_and_applies_once() {
    let options = StopSoakOptions::short(9);
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean(), "{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
}

#[tokio::test]
async fn rollouts_under_load_publish_and_apply_once() {
    let mut options = RolloutSoakOptions::short(11);
    // Two releases take turns; here both are of the same build.
    options.previous = Some(BINARY.into());
    let outcome = rollout_soak::run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean(), "{outcome}");
    assert!(outcome.rollouts() == 2 && outcome.acknowledged() > 0, "{outcome}");
}

#[tokio::test]
async fn releasing_the_lease_before_acknowledgements_is_detected() {
    let cut = StopSoakOptions::short(10);
    // As fast as they are acknowledged, so that transfers are always in flight.
    let load = Load { rate: None, ..cut.load };
    let outcome = run(Path::new(BINARY), &StopSoakOptions { load, flush: Duration::ZERO, ..cut }).await.unwrap();
    println!("{outcome}");
    assert!(outcome.topic.count(ViolationKind::Duplicated) > 0, "{outcome}");
    assert!(
        outcome.applied.is_clean() && outcome.differences.is_empty(),
        "what is published twice is applied once: {outcome}"
    );
}
