//! A pod that is stopped past its session locks, with events applied and not settled, while another takes its sessions.

use std::path::Path;

use bench::soak::consumer::{Options, Outcome, run};
use pipeline::failpoints::Failpoint;
use testkit::checker::Kind;
use testkit::load::Load;
use testkit::nemesis::Profile;

use super::BINARY;

/// Nothing else is broken, and nothing said twice: what comes twice, comes by the lock that was lost.
async fn slept_over(seed: u64, defect: Option<Failpoint>) -> Outcome {
    let mut options = Options::cut(seed).in_peace();
    options.walk.profile = Profile::sleep();
    options.walk.load = Load { events: 2_400, aggregates: 60, ..options.walk.load.clone() };
    options.walk.defect = defect;
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert_eq!(outcome.missing(&options), [""; 0], "{outcome}");
    outcome
}

#[tokio::test]
async fn a_pod_paused_past_its_locks_applies_nothing_twice() {
    let outcome = slept_over(21, None).await;
    assert!(outcome.is_clean() && outcome.deaths.is_empty(), "{outcome}");
}

#[tokio::test]
async fn without_the_cursor_check_a_paused_pod_applies_twice() {
    let outcome = slept_over(21, Some(Failpoint::NoCursorCheck)).await;
    assert!(outcome.verdict.count(Kind::Doubled) > 0, "{outcome}");
}
