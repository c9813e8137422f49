//! A pod is paused past its session locks, with events applied and not settled, while another pod takes its sessions.

use std::path::Path;

use bench::soak::consumer_soak::{ConsumerSoakOptions, ConsumerSoakResult, run};
use pipeline::failpoints::Failpoint;
use testkit::checker::ViolationKind;
use testkit::load::Load;
use testkit::nemesis::FaultProfile;

use super::BINARY;

/// No other fault, and no duplicated messages: every redelivery comes from the lost lock.
async fn run_with_pause(seed: u64, defect: Option<Failpoint>) -> ConsumerSoakResult {
    let mut options = ConsumerSoakOptions::short(seed).without_faults();
    options.base.profile = FaultProfile::pause_past_locks();
    options.base.load = Load { events: 2_400, aggregates: 60, ..options.base.load.clone() };
    options.base.failpoint = defect;
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
    outcome
}

#[tokio::test]
async fn a_pod_paused_past_its_locks_applies_nothing_twice() {
    let outcome = run_with_pause(21, None).await;
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
}

#[tokio::test]
async fn without_the_cursor_check_a_paused_pod_applies_twice() {
    let outcome = run_with_pause(21, Some(Failpoint::NoCursorCheck)).await;
    assert!(outcome.report.count(ViolationKind::Duplicated) > 0, "{outcome}");
}
