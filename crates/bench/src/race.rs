//! Cold starts: many contenders, each with its own thread, runtime and client, begin at one moment on a lease that does
//! not exist yet.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use lease::mongo::{COLLECTION, LeaseName};
use lease::{Candidate, Config, RunningElector, TermOutcome};
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, ReadConcern};
use mongodb::{Client, Database};
use testkit::wait::wait_for;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// What one round showed.
#[derive(Debug)]
pub struct Round {
    /// Terms that were begun, with the pod that began them.
    pub terms: Vec<(u64, String)>,
    /// Log lines at warning or error level.
    pub complaints: Vec<String>,
    /// Entries of the lease in the oplog, and how many heartbeats its holder wrote.
    pub oplog_entries: u64,
    pub heartbeats: u64,
    pub holder: Option<String>,
}

impl Round {
    /// What is wrong with it, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        if self.terms.len() != 1 {
            Some("not exactly one leader")
        } else if self.holder.as_ref() != Some(&self.terms[0].1) {
            Some("the lease names somebody else")
        } else if !self.complaints.is_empty() {
            Some("something was logged as a warning or an error")
        } else if self.oplog_entries != self.heartbeats {
            Some("a standby left a trace in the oplog")
        } else {
            None
        }
    }
}

/// Lets `contenders` race once for a new lease, and then lets the losers look at it for `polls` times their interval.
pub async fn cold_start(client: &ClientOptions, database: &Database, contenders: usize, polls: u32) -> Round {
    cold_start_with(client, database, contenders, polls, async |_| {}).await
}

/// As [`cold_start`], with somebody who does something while the losers look: given the lease's key, to show that a race hears it.
pub async fn cold_start_with(
    client: &ClientOptions,
    database: &Database,
    contenders: usize,
    polls: u32,
    meddle: impl AsyncFnOnce(&str),
) -> Round {
    listen();
    let round = format!("race-{:08x}", rand::random::<u32>());
    // Losers look often, so that traces they left would be many; otherwise as in production.
    let config = Config { poll: Some(Duration::from_millis(20)), ..Config::default() };
    let terms = Arc::<Mutex<Vec<(u64, String)>>>::default();
    let stop = CancellationToken::new();
    let running: Vec<RunningElector> = (0..contenders)
        .map(|number| {
            let name = LeaseName {
                database: database.name().into(),
                key: round.clone(),
                pod_id: format!("{round}-{number}"),
                fingerprint: "race".into(),
            };
            start(Candidate { name, config: config.clone(), client: client.clone() }, &terms, stop.clone())
        })
        .collect();
    wait_for("a leader", Duration::from_secs(30), async || {
        let leaders = running.iter().filter(|running| running.handle().is_leader()).count();
        if leaders > 0 { Ok(()) } else { Err("nobody leads") }
    })
    .await;
    tokio::time::sleep(config.poll() * polls).await;
    meddle(&round).await;
    let (oplog_entries, heartbeats, holder) = traces(database, &round).await;
    stop.cancel();
    for running in running {
        running.ended().await.expect("the store is fit for leases");
    }
    // What was begun after the first was released is not this race's.
    let terms = terms.lock().expect("no one panics while holding it").clone();
    Round { terms, complaints: complaints(&round), oplog_entries, heartbeats, holder }
}

/// ttl 2 s.
pub fn short() -> Config {
    Config {
        ttl: Duration::from_secs(2),
        renew_deadline: Duration::from_millis(1300),
        heartbeat: Duration::from_millis(500),
        ..Config::default()
    }
}

fn start(candidate: Candidate, terms: &Arc<Mutex<Vec<(u64, String)>>>, stop: CancellationToken) -> RunningElector {
    let (terms, pod_id, stopped) = (Arc::clone(terms), candidate.name.pod_id.clone(), stop.clone());
    let work = move |leadership: lease::Leadership| {
        if !stopped.is_cancelled() {
            let mut terms = terms.lock().expect("no one panics while holding it");
            terms.push((leadership.term().get(), pod_id.clone()));
        }
        async move {
            leadership.wait_for_stop().await;
            TermOutcome::Done
        }
    };
    candidate.start(work, stop.cancelled_owned()).expect("the configuration is valid")
}

/// Everything the contenders left in the oplog, beside what the lease itself says.
async fn traces(database: &Database, key: &str) -> (u64, u64, Option<String>) {
    let leases = database.collection::<Document>(COLLECTION);
    let majority = leases.find_one(doc! { "_id": key }).read_concern(ReadConcern::majority());
    let lease = majority.await.expect("the lease can be read").expect("there is a lease");
    let heartbeats = lease.get_i64("heartbeat").expect("a lease has a heartbeat");
    let oplog = database.client().database("local").collection::<Document>("oplog.rs");
    let of_this_lease = doc! { "$or": [{ "o._id": key }, { "o2._id": key }] };
    let mut filter = doc! { "ns": format!("{}.{COLLECTION}", database.name()) };
    filter.extend(of_this_lease);
    let entries: Vec<Document> =
        oplog.find(filter).await.expect("the oplog can be read").try_collect().await.expect("the oplog can be read");
    // The holder goes on while we look: entries after the lease was read do not count.
    let written = |entry: &Document| -> i64 {
        let values = [entry.get_document("o"), entry.get_document("o").and_then(|o| o.get_document("diff"))];
        let found = values.into_iter().flatten().flat_map(|values| {
            let nested = ["u", "i"].into_iter().filter_map(|part| values.get_document(part).ok());
            std::iter::once(values)
                .chain(nested)
                .filter_map(|values| values.get_i64("heartbeat").ok())
                .collect::<Vec<_>>()
        });
        found.max().unwrap_or(0)
    };
    let counted = entries.iter().filter(|entry| written(entry) <= heartbeats).count();
    let holder = lease.get_str("leaderId").ok().map(str::to_owned);
    (counted as u64, u64::try_from(heartbeats).unwrap_or(0), holder)
}

/// A client's options for a race.
pub async fn options(uri: &str) -> ClientOptions {
    ClientOptions::parse(uri).await.expect("the URI is valid")
}

pub fn database(options: &ClientOptions, name: &str) -> Database {
    Client::with_options(options.clone()).expect("the URI is valid").database(name)
}

/// Warnings and errors of all contenders in this process, by pod id.
static COMPLAINTS: LazyLock<Mutex<BTreeMap<String, Vec<String>>>> = LazyLock::new(Mutex::default);

fn complaints(round: &str) -> Vec<String> {
    let all = COMPLAINTS.lock().expect("no one panics while holding it");
    all.iter().filter(|(pod, _)| pod.starts_with(round)).flat_map(|(_, lines)| lines.clone()).collect()
}

/// Makes this process remember what is logged. Nothing happens the second time.
fn listen() {
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Ear));
}

struct Ear;

#[derive(Default)]
struct Heard {
    pod_id: String,
    line: String,
}

impl Visit for Heard {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "pod_id" {
            value.clone_into(&mut self.pod_id);
        }
        self.line += &format!("{field}={value} ");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.line += &format!("{field}={value:?} ");
    }
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut heard = Heard::default();
        event.record(&mut heard);
        let mut all = COMPLAINTS.lock().expect("no one panics while holding it");
        all.entry(heard.pod_id).or_default().push(heard.line);
    }
}
