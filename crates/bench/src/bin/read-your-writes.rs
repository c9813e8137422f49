//! How much later than the commit of the read model a request that waits for an event (`/api/applied`) is answered.
//!
//! `cargo xtask bench read-your-writes [-- EVENTS]`. Real processes, release, one machine: mongod, the durable broker and one pod. One event at a time is
//! inserted. Beside the request, the read model is polled without a pause: `beyond_apply` is the time from the first poll that finds the event to the
//! answer, and so what a client pays for not polling itself. `applied_before` is a request for an event that is applied already.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bench::latency::LatencySummary;
use bench::processes::{MeasuredPod, start_broker_with_topics};
use bench::source_events::events_collection;
use clap::{Parser, value_parser};
use local_cluster::{TopicEntity, send_request};
use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database, IndexModel};

const TOPIC: &str = "read-your-writes";
const TOKEN: &str = "token-of-the-bench";
const AGGREGATES: i64 = 20;
const WARM_UP: i64 = 50;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Measure requests that wait for an event
#[derive(Parser)]
struct Args {
    /// Events to wait for
    #[arg(default_value_t = 1_000, value_parser = value_parser!(i64).range(10..))]
    events: i64,
}

struct WaitBench {
    events: Collection<Document>,
    read_model: Collection<Document>,
    pod: SocketAddr,
}

/// Times of one event, from the acknowledged insert on.
struct WaitTimes {
    applied: Duration,
    answered: Duration,
    answered_again: Duration,
}

#[tokio::main]
async fn main() {
    let Args { events } = Args::parse();
    let folder = tempfile::tempdir().expect("a folder");
    let broker = start_broker_with_topics(folder.path(), &[TopicEntity::for_pipeline(TOPIC.to_owned(), false)]).await;
    let mongo = testkit::mongo::shared().await.expect("a mongod");
    let source = mongo.database("wait");
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    let collection = events_collection(&source);
    collection.create_index(index).await.expect("an index");
    let address = free_address();
    let yaml = format!(
        "producer: {{ start: beginning }}\nadmin: {{ listen: \"{address}\", token: {TOKEN} }}\n\
         read_models:\n  totals: {{ when: {{ ItemAdded: {{ $inc: {{ events: 1 }}, $set: {{ last: $$event.version }} }} }} }}\n"
    );
    let pod = MeasuredPod::start(folder.path(), mongo.uri(), source.name(), TOPIC, &broker, &yaml);
    let views: Database = source.client().database(&format!("{}_views", source.name()));
    let bench = WaitBench { events: collection, read_model: views.collection("totals"), pod: address };
    let mut times = vec![];
    for number in 0..WARM_UP + events {
        let measured = bench.measure(number).await;
        times.extend((number >= WARM_UP).then_some(measured));
    }
    pod.stop().await;
    views.drop().await.expect("the read models are dropped");
    let summary = |of: fn(&WaitTimes) -> Duration| times.iter().map(of).collect::<LatencySummary>();
    let applied = summary(|times| times.applied);
    let beyond = summary(|times| times.answered.saturating_sub(times.applied));
    let again = summary(|times| times.answered_again);
    println!("insert to read model: {applied}\nanswer after that:    {beyond}\nof an applied event:  {again}");
    let json = serde_json::json!({
        "bench": "read-your-writes", "applied": applied.json(), "beyond_apply": beyond.json(), "applied_before": again.json(),
    });
    println!("{json}");
    let mut broker = broker;
    broker.kill().await;
}

impl WaitBench {
    async fn measure(&self, number: i64) -> WaitTimes {
        let (aggregate, version) = (format!("order-{}", number % AGGREGATES), number / AGGREGATES + 1);
        let event =
            doc! { "aggregateId": &aggregate, "version": version, "type": "ItemAdded", "payload": { "price": 7 } };
        self.events.insert_one(event).await.expect("the event is written");
        let began = Instant::now();
        let (applied, answered) = tokio::join!(self.poll(&aggregate, version, began), async {
            self.request(&aggregate, version).await;
            began.elapsed()
        });
        let began = Instant::now();
        self.request(&aggregate, version).await;
        WaitTimes { applied, answered, answered_again: began.elapsed() }
    }

    /// Until the read model has the event.
    async fn poll(&self, aggregate: &str, version: i64, began: Instant) -> Duration {
        let wanted = doc! { "_id": aggregate, "last": { "$gte": version } };
        while began.elapsed() < TIMEOUT {
            let found = self.read_model.find_one(wanted.clone()).read_concern(ReadConcern::majority()).await;
            if found.expect("MongoDB responds").is_some() {
                return began.elapsed();
            }
        }
        panic!("the event is not applied after {TIMEOUT:?}");
    }

    /// Waits until the pod says that the event is applied.
    async fn request(&self, aggregate: &str, version: i64) {
        let path = format!("/api/applied?aggregate={aggregate}&sequence={version}&timeout=30");
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
        );
        loop {
            match send_request(self.pod, &request).await {
                Ok((head, body)) => {
                    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
                    return;
                }
                // The pod starts.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// Nobody else takes it in the next moment, most likely.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket has an address")
}
