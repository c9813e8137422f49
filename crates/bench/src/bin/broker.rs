//! Throughput of the durable broker relative to raw TCP on the same machine; with `--flat`, its cost as it fills.
//!
//! `cargo xtask bench broker [-- MESSAGES]`. A real process, release, loopback, 1 KiB bodies. Raw: the same bytes in 64 KiB
//! writes over a bare connection. Single: messages sent one a transfer, as many in flight as the broker grants credit for, every one awaited.
//! Batch: the same in Service Bus's batch format. Receive: one session, all its messages, settled in ranges and the acknowledgements awaited. Accepts: a
//! session of one message accepted, received, completed and released, by a consumer of eight connections with eight sessions each. Five rounds, each with a
//! new broker; the medians count, and a ratio is one of a round.
//!
//! `cargo xtask bench broker -- --flat [MESSAGES]`: cost per message from 1 thousand to 5 million stored (or `MESSAGES`) and from 10 to 100,000
//! sessions, memory, and the restart after a kill -9. Needs some 7 GB in the folder for temporary files, removed at the end.
//!
//! `cargo xtask bench broker -- --secured [MESSAGES]`: the same loads by turns on a plain broker, on one that requires keys, and on one that requires
//! keys and TLS. Broker and client share the machine, so a rate shows the cost of both sides; the CPU is the broker's alone.
//!
//! `cargo xtask bench broker -- --features [MESSAGES]`: a topic with 1,000 rules next to one without, and transactions of ten sends next to ten sends.

use std::io;
use std::time::{Duration, Instant};

