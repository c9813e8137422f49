//! Throughput of a consuming pod relative to raw transactions with the same statements.
//!
//! `cargo xtask bench consumer [-- EVENTS [SETTINGS [WORKLOAD]]]`, settings as in the configuration: `'{ max_concurrent_sessions: 64 }'`; with
//! a workload (`many`, `short`, `buckets`, `disorder`, `signed`) that one alone, and no JSON; `signed` runs only when it is named: the first workload by
//! turns without and with signed messages. Real processes, release, one machine: mongod, the durable broker and
//! one pod. A backlog is published first; the count is what the broker reports as settled. Three workloads: 1,000 aggregates; as many aggregates as
//! events; the same in 256 buckets. Then one aggregate with all events; the rate of 1,000 aggregates while one more fails all the
//! time, beside the rate without it; and last, end to end while it is written, ten aggregates whose sequences two writers commit out of order,
//! beside one writer. A backlog that stalls for ten seconds fails the run.
//!
//! Two baselines, with 1,000 statements on the read model in a transaction and an equal share of the aggregates per connection:
//! - `ratio…`: events in the order in which they were written.
//! - `ratio…_own`: events in the order in which the pod applied them, by the oplog. What a pod saves by its order of events counts in the first
//!   ratio and not in the second.
//!
//! Neither reads a cursor where the pod does not: the first event of an aggregate says that there is none. Each baseline runs with 1, 2 and 4
//! connections first, and the fastest number counts. Then baselines and pods by turns, five rounds; every figure is the median, with the spread of
//! the rounds. The clock of a pod starts with its first transaction.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bench::measurements::{BenchReport, Measurements};
use bench::processes::{
    MeasuredPod, measure_consumed, measure_published, server_pid, start_broker_with_topics, started_transactions,
};
use bench::raw_transactions::{
    CONNECTIONS, EventGroup, MODEL, OplogSummary, TransactionRate, aggregate, groups_as_written, measure_transactions,
};
use bench::source_events::{cluster_time, events_collection, insert_events};
use clap::{Parser, value_parser};
use futures_util::StreamExt;
use local_cluster::usage::cpu_time;
use local_cluster::{BrokerProcess, TopicEntity};
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use mongodb::{Database, IndexModel};
use tempfile::TempDir;
use testkit::wait::wait_for;

const WORKLOADS: [Workload; 3] = [
    Workload { name: "many", each: 100, sessions: "aggregate" },
    Workload { name: "short", each: 1, sessions: "aggregate" },
    Workload { name: "buckets", each: 1, sessions: "buckets(256)" },
];
const FAILING: &str = "failing";
const ORDERED: &str = "ordered";
const DISORDER: &str = "disorder";
const SIGNED: &str = "signed";
const UNSIGNED: &str = "unsigned";
const SIGNING: &str = "message_signing: { keys: \"bench:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }\n";
/// Of the two above.
const STREAM_AGGREGATES: u64 = 10;
const STREAM_BATCH: u64 = 100;
/// Pods for each workload.
const ROUNDS: u32 = 5;
const READ_MODELS: &str = "read_models:\n  totals: { when: { ItemAdded: { $inc: { events: 1, total: $$event.payload.price }, $set: { last: $$event.version } } } }\n";

/// Measure the throughput of a consuming pod next to raw transactions
#[derive(Parser)]
struct Args {
    /// Events of each workload
    #[arg(default_value_t = 100_000, value_parser = value_parser!(u64).range(1_000..))]
    events: u64,
    /// The content of `consumer:` in the configuration of the pod, for example '{ max_concurrent_sessions: 64 }'
    #[arg(default_value = "", hide_default_value = true)]
    settings: String,
    /// Measure only this workload, and print no JSON
    #[arg(value_parser = ["many", "short", "buckets", DISORDER, SIGNED])]
    workload: Option<String>,
}

/// How events are spread over aggregates, and aggregates over sessions.
struct Workload {
    name: &'static str,
    each: u64,
    sessions: &'static str,
}

struct WorkloadResult {
    rate: Measurements,
    ratio: Measurements,
    ratio_own: Measurements,
    rss: f64,
}

/// How one pod published a backlog.
struct PublishResult {
    rate: f64,
    pod: Duration,
}

