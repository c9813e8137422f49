//! Reads a subscription session by session and records every message in the checker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, RawDocument};
use pipeline::envelope::property;
use servicebus::{BusErrorKind, Client, Config, Error, ReceivedMessage, SessionReceiver};
use testkit::checker::{Checker, ObservedEvent, body_digest};
use testkit::cluster::ClusterBroker;
use tokio::task::JoinSet;

/// Parallel sessions, and the connections that they share.
const READERS: usize = 32;
const CONNECTIONS: usize = 2;
/// Short, because a killed or paused broker redelivers everything in flight.
const TIMEOUT: Duration = Duration::from_secs(5);
const BATCH: usize = 200;
const MAX_KEPT_ERRORS: usize = 10;

/// Readers that run until this is dropped.
#[derive(Debug)]
pub struct SubscriptionReader {
    errors: Arc<Mutex<ReaderErrors>>,
    _readers: JoinSet<()>,
}

/// Errors that readers received.
#[derive(Clone, Debug, Default)]
pub struct ReaderErrors {
    /// Errors after which a reader tries again: lost connections and locks, timeouts. Faults cause them.
    pub retryable: u64,
    /// Errors that no fault explains. The first few, with their causes.
    pub fatal: Vec<String>,
}

impl ReaderErrors {
    fn add(&mut self, error: &Error) {
        // A paused or killed broker loses locks, and the receiver of a lost session is closed.
        let is_lost_session = matches!(
            error.kind(),
            BusErrorKind::SessionLockLost | BusErrorKind::MessageLockLost | BusErrorKind::Closed
        );
        if is_lost_session || error.kind() != BusErrorKind::Protocol && error.kind().is_retryable() {
            self.retryable += 1;
        } else if self.fatal.len() < MAX_KEPT_ERRORS {
            self.fatal.push(chain(error));
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
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
        let (errors, mut readers) = (Arc::<Mutex<ReaderErrors>>::default(), JoinSet::new());
        for number in 0..READERS {
            let client = clients[number % CONNECTIONS].clone();
            readers.spawn(read(client, subscription.to_owned(), Arc::clone(checker), Arc::clone(&errors)));
        }
        Self { errors, _readers: readers }
    }

    /// The errors so far.
    pub fn errors(&self) -> ReaderErrors {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn read(client: Client, subscription: String, checker: Arc<Checker>, errors: Arc<Mutex<ReaderErrors>>) {
    let record = |error: &Error| errors.lock().unwrap_or_else(PoisonError::into_inner).add(error);
    loop {
        match client.accept_next_session(&subscription, Duration::from_secs(1)).await {
            Ok(Some(mut session)) => {
                // After any failure the broker redelivers what was not completed.
                if let Err(error) = read_session(&mut session, &checker).await {
                    record(&error);
                }
                if let Err(error) = session.close().await {
                    record(&error);
                }
            }
            Ok(None) => {}
            Err(error) => {
                record(&error);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
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
    // An oversize body is stored elsewhere: its message has none.
    let body = body.map(|body| body_digest(body.as_bytes()));
    checker.record_observed(&ObservedEvent {
        aggregate: &aggregate,
        sequence: sequence.unwrap_or(0),
        event,
        term,
        message_number,
        body,
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
