//! From insert to read model: rate, CPU time per event of every process, latency and memory, beside the design of the notes in NestJS.
//!
//! `cargo xtask bench end-to-end [-- --minutes 5]`. Real processes, release, one machine: a mongod (single-node replica set), the durable broker, one pod,
//! and writers in this process. Events of 1 KiB over 10,000 aggregates.
//!
//! - Idle: the pod's memory before the first event.
//! - Latency: inserts one by one, 1,000 a second, from the acknowledgement with majority to the moment a change stream on the read model shows the event;
//!   `sent_…` from the moment the insert is sent.
//! - Sustained: two writers insert batches of 100 with majority, at most 20,000 events ahead of the read model, for the given time. It is divided into five
//!   parts: the medians count. At the end every event must be in the read model once.
//! - `ratio` is the rate, divided by the rate at which all cores of this machine could serve mongod's own share: `rate / (cores * 1e6 / cpu_us_mongod)`.
//! - Peers: the same writers and read model with `bench/peers/nestjs` in place of the pod, one by one and tuned.
//! - Takeover: the leader of two pods is killed, or stopped with SIGTERM, while events are written: the longest time without a published event, of both systems
//!   with a ttl of 15 s.

use std::time::Duration;

use bench::end_to_end::{
    AppliedCounter, BenchCluster, BenchSystem, EventShape, LEASE_OF_THE_NOTES, LoadSample, PipelineNames, PodExit,
    SustainedLoad, assert_all_applied, measure_latency, measure_takeover, with_observer,
};
use bench::measurements::{BenchReport, Measurements};
use bench::peers::{NESTJS_VARIABLE, peer_folder};
use clap::{Parser, value_parser};
use local_cluster::{LeaseTimings, TopicEntity};
use testkit::wait::wait_for;
use tokio::time::sleep;

const SHAPE: EventShape = EventShape { aggregates: 10_000, bytes: 1024 };
const BATCH: u64 = 100;
const WINDOW: u64 = 20_000;
const PARTS: u32 = 5;
const WARM_UP: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(5);
const LATENCY_RATE: u32 = 1_000;

/// Measure the whole way of an event, next to the design of the notes in NestJS
#[derive(Parser)]
struct Args {
    /// How long the sustained load lasts
    #[arg(long, default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// Seconds of the latency measurement
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u64).range(1..))]
    latency_seconds: u64,
    /// Seconds of the load on each peer
    #[arg(long, default_value_t = 60, value_parser = value_parser!(u64).range(5..))]
    peer_seconds: u64,
    /// Takeovers of each kind and system; 0: none
    #[arg(long, default_value_t = 3)]
    takeovers: u32,
    /// Do not measure the peers and the takeovers
    #[arg(long)]
    without_peers: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().map_err(|error| error.to_string())?;
    if minutes > 0.0 { Ok(minutes) } else { Err("must be above 0".to_owned()) }
}

/// The figures of the pod.
struct PodFigures {
    parts: Vec<LoadSample>,
    report: BenchReport,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let peers = ["single", "tuned"];
    let takeovers = (0..args.takeovers).flat_map(|round| {
        ["headwater", "nestjs"].into_iter().flat_map(move |system| {
            [PodExit::Crash, PodExit::Graceful].map(|exit| with_observer(topic(&takeover_name(system, exit, round))))
        })
    });
    let topics: Vec<_> = ["walk"].iter().chain(&peers).map(|name| topic(name)).chain(takeovers).collect();
    let mut cluster = BenchCluster::start(&topics).await;
    let PodFigures { parts, mut report } = measure_pod(&cluster, &args).await;
    if !args.without_peers {
        let rate = rates(&parts).median();
        for peer in peers {
            let measured = rates(&measure_peer(&cluster, peer, args.peer_seconds).await);
            let times = rate / measured.median();
            println!("nestjs {peer}: {measured:.1}/s; the pod has {times:.1} times that");
            report = report.measured(&format!("nestjs_{peer}_per_s"), &measured, 1).figure(
                &format!("vs_nestjs_{peer}"),
                times,
                1,
            );
        }
        if args.takeovers > 0 {
            report = measure_takeovers(&cluster, args.takeovers, report).await;
        }
    }
    println!("{report}");
    cluster.broker.kill().await;
}

fn topic(name: &str) -> TopicEntity {
    TopicEntity::for_pipeline(name, true)
}

fn headwater(lease: LeaseTimings) -> BenchSystem {
    BenchSystem::Headwater { read_models: 1, lease }
}

fn rates(parts: &[LoadSample]) -> Measurements {
    parts.iter().map(|part| part.rate).collect()
}

