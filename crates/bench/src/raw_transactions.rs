//! The transactions of a consuming pod without the pod: prepared statements only. The baseline of the consumer bench.
//!
//! Each transaction reads the cursors of its aggregates, writes them, writes the read model and commits with majority. Where an event is the first of
//! its aggregate, which its sequence says, the cursor is inserted without a read, as the pod does it.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use mongodb::options::{ReadConcern, WriteConcern};
use mongodb::{Client, ClientSession, Database};

use local_cluster::usage::cpu_time;

/// Like the groups of the applier.
const STATEMENTS: u64 = 1_000;
/// Numbers of connections that are tried: mongod serves more transactions side by side until its cores are busy.
pub const CONNECTIONS: [u64; 3] = [1, 2, 4];
const CURSORS: &str = "_headwater_cursors";
pub const MODEL: &str = "totals";

/// The events of one transaction: aggregate and version.
pub type EventGroup = Vec<(u64, u64)>;

/// One transaction's commands.
struct TransactionCommands {
    /// `None` if all aggregates are new.
    read: Option<RawDocumentBuf>,
    cursors: Vec<RawDocumentBuf>,
    model: RawDocumentBuf,
}

/// The rate of the transactions alone, and their CPU time.
#[derive(Clone, Copy, Debug)]
pub struct TransactionRate {
    /// Events a second.
    pub rate: f64,
    pub server: Duration,
    pub own: Duration,
}

/// Runs the transactions in an empty database; `server` is the pid of mongod.
pub async fn measure_transactions(database: &Database, server: u32, groups: &[Vec<EventGroup>]) -> TransactionRate {
    database.drop().await.expect("an empty database");
    for collection in [CURSORS, MODEL] {
        database.create_collection(collection).await.expect("a collection");
    }
    let events: usize = groups.iter().flatten().map(Vec::len).sum();
    let shares: Vec<Vec<TransactionCommands>> =
        groups.iter().map(|groups| groups.iter().map(TransactionCommands::new).collect()).collect();
    let (server_before, own_before) = (cpu_time(server), cpu_time(std::process::id()));
    let began = Instant::now();
    let workers = shares.into_iter().map(|share| tokio::spawn(run_transactions(database.clone(), share)));
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("it ends");
    }
    TransactionRate {
        rate: events as f64 / began.elapsed().as_secs_f64(),
        server: cpu_time(server).saturating_sub(server_before),
        own: cpu_time(std::process::id()).saturating_sub(own_before),
    }
}

async fn run_transactions(database: Database, share: Vec<TransactionCommands>) {
    for raw in share {
        let mut session = database.client().start_session().causal_consistency(false).await.expect("a session");
        let begun = session.start_transaction().read_concern(ReadConcern::snapshot());
        begun.write_concern(WriteConcern::majority()).await.expect("a transaction");
        let TransactionCommands { read, cursors, model } = raw;
        for command in read.into_iter().chain(cursors).chain([model]) {
            run(&database, &mut session, command).await;
        }
        session.commit_transaction().await.expect("committed");
    }
}

async fn run(database: &Database, session: &mut ClientSession, command: RawDocumentBuf) {
    let answer = database.run_raw_command(command).session(session).await.expect("an answer");
    assert!(answer.get_array("writeErrors").is_err(), "refused");
}

/// The events in write order, in full groups, with an equal share of the aggregates per connection.
pub fn groups_as_written(events: u64, each: u64, connections: u64) -> Vec<Vec<EventGroup>> {
    let aggregates = events / each;
    let share = |number: u64| aggregates * number / connections..aggregates * (number + 1) / connections;
    let of_connection = |number| {
        let events: Vec<_> =
            (1..=each).flat_map(|version| share(number).map(move |aggregate| (aggregate, version))).collect();
        events.chunks(usize::try_from(STATEMENTS).expect("few")).map(<[_]>::to_vec).collect()
    };
    (0..connections).map(of_connection).collect()
}

