//! Cold starts: many candidates, each with its own thread, runtime and client, start at once on a lease that does not exist
//! yet.

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

/// The result of one cold start.
#[derive(Debug)]
pub struct ColdStart {
    /// The terms that started, and their pods.
    pub terms: Vec<(u64, String)>,
    /// Log lines at warning or error level.
    pub warnings: Vec<String>,
    /// The oplog entries of the lease, and the number of heartbeats its holder wrote.
    pub oplog_entries: u64,
    pub heartbeats: u64,
    pub holder: Option<String>,
}

impl ColdStart {
    /// What is wrong, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        if self.terms.len() != 1 {
            Some("not exactly one leader")
        } else if self.holder.as_ref() != Some(&self.terms[0].1) {
            Some("the lease names another pod")
        } else if !self.warnings.is_empty() {
            Some("a warning or an error was logged")
        } else if self.oplog_entries != self.heartbeats {
            Some("a standby wrote to the oplog")
        } else {
            None
        }
    }
}

/// Starts `candidates` at once on a new lease, and then lets the standbys poll it `polls` times.
pub async fn cold_start(client: &ClientOptions, database: &Database, candidates: usize, polls: u32) -> ColdStart {
    cold_start_with(client, database, candidates, polls, async |_| {}).await
}

/// Like [`cold_start`]; `interfere` receives the lease's key while the standbys poll, to show that the test finds a stray write.
pub async fn cold_start_with(
    client: &ClientOptions,
    database: &Database,
    candidates: usize,
    polls: u32,
    interfere: impl AsyncFnOnce(&str),
) -> ColdStart {
    record_warnings();
    let round = format!("cold-start-{:08x}", rand::random::<u32>());
    // Standbys poll often, so that any write of theirs would show up many times; otherwise as in production.
    let config = Config { poll: Some(Duration::from_millis(20)), ..Config::default() };
    let terms = Arc::<Mutex<Vec<(u64, String)>>>::default();
    let stop = CancellationToken::new();
    let running: Vec<RunningElector> = (0..candidates)
        .map(|number| {
            let name = LeaseName {
                database: database.name().into(),
                key: round.clone(),
                pod_id: format!("{round}-{number}"),
                fingerprint: "cold-start".into(),
            };
            start(Candidate { name, config: config.clone(), client: client.clone() }, &terms, stop.clone())
        })
        .collect();
    wait_for("a leader", Duration::from_secs(30), async || {
        let leaders = running.iter().filter(|running| running.handle().is_leader()).count();
        if leaders > 0 { Ok(()) } else { Err("no pod leads") }
    })
    .await;
    tokio::time::sleep(config.poll() * polls).await;
    interfere(&round).await;
    let (oplog_entries, heartbeats, holder) = read_oplog_and_lease(database, &round).await;
    stop.cancel();
    for running in running {
        running.join().await.expect("the store is safe for leases");
    }
    // Terms that start after the first release do not count.
    let terms = terms.lock().expect("no thread panics while it holds the lock").clone();
    ColdStart { terms, warnings: warnings(&round), oplog_entries, heartbeats, holder }
}

/// A configuration with a ttl of 2 s.
pub fn short_ttl() -> Config {
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
            let mut terms = terms.lock().expect("no thread panics while it holds the lock");
            terms.push((leadership.term().get(), pod_id.clone()));
        }
        async move {
            leadership.wait_for_stop().await;
            TermOutcome::Done
        }
    };
    candidate.start(work, stop.cancelled_owned()).expect("the configuration is valid")
}

/// Counts the candidates' oplog entries, and reads the heartbeat and holder of the lease.
async fn read_oplog_and_lease(database: &Database, key: &str) -> (u64, u64, Option<String>) {
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
    // The holder keeps renewing: entries after the lease was read do not count.
    let written = |entry: &Document| -> i64 {
        // An oplog entry is a whole document (insert) or a diff with inserted (`i`) and updated (`u`) fields.
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

/// Client options for a cold start.
pub async fn options(uri: &str) -> ClientOptions {
    ClientOptions::parse(uri).await.expect("the URI is valid")
}

pub fn database(options: &ClientOptions, name: &str) -> Database {
    Client::with_options(options.clone()).expect("the URI is valid").database(name)
}

/// Warnings and errors of all candidates in this process, by pod id.
static WARNINGS: LazyLock<Mutex<BTreeMap<String, Vec<String>>>> = LazyLock::new(Mutex::default);

fn warnings(round: &str) -> Vec<String> {
    let all = WARNINGS.lock().expect("no thread panics while it holds the lock");
    all.iter().filter(|(pod, _)| pod.starts_with(round)).flat_map(|(_, lines)| lines.clone()).collect()
}

/// Records warnings and errors of this process. A second call does nothing.
fn record_warnings() {
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(WarningRecorder));
}

struct WarningRecorder;

#[derive(Default)]
struct WarningEvent {
    pod_id: String,
    line: String,
}

impl Visit for WarningEvent {
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

impl<S: Subscriber> Layer<S> for WarningRecorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut recorded = WarningEvent::default();
        event.record(&mut recorded);
        let mut all = WARNINGS.lock().expect("no thread panics while it holds the lock");
        all.entry(recorded.pod_id).or_default().push(recorded.line);
    }
}
