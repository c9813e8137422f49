//! One document that every event writes, and three pod processes that compete for it.

use std::path::Path;
use std::time::Duration;

use bench::soak::consumer_soak::{ConsumerSoakOptions, run};
use testkit::load::Load;

use super::BINARY;

/// An idle machine takes two seconds, a busy one half a minute. A livelock ends in the soak's stall timeout, with events missing.
const SOON: Duration = Duration::from_secs(120);
/// A pod that meets a conflict must retry at once, not wait until the other transaction times out.
const STANDSTILL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn three_pods_progress_when_every_event_writes_one_document() {
    let mut options = ConsumerSoakOptions::short(12).without_faults();
    options.base.pods = 3;
    // As fast as they are acknowledged, all for one customer.
    options.base.load = Load { events: 3_000, aggregates: 300, customers: 1, rate: None, ..options.base.load.clone() };
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
    assert_eq!(outcome.applied_by.iter().sum::<u64>(), 3_000);
    assert!(outcome.conflicts > 0, "there were no conflicts: {outcome}");
    assert!(outcome.applied_by.iter().all(|applied| *applied >= 150), "one pod applied next to nothing: {outcome}");
    assert!(outcome.drained_in < SOON && outcome.longest_stall < STANDSTILL, "{outcome}");
}
