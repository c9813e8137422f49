//! Throughput of the producer relative to a raw read of the same change stream and to Debezium's engine, and the latency of an event.
//!
//! `cargo xtask bench producer [-- EVENTS]`. Real processes, release, one machine: mongod, the durable broker (partitioned topic, duplicate
//! detection, sessions) and one pod. Raw: `aggregate().batch()` with a read-ahead task, discarding what is read. Backlog: events of 158
//! bytes and of 1 KiB over 10,000 aggregates, written before the pod starts; the count is what the subscription holds. Raw and pod by turns, five rounds;
//! the medians count, a ratio is one of a round. Live: 1,000 inserts a second with majority, from the moment an insert is sent to the moment a second
//! subscription without sessions has delivered the message, which is after the broker stored it.
//!
//! Debezium's engine captures the events of 1 KiB and hands them to a handler that does nothing (`bench/peers/debezium`), five times.
//!
//! `docs/decisions/014-producer-throughput-ceiling.md` says what the ceiling depends on, and what to make of one that is low.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bench::end_to_end::with_observer;
use bench::latency::LatencySummary;
use bench::measurements::{BenchReport, Measurements};
use bench::peers::measure_debezium;
use bench::processes::{MeasuredPod, measure_published, start_broker_with_topics};
use bench::source_events::{cluster_time, events_collection, insert_events};
use clap::{Parser, value_parser};
use futures_util::StreamExt;
use local_cluster::{BrokerProcess, TopicEntity};
use mongodb::bson::{DateTime, Document, RawDocumentBuf, Timestamp, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};
use servicebus::Client;
use testkit::mongo::SharedMongo;
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
const ROUNDS: u32 = 5;

/// Measure the throughput of a publishing pod next to the raw change stream
#[derive(Parser)]
struct Args {
    /// Events of each backlog
    #[arg(default_value_t = 300_000, value_parser = value_parser!(u64).range(1..))]
    events: u64,
    /// Do not measure Debezium's engine
    #[arg(long)]
    without_peers: bool,
}

/// The figures of one size of events.
struct BacklogResult {
    rates: Measurements,
    ratios: Measurements,
    rss: f64,
    debezium: Option<Measurements>,
}

#[tokio::main]
async fn main() {
    let Args { events, without_peers } = Args::parse();
    let folder = tempfile::tempdir().expect("a folder");
    let rounds = (1..=ROUNDS).flat_map(|round| SIZES.map(|(size, _)| format!("{size}-{round}")));
    let mut topics: Vec<_> = rounds.map(|name| TopicEntity::for_pipeline(name, true)).collect();
    topics.push(with_observer(TopicEntity::for_pipeline("live", true)));
    let mut broker = start_broker_with_topics(folder.path(), &topics).await;
    let mongo = testkit::mongo::shared().await.expect("a mongod");

    let mut results = vec![];
    for ((size, padding), reference) in SIZES.into_iter().zip(REFERENCE) {
        let database = mongo.database(&format!("events_of_{size}"));
        let backlog = SourceBacklog::write(&database, events, padding).await;
        let with_peer = size == 1024 && !without_peers;
        results.push(measure_backlog(folder.path(), &mongo, &broker, &backlog, (size, reference), with_peer).await);
    }

    let database = mongo.database("live");
    let pod = start_pod(folder.path(), mongo.uri(), &database, "live", &broker, "now");
    let latency = measure_live(&database, &broker).await;
    let live_rss = pod.peak_rss_mb();
    pod.stop().await;
    println!("live at {LIVE_RATE}/s: {latency}");

    let lower = if results[0].ratios.median() < results[1].ratios.median() { 0 } else { 1 };
    let mut report = BenchReport::new("producer")
        .measured("ratio", &results[lower].ratios, 3)
        .measured("ratio_158", &results[0].ratios, 3)
        .measured("ratio_1024", &results[1].ratios, 3)
        .measured("events_per_s", &results[lower].rates, 0)
        .figure("p50_ms", latency.percentile_ms(50), 1)
        .figure("p99_ms", latency.percentile_ms(99), 1)
        .figure("rss_mb", results.iter().map(|result| result.rss).fold(live_rss, f64::max), 0);
    if let Some(debezium) = &results[1].debezium {
        report = report.measured("debezium_per_s", debezium, 0).figure(
            "vs_debezium_capture",
            results[1].rates.median() / debezium.median(),
            1,
        );
    }
    println!("{report}");
    broker.kill().await;
}

