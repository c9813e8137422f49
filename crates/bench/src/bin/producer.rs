//! Throughput of the producer relative to a raw read of the same change stream, and the latency of an event.
//!
//! `cargo xtask bench producer [-- EVENTS]`. Real processes, release, one machine: mongod, the durable broker (partitioned topic, duplicate
//! detection, sessions) and one pod. TransactionRate: `aggregate().batch()` with a read-ahead task, discarding what is read. SourceBacklog: events of 158
//! bytes and of 1 KiB over 10,000 aggregates, written before the pod starts; the count is what the subscription holds. Live: 1,000 inserts a
//! second with majority, from the moment an insert is sent to the enqueued time of the message, which is in whole
//! milliseconds: one is added, so that the figures are upper bounds.
//!
//! `docs/decisions/014-producer-throughput-ceiling.md` says what the ceiling depends on, and what to make of one that is low.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bench::processes::{MeasuredPod, measure_published, start_broker_with_topics};
use bench::source_events::{events_collection, insert_events};
use clap::{Parser, value_parser};
use futures_util::StreamExt;
use local_cluster::{BrokerProcess, TopicEntity};
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};
use servicebus::Client;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};

const AGGREGATES: u64 = 10_000;
/// Paddings that make documents of 158 bytes and of 1 KiB.
const SIZES: [(usize, usize); 2] = [(158, 55), (1024, 920)];
/// The ceiling of each size on the reference machine with two idle cores.
const REFERENCE: [f64; 2] = [153_000.0, 123_000.0];
const LIVE_RATE: u64 = 1_000;
const LIVE_SECONDS: u64 = 15;
const BATCH: u32 = 2_000;

/// Measure the throughput of a publishing pod next to the raw change stream
#[derive(Parser)]
struct Args {
    /// Events of each backlog
    #[arg(default_value_t = 300_000, value_parser = value_parser!(u64).range(1..))]
    events: u64,
}

#[tokio::main]
async fn main() {
    let Args { events } = Args::parse();
    let folder = tempfile::tempdir().expect("a folder");
    let topics = ["small", "large", "live"].map(|name| TopicEntity::for_pipeline(name, true));
    let mut broker = start_broker_with_topics(folder.path(), &topics).await;
    let mongo = testkit::mongo::shared().await.expect("a mongod");

    let mut ratios = Vec::new();
    let mut most_rss: f64 = 0.0;
    let mut rates = Vec::new();
    for (((size, padding), topic), reference) in SIZES.into_iter().zip(["small", "large"]).zip(REFERENCE) {
        let database = mongo.database(topic);
        let backlog = SourceBacklog::write(&database, events, padding).await;
        let ceiling = backlog.measure_ceiling(events).await;
        if ceiling < 0.8 * reference {
            println!(
                "{size:>5} B: raw is {:.0} % below the reference: is the machine busy?",
                100.0 - 100.0 * ceiling / reference
            );
        }
        let pod = start_pod(folder.path(), mongo.uri(), &database, topic, &broker, &backlog.start);
        let rate = measure_published(&broker, topic, events).await;
        most_rss = most_rss.max(pod.peak_rss_mb());
        let cpu = pod.cpu().as_secs_f64() * 1e6 / events as f64;
        println!(
            "{size:>5} B: raw {ceiling:>7.0}/s, published {rate:>7.0}/s, ratio {:.3}; {cpu:.1} us of the pod's cpu each, {:.0} MB at most",
            rate / ceiling,
            pod.peak_rss_mb()
        );
        pod.stop().await;
        ratios.push(rate / ceiling);
        rates.push(rate);
    }

    let database = mongo.database("live");
    let pod = start_pod(folder.path(), mongo.uri(), &database, "live", &broker, "now");
    let mut latencies = measure_live(&database, &broker).await;
    most_rss = most_rss.max(pod.peak_rss_mb());
    pod.stop().await;
    latencies.sort_by(f64::total_cmp);
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "live at {LIVE_RATE}/s: {} events, p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
        latencies.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );

    let lower = if ratios[0] < ratios[1] { 0 } else { 1 };
    println!(
        r#"{{"bench":"producer","ratio":{:.3},"events_per_s":{:.0},"p50_ms":{:.1},"p99_ms":{:.1},"rss_mb":{most_rss:.0}}}"#,
        ratios[lower],
        rates[lower],
        at(0.5),
        at(0.99)
    );
    broker.kill().await;
}

fn start_pod(
    folder: &Path,
    uri: &str,
    database: &Database,
    topic: &str,
    broker: &BrokerProcess,
    start: &str,
) -> MeasuredPod {
    MeasuredPod::start(folder, uri, database.name(), topic, broker, &format!("producer: {{ start: \"{start}\" }}\n"))
}

/// A backlog of events in the source.
struct SourceBacklog {
    events: Collection<Document>,
    /// A time before the first of them.
    start: String,
    token: Document,
}

