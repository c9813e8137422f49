//! Republishes messages of the topic later and out of order, like the late sends of a deposed leader.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use amqp::message::MessageWriter;
use bytes::{BufMut, BytesMut};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use servicebus::{Config, EncodedMessage, Error, ReceivedMessage, Receiver, Sender};
use testkit::cluster::ClusterBroker;
use tokio::task::JoinSet;

const PARTITION_KEY: &str = "x-opt-partition-key";
const AT_ONCE: usize = 100;
/// How many messages it keeps to republish one of them.
const MAX_REMEMBERED: usize = 500;
/// One message in this many is republished.
const ONE_IN: u32 = 10;

/// Runs until it is dropped.
#[derive(Debug)]
pub(super) struct LateRepublisher {
    republished: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl LateRepublisher {
    pub(super) fn start(broker: &ClusterBroker, seed: u64) -> Self {
        let client = broker.client(Config { container_id: "echo".into(), ..Config::default() });
        let republished = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        let (sender, receiver) = (client.sender(broker.topic()), client.receiver(&broker.republish_subscription()));
        let rng = StdRng::seed_from_u64(seed);
        let worker = RepublishWorker {
            sender,
            seen_ids: HashSet::new(),
            remembered: vec![],
            rng,
            republished: Arc::clone(&republished),
        };
        task.spawn(worker.run(receiver));
        Self { republished, _task: task }
    }

    /// The number of republished messages.
    pub(super) fn republished(&self) -> u64 {
        self.republished.load(Relaxed)
    }
}

struct RepublishWorker {
    sender: Sender,
    /// Ids received so far: a republished message arrives again and must not be republished a second time.
    seen_ids: HashSet<String>,
    remembered: Vec<EncodedMessage>,
    rng: StdRng,
    republished: Arc<AtomicU64>,
}

impl RepublishWorker {
    async fn run(mut self, mut receiver: Receiver) {
        loop {
            // The broker restarts after a kill.
            if self.receive_and_republish(&mut receiver).await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn receive_and_republish(&mut self, receiver: &mut Receiver) -> Result<(), Error> {
        let messages = receiver.receive(AT_ONCE, Duration::from_secs(1)).await?;
        for message in &messages {
            if self.seen_ids.insert(message.message_id().unwrap_or_default()) {
                self.remember(copy(message));
                if self.rng.random_ratio(1, ONE_IN) {
                    let place = self.rng.random_range(0..self.remembered.len());
                    self.sender.send(&self.remembered[place]).await?;
                    self.republished.fetch_add(1, Relaxed);
                }
            }
        }
        match receiver.settler() {
            Some(settler) => settler.complete(&messages).await,
            None => Ok(()),
        }
    }

    fn remember(&mut self, message: EncodedMessage) {
        if self.remembered.len() < MAX_REMEMBERED {
            return self.remembered.push(message);
        }
        let place = self.rng.random_range(0..MAX_REMEMBERED);
        self.remembered[place] = message;
    }
}

/// The message as its sender encoded it.
fn copy(message: &ReceivedMessage) -> EncodedMessage {
    let mut bytes = BytesMut::new();
    MessageWriter::new(&mut bytes).message_annotations(|map| {
        if let Some(key) = message.partition_key() {
            map.put_string(PARTITION_KEY, key);
        }
    });
    bytes.put(message.raw().bare());
    EncodedMessage::message(bytes.freeze())
}