async fn measure_pod(cluster: &BenchCluster, args: &Args) -> PodFigures {
    let source = cluster.mongo.database("walk");
    let names = PipelineNames::new(&source, "walk");
    let pods = headwater(LEASE_OF_THE_NOTES).start(cluster, &names, 1).await;
    let pod = &pods[0];
    sleep(IDLE).await;
    let idle = pod.rss_mb();
    println!("idle: the pod has {idle:.0} MB");

    let latency = measure_latency(&names, SHAPE, LATENCY_RATE, args.latency_seconds).await;
    println!("at {LATENCY_RATE}/s, from the acknowledgement: {}", latency.from_acknowledgement);
    println!("at {LATENCY_RATE}/s, from the send: {}", latency.from_send);

    let first = u64::from(LATENCY_RATE) * args.latency_seconds;
    let load = SustainedLoad { shape: SHAPE, first, batch: BATCH, window: WINDOW };
    let counter = AppliedCounter::ReadModel(names.views());
    let part = Duration::from_secs_f64(args.minutes * 60.0) / PARTS;
    let (parts, written) = load.run_for(cluster, &names, &pods, &counter, WARM_UP, &[part; PARTS as usize]).await;
    wait_for("all events to be applied", Duration::from_secs(300), async || match counter.count().await {
        applied if applied >= written => Ok(()),
        applied => Err(applied),
    })
    .await;
    assert_all_applied(&names.views(), written).await;

    let of = |figure: fn(&LoadSample) -> f64| -> Measurements { parts.iter().map(figure).collect() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let ratio: Measurements = parts.iter().map(|part| part.rate * part.cpu.mongod / (cores * 1e6)).collect();
    let rss = pod.peak_rss_mb();
    println!(
        "sustained: {}/s, ratio {ratio:.3}; cpu each, in us: {:.1} pod, {:.1} broker, {:.1} mongod, {:.1} writer; the pod has {rss:.0} MB at most; {written} events, each once",
        of(|part| part.rate),
        of(|part| part.cpu.pods),
        of(|part| part.cpu.broker),
        of(|part| part.cpu.mongod),
        of(|part| part.cpu.writer)
    );
    let report = BenchReport::new("end-to-end")
        .measured("rate", &of(|part| part.rate), 0)
        .measured("ratio", &ratio, 3)
        .measured("cpu_us_pod", &of(|part| part.cpu.pods), 1)
        .measured("cpu_us_broker", &of(|part| part.cpu.broker), 1)
        .measured("cpu_us_mongod", &of(|part| part.cpu.mongod), 1)
        .measured("cpu_us_writer", &of(|part| part.cpu.writer), 1)
        .figure("p50_ms", latency.from_acknowledgement.percentile_ms(50), 1)
        .figure("p99_ms", latency.from_acknowledgement.percentile_ms(99), 1)
        .figure("sent_p50_ms", latency.from_send.percentile_ms(50), 1)
        .figure("sent_p99_ms", latency.from_send.percentile_ms(99), 1)
        .figure("rss_mb", rss, 0)
        .figure("rss_idle_mb", idle, 0)
        .value("events", written.into())
        .value("minutes", args.minutes.into())
        .value("cores", cores.into());
    for pod in pods {
        pod.stop().await;
    }
    PodFigures { parts, report }
}

/// The same load, with a window that suits the lower rate.
async fn measure_peer(cluster: &BenchCluster, mode: &str, seconds: u64) -> Vec<LoadSample> {
    let source = cluster.mongo.database(mode);
    let names = PipelineNames::new(&source, mode);
    let system = BenchSystem::NestJs { folder: peer_folder(NESTJS_VARIABLE), tuned: mode == "tuned" };
    let pods = system.start(cluster, &names, 1).await;
    let window = if mode == "tuned" { 5_000 } else { 500 };
    let load = SustainedLoad { shape: SHAPE, first: 0, batch: BATCH, window };
    let counter = AppliedCounter::ReadModel(names.views());
    let part = Duration::from_secs(seconds) / PARTS;
    let (parts, _) = load.run_for(cluster, &names, &pods, &counter, WARM_UP, &[part; PARTS as usize]).await;
    for pod in pods {
        pod.kill().await;
    }
    parts
}

async fn measure_takeovers(cluster: &BenchCluster, rounds: u32, mut report: BenchReport) -> BenchReport {
    let nestjs = BenchSystem::NestJs { folder: peer_folder(NESTJS_VARIABLE), tuned: false };
    for (name, system) in [("headwater", headwater(LEASE_OF_THE_NOTES)), ("nestjs", nestjs)] {
        for exit in [PodExit::Crash, PodExit::Graceful] {
            let mut gaps = vec![];
            for round in 0..rounds {
                let topic = takeover_name(name, exit, round);
                let source = cluster.mongo.database(&topic);
                let names = PipelineNames::new(&source, &topic);
                gaps.push(measure_takeover(cluster, &system, &names, exit).await.as_secs_f64());
            }
            let gaps: Measurements = gaps.into_iter().collect();
            let kind = if exit == PodExit::Crash { "crash" } else { "stop" };
            println!("{name}, {kind} of the leader: no published event for {gaps:.2} s");
            report = report.measured(&format!("{name}_{kind}_s"), &gaps, 2);
        }
    }
    report
}

fn takeover_name(system: &str, exit: PodExit, round: u32) -> String {
    let kind = if exit == PodExit::Crash { "crash" } else { "stop" };
    format!("{system}-{kind}-{round}")
}
