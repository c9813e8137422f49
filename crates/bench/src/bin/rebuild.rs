//! Rate of a rebuild next to the rate of a pod that applies a backlog, and the memory of a pod that rebuilds.
//!
//! `cargo xtask bench rebuild [-- EVENTS [LIVE_EVENTS [LARGE]]]`. Real processes, release, one machine: mongod, the durable broker and one pod. Two
//! workloads: 100 events for each aggregate, and one. For each, by turns and five times: a pod applies a backlog of `LIVE_EVENTS` messages (the live rate, as
//! in `bench consumer`), and a pod rebuilds a read model of the same declaration from a source of `EVENTS` events (from the first sign of the build to
//! the active generation, so it includes the switch). The medians count. Source and cursors of a
//! rebuild are written directly. Every document is counted afterwards.
//!
//! `cpu_ratio` compares the CPU time for an event, of all processes: it depends less on what else runs on the machine.
//!
//! Then the peak memory of pods that rebuild 100,000 and `LARGE` events.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::measurements::{BenchReport, Measurements};
use bench::processes::{
    MeasuredPod, headwater_binary, measure_consumed, measure_published, server_pid, start_broker_with_topics,
    started_transactions,
};
use bench::source_events::{events_collection, insert_events};
use clap::{Parser, value_parser};
use futures_util::StreamExt;
use local_cluster::process::Program;
use local_cluster::usage::cpu_time;
use local_cluster::{BrokerProcess, TopicEntity};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Database, IndexModel};
use pipeline::generation::{GenerationStage, GenerationStore};
use tempfile::TempDir;
use testkit::mongo::SharedMongo;
use testkit::wait::wait_for;

const MODEL: &str = "totals";
const READ_MODELS: &str = "read_models:\n  totals: { when: { ItemAdded: { $inc: { events: 1, total: $$event.payload.price }, $set: { last: $$event.version } } } }\n";
const ROUNDS: u32 = 5;
const SMALL: u64 = 100_000;
const TIMEOUT: Duration = Duration::from_secs(3_600);
const WORKLOADS: [Workload; 2] =
    [Workload { name: "many", each: 100, suffix: "" }, Workload { name: "short", each: 1, suffix: "_short" }];

/// Measure a rebuild next to a consuming pod
#[derive(Parser)]
struct Args {
    /// Events that are rebuilt
    #[arg(default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1_000..))]
    events: u64,
    /// Events of the backlog that gives the live rate
    #[arg(default_value_t = 100_000, value_parser = value_parser!(u64).range(1_000..))]
    live_events: u64,
    /// Events of the large rebuild whose memory is measured; 0: none
    #[arg(default_value_t = 5_000_000)]
    large: u64,
    /// Measure only this workload, without the memory, and print no JSON
    #[arg(long, value_parser = ["many", "short"])]
    workload: Option<String>,
}

/// How events are spread over aggregates.
struct Workload {
    name: &'static str,
    each: u64,
    /// Of its figures in the report.
    suffix: &'static str,
}

/// Of a consuming or rebuilding pod.
#[derive(Clone, Copy)]
struct Measured {
    /// Events per second.
    rate: f64,
    /// Microseconds of all processes for each event.
    cpu: f64,
    /// Megabytes of the pod at most.
    rss: f64,
}

struct RebuildBench {
    folder: TempDir,
    mongo: SharedMongo,
    broker: BrokerProcess,
    /// The pid of mongod.
    server: u32,
}

