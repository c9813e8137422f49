//! How fast capture reads a backlog, beside a bare `aggregate().batch()` loop over the same one.
//!
//! `cargo run --release -p pipeline --example capture_rate -- [events]`

use std::time::Instant;

use futures_util::StreamExt;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use pipeline::capture::{Capture, Config, StartPosition};
use pipeline::checkpoint::CheckpointPhase;
use pipeline::source::SourceConfig;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 5;
const AGGREGATES: usize = 10_000;
/// Payloads that make documents of 158 bytes and of 1 KiB.
const PAYLOADS: [usize; 2] = [60, 926];

#[tokio::main]
async fn main() {
    let events = std::env::args().nth(1).map_or(200_000, |count| count.parse().expect("a number of events"));
    let database = testkit::mongo::shared().await.unwrap().database("capture_rate");
    for payload in PAYLOADS {
        let collection = database.collection::<Document>(&format!("events_{payload}"));
        let source = SourceConfig::events(database.name(), collection.name());
        let capture = || Capture::new(database.client(), source.clone(), Config::default());
        let start = capture().initial_phase(&StartPosition::Now).await.unwrap();
        let size = write(&collection, events, payload).await;
        let (mut bare, mut captured) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bare.push(rate(events, read_bare(&collection, &start, events)).await);
            captured.push(rate(events, read_captured(capture(), &start, events)).await);
        }
        let (bare, captured) = (median(bare), median(captured));
        println!("{size} B: bare {bare:.0}/s, captured {captured:.0}/s, ratio {:.3}", captured / bare);
    }
}

async fn write(collection: &Collection<Document>, events: usize, payload: usize) -> usize {
    let event = |n: usize| {
        let aggregate = format!("aggregate-{:08}", n % AGGREGATES);
        doc! { "aggregateId": aggregate, "type": "Happened", "version": (n / AGGREGATES) as i32, "payload": "x".repeat(payload) }
    };
    for begin in (0..events).step_by(1000) {
        collection.insert_many((begin..events.min(begin + 1000)).map(event)).await.unwrap();
    }
    let one = collection.find_one(doc! {}).await.unwrap().expect("there are events");
    one.to_vec().expect("a document").len()
}

async fn rate(events: usize, reading: impl Future<Output = ()>) -> f64 {
    let began = Instant::now();
    reading.await;
    events as f64 / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn read_bare(collection: &Collection<Document>, start: &CheckpointPhase, events: usize) {
    let CheckpointPhase::Stream { token } = start else { unreachable!("a pipeline that starts now streams") };
    let stages =
        [doc! { "$changeStream": { "startAfter": token.to_document() } }, doc! { "$changeStreamSplitLargeEvent": {} }];
    let asked = collection.aggregate(stages).batch_size(Config::default().batch_size.get());
    let mut batches = asked.read_concern(ReadConcern::majority()).batch().await.unwrap();
    let mut read = 0;
    while read < events {
        let batch = batches.next().await.unwrap().unwrap();
        read += batch.doc_slices().unwrap().into_iter().count();
    }
}

async fn read_captured(capture: Capture, start: &CheckpointPhase, events: usize) {
    let stop = CancellationToken::new();
    let (mut intake, reading) = capture.read(start.clone(), stop.clone());
    let running = tokio::spawn(reading);
    let mut read = 0;
    while read < events {
        let batch = intake.next().await.expect("capture goes on");
        read += batch.iter().filter(|captured| captured.event().is_some()).count();
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}
