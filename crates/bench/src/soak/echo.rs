//! Says again what was said on the topic, later and out of turn: the late messages of leaders long deposed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use amqp::message::MessageWriter;
use bytes::{BufMut, BytesMut};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use servicebus::{Client, Config, EncodedMessage, Error, ReceivedMessage, Receiver, Sender};
use tokio::task::JoinSet;

const PARTITION_KEY: &str = "x-opt-partition-key";
const AT_ONCE: usize = 100;
/// How many messages it remembers, to say one of them again.
const MEMORY: usize = 500;
/// One in so many is said again.
const ONE_IN: u32 = 10;

/// Runs until it is dropped.
#[derive(Debug)]
pub(super) struct Echo {
    said: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Echo {
    /// # Panics
    /// When the connection string is none.
    pub(super) fn start(connection_string: &str, topic: &str, subscription: &str, seed: u64) -> Self {
        let config = Config { container_id: "echo".into(), ..Config::default() };
        let client = Client::new(connection_string, config).expect("the house's connection string is valid");
        let said = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        let (sender, receiver) = (client.sender(topic), client.receiver(subscription));
        let dice = StdRng::seed_from_u64(seed);
        let voice = Voice { sender, known: HashSet::new(), memory: vec![], dice, said: Arc::clone(&said) };
        task.spawn(voice.run(receiver));
        Self { said, _task: task }
    }

    /// How many messages were said again.
    pub(super) fn said(&self) -> u64 {
        self.said.load(Relaxed)
    }
}

struct Voice {
    sender: Sender,
    /// What came once: a copy comes again, and is not said a third time.
    known: HashSet<String>,
    memory: Vec<EncodedMessage>,
    dice: StdRng,
    said: Arc<AtomicU64>,
}

impl Voice {
    async fn run(mut self, mut receiver: Receiver) {
        loop {
            // A broker that is down comes back.
            if self.listen(&mut receiver).await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn listen(&mut self, receiver: &mut Receiver) -> Result<(), Error> {
        let messages = receiver.receive(AT_ONCE, Duration::from_secs(1)).await?;
        for message in &messages {
            if self.known.insert(message.message_id().unwrap_or_default()) {
                self.remember(copy(message));
                if self.dice.random_ratio(1, ONE_IN) {
                    let place = self.dice.random_range(0..self.memory.len());
                    self.sender.send(&self.memory[place]).await?;
                    self.said.fetch_add(1, Relaxed);
                }
            }
        }
        match receiver.settler() {
            Some(settler) => settler.complete(&messages).await,
            None => Ok(()),
        }
    }

    fn remember(&mut self, message: EncodedMessage) {
        if self.memory.len() < MEMORY {
            return self.memory.push(message);
        }
        let place = self.dice.random_range(0..MEMORY);
        self.memory[place] = message;
    }
}

/// As its sender sent it.
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
