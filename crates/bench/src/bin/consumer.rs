//! How fast a pod applies, beside the raw transactions of the same statements in the same run.
//!
//! `cargo xtask bench consumer [-- EVENTS [SETTINGS [SHAPE]]]`, settings as in the configuration: `'{ max_concurrent_sessions: 64 }'`; with
//! a shape (`many`, `short`, `buckets`) that one alone, and no verdict. Real processes, release, one machine: mongod, the durable broker and
//! one pod. A backlog is published first; counted is what the broker says is settled. Three shapes: 1,000 aggregates; as many aggregates as
//! events; the same in 256 buckets. Then one aggregate with all events; last, the rate of 1,000 aggregates while one more fails all the
//! time, beside the rate without it. A backlog that stands still for ten seconds fails the run.
//!
//! Two ceilings, each of two connections with half of the aggregates and 1,000 statements on the read model in a transaction:
//! - `ratio…`: the cursor transaction: events in the order in which they were written, every cursor an upsert.
//! - `ratio…_own`: the events in the order in which the pod applied them, by the oplog, and cursors inserted where there were none. What a
//!   pod saves by the order in which it takes events counts for it in the first and not in the second.
//!
//! A pod that knows an aggregate to be new reads no cursor for it; both ceilings do.

use std::fs;
use std::time::Duration;

use bench::broker_process::{BrokerProcess, cpu_of};
use bench::pod_process::{PodProcess, consumed, published};
use bench::raw_transactions::{Ceiling, First, MODEL, Wrote, aggregate, as_written, run_alone};
use futures_util::{StreamExt, stream};
use mongodb::bson::{Document, Timestamp, doc};
use mongodb::options::{Acknowledgment, WriteConcern};
use mongodb::{Client, Collection, Database, IndexModel};
use tempfile::TempDir;

const SHAPES: [Shape; 3] = [
    Shape { name: "many", each: 100, sessions: "aggregate" },
    Shape { name: "short", each: 1, sessions: "aggregate" },
    Shape { name: "buckets", each: 1, sessions: "buckets(256)" },
];
const FAILING: &str = "failing";
/// Pods for each shape.
const ROUNDS: u32 = 2;
const ENTITIES: &str = r#"{ "UserConfig": { "Namespaces": [ { "Name": "bench", "Topics": [ TOPICS ] } ] } }"#;
const TOPIC: &str = r#"{ "Name": "NAME", "Properties": { "RequiresDuplicateDetection": true, "DuplicateDetectionHistoryTimeWindow": "PT10M" },
    "Subscriptions": [ { "Name": "read-models", "Properties": { "RequiresSession": true, "LockDuration": "PT1M", "MaxDeliveryCount": 2000 } } ] }"#;
const READ_MODELS: &str = "read_models:\n  totals: { when: { ItemAdded: { $inc: { events: 1, total: $$event.payload.price }, $set: { last: $$event.version } } } }\n";

/// How events spread over aggregates, and those over sessions.
struct Shape {
    name: &'static str,
    each: u64,
    sessions: &'static str,
}

#[derive(Default)]
struct Measured {
    rate: f64,
    ratio: f64,
    ratio_own: f64,
    rss: f64,
}

/// One pod's way through a backlog.
struct Applied {
    rate: f64,
    rss: f64,
    server: Duration,
    broker: Duration,
    pod: Duration,
    wrote: Wrote,
}

struct Bench {
    folder: TempDir,
    mongo: testkit::mongo::Shared,
    broker: BrokerProcess,
    /// mongod's process.
    server: u32,
    events: u64,
}

#[tokio::main]
async fn main() {
    let events: u64 = std::env::args().nth(1).map_or(100_000, |given| given.parse().expect("a number of events"));
    assert!(events >= 1_000, "with fewer events there is nothing to measure");
    let bench = Bench::set_up(events).await;
    if let Some(only) = std::env::args().nth(3) {
        bench.measure(SHAPES.iter().find(|shape| shape.name == only).expect("a shape's name")).await;
        return bench.broker.kill().await;
    }
    let mut measured = vec![];
    for shape in &SHAPES {
        measured.push(bench.measure(shape).await);
    }
    bench.one_of_all().await;
    let mut beside = 0.0_f64;
    for round in 1..=ROUNDS {
        beside = beside.max(bench.beside_a_failing_one(round).await);
    }
    println!(" failing: the others have {:.3} of their rate ({beside:.0}/s)", beside / measured[0].rate);

    let rss = measured.iter().map(|measured| measured.rss).fold(0.0, f64::max);
    println!(
        r#"{{"bench":"consumer","ratio":{:.3},"ratio_short_sessions":{:.3},"ratio_buckets":{:.3},"ratio_own":{:.3},"ratio_short_sessions_own":{:.3},"ratio_buckets_own":{:.3},"ratio_beside_failing":{:.3},"events_per_s":{:.0},"rss_mb":{rss:.0}}}"#,
        measured[0].ratio,
        measured[1].ratio,
        measured[2].ratio,
        measured[0].ratio_own,
        measured[1].ratio_own,
        measured[2].ratio_own,
        beside / measured[0].rate,
        measured[0].rate
    );
    bench.broker.kill().await;
}

