//! Reads a subscription: folds the documents, checks the order per session, and counts repeated snapshot messages.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mongodb::bson::{Document, RawDocument};
use pipeline::envelope::property;
use servicebus::{Client, Config, ReceivedMessage};
use testkit::cluster::TestCluster;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const READERS: usize = 32;

#[derive(Default)]
pub(super) struct TopicContents {
    /// By `_id`, folded as by a consumer that skips duplicates.
    pub(super) documents: HashMap<String, Document>,
    /// Sessions with a new message behind a later one.
    pub(super) out_of_order: Vec<String>,
    seen: HashSet<String>,
    last: HashMap<String, String>,
    scanned: HashMap<String, u64>,
}

impl TopicContents {
    /// Snapshot messages of documents that were sent before.
    pub(super) fn repeated_snapshot_messages(&self) -> u64 {
        self.scanned.values().map(|times| times - 1).sum()
    }

    fn add(&mut self, message: &ReceivedMessage) {
        let text = |name: &str| {
            message.application_property(name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let body = message.body();
        let document = Document::try_from(RawDocument::from_bytes(&body).unwrap()).unwrap();
        let (id, operation) = (document.get("_id").unwrap().to_string(), text(property::OPERATION));
        if operation == "snapshot" {
            *self.scanned.entry(id.clone()).or_default() += 1;
        }
        // Without duplicate detection a takeover republishes events in flight.
        if !self.seen.insert(message.message_id().unwrap()) {
            return;
        }
        let (session, token) = (message.session_id().unwrap().to_owned(), text(property::TOKEN));
        if self.last.get(&session).is_some_and(|last| *last > token) {
            self.out_of_order.push(session.clone());
        }
        self.last.insert(session, token);
        let is_key_alone = document.len() == 1;
        match operation.as_str() {
            "delete" => drop(self.documents.remove(&id)),
            // Deleted before the lookup: its delete follows.
            "update" if is_key_alone => {}
            _ => drop(self.documents.insert(id, document)),
        }
    }
}

/// Readers of a subscription.
pub(super) struct TopicReader {
    contents: Arc<Mutex<TopicContents>>,
    stop: CancellationToken,
    readers: JoinSet<()>,
}

impl TopicReader {
    pub(super) fn start(cluster: &TestCluster, subscription: &str) -> Self {
        let client = cluster.broker().client(Config::default());
        let (contents, stop) = (Arc::<Mutex<TopicContents>>::default(), CancellationToken::new());
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            readers.spawn(read(client.clone(), subscription.to_owned(), Arc::clone(&contents), stop.clone()));
        }
        Self { contents, stop, readers }
    }

    pub(super) fn inspect<T>(&self, inspect: impl FnOnce(&TopicContents) -> T) -> T {
        inspect(&self.contents.lock().unwrap())
    }

    /// Stops when nothing is left; returns the contents.
    pub(super) async fn finish(self) -> TopicContents {
        self.stop.cancel();
        self.readers.join_all().await;
        std::mem::take(&mut self.contents.lock().unwrap())
    }
}

/// Reads until stopped and nothing is left.
async fn read(client: Client, subscription: String, contents: Arc<Mutex<TopicContents>>, stop: CancellationToken) {
    loop {
        let accepted = client.accept_next_session(&subscription, Duration::from_secs(2)).await.unwrap();
        let Some(mut session) = accepted else {
            if stop.is_cancelled() {
                return;
            }
            continue;
        };
        loop {
            let messages = session.receive(200, Duration::from_millis(1)).await.unwrap();
            if messages.is_empty() {
                break;
            }
            {
                let mut contents = contents.lock().unwrap();
                messages.iter().for_each(|message| contents.add(message));
            }
            session.settler().complete(&messages).await.unwrap();
        }
        session.close().await.unwrap();
    }
}
