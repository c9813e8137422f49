//! The simplest thing that publishes: one change stream, one message at a time. Enough to show what the checker sees, and nothing a pod should be.

use mongodb::bson::Document;
use mongodb::change_stream::event::ChangeStreamEvent;
use mongodb::{Collection, change_stream::ChangeStream};
use servicebus::{Client, Config, Message, Sender};
use testkit::cluster::House;

/// What a careless publisher does to the stream's hundredth event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Careless {
    Never,
    Drops,
    /// Under another id, so that the broker cannot tell.
    SendsTwice,
    /// After the one that follows it in its aggregate.
    SwapsWithTheNext,
}

/// A stream that misses nothing written after this returned.
pub(super) async fn watch(house: &House) -> ChangeStream<ChangeStreamEvent<Document>> {
    let events: Collection<Document> = house.events();
    events.watch().await.expect("the source can be watched")
}

/// Publishes until it is dropped.
pub(super) async fn publish(
    mut changes: ChangeStream<ChangeStreamEvent<Document>>,
    connection_string: String,
    careless: Careless,
) {
    let client = Client::new(&connection_string, Config::default()).expect("the house's connection string is valid");
    let topic = client.sender("events");
    let (mut held, mut swapped): (Option<Document>, bool) = (None, false);
    let mut number = 0;
    while changes.is_alive() {
        let Ok(change) = changes.next_if_any().await else { return };
        let Some(document) = change.and_then(|change| change.full_document) else { continue };
        number += 1;
        match careless {
            Careless::Drops if number == 100 => continue,
            Careless::SendsTwice if number == 100 => send(&topic, &document, "again").await,
            Careless::SwapsWithTheNext if number >= 100 && held.is_none() && !swapped => {
                held = Some(document);
                continue;
            }
            Careless::Never | Careless::Drops | Careless::SendsTwice | Careless::SwapsWithTheNext => {}
        }
        send(&topic, &document, "").await;
        if let Some(before) = held.take_if(|before| before.get("aggregateId") == document.get("aggregateId")) {
            send(&topic, &before, "").await;
            swapped = true;
        }
    }
}

/// Until the broker has it.
async fn send(topic: &Sender, document: &Document, suffix: &str) {
    let aggregate = document.get_str("aggregateId").expect("the writer gave one");
    let version = document.get_i64("version").expect("the writer gave one");
    let message = Message::new(document.to_vec().expect("it came as BSON"))
        .with_id(format!("{aggregate}:{version}{suffix}"))
        .with_session(aggregate)
        .with_partition_key(aggregate)
        .encode();
    while topic.send(&message).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
