//! Reads a subscription session by session and records every message in the checker.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, RawDocument};
use pipeline::envelope::property;
use servicebus::{Client, Config, Error, ReceivedMessage, SessionReceiver};
use testkit::checker::{Checker, ObservedEvent};
use testkit::cluster::ClusterBroker;
use tokio::task::JoinSet;

/// Parallel sessions, and the connections that they share.
const READERS: usize = 32;
const CONNECTIONS: usize = 2;
/// Short, because a killed or paused broker redelivers everything in flight.
const TIMEOUT: Duration = Duration::from_secs(5);
const BATCH: usize = 200;

/// Readers that run until this is dropped.
#[derive(Debug)]
pub struct SubscriptionReader {
    _readers: JoinSet<()>,
}

impl SubscriptionReader {
    pub fn start(broker: &ClusterBroker, subscription: &str, checker: &Arc<Checker>) -> Self {
        let config = Config {
            container_id: "drain".into(),
            connect_timeout: TIMEOUT,
            operation_timeout: TIMEOUT,
            idle_timeout: TIMEOUT * 2,
            max_backoff: Duration::from_secs(1),
            ..Config::default()
        };
        let clients: Vec<Client> = (0..CONNECTIONS).map(|_| broker.client(config.clone())).collect();
        let mut readers = JoinSet::new();
        for number in 0..READERS {
            let client = clients[number % CONNECTIONS].clone();
            readers.spawn(read(client, subscription.to_owned(), Arc::clone(checker)));
        }
        Self { _readers: readers }
    }
}

async fn read(client: Client, subscription: String, checker: Arc<Checker>) {
    loop {
        match client.accept_next_session(&subscription, Duration::from_secs(1)).await {
            Ok(Some(mut session)) => {
                // After any failure the broker redelivers what was not completed.
                let _ = read_session(&mut session, &checker).await;
                let _ = session.close().await;
            }
            Ok(None) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Reads the whole session. Records a message before it completes it, because a completed message is never redelivered.
async fn read_session(session: &mut SessionReceiver, checker: &Checker) -> Result<(), Error> {
    let settler = session.settler();
    loop {
        let messages = session.receive(BATCH, Duration::from_millis(10)).await?;
        if messages.is_empty() {
            return Ok(());
        }
        messages.iter().for_each(|message| record(message, checker));
        settler.complete(&messages).await?;
    }
}

/// Aggregate and sequence come from the properties, the id from the body: if they do not match, the checker reports the event as unexpected.
fn record(message: &ReceivedMessage, checker: &Checker) {
    let named = bson_property(message, property::AGGREGATE).and_then(|value| match value {
        Bson::String(text) => Some(text),
        _ => None,
    });
    let aggregate = named.or_else(|| message.session_id().map(str::to_owned)).unwrap_or_default();
    let body = message.body();
    let body = RawDocument::from_bytes(&body).ok();
    let number = |name: &str| message.application_property(name).and_then(|value| value.as_integer());
    let sequence = number(property::SEQUENCE).or_else(|| body?.get_i64("version").ok());
    let term = number(property::TERM).and_then(|term| u64::try_from(term).ok());
    let event = body.and_then(|body| body.get_object_id("_id").ok()).or_else(|| key_property(message));
    let message_number = Some(message.sequence_number());
    checker.record_observed(&ObservedEvent {
        aggregate: &aggregate,
        sequence: sequence.unwrap_or(0),
        event,
        term,
        message_number,
    });
}

fn key_property(message: &ReceivedMessage) -> Option<ObjectId> {
    bson_property(message, property::KEY)?.as_object_id()
}

/// The value of a property that is a BSON document `{v: …}`.
fn bson_property(message: &ReceivedMessage, name: &str) -> Option<Bson> {
    let value = message.application_property(name)?;
    let document = RawDocument::from_bytes(value.as_binary()?).ok()?;
    Bson::try_from(document.get("v").ok()??).ok()
}
