//! How fast a pod applies, beside the raw transactions of the same statements in the same run.
//!
//! `cargo xtask bench consumer [-- EVENTS [SETTINGS]]`, settings as in the configuration: `'{ max_concurrent_sessions: 64 }'`. Real
//! processes, release, one machine: mongod, the durable broker and one pod. A backlog is published first; counted is what the broker
//! says is settled. Three shapes: 1,000 aggregates; as many aggregates as events; the same in 256 buckets. Then one aggregate with all
//! events; last, the rate of 1,000 aggregates while one more fails all the time, beside the rate without it. A backlog that stands still
//! for ten seconds fails the run.
//!
//! Two ceilings, each of two connections with half of the aggregates, statements made beforehand, 1,000 on the read model in a
//! transaction (read the cursors, write them, write the read model, commit with majority) and nothing else: no bus, no decisions.
//! - `ratio…`: the cursor transaction: events in the order in which they were written, every cursor an upsert.
//! - `ratio…_own`: what the pod itself wrote, by the oplog: the cursor once for a run of events, as long as its runs were, and inserted
//!   where there was none. What a pod saves by writing less counts for it in the first and not in the second.

use std::fs;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use bench::broker_process::{BrokerProcess, cpu_of};
use bench::pod_process::{PodProcess, consumed, published};
use futures_util::{StreamExt, stream};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use mongodb::options::{Acknowledgment, ReadConcern, WriteConcern};
use mongodb::{Client, ClientSession, Collection, Database, IndexModel};

const SHAPES: [Shape; 3] = [
    Shape { name: "many", each: 100, sessions: "aggregate" },
    Shape { name: "short", each: 1, sessions: "aggregate" },
    Shape { name: "buckets", each: 1, sessions: "buckets(256)" },
];
/// As the applier's own groups.
const STATEMENTS: u64 = 1_000;
const CONNECTIONS: u64 = 2;
const CURSORS: &str = "_headwater_cursors";
const MODEL: &str = "totals";
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

struct Measured {
    rate: f64,
    ratio: f64,
    ratio_own: f64,
    rss: f64,
}

#[tokio::main]
async fn main() {
    let events: u64 = std::env::args().nth(1).map_or(100_000, |given| given.parse().expect("a number of events"));
    assert!(events >= 1_000, "with fewer events there is nothing to measure");
    let folder = tempfile::tempdir().expect("a folder");
    let names = SHAPES.iter().map(|shape| shape.name).chain(["one", "failing"]);
    let topics: Vec<_> = names.map(|name| TOPIC.replace("NAME", name)).collect();
    let entities = folder.path().join("entities.json");
    fs::write(&entities, ENTITIES.replace("TOPICS", &topics.join(","))).expect("a file");
    let broker = BrokerProcess::start(&folder.path().join("broker"), Some(&entities)).await;
    let mongo = testkit::mongo::shared().await.expect("a mongod");
    let server = pid_of(mongo.client()).await;

    let mut measured = Vec::new();
    for shape in &SHAPES {
        let (source, raw) = (mongo.database(shape.name), mongo.database(&format!("{}_raw", shape.name)));
        backlog(&source, events, shape.each).await;
        publish(folder.path(), mongo.uri(), &source, &broker, shape, events).await;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / events as f64;
        let (server_before, own_before) = (cpu_of(server), cpu_of(std::process::id()));
        let turns = Way { run: turns(events / shape.each), inserts: false };
        let before = ceiling(&raw, events, shape.each, &turns).await;
        let (raw_server, raw_own) =
            (cpu_of(server).saturating_sub(server_before), cpu_of(std::process::id()).saturating_sub(own_before));
        let (server_before, broker_before) = (cpu_of(server), broker.cpu());
        let pod = consume(folder.path(), mongo.uri(), &source, &broker, shape.name);
        let since = cluster_time(mongo.client()).await;
        let rate = consumed(&broker, shape.name, events, 0).await;
        let (server_spent, broker_spent) =
            (cpu_of(server).saturating_sub(server_before), broker.cpu().saturating_sub(broker_before));
        let (rss, pod_spent) = (pod.peak_rss_mb(), pod.cpu());
        assert_applied(&source, events).await;
        pod.stop().await;
        // The better of one before and one after: a ceiling.
        let most = before.max(ceiling(&raw, events, shape.each, &turns).await);
        let ratio = rate / most;
        let wrote = Wrote::by_the_oplog(mongo.client(), &views_of(&source), since).await;
        let own = Way { run: wrote.run(events).min(shape.each), inserts: true };
        let most_own = ceiling(&raw, events, shape.each, &own).await.max(ceiling(&raw, events, shape.each, &own).await);
        let ratio_own = rate / most_own;
        println!(
            "{:>8}: raw {most:>6.0}/s, applied {rate:>6.0}/s, ratio {ratio:.3}; its own statements {most_own:>6.0}/s, ratio {ratio_own:.3}; the pod has {rss:.0} MB at most",
            shape.name
        );
        println!(
            "          the pod's transactions: {}, with {} cursors inserted and {} updated",
            wrote.transactions, wrote.inserted, wrote.updated
        );
        println!(
            "          cpu each, in us: raw {:.1} (mongod) + {:.1}; applied {:.1} (mongod) + {:.1} (broker) + {:.1} (pod)",
            each(raw_server),
            each(raw_own),
            each(server_spent),
            each(broker_spent),
            each(pod_spent)
        );
        measured.push(Measured { rate, ratio, ratio_own, rss });
    }
    one_of_all(folder.path(), &mongo, &broker, events).await;
    let beside = beside_a_failing_one(folder.path(), &mongo, &broker, events).await;
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
    broker.kill().await;
}