impl TransactionCommands {
    fn new(group: &EventGroup) -> Self {
        // One cursor write per aggregate: its version before and after.
        let mut versions: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (aggregate, version) in group {
            versions.entry(*aggregate).or_insert((version - 1, *version)).1 = *version;
        }
        let mut seen = HashSet::new();
        let aggregates: Vec<u64> = group.iter().map(|event| event.0).filter(|it| seen.insert(*it)).collect();
        let id = |number| doc! { "pipeline": "many", "aggregate": aggregate(number) };
        let cursor_fields = |number| {
            // The length of an insert's resume token.
            let position = format!("82{number:0170X}");
            let sequence = i64::try_from(versions[&number].1).expect("a version");
            doc! { "epoch": 1_i64, "position": position, "sequence": sequence, "eventId": ObjectId::new(), "format": 1_i64 }
        };
        let changed =
            |number| doc! { "q": { "_id": id(number) }, "u": { "$set": cursor_fields(number) }, "upsert": true };
        let inserted = |number| {
            let mut document = doc! { "_id": id(number) };
            document.extend(cursor_fields(number));
            document
        };
        let (new, known): (Vec<u64>, Vec<u64>) = aggregates.into_iter().partition(|number| versions[number].0 == 0);
        let ids: Vec<Bson> = known.iter().map(|number| Bson::Document(id(*number))).collect();
        let mut cursors = vec![];
        if !new.is_empty() {
            let documents: Vec<_> = new.into_iter().map(inserted).collect();
            cursors.push(raw(&doc! { "insert": CURSORS, "documents": documents }));
        }
        if !known.is_empty() {
            let updates: Vec<_> = known.into_iter().map(changed).collect();
            cursors.push(raw(&doc! { "update": CURSORS, "updates": updates }));
        }
        let update = |(number, version): &(u64, u64)| {
            let update = doc! { "$inc": { "events": 1, "total": 7 }, "$set": { "last": *version as i64 } };
            doc! { "q": { "_id": aggregate(*number) }, "u": update, "upsert": true }
        };
        let updates: Vec<_> = group.iter().map(update).collect();
        let count = i64::try_from(ids.len()).expect("few");
        let read = doc! { "find": CURSORS, "filter": { "_id": { "$in": ids } }, "batchSize": count };
        Self {
            read: (count > 0).then(|| raw(&read)),
            cursors,
            model: raw(&doc! { "update": MODEL, "updates": updates }),
        }
    }
}

fn raw(command: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(command).expect("it is BSON")
}

/// The writes of a pod's transactions, in order.
#[derive(Default)]
pub struct OplogSummary {
    pub transactions: u64,
    pub cursors_inserted: u64,
    pub cursors_updated: u64,
    /// The aggregate of each statement on the read model.
    statements: Vec<u64>,
}

impl OplogSummary {
    /// Reads the oplog. Only one pod may have written into that database.
    pub async fn from_oplog(client: &Client, views: &str, since: Timestamp) -> Self {
        let oplog = client.database("local").collection::<RawDocumentBuf>("oplog.rs");
        let (cursors, model) = (format!("{views}.{CURSORS}"), format!("{views}.{MODEL}"));
        let ours = doc! { "ts": { "$gte": since }, "op": "c", "o.applyOps.ns": &cursors };
        let mut found = oplog.find(ours).await.expect("the oplog can be read");
        let mut summary = Self::default();
        while let Some(entry) = found.next().await {
            summary.transactions += 1;
            let entry = entry.expect("an entry");
            let operations = entry.get_document("o").and_then(|o| o.get_array("applyOps")).expect("a transaction's");
            for operation in operations.into_iter().filter_map(|operation| operation.ok()?.as_document()) {
                match (operation.get_str("ns"), operation.get_str("op")) {
                    (Ok(ns), Ok("i")) if ns == cursors => summary.cursors_inserted += 1,
                    (Ok(ns), Ok("u")) if ns == cursors => summary.cursors_updated += 1,
                    (Ok(ns), Ok(op)) if ns == model => {
                        let document = operation.get_document(if op == "i" { "o" } else { "o2" });
                        let id = document.and_then(|document| document.get_str("_id")).expect("an aggregate's");
                        summary.statements.push(parse_number(id));
                    }
                    _ => {}
                }
            }
        }
        summary
    }

    /// The same events per connection, in the same order, in full groups.
    pub fn groups(&self, aggregates: u64, connections: u64) -> Vec<Vec<EventGroup>> {
        let mut versions = vec![0; usize::try_from(aggregates).expect("few")];
        let mut of_connection = vec![vec![]; usize::try_from(connections).expect("few")];
        for aggregate in &self.statements {
            let version = &mut versions[usize::try_from(*aggregate).expect("few")];
            *version += 1;
            // Disjoint, so that no connection waits for a document of another.
            of_connection[usize::try_from(aggregate % connections).expect("few")].push((*aggregate, *version));
        }
        let full = |events: Vec<(u64, u64)>| {
            events.chunks(usize::try_from(STATEMENTS).expect("few")).map(<[_]>::to_vec).collect()
        };
        of_connection.into_iter().map(full).collect()
    }
}

pub fn aggregate(number: u64) -> String {
    format!("order-{number:06}")
}

fn parse_number(aggregate: &str) -> u64 {
    aggregate.strip_prefix("order-").and_then(|number| number.parse().ok()).expect("one of ours")
}
