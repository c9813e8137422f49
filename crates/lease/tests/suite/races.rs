//! Cold starts. `cargo run -p bench --bin lease-races` runs two hundred of them.

use bench::race::{cold_start, database, options};
use testkit::mongo::shared;

#[tokio::test]
async fn of_eight_that_start_at_once_one_leads_and_the_others_leave_no_trace() {
    let shared = shared().await.unwrap();
    let scratch = shared.database("races");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    for round in 1..=8 {
        let seen = cold_start(&options, &database, 8, 20).await;
        assert_eq!(seen.terms.len(), 1, "round {round}: {seen:?}");
        assert_eq!(seen.holder.as_ref(), Some(&seen.terms[0].1), "round {round}: {seen:?}");
        assert!(seen.complaints.is_empty(), "round {round}: {seen:?}");
        assert_eq!(seen.oplog_entries, seen.heartbeats, "round {round}: {seen:?}");
    }
}