impl Bench {
    async fn set_up(events: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let failing = Shape { name: FAILING, ..SHAPES[0] };
        let shapes = SHAPES.iter().chain([&failing]);
        let rounds = shapes.flat_map(|shape| (1..=ROUNDS).map(|round| topic(shape, round)));
        let topics: Vec<_> = rounds.chain(["one".into()]).map(|name| TOPIC.replace("NAME", &name)).collect();
        let entities = folder.path().join("entities.json");
        fs::write(&entities, ENTITIES.replace("TOPICS", &topics.join(","))).expect("a file");
        let broker = BrokerProcess::start(&folder.path().join("broker"), Some(&entities)).await;
        let mongo = testkit::mongo::shared().await.expect("a mongod");
        let server = pid_of(mongo.client()).await;
        Self { folder, mongo, broker, server, events }
    }

    /// Ceilings and pods by turns, and the best of each: whatever else the machine does, it does to both.
    async fn measure(&self, shape: &Shape) -> Measured {
        let raw = self.mongo.database(&format!("{}_raw", shape.name));
        let written = as_written(self.events, shape.each);
        let mut ceilings = vec![run_alone(&raw, self.server, &written, First::Upserted).await];
        let (mut own_ceilings, mut pods) = (vec![], vec![]);
        for round in 1..=ROUNDS {
            let applied = self.apply(shape, &topic(shape, round)).await;
            ceilings.push(run_alone(&raw, self.server, &written, First::Upserted).await);
            let own = applied.wrote.groups(self.events / shape.each);
            own_ceilings.push(run_alone(&raw, self.server, &own, First::Inserted).await);
            pods.push(applied);
        }
        let rss = pods.iter().map(|pod| pod.rss).fold(0.0, f64::max);
        let pod = pods.into_iter().max_by(|one, other| one.rate.total_cmp(&other.rate)).expect("a round");
        let (most, own) = (best(&ceilings), best(&own_ceilings));
        let measured = Measured { rate: pod.rate, ratio: pod.rate / most.rate, ratio_own: pod.rate / own.rate, rss };
        let Measured { rate, ratio, ratio_own, .. } = measured;
        println!(
            "{:>8}: raw {:>6.0}/s, applied {rate:>6.0}/s, ratio {ratio:.3}; its own statements {:>6.0}/s, ratio {ratio_own:.3}; the pod has {rss:.0} MB at most",
            shape.name, most.rate, own.rate
        );
        let Wrote { transactions, cursors_inserted, cursors_updated, .. } = pod.wrote;
        println!(
            "          the pod's transactions: {transactions}, with {cursors_inserted} cursors inserted and {cursors_updated} updated"
        );
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.events as f64;
        println!(
            "          cpu each, in us, of mongod + client: raw {:.1} + {:.1}; its own statements {:.1} + {:.1}; applied {:.1} + {:.1} (broker) + {:.1} (pod)",
            each(most.server),
            each(most.own),
            each(own.server),
            each(own.own),
            each(pod.server),
            each(pod.broker),
            each(pod.pod)
        );
        measured
    }

    /// A backlog of its own, and a pod that takes it.
    async fn apply(&self, shape: &Shape, topic: &str) -> Applied {
        let source = self.mongo.database(shape.name);
        self.backlog(&source, shape, topic).await;
        let (server_before, broker_before) = (cpu_of(self.server), self.broker.cpu());
        let since = cluster_time(self.mongo.client()).await;
        let pod = self.consume(&source, topic);
        let rate = consumed(&self.broker, topic, self.events, 0).await;
        let server = cpu_of(self.server).saturating_sub(server_before);
        let broker = self.broker.cpu().saturating_sub(broker_before);
        let (rss, spent) = (pod.peak_rss_mb(), pod.cpu());
        assert_applied(&source, self.events).await;
        pod.stop().await;
        let wrote = Wrote::by_the_oplog(self.mongo.client(), &views_of(&source), since).await;
        Applied { rate, rss, server, broker, pod: spent, wrote }
    }

    /// Writes events, and has a pod that only publishes bring them to the topic.
    async fn backlog(&self, source: &Database, shape: &Shape, topic: &str) {
        write(source, self.events, shape.each).await;
        let more = format!("producer: {{ start: beginning, sessions: \"{}\" }}\n", shape.sessions);
        let pod = PodProcess::start(self.folder.path(), self.mongo.uri(), source.name(), topic, &self.broker, &more);
        published(&self.broker, topic, self.events).await;
        pod.stop().await;
    }

