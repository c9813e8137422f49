//! Measures whether the broker's cost per message depends on the number of stored messages and sessions.
//!
//! A real process with a folder on disk. First the same load over a growing store: messages are sent one per transfer while others are
//! received, so that the store keeps its size. Then the same load over a growing number of sessions, each accepted for one message.
//! The measure is the broker's CPU time per message, which other load on the machine disturbs least; the rate is printed beside it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use amqp::message::{BatchBuilder, FORMAT};

use crate::broker_load::{AcceptLoad, batches, messages, send};
use crate::processes::start_broker;
use local_cluster::BrokerProcess;
use local_cluster::usage::{cpu_time, resident_mb};

const BODY: usize = 1024;
const QUEUE: &str = "<RequiresSession>true</RequiresSession><MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";

/// Messages that pass through at each size of the store. The log grows by more than the distance between two snapshots, so that each
/// size includes its share of snapshots.
const THROUGH: u64 = 300_000;
const FEW_SESSIONS: u64 = 10;
/// Fewer parallel sessions than exist, so that none waits for another.
const BULK: AcceptLoad = AcceptLoad { connections: 2, sessions: 4, credit: 100 };

/// Messages stored, and accepts measured, at each number of sessions.
const SPREAD: u64 = 200_000;
const ACCEPTS: u64 = 40_000;
const SHORT: AcceptLoad = AcceptLoad { connections: 4, sessions: 2, credit: 1 };

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct ScalingRow {
    pub size: u64,
    pub cpu_us: f64,
    pub per_second: f64,
    pub rss_mb: f64,
}

/// How the broker restarted with the full store.
#[derive(Debug, Clone, Copy)]
pub struct RestartTiming {
    pub ready: Duration,
    pub rss_mb: f64,
}

/// Cost of one message sent, received and completed, by messages stored; then a kill -9 and a start over the largest store.
pub async fn measure_by_messages(
    folder: &Path,
    sizes: &[u64],
    mut seen: impl FnMut(ScalingRow),
) -> io::Result<RestartTiming> {
    let mut broker = start_broker(folder).await;
    broker.create_queue("store", QUEUE).await.map_err(io::Error::other)?;
    let (mut stored, mut next) = (0, 0);
    for size in sizes {
        let more = next..next + size - stored;
        (stored, next) = (*size, more.end);
        send(broker.endpoint(), "store", batches(messages(more, FEW_SESSIONS, BODY)), BatchBuilder::FORMAT).await?;
        let through = next..next + THROUGH;
        next = through.end;
        let load = async {
            let incoming = send(broker.endpoint(), "store", messages(through, FEW_SESSIONS, BODY), FORMAT);
            let (sent, taken) = tokio::join!(incoming, BULK.complete_messages(broker.endpoint(), "store", THROUGH));
            sent.and(taken)
        };
        seen(measure(&broker, *size, THROUGH, load).await?);
    }
    broker.kill().await;
    let mut broker = start_broker(folder).await;
    let restart = RestartTiming { ready: broker.ready_after(), rss_mb: resident_mb(broker.pid()) };
    broker.kill().await;
    Ok(restart)
}

/// Cost of accepting a session, receiving and completing one message and releasing the session, by the number of sessions with messages.
pub async fn measure_by_sessions(folder: &Path, sizes: &[u64], mut seen: impl FnMut(ScalingRow)) -> io::Result<()> {
    let mut broker = start_broker(folder).await;
    for sessions in sizes {
        let queue = format!("sessions-{sessions}");
        broker.create_queue(&queue, QUEUE).await.map_err(io::Error::other)?;
        let stored = batches(messages(0..SPREAD, *sessions, BODY));
        send(broker.endpoint(), &queue, stored, BatchBuilder::FORMAT).await?;
        let load = SHORT.complete_messages(broker.endpoint(), &queue, ACCEPTS);
        seen(measure(&broker, *sessions, ACCEPTS, load).await?);
    }
    broker.kill().await;
    Ok(())
}

async fn measure(
    broker: &BrokerProcess,
    size: u64,
    messages: u64,
    load: impl Future<Output = io::Result<()>>,
) -> io::Result<ScalingRow> {
    let (began, before) = (Instant::now(), cpu_time(broker.pid()));
    load.await?;
    let (took, cpu) = (began.elapsed(), cpu_time(broker.pid()).saturating_sub(before));
    Ok(ScalingRow {
        size,
        cpu_us: cpu.as_secs_f64() * 1e6 / messages as f64,
        per_second: messages as f64 / took.as_secs_f64(),
        rss_mb: resident_mb(broker.pid()),
    })
}

/// The highest cost relative to the smallest size.
pub fn max_cost_ratio(rows: &[ScalingRow]) -> f64 {
    let first = rows.first().map_or(f64::NAN, |row| row.cpu_us);
    rows.iter().map(|row| row.cpu_us / first).fold(f64::NAN, f64::max)
}
