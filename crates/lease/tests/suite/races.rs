//! Cold starts. `cargo run -p bench --bin lease-races` runs two hundred of them.

use bench::race::{cold_start, cold_start_with, database, options};
use lease::mongo::COLLECTION;
use mongodb::bson::{Document, doc};
use testkit::mongo::shared;

#[tokio::test]
async fn of_eight_that_start_at_once_one_leads_and_the_others_leave_no_trace() {
    let shared = shared().await.unwrap();
    let scratch = shared.database("races");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    for round in 1..=8 {
        let seen = cold_start(&options, &database, 8, 20).await;
        assert_eq!(seen.problem(), None, "round {round}: {seen:?}");
    }
}

/// The control: a race that hears nothing would find nothing.
#[tokio::test]
async fn a_race_hears_a_write_that_a_standby_makes_and_a_warning_that_it_logs() {
    let shared = shared().await.unwrap();
    let scratch = shared.database("control");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    let leases = database.collection::<Document>(COLLECTION);
    let seen = cold_start_with(&options, &database, 2, 5, async |key: &str| {
        leases.update_one(doc! { "_id": key }, doc! { "$set": { "looked": true } }).await.unwrap();
    });
    assert_eq!(seen.await.problem(), Some("a standby left a trace in the oplog"));
    let seen = cold_start_with(&options, &database, 2, 5, async |key: &str| {
        tracing::warn!(pod_id = format!("{key}-1"), "something is odd");
    });
    assert_eq!(seen.await.problem(), Some("something was logged as a warning or an error"));
}
