//! A minimal publisher: one change stream, one message at a time. It exists to test the checker and is no model for a pod.

use mongodb::bson::Document;
use mongodb::change_stream::event::ChangeStreamEvent;
use mongodb::{Collection, change_stream::ChangeStream};
use servicebus::{Client, Message, Sender};
use testkit::cluster::TestCluster;

/// A planted defect: what the publisher does to the hundredth event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublisherBug {
    None,
    DropsEvent,
    /// Under another id, so that duplicate detection does not see it.
    SendsTwice,
    /// Sends it after its successor in the same aggregate.
    SwapsEvents,
    /// Changes a field of its body.
    AltersBody,
}

/// A change stream of everything written from now on.
pub(super) async fn watch(cluster: &TestCluster) -> ChangeStream<ChangeStreamEvent<Document>> {
    let events: Collection<Document> = cluster.events();
    events.watch().await.expect("the source can be watched")
}

/// Publishes until it is dropped.
pub(super) async fn publish(mut changes: ChangeStream<ChangeStreamEvent<Document>>, client: Client, bug: PublisherBug) {
    let topic = client.sender("events");
    let (mut held, mut swapped): (Option<Document>, bool) = (None, false);
    let mut number = 0;
    while changes.is_alive() {
        let Ok(change) = changes.next_if_any().await else { return };
        let Some(mut document) = change.and_then(|change| change.full_document) else { continue };
        number += 1;
        match bug {
            PublisherBug::DropsEvent if number == 100 => continue,
            PublisherBug::SendsTwice if number == 100 => send(&topic, &document, "again").await,
            PublisherBug::AltersBody if number == 100 => drop(document.insert("type", "Altered")),
            PublisherBug::SwapsEvents if number >= 100 && held.is_none() && !swapped => {
                held = Some(document);
                continue;
            }
            PublisherBug::None
            | PublisherBug::DropsEvent
            | PublisherBug::SendsTwice
            | PublisherBug::SwapsEvents
            | PublisherBug::AltersBody => {}
        }
        send(&topic, &document, "").await;
        if let Some(before) = held.take_if(|before| before.get("aggregateId") == document.get("aggregateId")) {
            send(&topic, &before, "").await;
            swapped = true;
        }
    }
}

/// Retries until the broker has accepted it.
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
