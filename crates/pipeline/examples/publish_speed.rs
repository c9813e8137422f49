//! How fast one publisher is, and what an event costs it: a backlog out of memory, the real broker in a process of its own with its journal on
//! disk, the real mongod for the checkpoint.
//!
//! `cargo run --release -p pipeline --example publish_speed -- [events] [bytes] [aggregates]`

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::core::{EntityDefinition, SubscriptionDescription, TopicDescription};
use broker::{Broker, StorageLocation};
use lease::CandidateId;
use mongodb::bson::{Bson, RawDocumentBuf, Timestamp, doc, oid::ObjectId};
use pipeline::capture::CaptureItem;
use pipeline::checkpoint::{Checkpoint, CheckpointClaim, CheckpointStore, MongoCheckpointStore};
use pipeline::event::{AggregateId, ChangeEvent, Namespace, Operation, ResumeToken, Term};
use pipeline::publish::{
    CaptureInput, Config, Handle, PublishClaim, Publisher, PublisherStores, RejectedStore, ServiceBusTopic,
};
use pipeline::stored::ClaimCheckStore;
use servicebus::Client;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [role, folder] = &arguments[..]
        && role == "broker"
    {
        return runtime.block_on(serve(Path::new(folder)));
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (events, bytes, aggregates) = (number(0, 300_000)?, number(1, 158)?, number(2, 10_000)?);
    runtime.block_on(measure(events, usize::try_from(bytes)?, aggregates))
}

/// The broker: a partitioned topic with duplicate detection and a subscription with sessions, as the pipeline has them.
async fn serve(folder: &Path) -> Result<(), Failure> {
    let mut config = broker::Config::new("127.0.0.1:0".parse()?, StorageLocation::Folder(folder.to_owned()));
    let mut topic = TopicDescription::default();
    topic.ingress.enable_partitioning = true;
    topic.ingress.requires_duplicate_detection = true;
    let mut subscription = SubscriptionDescription::default();
    subscription.egress.requires_session = true;
    config.entities = vec![
        ("events".to_owned(), EntityDefinition::Topic(topic)),
        ("events/Subscriptions/read-models".to_owned(), EntityDefinition::Subscription(subscription)),
    ];
    let broker = Broker::start(config).await?;
    println!("{}", broker.connection_string());
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    broker.stop().await;
    Ok(())
}

/// Ends with this process: its standard input is closed then.
struct Served(Child, String);

fn start_broker(folder: &Path) -> Result<Served, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("broker").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
    Ok(Served(child, line.trim().to_owned()))
}

async fn measure(events: u64, bytes: usize, aggregates: u64) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let Served(mut child, connection_string) = start_broker(folder.path())?;
    let database = testkit::mongo::shared().await?.database("publish_speed");
    let checkpoints = Arc::new(MongoCheckpointStore::new(&database, "speed", "events:shop.events"));
    let claim = CheckpointClaim { term: Term::new(1), claimant: CandidateId::new(1), pod_id: "speed".into() };
    let Checkpoint { epoch, replay, .. } = checkpoints.claim(&claim).await?;
    let bus = Client::new(&connection_string, servicebus::Config::default())?;
    let topic = ServiceBusTopic::new(bus, "events", "read-models", Arc::new(|| true));
    let (handle, config) = (Handle::default(), Config::default());
    let window = NonZeroUsize::get(config.window_events);
    let stores = PublisherStores {
        checkpoints,
        claim_checks: ClaimCheckStore::new(&database, config.keep_oversize),
        rejected: RejectedStore::new(&database, "speed"),
    };
    let publisher = Publisher::new(config, PublishClaim { claim, epoch, replay }, topic, stores, handle.clone());

    let backlog = Backlog::new(events, bytes, aggregates);
    let made = { Backlog::new(20_000.min(events), bytes, aggregates).cost().await };
    let (cpu, started) = (cpu_time()?, Instant::now());
    let ended = publisher.run(backlog, std::future::pending(), std::future::pending()).await?;
    let (took, spent) = (started.elapsed(), cpu_time()? - cpu);
    let counts = handle.counts();
    child.stdin.take();
    child.wait()?;

    let each = |span: Duration| span.as_secs_f64() * 1e6 / events as f64;
    println!("{ended:?}: {events} events of {bytes} bytes over {aggregates} aggregates, window {window}");
    println!(
        "  {:.0} events/s, {:.2} per transfer",
        events as f64 / took.as_secs_f64(),
        counts.published as f64 / counts.transfers as f64
    );
    println!("  {:.2} µs of CPU an event here, {:.2} of them to make the event up", each(spent), made);
    println!("  {} saves, {} MB at most resident", counts.saves, peak_memory()? / 1024);
    Ok(())
}

/// Events made up as they are asked for, in batches as capture hands them on.
struct Backlog {
    left: u64,
    number: u64,
    aggregates: u64,
    namespace: Arc<Namespace>,
    filler: String,
}

const BATCH: u64 = 500;

impl Backlog {
    fn new(left: u64, bytes: usize, aggregates: u64) -> Self {
        // An `_id`, an aggregate id, a type and a version take about 90 bytes.
        let filler = "x".repeat(bytes.saturating_sub(100));
        Self { left, number: 0, aggregates, namespace: Arc::new(Namespace::new("shop", "events")), filler }
    }

    fn event(&mut self) -> CaptureItem {
        self.number += 1;
        let number = self.number;
        // Spread as a hash would.
        let aggregate = format!("order-{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.aggregates);
        let key = ObjectId::new();
        let document =
            doc! { "_id": key, "aggregateId": &aggregate, "type": "ItemAdded", "version": 1_i64, "f": &self.filler };
        let data = format!(
            "82690B1C2D{number:016X}2B042C0100296E5A1004A2D0E2C5B0F34D3E8A3F1B5C7D9E0F2146645F69640064{}",
            key.to_hex()
        );
        CaptureItem::Change(ChangeEvent {
            token: ResumeToken::try_from(doc! { "_data": data }).expect("a token"),
            operation: Operation::Insert,
            namespace: Arc::clone(&self.namespace),
            key: Bson::ObjectId(key),
            aggregate: AggregateId::new(aggregate.into()),
            event_type: Some("ItemAdded".into()),
            sequence: Some(1),
            cluster_time: Some(Timestamp { time: 1_700_000_000, increment: 1 }),
            wall_time: None,
            document: RawDocumentBuf::try_from(&document).expect("a document"),
        })
    }

    /// Microseconds it takes to make one event up.
    async fn cost(mut self) -> f64 {
        let (started, count) = (Instant::now(), self.left);
        while self.next().await.is_some() {}
        started.elapsed().as_secs_f64() * 1e6 / count as f64
    }
}

impl CaptureInput for Backlog {
    async fn next(&mut self) -> Option<Vec<CaptureItem>> {
        let count = self.left.min(BATCH);
        self.left -= count;
        (count > 0).then(|| (0..count).map(|_| self.event()).collect())
    }
}

/// Of this process, so neither the broker's nor mongod's.
fn cpu_time() -> Result<Duration, Failure> {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

/// Kilobytes.
fn peak_memory() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
