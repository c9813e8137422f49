//! What comes out of a subscription: what a consumer would make of it, whether each session was in order, and how often the snapshot told a document.

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
    /// By `_id`, as a consumer leaves them who passes over what he has seen.
    pub(super) documents: HashMap<String, Document>,
    /// Sessions in which something new received after what follows it.
    pub(super) out_of_order: Vec<String>,
    seen: HashSet<String>,
    last: HashMap<String, String>,
    scanned: HashMap<String, u64>,
}

impl TopicContents {
    /// How often a snapshot told a document that it had told before.
    pub(super) fn repeated_snapshot_messages(&self) -> u64 {
        self.scanned.values().map(|times| times - 1).sum()
    }

    fn enter(&mut self, message: &ReceivedMessage) {
        let text = |name: &str| {
            message.application_property(name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let body = message.body();
        let document = Document::try_from(RawDocument::from_bytes(&body).unwrap()).unwrap();
        let (id, operation) = (document.get("_id").unwrap().to_string(), text(property::OPERATION));
        if operation == "snapshot" {
            *self.scanned.entry(id.clone()).or_default() += 1;
        }
        // Without duplicate detection a takeover tells again what was under way.
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
            // Looked up, and gone meanwhile: its delete follows.
            "update" if is_key_alone => {}
            _ => drop(self.documents.insert(id, document)),
        }
    }
}

/// Readers of a subscription.
pub(super) struct TopicReader {
    told: Arc<Mutex<TopicContents>>,
    stop: CancellationToken,
    readers: JoinSet<()>,
}

impl TopicReader {
    pub(super) fn start(cluster: &TestCluster, subscription: &str) -> Self {
        let client = Client::new(&cluster.broker().connection_string(), Config::default()).unwrap();
        let (told, stop) = (Arc::<Mutex<TopicContents>>::default(), CancellationToken::new());
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            readers.spawn(read(client.clone(), subscription.to_owned(), Arc::clone(&told), stop.clone()));
        }
        Self { told, stop, readers }
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&TopicContents) -> T) -> T {
        look(&self.told.lock().unwrap())
    }

    /// When nothing more is sent: all that was told.
    pub(super) async fn finish(self) -> TopicContents {
        self.stop.cancel();
        self.readers.join_all().await;
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

/// Until it is enough and nothing is left.
async fn read(client: Client, subscription: String, told: Arc<Mutex<TopicContents>>, stop: CancellationToken) {
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
                let mut told = told.lock().unwrap();
                messages.iter().for_each(|message| told.enter(message));
            }
            session.settler().complete(&messages).await.unwrap();
        }
        session.close().await.unwrap();
    }
}
