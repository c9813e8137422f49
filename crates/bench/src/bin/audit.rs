//! Cost of a round of the audit, and its effect on live events.
//!
//! `cargo xtask bench audit [-- AGGREGATES [EVENTS_EACH [LIVE_EVENTS]]]`: 1,000,000 aggregates of 5 events by default. Real processes, release, one machine:
//! mongod, the durable broker and one pod. The source and its cursors are written directly. First a round without pauses: time, CPU of pod and mongod,
//! memory of the pod. Then 60,000 live events with the audit off and at its default budget, in turn, the best of two each.

use std::time::{Duration, Instant};

use bench::processes::{MeasuredPod, server_pid, start_broker_with_topics};
use bench::source_events::{events_collection, insert_events};
use clap::{Parser, value_parser};
use local_cluster::usage::cpu_time;
use local_cluster::{BrokerProcess, TopicEntity};
use mongodb::bson::{Document, doc};
use mongodb::{Database, IndexModel};
use tempfile::TempDir;
use testkit::mongo::{ScratchDatabase, SharedMongo};
use tokio::time::sleep;

const PIPELINE: &str = "audited";
const READ_MODELS: &str =
    "read_models:\n  totals: { when: { ItemAdded: { $inc: { events: 1 }, $set: { last: $$event.version } } } }\n";
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// Measure a round of the audit, and its effect on live events
#[derive(Parser)]
struct Args {
    /// Aggregates in the source
    #[arg(default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..))]
    aggregates: u64,
    /// Events of each aggregate
    #[arg(default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    events_each: u64,
    /// Live events of each measurement
    #[arg(default_value_t = 60_000, value_parser = value_parser!(u64).range(1..))]
    live_events: u64,
}

struct AuditBench {
    folder: TempDir,
    mongo: SharedMongo,
    database: ScratchDatabase,
    broker: BrokerProcess,
    /// The pid of mongod.
    server: u32,
    live: u64,
    /// Live events written so far.
    written: u64,
}

#[tokio::main]
async fn main() {
    let Args { aggregates, events_each: each, live_events } = Args::parse();
    let mut bench = AuditBench::set_up(aggregates, each, live_events).await;
    let (seconds, pod, server, rss) = bench.measure_round(aggregates).await;
    let (mut off, mut on) = (0.0_f64, 0.0_f64);
    for _ in 0..2 {
        off = off.max(bench.measure_live("enabled: false").await);
        on = on.max(bench.measure_live("enabled: true").await);
    }
    println!(
        r#"{{"bench":"audit","aggregates":{aggregates},"events":{},"round_s":{seconds:.1},"pod_cpu_s":{pod:.1},"server_cpu_s":{server:.1},"rss_mb":{rss:.0},"live_off_per_s":{off:.0},"live_on_per_s":{on:.0},"live_ratio":{:.3}}}"#,
        aggregates * each,
        on / off
    );
    bench.broker.kill().await;
}

impl AuditBench {
    async fn set_up(aggregates: u64, each: u64, live: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = start_broker_with_topics(folder.path(), &[TopicEntity::for_pipeline(PIPELINE, false)]).await;
        let mongo = testkit::mongo::shared().await.expect("a mongod");
        let server = server_pid(mongo.client()).await;
        let database = mongo.database("audit_bench");
        let began = Instant::now();
        let events = events_collection(&database);
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
        events.create_index(index).await.expect("an index");
        insert_events(&events, aggregates * each, |number| {
            event(&aggregate(number % aggregates), i64::try_from(number / aggregates).expect("small") + 1)
        })
        .await;
        let views = mongo.client().database(&format!("{}_views", database.name()));
        let cursors = views.collection::<Document>("_headwater_cursors");
        insert_events(&cursors, aggregates, |number| {
            let id = doc! { "pipeline": PIPELINE, "aggregate": aggregate(number) };
            let sequence = i64::try_from(each).expect("small");
            doc! { "_id": id, "epoch": 1_i64, "position": "82", "sequence": sequence, "eventId": 1, "format": 1_i64 }
        })
        .await;
        println!(
            "{aggregates} aggregates, {} events written in {:.0} s",
            aggregates * each,
            began.elapsed().as_secs_f64()
        );
        Self { folder, mongo, database, broker, server, live, written: 0 }
    }