#[tokio::main]
async fn main() {
    let Args { events, live_events, large, workload: only } = Args::parse();
    let mut bench = RebuildBench::set_up().await;
    let mut report = BenchReport::new("rebuild");
    for workload in WORKLOADS.iter().filter(|workload| only.as_ref().is_none_or(|only| only == workload.name)) {
        let (mut live, mut rebuilt) = (vec![], vec![]);
        for round in 1..=ROUNDS {
            live.push(bench.measure_live(workload, round, live_events).await);
            rebuilt.push(bench.measure_rebuild(workload, &format!("rebuilt-{round}"), events).await);
        }
        let rates = |measured: &[Measured]| -> Measurements { measured.iter().map(|one| one.rate).collect() };
        let pairs = || live.iter().zip(&rebuilt);
        let ratio: Measurements = pairs().map(|(live, rebuilt)| rebuilt.rate / live.rate).collect();
        let cpu_ratio: Measurements = pairs().map(|(live, rebuilt)| live.cpu / rebuilt.cpu).collect();
        println!(
            "{:>8}: live {}/s, rebuilt {}/s, ratio {ratio:.2}; {cpu_ratio:.2} times the events for the same cpu",
            workload.name,
            rates(&live),
            rates(&rebuilt)
        );
        report = report
            .measured(&format!("ratio{}", workload.suffix), &ratio, 2)
            .measured(&format!("cpu_ratio{}", workload.suffix), &cpu_ratio, 2)
            .measured(&format!("live_per_s{}", workload.suffix), &rates(&live), 0)
            .measured(&format!("rebuilt_per_s{}", workload.suffix), &rates(&rebuilt), 0);
    }
    if only.is_some() {
        bench.broker.kill().await;
        return;
    }
    let many = &WORKLOADS[0];
    let small_rss = bench.measure_rebuild(many, "small", SMALL).await.rss;
    let large_rss = if large == 0 { 0.0 } else { bench.measure_rebuild(many, "large", large).await.rss };
    let report = report
        .value("events", events.into())
        .value("small_events", SMALL.into())
        .figure("small_rss_mb", small_rss, 0)
        .value("large_events", large.into())
        .figure("large_rss_mb", large_rss, 0);
    println!("{report}");
    bench.broker.kill().await;
}

impl RebuildBench {
    async fn set_up() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let rounds = (1..=ROUNDS).flat_map(|round| [format!("live-{round}"), format!("rebuilt-{round}")]);
        let names = rounds.chain(["small".to_owned(), "large".to_owned()]);
        let topics: Vec<_> = names
            .flat_map(|name| WORKLOADS.iter().map(move |workload| format!("{}-{name}", workload.name)))
            .map(|name| TopicEntity::for_pipeline(name, false))
            .collect();
        let broker = start_broker_with_topics(folder.path(), &topics).await;
        let mongo = testkit::mongo::shared().await.expect("a mongod");
        let server = server_pid(mongo.client()).await;
        Self { folder, mongo, broker, server }
    }

    fn start_pod(&self, source: &Database, topic: &str, extra_yaml: &str) -> MeasuredPod {
        MeasuredPod::start(self.folder.path(), self.mongo.uri(), source.name(), topic, &self.broker, extra_yaml)
    }

    fn config(&self, topic: &str) -> PathBuf {
        self.folder.path().join(format!("{topic}.yaml"))
    }

    /// Publishes a backlog, and measures a pod that applies it.
    async fn measure_live(&self, workload: &Workload, round: u32, events: u64) -> Measured {
        let topic = format!("{}-live-{round}", workload.name);
        let source = self.mongo.database(&topic);
        write_events(&source, events, workload.each).await;
        let publisher = self.start_pod(&source, &topic, "producer: { start: beginning }\n");
        measure_published(&self.broker, &topic, events).await;
        publisher.stop().await;
        let others = || cpu_time(self.server) + cpu_time(self.broker.pid());
        let (before, started) = (others(), started_transactions(self.mongo.client()).await);
        let pod = self.start_pod(&source, &topic, &format!("producer: {{ start: beginning }}\n{READ_MODELS}"));
        let rate = measure_consumed(&self.broker, self.mongo.client(), started, &topic, events, 0).await;
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / events as f64;
        let (pod_cpu, other_cpu) = (each(pod.cpu()), each(others() - before));
        let pod_rss = pod.peak_rss_mb();
        assert_eq!(count_events(&source).await, events, "every event once");
        pod.stop().await;
        println!(
            "{:>8}: live {rate:>6.0}/s; cpu each, in us: {other_cpu:.1} (mongod, broker) + {pod_cpu:.1} (pod)",
            workload.name
        );
        Measured { rate, cpu: other_cpu + pod_cpu, rss: pod_rss }
    }

    /// Writes a source and its cursors, and measures a rebuild of the read model.
    async fn measure_rebuild(&self, workload: &Workload, name: &str, events: u64) -> Measured {
        let topic = format!("{}-{name}", workload.name);
        let source = self.mongo.database(&topic);
        write_events(&source, events, workload.each).await;
        write_cursors(&source, &topic, events / workload.each, workload.each).await;
        let pod = self.start_pod(
            &source,
            &topic,
            &format!("producer: {{ start: now }}\naudit: {{ enabled: false }}\n{READ_MODELS}"),
        );
        let coordination = source.client().database(&format!("{}-coordination", source.name()));
        let store = GenerationStore::new(&coordination, &topic);
        wait_for("the generation", TIMEOUT, async || match store.load().await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let (server, cpu) = (cpu_time(self.server), pod.cpu());
        let rebuild = Program::new(headwater_binary()).args(["read-model", "rebuild", MODEL, "--config"]);
        let rebuild = rebuild.args([self.config(&topic)]).start().expect("the binary starts");
        assert!(rebuild.wait_for_exit(TIMEOUT).await.success(), "{}", rebuild.tail());
        wait_for_stage(&store, GenerationStage::Building, 2).await;
        let began = Instant::now();
        wait_for_stage(&store, GenerationStage::Active, 3).await;
        let rate = events as f64 / began.elapsed().as_secs_f64();
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / events as f64;
        let (server, cpu) = (each(cpu_time(self.server) - server), each(pod.cpu() - cpu));
        let rss = pod.peak_rss_mb();
        assert_eq!(count_events(&source).await, events, "every event once");
        pod.stop().await;
        println!(
            "{:>8}: rebuilt {events} events at {rate:>6.0}/s; cpu each, in us: {server:.1} (mongod) + {cpu:.1} (pod); the pod has {rss:.0} MB at most",
            workload.name
        );
        let database: &Database = &source;
        database.drop().await.expect("the source is dropped");
        Measured { rate, cpu: server + cpu, rss }
    }
}