    fn consume(&self, source: &Database, topic: &str) -> PodProcess {
        let settings = std::env::args().nth(2).filter(|given| !given.is_empty());
        let settings = settings.map_or_else(String::new, |given| format!("consumer: {given}\n"));
        let more = format!("producer: {{ start: beginning }}\n{settings}{READ_MODELS}");
        PodProcess::start(self.folder.path(), self.mongo.uri(), source.name(), topic, &self.broker, &more)
    }

    /// One session with everything: no shape to compare, but it must not stand still.
    async fn one_of_all(&self) {
        let shape = Shape { name: "one", each: self.events, sessions: "aggregate" };
        let applied = self.apply(&shape, shape.name).await;
        println!("     one: applied {:>6.0}/s; the pod has {:.0} MB at most", applied.rate, applied.rss);
    }

    /// The rate of the others while one document is held by somebody for as long as it takes: events of its aggregate fail all the time.
    async fn beside_a_failing_one(&self, round: u32) -> f64 {
        let shape = Shape { name: FAILING, ..SHAPES[0] };
        let (source, topic) = (self.mongo.database(shape.name), topic(&shape, round));
        self.backlog(&source, &shape, &topic).await;
        let views = source.client().database(&views_of(&source));
        views.create_collection(MODEL).await.expect("a collection");
        let mut somebody = source.client().start_session().await.expect("a session");
        somebody.start_transaction().await.expect("a transaction");
        let held = doc! { "_id": aggregate(0) };
        views.collection::<Document>(MODEL).insert_one(held).session(&mut somebody).await.expect("held");
        let pod = self.consume(&source, &topic);
        // All but the events of one aggregate.
        let rate = consumed(&self.broker, &topic, self.events, shape.each).await;
        somebody.abort_transaction().await.expect("let go");
        consumed(&self.broker, &topic, shape.each + 1, 0).await;
        assert_applied(&source, self.events).await;
        pod.stop().await;
        rate
    }
}

fn topic(shape: &Shape, round: u32) -> String {
    format!("{}-{round}", shape.name)
}

fn best(ceilings: &[Ceiling]) -> Ceiling {
    *ceilings.iter().max_by(|one, other| one.rate.total_cmp(&other.rate)).expect("a round")
}

async fn pid_of(server: &mongodb::Client) -> u32 {
    let status = server.database("admin").run_command(doc! { "serverStatus": 1 }).await.expect("a status");
    let pid = status.get("pid").and_then(|pid| pid.as_i64().or_else(|| pid.as_i32().map(i64::from)));
    pid.and_then(|pid| u32::try_from(pid).ok()).expect("a process's number")
}

/// The aggregates' by turns.
async fn write(source: &Database, count: u64, each: u64) {
    let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
    let options = mongodb::options::CollectionOptions::builder().write_concern(majority).build();
    let events: Collection<Document> = source.collection_with_options("events", options);
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    events.create_index(index).await.expect("an index");
    let aggregates = count / each;
    let chunks = (0..count.div_ceil(1_000)).map(|chunk| {
        let events = events.clone();
        async move {
            let numbers = chunk * 1_000..count.min((chunk + 1) * 1_000);
            let documents: Vec<_> = numbers.map(|number| event(number, aggregates)).collect();
            events.insert_many(documents).await.expect("events are written");
        }
    });
    stream::iter(chunks).buffer_unordered(2).collect::<Vec<()>>().await;
}

fn event(number: u64, aggregates: u64) -> Document {
    let version = i64::try_from(number / aggregates + 1).expect("a version");
    doc! {
        "aggregateId": aggregate(number % aggregates), "version": version, "type": "ItemAdded",
        "payload": { "price": 7, "text": "x".repeat(64) },
    }
}

async fn assert_applied(source: &Database, events: u64) {
    let views = source.client().database(&views_of(source));
    let sum = doc! { "$group": { "_id": null, "events": { "$sum": "$events" } } };
    let mut found = views.collection::<Document>(MODEL).aggregate([sum]).await.expect("a sum");
    let sum = found.next().await.expect("one").expect("a document");
    let applied = sum.get("events").and_then(|sum| sum.as_i64().or_else(|| sum.as_i32().map(i64::from)));
    assert_eq!(applied, i64::try_from(events).ok(), "every event once");
}

fn views_of(source: &Database) -> String {
    format!("{}_views", source.name())
}

async fn cluster_time(client: &Client) -> Timestamp {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.expect("an answer");
    let last = hello.get_document("lastWrite").and_then(|last| last.get_document("opTime")).expect("a member's");
    last.get_timestamp("ts").expect("a time")
}
