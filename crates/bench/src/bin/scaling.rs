//! What an event costs as one dimension grows: number of events, aggregates, size of an event, pods, read models.
//!
//! `cargo xtask bench scaling [-- --cells aggregates,pods]`. Real processes, release, one machine: mongod, the durable broker, pods, and writers in this
//! process. Every cell has a new pipeline and runs once: a warm-up of up to 2,000 events, then its events, from the first insert to the last one in the
//! read model. Where nothing else is stated, a cell has 200,000 events of 200 bytes over 10,000 aggregates, one pod and one read model.
//!
//! `factor` is the CPU time per event of pods, broker and mongod, relative to the first cell of the dimension. For sizes it is also given per byte, for
//! read models per statement.

use std::net::SocketAddr;
use std::time::Duration;

use bench::end_to_end::{
    AppliedCounter, BenchCluster, BenchSystem, EventShape, LoadSample, PipelineNames, SustainedLoad,
};
use bench::measurements::BenchReport;
use clap::Parser;
use local_cluster::{LeaseTimings, TopicEntity};
use serde_json::{Value, json};

const DIMENSIONS: [&str; 5] = ["events", "aggregates", "size", "pods", "read-models"];
const WARM_UP: u64 = 2_000;
const WINDOW: u64 = 20_000;
/// Events that are written and not yet applied may take this much.
const WINDOW_BYTES: u64 = 64 << 20;

/// Measure the cost of an event as one dimension grows
#[derive(Parser)]
struct Args {
    /// Dimensions to measure: events, aggregates, size, pods, read-models
    #[arg(long, value_delimiter = ',', value_parser = DIMENSIONS)]
    cells: Vec<String>,
    /// Divide the number of events of every cell by this, for a quick look
    #[arg(long, default_value_t = 1)]
    divide: u64,
}

#[derive(Clone, Copy, Debug)]
struct ScalingCell {
    dimension: &'static str,
    /// In that dimension.
    value: u64,
    events: u64,
    shape: EventShape,
    pods: u64,
    read_models: u64,
}

const USUAL: ScalingCell = ScalingCell {
    dimension: "events",
    value: 200_000,
    events: 200_000,
    shape: EventShape { aggregates: 10_000, bytes: 200 },
    pods: 1,
    read_models: 1,
};

fn cells(dimension: &str) -> Vec<ScalingCell> {
    match dimension {
        "events" => [10_000, 100_000, 1_000_000, 5_000_000]
            .map(|value| ScalingCell { dimension: "events", value, events: value, ..USUAL })
            .to_vec(),
        "aggregates" => [10, 1_000, 100_000, 1_000_000]
            .map(|value| ScalingCell {
                dimension: "aggregates",
                value,
                events: USUAL.events.max(value),
                shape: EventShape { aggregates: value, ..USUAL.shape },
                ..USUAL
            })
            .to_vec(),
        // At most 500 MB each.
        "size" => [(100, 200_000), (1_000, 200_000), (10_000, 50_000), (100_000, 5_000), (1_000_000, 500)]
            .map(|(bytes, events)| ScalingCell {
                dimension: "size",
                value: bytes as u64,
                events,
                shape: EventShape { bytes, ..USUAL.shape },
                ..USUAL
            })
            .to_vec(),
        "pods" => [1, 2, 3, 5].map(|value| ScalingCell { dimension: "pods", value, pods: value, ..USUAL }).to_vec(),
        _ => [1, 5, 20]
            .map(|value| ScalingCell { dimension: "read-models", value, read_models: value, ..USUAL })
            .to_vec(),
    }
}

#[tokio::main]
async fn main() {
    let Args { cells: chosen, divide } = Args::parse();
    let chosen = if chosen.is_empty() { DIMENSIONS.map(str::to_owned).to_vec() } else { chosen };
    let cells: Vec<_> = chosen.iter().flat_map(|dimension| cells(dimension)).collect();
    let topics: Vec<_> = cells.iter().map(|cell| TopicEntity::for_pipeline(cell.name(), true)).collect();
    let mut cluster = BenchCluster::start(&topics).await;
    let mut rows: Vec<Value> = vec![];
    let mut smallest = 0.0;
    let mut report = BenchReport::new("scaling");
    println!("dimension         value    events/s   us of cpu: pods  broker  mongod   factor   MB of a pod");
    for cell in cells {
        let (sample, rss) = cell.measure(&cluster, divide.max(1)).await;
        let cpu = sample.cpu.pods + sample.cpu.broker + sample.cpu.mongod;
        let is_first = rows.last().is_none_or(|row| row["dimension"] != cell.dimension);
        if is_first {
            smallest = cpu;
        }
        let factor = cpu / smallest;
        println!(
            "{:<12} {:>10} {:>11.0} {:>16.1} {:>7.1} {:>7.1} {factor:>8.2} {rss:>13.0}{}",
            cell.dimension,
            cell.value,
            sample.rate,
            sample.cpu.pods,
            sample.cpu.broker,
            sample.cpu.mongod,
            cell.explanation(cpu)
        );
        rows.push(json!({
            "dimension": cell.dimension, "value": cell.value, "rate": sample.rate.round(),
            "cpu_us_pod": tenths(sample.cpu.pods), "cpu_us_broker": tenths(sample.cpu.broker),
            "cpu_us_mongod": tenths(sample.cpu.mongod), "factor": (factor * 100.0).round() / 100.0, "rss_mb": rss.round(),
        }));
        report = report.figure(&format!("{}_{}_factor", cell.dimension, cell.value), factor, 2);
    }
    println!("{}", report.value("cells", rows.into()));
    cluster.broker.kill().await;
}

impl ScalingCell {
    fn name(&self) -> String {
        format!("{}-{}", self.dimension, self.value)
    }

    /// The sample, and the highest peak of a pod's memory in MB.
    async fn measure(&self, cluster: &BenchCluster, divide: u64) -> (LoadSample, f64) {
        let source = cluster.mongo.database(&self.name());
        let names = PipelineNames::new(&source, &self.name());
        let lease = LeaseTimings {
            ttl: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
        };
        let system = BenchSystem::Headwater { read_models: self.read_models, lease };
        let pods = system.start(cluster, &names, self.pods).await;
        let addresses: Vec<SocketAddr> = pods.iter().filter_map(|pod| pod.admin).collect();
        let counter = AppliedCounter::Metrics(addresses);
        let window = WINDOW.min(WINDOW_BYTES / self.shape.bytes as u64).max(10);
        let batch = (100_000 / self.shape.bytes as u64).clamp(1, 100);
        let events = (self.events / divide).max(100);
        let warm_up = WARM_UP.min(events / 10);
        let mut load = SustainedLoad { shape: self.shape, first: 0, batch, window };
        load.run_count(cluster, &names, &pods, &counter, warm_up).await;
        load.first = warm_up;
        let sample = load.run_count(cluster, &names, &pods, &counter, events).await;
        let rss = pods.iter().map(bench::end_to_end::BenchPod::peak_rss_mb).fold(0.0, f64::max);
        for pod in pods {
            pod.stop().await;
        }
        names.views().drop().await.expect("the read models are dropped");
        (sample, rss)
    }

    /// Where more work per event is meant: the cost of a unit of that work.
    fn explanation(&self, cpu: f64) -> String {
        match self.dimension {
            "size" => format!("   {:.1} ns per byte", cpu * 1e3 / self.value as f64),
            "read-models" => format!("   {:.1} us per statement", cpu / self.value as f64),
            _ => String::new(),
        }
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
