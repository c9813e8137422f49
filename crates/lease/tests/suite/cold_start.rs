//! Cold starts. `cargo xtask soak lease-races` runs 200 of them.

use election_test::cold_start::{cold_start, cold_start_with, database, options};
use lease::mongo::COLLECTION;
use mongodb::bson::{Document, doc};
use testkit::mongo::shared;

#[tokio::test]
async fn of_eight_candidates_one_leads_and_the_rest_write_nothing() {
    let shared = shared().await.unwrap();
    let scratch = shared.database("races");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    for round in 1..=8 {
        let result = cold_start(&options, &database, 8, 20).await;
        assert_eq!(result.problem(), None, "round {round}: {result:?}");
    }
}

/// The control: shows that the test can fail.
#[tokio::test]
async fn a_cold_start_test_finds_a_stray_write_and_a_warning() {
    let shared = shared().await.unwrap();
    let scratch = shared.database("control");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    let leases = database.collection::<Document>(COLLECTION);
    let result = cold_start_with(&options, &database, 2, 5, async |key: &str| {
        leases.update_one(doc! { "_id": key }, doc! { "$set": { "looked": true } }).await.unwrap();
    });
    assert_eq!(result.await.problem(), Some("a standby wrote to the oplog"));
    let result = cold_start_with(&options, &database, 2, 5, async |key: &str| {
        tracing::warn!(pod_id = format!("{key}-1"), "test warning");
    });
    assert_eq!(result.await.problem(), Some("a warning or an error was logged"));
}