impl SourceBacklog {
    async fn write(database: &Database, count: u64, padding: usize) -> Self {
        let events = events_collection(database);
        // Leaves a distinct time between earlier events and the first one.
        let before = DateTime::now();
        sleep(Duration::from_millis(1_100)).await;
        let token = first_token(&events).await;
        let padding = "x".repeat(padding);
        insert_events(&events, count, |number| event(number, &padding)).await;
        let start = DateTime::from_millis(before.timestamp_millis() + 1_000).try_to_rfc3339_string().expect("a time");
        Self { events, start, token }
    }

    /// Events per second of a reader that discards them; the best of three.
    async fn measure_ceiling(&self, count: u64) -> f64 {
        let mut best: f64 = 0.0;
        for _ in 0..3 {
            let began = Instant::now();
            self.read(count).await;
            best = best.max(count as f64 / began.elapsed().as_secs_f64());
        }
        best
    }

    async fn read(&self, count: u64) {
        let stages = [doc! { "$changeStream": { "startAfter": self.token.clone() } }];
        let request = self.events.aggregate(stages).batch_size(BATCH).read_concern(ReadConcern::majority());
        let mut batches = request.batch().await.expect("a change stream");
        let (sender, mut read_ahead) = mpsc::channel(2);
        let reader = tokio::spawn(async move {
            while let Some(batch) = batches.next().await {
                if sender.send(batch.expect("a batch")).await.is_err() {
                    return;
                }
            }
        });
        let mut read = 0;
        while read < count {
            let batch = read_ahead.recv().await.expect("the stream goes on");
            read += batch.doc_slices().expect("documents").into_iter().count() as u64;
        }
        reader.abort();
    }
}

async fn first_token(events: &Collection<Document>) -> Document {
    let stream = events.watch().await.expect("a change stream");
    let token = stream.resume_token().expect("a token");
    mongodb::bson::serialize_to_document(&token).expect("a token is a document")
}

fn event(number: u64, padding: &str) -> Document {
    let aggregate = format!("order-{}", number % AGGREGATES);
    let version = i64::try_from(number / AGGREGATES + 1).expect("a version");
    doc! { "aggregateId": aggregate, "version": version, "type": "ItemAdded", "padding": padding }
}

/// The latency of each event, in milliseconds.
async fn measure_live(database: &Database, broker: &BrokerProcess) -> Vec<f64> {
    let events = events_collection(database);
    // The pipeline starts at `now`: events written before its first checkpoint are not published.
    let warm = wait_for_checkpoint(database).await;
    assert!(warm, "the pod stored where it starts");
    let count = LIVE_RATE * LIVE_SECONDS;
    let mut tick = interval(Duration::from_secs(1) / u32::try_from(LIVE_RATE).expect("a small number"));
    let mut inserts = Vec::new();
    for number in 0..count {
        tick.tick().await;
        let events = events.clone();
        inserts.push(tokio::spawn(async move {
            let mut event = event(number, "live");
            event.insert("sentMicros", wall_clock_micros());
            events.insert_one(event).await.expect("an event is written");
        }));
    }
    for insert in inserts {
        insert.await.expect("an insert ends");
    }
    let client = Client::new(&broker.endpoint().connection_string(), servicebus::Config::default()).expect("a client");
    let mut latencies = Vec::new();
    while (latencies.len() as u64) < count {
        let accepted = client
            .accept_next_session("live/Subscriptions/read-models", Duration::from_secs(20))
            .await
            .expect("the broker serves");
        let mut session = accepted.expect("there are more");
        loop {
            let messages = session.receive(100, Duration::from_millis(5)).await.expect("messages");
            if messages.is_empty() {
                break;
            }
            for message in &messages {
                let body = mongodb::bson::RawDocumentBuf::from_bytes(message.body().to_vec()).expect("a document");
                let sent = body.get_i64("sentMicros").expect("its time");
                let enqueued =
                    message.enqueued_time().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).expect("a time");
                latencies.push((enqueued.as_micros() as f64 - sent as f64) / 1_000.0 + 1.0);
            }
            session.settler().complete(&messages).await.expect("completed");
        }
        session.close().await.expect("let go");
    }
    latencies
}

async fn wait_for_checkpoint(database: &Database) -> bool {
    let checkpoints: Collection<Document> =
        database.client().database(&format!("{}-coordination", database.name())).collection("checkpoints");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        if checkpoints.find_one(doc! { "phase": "stream" }).await.ok().flatten().is_some() {
            return true;
        }
        sleep(Duration::from_millis(20)).await;
    }
    false
}

/// The wall clock, which the broker also uses for its timestamps; only differences are used.
#[allow(clippy::disallowed_methods)]
fn wall_clock_micros() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .expect("after 1970")
}