    fn start_pod(&self, audit: &str) -> MeasuredPod {
        let more = format!("producer: {{ start: now }}\naudit: {{ {audit} }}\n{READ_MODELS}");
        MeasuredPod::start(self.folder.path(), self.mongo.uri(), self.database.name(), PIPELINE, &self.broker, &more)
    }

    fn coordination(&self) -> Database {
        self.mongo.client().database(&format!("{}-coordination", self.database.name()))
    }

    /// Seconds of a round without pauses, CPU of pod and mongod in seconds, peak memory of the pod in MB.
    async fn measure_round(&self, aggregates: u64) -> (f64, f64, f64, f64) {
        let server = cpu_time(self.server);
        let pod = self.start_pod("period: 1h, budget_percent: 100");
        let audits = self.coordination().collection::<Document>("audits");
        let round = self.wait_for("a round", async || {
            let audit = audits.find_one(doc! {}).await.expect("MongoDB responds")?;
            audit.get_document("last").ok().cloned()
        });
        let round = round.await;
        let took = round.get_datetime("endedAt").expect("it ended").timestamp_millis()
            - round.get_datetime("startedAt").expect("it started").timestamp_millis();
        let totals = round.get_document("totals").expect("it counts");
        assert_eq!(totals.get_i64("found").ok(), Some(0), "a false alarm: {totals}");
        assert_eq!(totals.get_i64("compared").ok(), i64::try_from(aggregates).ok());
        let (cpu, rss) = (pod.cpu().as_secs_f64(), pod.peak_rss_mb());
        let server = (cpu_time(self.server) - server).as_secs_f64();
        println!("   round: {:.1} s, pod {cpu:.1} s CPU, mongod {server:.1} s CPU, {rss:.0} MB", took as f64 / 1e3);
        pod.stop().await;
        // The next auditor starts a round at once.
        audits.update_one(doc! {}, doc! { "$unset": { "last": "" } }).await.expect("MongoDB responds");
        (took as f64 / 1e3, cpu, server, rss)
    }

    /// Live events per second, from the first insert to the last applied event.
    async fn measure_live(&mut self, audit: &str) -> f64 {
        let pod = self.start_pod(audit);
        let totals = self.views().collection::<Document>("totals");
        // The pod leads and consumes when a first event has arrived.
        self.write_live(1).await;
        let first = self.written;
        self.wait_for("the first event", async || self.is_applied(&totals, first).await).await;
        let began = Instant::now();
        self.write_live(self.live).await;
        let last = self.written;
        self.wait_for("all events", async || self.is_applied(&totals, last).await).await;
        let rate = self.live as f64 / began.elapsed().as_secs_f64();
        println!("    live: {rate:.0}/s with {audit}");
        pod.stop().await;
        rate
    }

    fn views(&self) -> Database {
        self.mongo.client().database(&format!("{}_views", self.database.name()))
    }

    async fn is_applied(&self, totals: &mongodb::Collection<Document>, count: u64) -> Option<()> {
        let stored = totals.estimated_document_count().await.expect("MongoDB responds");
        (stored >= count).then_some(())
    }

    async fn write_live(&mut self, count: u64) {
        let from = self.written;
        let events = events_collection(&self.database);
        insert_events(&events, count, |number| event(&format!("live-{}", from + number), 1)).await;
        self.written += count;
    }

    async fn wait_for<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(began.elapsed() < TIMEOUT, "no {what} within {TIMEOUT:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn aggregate(number: u64) -> String {
    format!("order-{number:08}")
}

fn event(aggregate: &str, version: i64) -> Document {
    doc! { "aggregateId": aggregate, "version": version, "type": "ItemAdded", "payload": { "price": 7, "text": "x".repeat(64) } }
}