/// How one pod consumed a backlog.
struct ConsumeResult {
    published: PublishResult,
    rate: f64,
    rss: f64,
    server: Duration,
    broker: Duration,
    pod: Duration,
    oplog: OplogSummary,
}

struct ConsumerBench {
    folder: TempDir,
    mongo: testkit::mongo::SharedMongo,
    broker: BrokerProcess,
    /// The pid of mongod.
    server: u32,
    events: u64,
    /// The `consumer:` line of the pods, or nothing.
    settings: String,
    /// The `message_signing:` line of the pods, or nothing.
    signing: &'static str,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let mut bench = ConsumerBench::set_up(args.events, &args.settings).await;
    if let Some(only) = args.workload {
        match WORKLOADS.iter().find(|workload| workload.name == only) {
            Some(workload) => {
                bench.measure(workload).await;
            }
            None if only == SIGNED => bench.measure_signed().await,
            None => {
                bench.measure_out_of_order().await;
            }
        }
        bench.broker.kill().await;
        return;
    }
    let mut measured = vec![];
    for workload in &WORKLOADS {
        measured.push(bench.measure(workload).await);
    }
    bench.measure_single_aggregate().await;
    let mut beside = vec![];
    for round in 1..=ROUNDS {
        beside.push(bench.measure_with_failing_aggregate(round).await / measured[0].rate.median());
    }
    let beside: Measurements = beside.into_iter().collect();
    println!(" failing: the others have {beside:.3} of their rate");
    let out_of_order = bench.measure_out_of_order().await;

    let mut report = BenchReport::new("consumer")
        .measured("ratio_beside_failing", &beside, 3)
        .measured("ratio_out_of_order", &out_of_order, 3)
        .measured("events_per_s", &measured[0].rate, 0)
        .figure("rss_mb", measured.iter().map(|measured| measured.rss).fold(0.0, f64::max), 0);
    for (name, result) in ["", "_short_sessions", "_buckets"].into_iter().zip(&measured) {
        report = report.measured(&format!("ratio{name}"), &result.ratio, 3).measured(
            &format!("ratio{name}_own"),
            &result.ratio_own,
            3,
        );
    }
    println!("{report}");
    bench.broker.kill().await;
}

impl ConsumerBench {
    async fn set_up(events: u64, settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let failing = Workload { name: FAILING, ..WORKLOADS[0] };
        let workloads = WORKLOADS.iter().chain([&failing]);
        let rounds = workloads.flat_map(|workload| (1..=ROUNDS).map(|round| topic(workload, round)));
        let topics: Vec<_> = rounds
            .chain(["one".to_owned()])
            .chain(
                (1..=ROUNDS)
                    .flat_map(|round| [SIGNED, UNSIGNED, ORDERED, DISORDER].map(|name| format!("{name}-{round}"))),
            )
            .map(|name| TopicEntity::for_pipeline(name, false))
            .collect();
        let broker = start_broker_with_topics(folder.path(), &topics).await;
        let mongo = testkit::mongo::shared().await.expect("a mongod");
        let server = server_pid(mongo.client()).await;
        let settings = if settings.is_empty() { String::new() } else { format!("consumer: {settings}\n") };
        Self { folder, mongo, broker, server, events, settings, signing: "" }
    }