use amqp::message::{BatchBuilder, FORMAT};
use bench::broker_features::{self, FeatureFigure};
use bench::broker_load::{AcceptLoad, SingleSessionReceiver, batches, messages, send};
use bench::broker_scaling::{self, ScalingRow, max_cost_ratio};
use bench::broker_security::{self, BrokerSecurity, LoadFigure};
use bench::measurements::{BenchReport, Measurements};
use bench::processes::start_broker;
use bytes::Bytes;
use clap::{Parser, value_parser};
use local_cluster::BrokerProcess;
use local_cluster::usage::{cpu_time, resident_mb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BODY: usize = 1024;
const QUEUE: &str = "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";
const SESSIONS: &str = "<RequiresSession>true</RequiresSession><MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";
/// A pod has 64 parallel sessions by default.
const CONSUMER: AcceptLoad = AcceptLoad { connections: 8, sessions: 8, credit: 1 };

const ROUNDS: usize = 5;

/// Each mode once per round, so that other load on the machine affects all of them.
const SECURED_ROUNDS: usize = 6;

/// Measure the throughput of the durable broker next to raw TCP
#[derive(Parser)]
struct Args {
    /// Measure the cost per message while the broker fills, instead of its throughput
    #[arg(long, conflicts_with = "secured")]
    flat: bool,
    /// Measure by turns without keys, with keys, and with keys and TLS, instead of next to raw TCP
    #[arg(long)]
    secured: bool,
    /// Measure a topic with 1,000 rules next to one without, and transactions next to plain sends
    #[arg(long, conflicts_with_all = ["flat", "secured"])]
    features: bool,
    /// Messages to send; with --flat: the most that are stored [default: 200000, with --flat 5000000, with --secured and --features 50000]
    #[arg(value_parser = value_parser!(u64).range(1_000..))]
    messages: Option<u64>,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    match Args::parse() {
        Args { flat: true, messages, .. } => measure_scaling(messages.unwrap_or(5_000_000)).await,
        Args { secured: true, messages, .. } => measure_security(messages.unwrap_or(50_000)).await,
        Args { features: true, messages, .. } => measure_features(messages.unwrap_or(50_000)).await,
        Args { messages, .. } => measure_speed(messages.unwrap_or(200_000)).await,
    }
}

async fn measure_speed(count: u64) -> io::Result<()> {
    let mut rounds = vec![];
    for _ in 0..ROUNDS {
        rounds.push(measure_round(count).await?);
    }
    let of = |figure: fn(&SpeedRound) -> f64| -> Measurements { rounds.iter().map(figure).collect() };
    println!("raw      {}/s", of(|round| round.raw));
    let report = BenchReport::new("broker")
        .measured("send_single_ratio", &of(|round| round.single / round.raw), 3)
        .measured("send_batch_ratio", &of(|round| round.batch / round.raw), 3)
        .measured("receive_ratio", &of(|round| round.receive / round.raw), 3)
        .measured("send_single_per_s", &of(|round| round.single), 0)
        .measured("send_batch_per_s", &of(|round| round.batch), 0)
        .measured("receive_per_s", &of(|round| round.receive), 0)
        .measured("accepts_per_s", &of(|round| round.accepts), 0)
        .measured("ready_ms", &of(|round| round.ready_ms), 0)
        .measured("rss_mb", &of(|round| round.rss_mb), 1);
    println!("{report}");
    Ok(())
}

/// Messages per second of each load, on a new broker.
struct SpeedRound {
    raw: f64,
    single: f64,
    batch: f64,
    receive: f64,
    accepts: f64,
    ready_ms: f64,
    rss_mb: f64,
}

async fn measure_round(count: u64) -> io::Result<SpeedRound> {
    let folder = tempfile::tempdir()?;
    let mut broker = start_broker(folder.path()).await;
    let (ready_ms, rss_mb) = (broker.ready_after().as_secs_f64() * 1000.0, resident_mb(broker.pid()));
    broker.create_queue("single", QUEUE).await.map_err(io::Error::other)?;
    broker.create_queue("batch", SESSIONS).await.map_err(io::Error::other)?;
    broker.create_queue("short", SESSIONS).await.map_err(io::Error::other)?;
    let address = broker.endpoint();

    let made: Vec<Bytes> = messages(0..count, 1, BODY).collect();
    let bytes = made.iter().map(Bytes::len).sum();
    // Bare TCP varies by a factor of two from one second to the next: it is measured between all the others, and the median counts.
    let mut bare = vec![measure_raw_tcp(bytes, count).await?];
    let single = measure("single", &broker, count, send(address, "single", made.iter().cloned(), FORMAT)).await?;
    bare.push(measure_raw_tcp(bytes, count).await?);
    let made = batches(made.into_iter());
    let batch = measure("batch", &broker, count, send(address, "batch", made, BatchBuilder::FORMAT)).await?;
    bare.push(measure_raw_tcp(bytes, count).await?);
    let receiver = SingleSessionReceiver::accept(address, "batch", "session-0").await?;
    let receive = measure("receive", &broker, count, receiver.receive(count as usize)).await?;
    bare.push(measure_raw_tcp(bytes, count).await?);
    let accepts = count / 5;
    send(address, "short", batches(messages(0..accepts, accepts, BODY)), BatchBuilder::FORMAT).await?;
    let accepts = measure("accepts", &broker, accepts, CONSUMER.complete_messages(address, "short", accepts)).await?;
    bare.push(measure_raw_tcp(bytes, count).await?);
    broker.kill().await;
    let raw = bare.into_iter().collect::<Measurements>().median();
    Ok(SpeedRound { raw, single, batch, receive, accepts, ready_ms, rss_mb })
}

async fn measure_security(count: u64) -> io::Result<()> {
    let mut rounds = Vec::new();
    for round in 0..SECURED_ROUNDS {
        let mut figures = [None; BrokerSecurity::ALL.len()];
        for turn in 0..figures.len() {
            // Each mode is first once: the first one of a round pays for what the last one left to the disk.
            let mode = (round + turn) % figures.len();
            figures[mode] = Some(broker_security::measure(BrokerSecurity::ALL[mode], count).await?);
        }
        rounds.push(figures.into_iter().flatten().collect::<Vec<_>>());
    }
    let mut json = String::new();
    println!("load     mode       messages/s  of plain  us of cpu  of plain");
    for (load, name) in broker_security::LOADS.into_iter().enumerate() {
        let [rates, cpus] = [|figure: &LoadFigure| figure.rate, |figure: &LoadFigure| figure.cpu_us].map(|read| {
            [0, 1, 2]
                .map(|mode| rounds.iter().map(|figures| read(&figures[mode][load])).collect::<Measurements>().median())
        });
        for (mode, security) in BrokerSecurity::ALL.into_iter().enumerate() {
            let (rate, cpu) = (rates[mode], cpus[mode]);
            let (rate_ratio, cpu_ratio) = (rate / rates[0], cpu / cpus[0]);
            println!("{name:<8} {:<10} {rate:>10.0} {rate_ratio:>9.3} {cpu:>10.2} {cpu_ratio:>9.3}", security.name());
            if security != BrokerSecurity::Plain {
                json += &format!(
                    r#","{name}_{}_ratio":{rate_ratio:.3},"{name}_{}_cpu_ratio":{cpu_ratio:.3}"#,
                    security.key(),
                    security.key()
                );
            }
        }
    }
    println!(r#"{{"bench":"broker-secured"{json}}}"#);
    Ok(())
}

async fn measure_features(count: u64) -> io::Result<()> {
    let mut rounds = vec![];
    for _ in 0..ROUNDS {
        let folder = tempfile::tempdir()?;
        rounds.push(broker_features::measure(folder.path(), count).await?);
    }
    let mut report = BenchReport::new("broker-features");
    println!("{:<30} {:>12}  us of the broker's cpu each, of the first", "load", "messages/s");
    for (index, name) in broker_features::LOADS.into_iter().enumerate() {
        // Rules are compared with a topic without them, transactions with sends in groups.
        let base = if index < 4 { 0 } else { 4 };
        let of =
            |read: fn(&FeatureFigure) -> f64| -> Measurements { rounds.iter().map(|all| read(&all[index])).collect() };
        let ratio: Measurements = rounds.iter().map(|all| all[index].cpu_us / all[base].cpu_us).collect();
        let (rate, cpu) = (of(|figure| figure.rate), of(|figure| figure.cpu_us));
        println!("{name:<30} {:>12.0}  {cpu:.2}, {ratio:.2}", rate.median());
        let key = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_").to_lowercase();
        report = report
            .measured(&format!("{key}_per_s"), &rate, 0)
            .measured(&format!("{key}_cpu_us"), &cpu, 2)
            .measured(&format!("{key}_cpu_ratio"), &ratio, 2);
    }
    println!("{report}");
    Ok(())
}

async fn measure_scaling(most: u64) -> io::Result<()> {
    let sizes: Vec<u64> =
        [1_000, 10_000, 100_000, 1_000_000, 5_000_000].into_iter().filter(|size| *size <= most).collect();
    let folder = tempfile::tempdir()?;
    let mut stored = Vec::new();
    println!("{:>10}   sent, received, completed", "stored");
    let restart = broker_scaling::measure_by_messages(folder.path(), &sizes, |row| stored.push(print_row(row))).await?;
    println!("start after a kill: {:.1} s, {:.0} MB resident", restart.ready.as_secs_f64(), restart.rss_mb);
    drop(folder);
    let folder = tempfile::tempdir()?;
    let mut sessions = Vec::new();
    println!("{:>10}   accepted, one message received and completed, let go", "sessions");
    broker_scaling::measure_by_sessions(folder.path(), &[10, 1_000, 100_000], |row| sessions.push(print_row(row)))
        .await?;
    println!(
        r#"{{"bench":"broker-flat","stored":{},"messages_ratio":{:.2},"sessions_ratio":{:.2},"recovery_s":{:.1},"rss_mb":{:.0}}}"#,
        sizes.last().copied().unwrap_or_default(),
        max_cost_ratio(&stored),
        max_cost_ratio(&sessions),
        restart.ready.as_secs_f64(),
        stored.iter().map(|row| row.rss_mb).fold(restart.rss_mb, f64::max)
    );
    Ok(())
}

fn print_row(row: ScalingRow) -> ScalingRow {
    println!("{:>10}   {:>6.1} us of cpu, {:>7.0}/s, {:>4.0} MB", row.size, row.cpu_us, row.per_second, row.rss_mb);
    row
}

/// Messages per second; prints the rate and the broker's CPU time.
async fn measure(
    what: &str,
    broker: &BrokerProcess,
    count: u64,
    load: impl Future<Output = io::Result<()>>,
) -> io::Result<f64> {
    let (began, before) = (Instant::now(), cpu_time(broker.pid()));
    load.await?;
    let (rate, cpu) = (rate(count, began.elapsed()), cpu_time(broker.pid()).saturating_sub(before));
    println!("{what:<8} {rate:>8.0}/s, {:>6.2} us of the broker's cpu each", cpu.as_secs_f64() * 1e6 / count as f64);
    Ok(rate)
}

/// Messages per second if the same bytes went over a bare TCP connection.
async fn measure_raw_tcp(bytes: usize, count: u64) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let reader = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut buffer = vec![0; 64 << 10];
        let mut read = 0;
        while read < bytes {
            read += stream.read(&mut buffer).await?;
        }
        stream.write_all(b"!").await
    });
    let mut stream = TcpStream::connect(address).await?;
    let chunk = vec![7; 64 << 10];
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(chunk.len());
        stream.write_all(&chunk[..now]).await?;
        left -= now;
    }
    stream.read_exact(&mut [0]).await?;
    reader.await??;
    Ok(rate(count, began.elapsed()))
}

fn rate(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
