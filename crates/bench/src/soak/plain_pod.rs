//! The plainest pod there could be: the real lease and checkpoint, one change stream, one message at a time.
//!
//! It stands in for `headwater run` where the harness itself is tested: it keeps every promise slowly, and breaks the one whose [`Defect`] is planted.
//! A program serves as such a pod by calling [`serve_if_asked`] first and starting itself with [`VARIABLE`] set.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lease::mongo::LeaseName;
use lease::{Candidate, Leadership, Outcome};
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use pipeline::checkpoint::{Checkpoint, CheckpointStore, Claim, MongoCheckpoints, Phase};
use pipeline::envelope::property;
use pipeline::event::{ResumeToken, hex_digest};
use pipeline::planted::Defect;
use servicebus::{Config, Encoded, Message, Sender};
use tokio::signal::unix::{SignalKind, signal};

/// Set: this process is a pod.
pub const VARIABLE: &str = "HEADWATER_PLAIN_POD";

const SAVE_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(3);

/// Serves until SIGTERM if this process was started to; says whether it was.
pub fn serve_if_asked() -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    let file = std::env::var("HEADWATER_CONFIG").expect("the house names a configuration");
    let text = std::fs::read_to_string(file).expect("a configuration");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built").block_on(serve(&text));
    true
}

async fn serve(configuration: &str) {
    let value = |from: &str, before: &str| {
        let (_, rest) = configuration.split_once(from).expect("the house wrote it");
        let (_, rest) = rest.split_once(before).expect("the house wrote it");
        rest.split(['"', ',']).next().expect("a split has a first part").to_owned()
    };
    let client = ClientOptions::parse(value("source:", "uri: \"")).await.expect("a URI");
    let coordination = value("coordination:", "database: ");
    let pod_id = std::env::var("HOSTNAME").expect("the house names its pods");
    let database = Client::with_options(client.clone()).expect("a URI").database(&coordination);
    let pod = Pod {
        source: database.client().database(&value("source:", "database: ")),
        checkpoints: MongoCheckpoints::new(&database, "shop", "plain"),
        coordination: database,
        connection_string: value("service_bus:", "connection_string: \""),
        pod_id: pod_id.clone(),
    };
    let name = LeaseName { database: coordination, key: "shop".into(), pod_id, fingerprint: "plain".into() };
    let candidate = Candidate { name, config: crate::race::short(), client };
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be listened for");
    let stop = async move { terminate.recv().await.unwrap_or_default() };
    let work = move |leadership| pod.clone().lead(leadership);
    let running = candidate.start(work, stop).expect("the configuration is valid");
    running.ended().await.expect("the store is fit for leases");
}

#[derive(Clone)]
struct Pod {
    source: Database,
    coordination: Database,
    checkpoints: MongoCheckpoints,
    connection_string: String,
    pod_id: String,
}

impl Pod {
    async fn lead(self, leadership: Leadership) -> Outcome {
        let claim = Claim::of(&leadership, &self.pod_id);
        let checkpoint = match self.checkpoints.claim(&claim).await {
            Ok(checkpoint) => checkpoint,
            Err(pipeline::checkpoint::Error::TermBehind { stored, .. }) => return Outcome::TermBehind { seen: stored },
            Err(error) => return Outcome::StepDown(error.to_string()),
        };
        tokio::select! {
            // may be dropped half way: what was sent and not saved is sent again by the next
            _ = leadership.stopping() => Outcome::Done,
            failed = self.publish(&leadership, &claim, checkpoint) => Outcome::StepDown(failed),
        }
    }

    /// Returns only when something failed.
    async fn publish(&self, leadership: &Leadership, claim: &Claim, mut from: Checkpoint) -> String {
        let config = Config { operation_timeout: PATIENCE, longest_backoff: PATIENCE / 3, ..Config::default() };
        let bus = servicebus::Client::new(&self.connection_string, config).expect("a connection string");
        let topic = bus.sender("events");
        let stage = match &from.phase {
            Phase::Stream { token } => doc! { "resumeAfter": token.to_document() },
            // A set of the house's own has its whole history.
            Phase::Unstarted | Phase::Snapshot { .. } => {
                doc! { "startAtOperationTime": mongodb::bson::Timestamp { time: 1, increment: 1 } }
            }
        };
        let events = self.source.collection::<Document>("events");
        let inserts = doc! { "$match": { "operationType": "insert" } };
        let mut changes = match events.aggregate([doc! { "$changeStream": stage }, inserts]).await {
            Ok(changes) => changes,
            Err(_) => return "open the change stream".to_owned(),
        };
        let mut saved = Instant::now();
        while let Some(Ok(change)) = changes.next().await {
            let token = change.get_document("_id").expect("a change has a token").clone();
            let token = ResumeToken::try_from(token).expect("it is one");
            let message = message(&change, &token, claim);
            from.phase = Phase::Stream { token };
            if Defect::CheckpointAhead.is_planted() {
                self.save(claim, &from).await;
            }
            if Defect::TwoTransfersPerLane.is_planted() {
                match topic.enqueue(&message).await {
                    Ok(outcome) => drop(tokio::spawn(make_good(topic.clone(), message, outcome))),
                    Err(_) => return "send".to_owned(),
                }
                continue;
            }
            while leadership.gate().is_open() && !sent(&topic, &message).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if !leadership.gate().is_open() {
                return std::future::pending().await;
            }
            if saved.elapsed() >= SAVE_EVERY {
                self.save(claim, &from).await;
                saved = Instant::now();
            }
        }
        "read the change stream".to_owned()
    }

    /// A save that is refused, or late, is the next leader's to make good.
    async fn save(&self, claim: &Claim, at: &Checkpoint) {
        if Defect::NoFence.is_planted() {
            let Phase::Stream { token } = &at.phase else { return };
            let (token, position) = (token.to_document(), token.key());
            let set = doc! { "phase": "stream", "token": token, "position": position, "savedBy": &self.pod_id };
            let update = doc! { "$set": set, "$currentDate": { "savedAt": true } };
            let checkpoints = self.coordination.collection::<Document>("checkpoints");
            let _ = checkpoints.update_one(doc! { "_id": "shop" }, update).await;
        } else {
            let _ = self.checkpoints.save(claim, at.epoch, &at.phase, None).await;
        }
    }
}

async fn sent(topic: &Sender, message: &Encoded) -> bool {
    topic.send(message).await.is_ok()
}

/// Sends again what was refused, whatever has been sent since.
async fn make_good(topic: Sender, message: Encoded, outcome: impl Future<Output = Result<(), servicebus::Error>>) {
    let mut done = outcome.await.is_ok();
    while !done {
        tokio::time::sleep(Duration::from_millis(20)).await;
        done = sent(&topic, &message).await;
    }
}

fn message(change: &Document, token: &ResumeToken, claim: &Claim) -> Encoded {
    let event = change.get_document("fullDocument").expect("an insert has its document");
    let aggregate = event.get_str("aggregateId").expect("the writers give one");
    let term = i64::try_from(claim.term.get()).unwrap_or(i64::MAX);
    Message::new(event.to_vec().expect("it came as BSON"))
        .with_id(hex_digest(&[token.key().as_bytes()]))
        .with_session(aggregate)
        .with_partition_key(aggregate)
        .with_property(property::SEQUENCE, event.get_i64("version").expect("the writers give one"))
        .with_property(property::TERM, term)
        .encode()
}