    /// Measures baselines and pods by turns, so that other load on the machine affects both. A ratio is one of a round.
    async fn measure(&self, workload: &Workload) -> WorkloadResult {
        let raw = self.mongo.database(&format!("{}_raw", workload.name));
        let as_written = |connections| groups_as_written(self.events, workload.each, connections);
        let connections = self.find_connections(&raw, as_written).await;
        let written = as_written(connections);
        let (mut ceilings, mut own_ceilings, mut pods) = (vec![], vec![], vec![]);
        let mut own_connections = 0;
        for round in 1..=ROUNDS {
            ceilings.push(measure_transactions(&raw, self.server, &written).await);
            let applied = self.consume_backlog(workload, &topic(workload, round)).await;
            let own = |connections| applied.oplog.groups(self.events / workload.each, connections);
            if own_connections == 0 {
                own_connections = self.find_connections(&raw, own).await;
            }
            own_ceilings.push(measure_transactions(&raw, self.server, &own(own_connections)).await);
            pods.push(applied);
        }
        let rss = pods.iter().map(|pod| pod.rss).fold(0.0, f64::max);
        let ratios = |ceilings: &[TransactionRate]| -> Measurements {
            pods.iter().zip(ceilings).map(|(pod, ceiling)| pod.rate / ceiling.rate).collect()
        };
        let rates = |ceilings: &[TransactionRate]| -> Measurements { ceilings.iter().map(|one| one.rate).collect() };
        let measured = WorkloadResult {
            rate: pods.iter().map(|pod| pod.rate).collect(),
            ratio: ratios(&ceilings),
            ratio_own: ratios(&own_ceilings),
            rss,
        };
        let WorkloadResult { rate, ratio, ratio_own, .. } = &measured;
        println!("{:>8}: applied {rate}/s; the pod has {rss:.0} MB at most", workload.name);
        println!("          raw {}/s with {connections} connections, ratio {ratio:.3}", rates(&ceilings));
        println!(
            "          its own order {}/s with {own_connections} connections, ratio {ratio_own:.3}",
            rates(&own_ceilings)
        );
        let pod = &pods[0];
        let OplogSummary { transactions, cursors_inserted, cursors_updated, .. } = &pod.oplog;
        println!(
            "          the pod's transactions: {transactions}, with {cursors_inserted} cursors inserted and {cursors_updated} updated"
        );
        let each = |cpu: &dyn Fn(usize) -> Duration| -> Measurements {
            (0..pods.len()).map(|round| cpu(round).as_secs_f64() * 1e6 / self.events as f64).collect()
        };
        println!(
            "          cpu each, in us: raw {:.1} mongod, {:.1} client; its own order {:.1} mongod, {:.1} client; applied {:.1} mongod, {:.1} broker, {:.1} pod",
            each(&|round| ceilings[round].server),
            each(&|round| ceilings[round].own),
            each(&|round| own_ceilings[round].server),
            each(&|round| own_ceilings[round].own),
            each(&|round| pods[round].server),
            each(&|round| pods[round].broker),
            each(&|round| pods[round].pod)
        );
        measured
    }

    /// The number of connections with which the transactions are fastest.
    async fn find_connections(&self, raw: &Database, groups: impl Fn(u64) -> Vec<Vec<EventGroup>>) -> u64 {
        let mut fastest = (0.0, 0);
        for connections in CONNECTIONS {
            let rate = measure_transactions(raw, self.server, &groups(connections)).await.rate;
            if rate > fastest.0 {
                fastest = (rate, connections);
            }
        }
        fastest.1
    }

    /// By turns without and with signatures: the rate and the pod's CPU per event, of the pod that publishes and of the one that consumes.
    async fn measure_signed(&mut self) {
        let mut figures: [Vec<[f64; 4]>; 2] = Default::default();
        for round in 1..=ROUNDS {
            for (figures, (name, signing)) in figures.iter_mut().zip([(UNSIGNED, ""), (SIGNED, SIGNING)]) {
                self.signing = signing;
                let workload = Workload { name, ..WORKLOADS[0] };
                let applied = self.consume_backlog(&workload, &topic(&workload, round)).await;
                let cpu = |spent: Duration| spent.as_secs_f64() * 1e6 / self.events as f64;
                let published = &applied.published;
                figures.push([published.rate, cpu(published.pod), applied.rate, cpu(applied.pod)]);
            }
        }
        for (name, figures) in [UNSIGNED, SIGNED].into_iter().zip(&figures) {
            let [published, publish_cpu, applied, apply_cpu] = [0, 1, 2, 3].map(|column| measured(figures, column));
            println!(
                "{name:>8}: published {published}/s, {publish_cpu:.1} us of the pod's cpu each; applied {applied}/s, {apply_cpu:.1} us"
            );
        }
        let ratio = |column| measured(&figures[1], column).median() / measured(&figures[0], column).median();
        println!("  signed: {:.3} of the publish rate, {:.3} of the apply rate", ratio(0), ratio(2));
    }