async fn measure_backlog(
    folder: &Path,
    mongo: &SharedMongo,
    broker: &BrokerProcess,
    backlog: &SourceBacklog,
    (size, reference): (usize, f64),
    with_peer: bool,
) -> BacklogResult {
    let (mut ceilings, mut pods, mut debezium, mut rss) = (vec![], vec![], vec![], 0.0_f64);
    for round in 1..=ROUNDS {
        ceilings.push(backlog.measure_ceiling().await);
        let topic = format!("{size}-{round}");
        let pod = start_pod(folder, mongo.uri(), &backlog.database, &topic, broker, &backlog.start);
        let rate = measure_published(broker, &topic, backlog.count).await;
        pods.push((rate, pod.cpu().as_secs_f64() * 1e6 / backlog.count as f64));
        rss = rss.max(pod.peak_rss_mb());
        pod.stop().await;
        if with_peer {
            let rate = measure_debezium(mongo.uri(), backlog.database.name(), backlog.before, backlog.count).await;
            debezium.push(rate);
        }
    }
    let ratios: Measurements = pods.iter().zip(&ceilings).map(|(pod, ceiling)| pod.0 / ceiling).collect();
    let raw: Measurements = ceilings.into_iter().collect();
    if raw.median() < 0.8 * reference {
        let below = 100.0 - 100.0 * raw.median() / reference;
        println!("{size:>5} B: raw is {below:.0} % below the reference: is the machine busy?");
    }
    let rates: Measurements = pods.iter().map(|pod| pod.0).collect();
    let cpu: Measurements = pods.iter().map(|pod| pod.1).collect();
    println!(
        "{size:>5} B: raw {raw}/s, published {rates}/s, ratio {ratios:.3}; {cpu:.1} us of the pod's cpu each, {rss:.0} MB at most"
    );
    let debezium = with_peer.then(|| debezium.into_iter().collect::<Measurements>());
    if let Some(debezium) = &debezium {
        println!("{size:>5} B: Debezium captures {debezium}/s");
    }
    BacklogResult { rates, ratios, rss, debezium }
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
    database: Database,
    count: u64,
    events: Collection<Document>,
    /// The server's time before the first of them.
    before: Timestamp,
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
        let server_time = cluster_time(database.client()).await;
        let padding = "x".repeat(padding);
        insert_events(&events, count, |number| event(number, &padding)).await;
        let start = DateTime::from_millis(before.timestamp_millis() + 1_000).try_to_rfc3339_string().expect("a time");
        Self { database: database.clone(), count, events, before: server_time, start, token }
    }

    /// Events per second of a reader that discards them.
    async fn measure_ceiling(&self) -> f64 {
        let began = Instant::now();
        self.read(self.count).await;
        self.count as f64 / began.elapsed().as_secs_f64()
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

/// The latency of each event.
async fn measure_live(database: &Database, broker: &BrokerProcess) -> LatencySummary {
    let events = events_collection(database);
    // The pipeline starts at `now`: events written before its first checkpoint are not published.
    let warm = wait_for_checkpoint(database).await;
    assert!(warm, "the pod stored where it starts");
    let count = LIVE_RATE * LIVE_SECONDS;
    let client = Client::new(&broker.endpoint().connection_string(), servicebus::Config::default()).expect("a client");
    let receiver = tokio::spawn(receive(client, count));
    let mut tick = interval(Duration::from_secs(1) / u32::try_from(LIVE_RATE).expect("a small number"));
    let mut inserts = Vec::new();
    for number in 0..count {
        tick.tick().await;
        let events = events.clone();
        inserts.push(tokio::spawn(async move {
            let sent = Instant::now();
            let mut event = event(number, "live");
            event.insert("number", number.cast_signed());
            events.insert_one(event).await.expect("an event is written");
            sent
        }));
    }
    let mut sent = Vec::new();
    for insert in inserts {
        sent.push(insert.await.expect("an insert ends"));
    }
    let received = receiver.await.expect("the receiver ends");
    let latencies = sent.iter().enumerate().map(|(number, sent)| received[&number].saturating_duration_since(*sent));
    latencies.collect()
}

/// When each event was delivered, by its number.
async fn receive(client: Client, count: u64) -> HashMap<usize, Instant> {
    let mut receiver = client.receiver("live/Subscriptions/observer");
    let mut received = HashMap::new();
    while (received.len() as u64) < count {
        let messages = receiver.receive(100, Duration::from_secs(20)).await.expect("messages");
        assert!(!messages.is_empty(), "{} of {count} events are delivered", received.len());
        let now = Instant::now();
        for message in &messages {
            let body = RawDocumentBuf::from_bytes(message.body().to_vec()).expect("a document");
            let number = body.get_i64("number").ok().and_then(|number| usize::try_from(number).ok());
            received.entry(number.expect("its number")).or_insert(now);
        }
        let settler = receiver.settler().expect("the link is open");
        settler.complete(&messages).await.expect("completed");
    }
    received
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