async fn pid_of(server: &mongodb::Client) -> u32 {
    let status = server.database("admin").run_command(doc! { "serverStatus": 1 }).await.expect("a status");
    let pid = status.get("pid").and_then(|pid| pid.as_i64().or_else(|| pid.as_i32().map(i64::from)));
    pid.and_then(|pid| u32::try_from(pid).ok()).expect("a process's number")
}

/// Writes the events, the aggregates' by turns.
async fn backlog(source: &Database, count: u64, each: u64) {
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

fn aggregate(number: u64) -> String {
    format!("order-{number:06}")
}

/// A pod that only publishes, until all is there.
async fn publish(
    folder: &std::path::Path,
    uri: &str,
    source: &Database,
    broker: &BrokerProcess,
    shape: &Shape,
    events: u64,
) {
    let more = format!("producer: {{ start: beginning, sessions: \"{}\" }}\n", shape.sessions);
    let pod = PodProcess::start(folder, uri, source.name(), shape.name, broker, &more);
    published(broker, shape.name, events).await;
    pod.stop().await;
}

fn consume(folder: &std::path::Path, uri: &str, source: &Database, broker: &BrokerProcess, topic: &str) -> PodProcess {
    let settings = std::env::args().nth(2).map_or_else(String::new, |given| format!("consumer: {given}\n"));
    let more = format!("producer: {{ start: beginning }}\n{settings}{READ_MODELS}");
    PodProcess::start(folder, uri, source.name(), topic, broker, &more)
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

/// What transactions wrote of cursors.
#[derive(Default)]
struct Wrote {
    transactions: u64,
    inserted: u64,
    updated: u64,
}

impl Wrote {
    /// Of one pod, which wrote nothing else into that database.
    async fn by_the_oplog(client: &Client, views: &str, since: Timestamp) -> Self {
        let oplog = client.database("local").collection::<RawDocumentBuf>("oplog.rs");
        let cursors = format!("{views}.{CURSORS}");
        let ours = doc! { "ts": { "$gte": since }, "op": "c", "o.applyOps.ns": &cursors };
        let mut found = oplog.find(ours).await.expect("the oplog can be read");
        let mut wrote = Self::default();
        while let Some(entry) = found.next().await {
            wrote.transactions += 1;
            let entry = entry.expect("an entry");
            let operations = entry.get_document("o").and_then(|o| o.get_array("applyOps")).expect("a transaction's");
            for operation in operations.into_iter().filter_map(|operation| operation.ok()?.as_document()) {
                match (operation.get_str("ns"), operation.get_str("op")) {
                    (Ok(ns), Ok("i")) if ns == cursors => wrote.inserted += 1,
                    (Ok(ns), Ok("u")) if ns == cursors => wrote.updated += 1,
                    _ => {}
                }
            }
        }
        wrote
    }

    /// How many events there are for one write of a cursor.
    fn run(&self, events: u64) -> u64 {
        let cursors = self.inserted + self.updated;
        assert!(cursors > 0, "the pod wrote no cursors");
        (events + cursors / 2) / cursors
    }
}

async fn cluster_time(client: &Client) -> Timestamp {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.expect("an answer");
    let last = hello.get_document("lastWrite").and_then(|last| last.get_document("opTime")).expect("a member's");
    last.get_timestamp("ts").expect("a time")
}

/// One transaction's commands.
struct Raw {
    read: RawDocumentBuf,
    cursors: RawDocumentBuf,
    model: RawDocumentBuf,
}

/// How a ceiling is written.
struct Way {
    /// Events of one aggregate in one transaction.
    run: u64,
    /// Whether a cursor that is not there is inserted; if not, it is upserted.
    inserts: bool,
}

/// Events a second of the transactions alone.
async fn ceiling(database: &Database, events: u64, each: u64, way: &Way) -> f64 {
    database.drop().await.expect("an empty database");
    for collection in [CURSORS, MODEL] {
        database.create_collection(collection).await.expect("a collection");
    }
    let aggregates = events / each;
    // Disjoint, so that nobody waits for the other's documents.
    let shares =
        (0..CONNECTIONS).map(|number| aggregates * number / CONNECTIONS..aggregates * (number + 1) / CONNECTIONS);
    let shares: Vec<_> = shares.map(|share| Raw::all(share, each, way)).collect();
    let began = Instant::now();
    let workers = shares.into_iter().map(|share| tokio::spawn(transact(database.clone(), share)));
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("it ends");
    }
    events as f64 / began.elapsed().as_secs_f64()
}

async fn transact(database: Database, share: Vec<Raw>) {
    for raw in share {
        let mut session = database.client().start_session().causal_consistency(false).await.expect("a session");
        let begun = session.start_transaction().read_concern(ReadConcern::snapshot());
        begun.write_concern(WriteConcern::majority()).await.expect("a transaction");
        let Raw { read, cursors, model } = raw;
        for command in [read, cursors, model] {
            run(&database, &mut session, command).await;
        }
        session.commit_transaction().await.expect("committed");
    }
}

async fn run(database: &Database, session: &mut ClientSession, command: RawDocumentBuf) {
    let answer = database.run_raw_command(command).session(session).await.expect("an answer");
    assert!(answer.get_array("writeErrors").is_err(), "refused");
}

/// How often a group gets round the aggregates of its connection.
fn turns(aggregates: u64) -> u64 {
    (STATEMENTS * CONNECTIONS / aggregates).max(1)
}

impl Raw {
    fn all(aggregates: Range<u64>, each: u64, way: &Way) -> Vec<Self> {
        let (run, in_group) = (way.run, (STATEMENTS / way.run).max(1));
        let mut groups = vec![];
        for first in (1..=each).step_by(usize::try_from(run).expect("few")) {
            for from in aggregates.clone().step_by(usize::try_from(in_group).expect("few")) {
                let versions = first..=each.min(first + run - 1);
                groups.push(Self::of(from..aggregates.end.min(from + in_group), versions, way.inserts && first == 1));
            }
        }
        groups
    }

    fn of(aggregates: Range<u64>, versions: RangeInclusive<u64>, inserted: bool) -> Self {
        let id = |number| doc! { "pipeline": "many", "aggregate": aggregate(number) };
        let ids: Vec<Bson> = aggregates.clone().map(|number| Bson::Document(id(number))).collect();
        let last = *versions.end() as i64;
        let stand = |number| {
            // As long as a resume token of an insert.
            let position = format!("82{number:0170X}");
            doc! { "epoch": 1_i64, "position": position, "sequence": last, "eventId": ObjectId::new(), "format": 1_i64 }
        };
        let cursor = |number| doc! { "q": { "_id": id(number) }, "u": { "$set": stand(number) }, "upsert": true };
        let first_cursor = |number| {
            let mut document = doc! { "_id": id(number) };
            document.extend(stand(number));
            document
        };
        let cursors = if inserted {
            doc! { "insert": CURSORS, "documents": aggregates.clone().map(first_cursor).collect::<Vec<_>>() }
        } else {
            doc! { "update": CURSORS, "updates": aggregates.clone().map(cursor).collect::<Vec<_>>() }
        };
        let update = |number, version: u64| {
            let update = doc! { "$inc": { "events": 1, "total": 7 }, "$set": { "last": version as i64 } };
            doc! { "q": { "_id": aggregate(number) }, "u": update, "upsert": true }
        };
        let updates: Vec<_> =
            aggregates.clone().flat_map(|number| versions.clone().map(move |version| (number, version))).collect();
        let updates: Vec<_> = updates.into_iter().map(|(number, version)| update(number, version)).collect();
        let count = i64::try_from(ids.len()).expect("few");
        Self {
            read: raw(&doc! { "find": CURSORS, "filter": { "_id": { "$in": ids } }, "batchSize": count }),
            cursors: raw(&cursors),
            model: raw(&doc! { "update": MODEL, "updates": updates }),
        }
    }
}

fn raw(command: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(command).expect("it is BSON")
}

/// One session with everything: no shape to compare, but it must not stand still.
async fn one_of_all(folder: &std::path::Path, mongo: &testkit::mongo::Shared, broker: &BrokerProcess, events: u64) {
    let shape = Shape { name: "one", each: events, sessions: "aggregate" };
    let source = mongo.database(shape.name);
    backlog(&source, events, shape.each).await;
    publish(folder, mongo.uri(), &source, broker, &shape, events).await;
    let pod = consume(folder, mongo.uri(), &source, broker, shape.name);
    let rate = consumed(broker, shape.name, events, 0).await;
    let rss = pod.peak_rss_mb();
    assert_applied(&source, events).await;
    pod.stop().await;
    println!("     one: applied {rate:>6.0}/s; the pod has {rss:.0} MB at most");
}

/// The rate of the others while one document is held by somebody for as long as it takes: events of its aggregate fail all the time.
async fn beside_a_failing_one(
    folder: &std::path::Path,
    mongo: &testkit::mongo::Shared,
    broker: &BrokerProcess,
    events: u64,
) -> f64 {
    let shape = Shape { name: "failing", ..SHAPES[0] };
    let source = mongo.database(shape.name);
    backlog(&source, events, shape.each).await;
    publish(folder, mongo.uri(), &source, broker, &shape, events).await;
    let views = source.client().database(&views_of(&source));
    views.create_collection(MODEL).await.expect("a collection");
    let mut somebody = source.client().start_session().await.expect("a session");
    somebody.start_transaction().await.expect("a transaction");
    let held = doc! { "_id": aggregate(0) };
    views.collection::<Document>(MODEL).insert_one(held).session(&mut somebody).await.expect("held");
    let pod = consume(folder, mongo.uri(), &source, broker, shape.name);
    // All but the events of one aggregate.
    let rate = consumed(broker, shape.name, events, shape.each).await;
    somebody.abort_transaction().await.expect("let go");
    consumed(broker, shape.name, shape.each + 1, 0).await;
    assert_applied(&source, events).await;
    pod.stop().await;
    rate
}
