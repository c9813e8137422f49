//! The source collection of a bench, and its events.

use futures_util::{StreamExt, stream};
use mongodb::bson::{Document, Timestamp, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Client, Collection, Database};

const EVENTS_PER_INSERT: u64 = 1_000;

/// The events collection, with majority write concern.
pub fn events_collection(database: &Database) -> Collection<Document> {
    let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
    database.collection_with_options("events", CollectionOptions::builder().write_concern(majority).build())
}

/// Inserts the events 0 to `count`.
///
/// # Panics
/// When MongoDB refuses an insert.
pub async fn insert_events(events: &Collection<Document>, count: u64, event: impl Fn(u64) -> Document) {
    let chunks = (0..count.div_ceil(EVENTS_PER_INSERT)).map(|chunk| {
        let numbers = chunk * EVENTS_PER_INSERT..count.min((chunk + 1) * EVENTS_PER_INSERT);
        let documents: Vec<_> = numbers.map(&event).collect();
        async move { events.insert_many(documents).await.expect("events are written") }
    });
    // `chunks` is lazy: only two inserts are prepared at a time.
    stream::iter(chunks).buffer_unordered(2).for_each(|_| async {}).await;
}

/// The time of the server's last write.
///
/// # Panics
/// When MongoDB does not respond.
pub async fn cluster_time(client: &Client) -> Timestamp {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.expect("an answer");
    let last = hello.get_document("lastWrite").and_then(|last| last.get_document("opTime")).expect("a member's");
    last.get_timestamp("ts").expect("a time")
}