    /// Publishes a backlog and measures a pod that consumes it.
    async fn consume_backlog(&self, workload: &Workload, topic: &str) -> ConsumeResult {
        let source = self.mongo.database(workload.name);
        let published = self.publish_backlog(&source, workload, topic).await;
        let (server_before, broker_before) = (cpu_time(self.server), cpu_time(self.broker.pid()));
        let since = cluster_time(self.mongo.client()).await;
        let started = started_transactions(self.mongo.client()).await;
        let pod = self.start_consumer(&source, topic);
        let rate = measure_consumed(&self.broker, self.mongo.client(), started, topic, self.events, 0).await;
        let server = cpu_time(self.server).saturating_sub(server_before);
        let broker = cpu_time(self.broker.pid()).saturating_sub(broker_before);
        let (rss, spent) = (pod.peak_rss_mb(), pod.cpu());
        assert_applied(&source, self.events).await;
        pod.stop().await;
        let oplog = OplogSummary::from_oplog(self.mongo.client(), &views_name(&source), since).await;
        ConsumeResult { published, rate, rss, server, broker, pod: spent, oplog }
    }

    /// Writes events and publishes them with a pod that has no read models.
    async fn publish_backlog(&self, source: &Database, workload: &Workload, topic: &str) -> PublishResult {
        write(source, self.events, workload.each).await;
        let more = format!("producer: {{ start: beginning, sessions: \"{}\" }}\n{}", workload.sessions, self.signing);
        let pod = MeasuredPod::start(self.folder.path(), self.mongo.uri(), source.name(), topic, &self.broker, &more);
        let rate = measure_published(&self.broker, topic, self.events).await;
        let spent = pod.cpu();
        pod.stop().await;
        PublishResult { rate, pod: spent }
    }

    fn start_consumer(&self, source: &Database, topic: &str) -> MeasuredPod {
        let more = format!("producer: {{ start: beginning }}\n{}{}{READ_MODELS}", self.settings, self.signing);
        MeasuredPod::start(self.folder.path(), self.mongo.uri(), source.name(), topic, &self.broker, &more)
    }

    /// One session with all events: there is no baseline to compare with, but it must not stall.
    async fn measure_single_aggregate(&self) {
        let workload = Workload { name: "one", each: self.events, sessions: "aggregate" };
        let applied = self.consume_backlog(&workload, workload.name).await;
        println!("     one: applied {:>6.0}/s; the pod has {:.0} MB at most", applied.rate, applied.rss);
    }

    /// How much of its rate a pod keeps if two writers commit sequences out of order.
    async fn measure_out_of_order(&self) -> Measurements {
        let mut kept = vec![];
        for round in 1..=ROUNDS {
            let (ordered, _) = self.consume_stream(&format!("{ORDERED}-{round}"), 1).await;
            let (disorder, late) = self.consume_stream(&format!("{DISORDER}-{round}"), 2).await;
            assert!(late > self.events / 100, "only {late} events came after a later one of their aggregate");
            kept.push(disorder / ordered);
        }
        let kept: Measurements = kept.into_iter().collect();
        println!("disorder: {kept:.3} of the rate in order");
        kept
    }

    /// Writes events in small batches while a pod publishes and applies them. Returns events per second, from the first insert to the last
    /// applied event, and how many came after a later one of their aggregate.
    async fn consume_stream(&self, name: &str, writers: usize) -> (f64, u64) {
        let source = self.mongo.database(name);
        create_index(&source).await;
        let pod = self.start_consumer(&source, name);
        wait_for_stream(&source, name).await;
        let events = events_collection(&source);
        let stream = events.watch().await.expect("a change stream");
        let late = tokio::spawn(count_late_events(stream, self.events));
        let batches = (0..self.events.div_ceil(STREAM_BATCH)).map(|batch| {
            let numbers = batch * STREAM_BATCH..self.events.min((batch + 1) * STREAM_BATCH);
            let documents: Vec<_> = numbers.map(|number| event(number, STREAM_AGGREGATES)).collect();
            let events = &events;
            async move { events.insert_many(documents).await.expect("events are written") }
        });
        let began = Instant::now();
        futures_util::stream::iter(batches).buffer_unordered(writers).for_each(|_| async {}).await;
        wait_for("all events to be applied", Duration::from_secs(300), async || match applied_events(&source).await {
            applied if applied == self.events => Ok(()),
            applied => Err(applied),
        })
        .await;
        let rate = self.events as f64 / began.elapsed().as_secs_f64();
        let each = pod.cpu().as_secs_f64() * 1e6 / self.events as f64;
        let late = late.await.expect("the stream is read");
        println!(
            "{name:>8}: {rate:>6.0}/s end to end with {writers} writers, {late} events late; {each:.1} us of cpu each in the pod"
        );
        pod.stop().await;
        (rate, late)
    }

