//! Short runs of the two backlog shapes that could stall a consumer: very many aggregates of one event, and one aggregate of very many.

use std::path::Path;
use std::time::Duration;

use bench::soak::consumer_soak::{ConsumerSoakOptions, run};
use testkit::load::Load;

use super::BINARY;

/// For a busy machine; an idle one takes a second or two.
const SOON: Duration = Duration::from_secs(60);
/// Below the accept timeout, and below twice the time of a lock that nobody renews.
const STANDSTILL: Duration = Duration::from_secs(10);

async fn drains(load: Load, history: bool) {
    let mut options = ConsumerSoakOptions { history, ..ConsumerSoakOptions::short(load.seed).without_faults() };
    (options.base.load, options.base.pods) = (load, 3);
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.unexpected_exits.is_empty(), "{outcome}");
    assert_eq!(outcome.acknowledged, options.base.load.events);
    assert!(outcome.drained_in < SOON && outcome.longest_stall < STANDSTILL, "{outcome}");
}

#[tokio::test]
async fn thousands_of_single_event_aggregates_drain() {
    let each = Load {
        events: 5_000,
        aggregates: 5_000,
        run_length: 1..=1,
        round_robin: true,
        runs_per_statement: 100,
        ..Load::default()
    };
    drains(each, true).await;
}

#[tokio::test]
async fn one_aggregate_with_thousands_of_events_drains() {
    let one = Load { events: 5_000, aggregates: 1, writers: 1, run_length: 1..=100, ..Load::default() };
    // A list of the applied events would be copied with every event.
    drains(one, false).await;
}