/// Or a later generation.
async fn wait_for_stage(store: &GenerationStore, stage: GenerationStage, number: u64) {
    wait_for(stage.code(), TIMEOUT, async || match store.load().await {
        Ok(Some(found)) if found.number > number || (found.number == number && found.stage == stage) => Ok(()),
        Ok(found) => Err(format!("{:?}", found.map(|found| (found.number, found.stage, found.problem)))),
        Err(error) => Err(error.to_string()),
    })
    .await;
}

fn aggregate(number: u64) -> String {
    format!("order-{number:08}")
}

/// Takes the aggregates in turn, as writers would.
async fn write_events(source: &Database, count: u64, each: u64) {
    let events = events_collection(source);
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    events.create_index(index).await.expect("an index");
    let aggregates = count / each;
    insert_events(&events, count, |number| {
        let version = i64::try_from(number / aggregates + 1).expect("a version");
        doc! {
            "aggregateId": aggregate(number % aggregates), "version": version, "type": "ItemAdded",
            "payload": { "price": 7, "text": "x".repeat(64) },
        }
    })
    .await;
}

/// As a pod leaves them that has applied all events.
async fn write_cursors(source: &Database, pipeline: &str, aggregates: u64, each: u64) {
    let views = source.client().database(&format!("{}_views", source.name()));
    let sequence = i64::try_from(each).expect("a sequence");
    insert_events(&views.collection("_headwater_cursors"), aggregates, |number| {
        let id = doc! { "pipeline": pipeline, "aggregate": aggregate(number) };
        doc! { "_id": id, "epoch": 1_i64, "position": "82", "sequence": sequence, "eventId": 1, "format": 1_i64 }
    })
    .await;
}

/// The number of applied events, by the documents.
async fn count_events(source: &Database) -> u64 {
    let views = source.client().database(&format!("{}_views", source.name()));
    let sum = doc! { "$group": { "_id": null, "events": { "$sum": "$events" } } };
    let mut found = views.collection::<Document>(MODEL).aggregate([sum]).await.expect("a sum");
    let Some(sum) = found.next().await else { return 0 };
    match sum.expect("a document").get("events") {
        Some(Bson::Int32(events)) => u64::try_from(*events).expect("a count"),
        Some(Bson::Int64(events)) => u64::try_from(*events).expect("a count"),
        _ => 0,
    }
}