    /// The rate of the other aggregates while another transaction holds one document: events of its aggregate fail all the time.
    async fn measure_with_failing_aggregate(&self, round: u32) -> f64 {
        let workload = Workload { name: FAILING, ..WORKLOADS[0] };
        let (source, topic) = (self.mongo.database(workload.name), topic(&workload, round));
        self.publish_backlog(&source, &workload, &topic).await;
        let views = source.client().database(&views_name(&source));
        views.create_collection(MODEL).await.expect("a collection");
        let mut other = source.client().start_session().await.expect("a session");
        other.start_transaction().await.expect("a transaction");
        let held = doc! { "_id": aggregate(0) };
        views.collection::<Document>(MODEL).insert_one(held).session(&mut other).await.expect("held");
        let client = self.mongo.client();
        let started = started_transactions(client).await;
        let pod = self.start_consumer(&source, &topic);
        // All but the events of one aggregate.
        let rate = measure_consumed(&self.broker, client, started, &topic, self.events, workload.each).await;
        other.abort_transaction().await.expect("let go");
        measure_consumed(&self.broker, client, started, &topic, workload.each, 0).await;
        assert_applied(&source, self.events).await;
        pod.stop().await;
        rate
    }
}

fn measured(rounds: &[[f64; 4]], column: usize) -> Measurements {
    rounds.iter().map(|round| round[column]).collect()
}

fn topic(workload: &Workload, round: u32) -> String {
    format!("{}-{round}", workload.name)
}

/// Takes the aggregates in turn.
async fn write(source: &Database, count: u64, each: u64) {
    create_index(source).await;
    let events = events_collection(source);
    let aggregates = count / each;
    insert_events(&events, count, |number| event(number, aggregates)).await;
}

async fn create_index(source: &Database) {
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    events_collection(source).create_index(index).await.expect("an index");
}

/// Waits until the pod has finished its snapshot of nothing and follows the change stream.
async fn wait_for_stream(source: &Database, pipeline: &str) {
    let coordination = source.client().database(&format!("{}-coordination", source.name()));
    let checkpoints = coordination.collection::<Document>("checkpoints");
    wait_for("the change stream", Duration::from_secs(60), async || {
        let found = checkpoints.find_one(doc! { "_id": pipeline }).await.expect("a checkpoint");
        let phase = found.and_then(|found| found.get_str("phase").ok().map(str::to_owned));
        if phase.as_deref() == Some("stream") { Ok(()) } else { Err(phase) }
    })
    .await;
}

fn event(number: u64, aggregates: u64) -> Document {
    let version = i64::try_from(number / aggregates + 1).expect("a version");
    doc! {
        "aggregateId": aggregate(number % aggregates), "version": version, "type": "ItemAdded",
        "payload": { "price": 7, "text": "x".repeat(64) },
    }
}

/// Events whose sequence is below one of their aggregate that came before, among this many.
async fn count_late_events(stream: ChangeStream<ChangeStreamEvent<Document>>, events: u64) -> u64 {
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut late = 0;
    let mut changes = stream.take(usize::try_from(events).expect("a count"));
    while let Some(change) = changes.next().await {
        let event = change.expect("a change").full_document.expect("an insert");
        let aggregate = event.get_str("aggregateId").expect("a text").to_owned();
        let (version, last) = (event.get_i64("version").expect("a number"), last.entry(aggregate).or_default());
        late += u64::from(version < *last);
        *last = version.max(*last);
    }
    late
}

async fn assert_applied(source: &Database, events: u64) {
    assert_eq!(applied_events(source).await, events, "every event once");
}

async fn applied_events(source: &Database) -> u64 {
    let views = source.client().database(&views_name(source));
    let sum = doc! { "$group": { "_id": null, "events": { "$sum": "$events" } } };
    let mut found = views.collection::<Document>(MODEL).aggregate([sum]).await.expect("a sum");
    let Some(sum) = found.next().await else { return 0 };
    let sum = sum.expect("a document");
    let applied = sum.get("events").and_then(|sum| sum.as_i64().or_else(|| sum.as_i32().map(i64::from)));
    applied.and_then(|applied| u64::try_from(applied).ok()).expect("a count")
}

fn views_name(source: &Database) -> String {
    format!("{}_views", source.name())
}
