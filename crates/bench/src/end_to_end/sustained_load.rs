//! As many events as the read model keeps up with, for minutes: rate and CPU time of every process.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use local_cluster::usage::cpu_time;
use mongodb::bson::RawDocumentBuf;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{AppliedCounter, BenchCluster, BenchPod, EventShape, LoadWriter, PipelineNames};
use crate::source_events::events_collection;

/// A scan of ten thousand documents takes some milliseconds of mongod, so the count is polled rarely.
const POLL: Duration = Duration::from_millis(250);
/// The last events may wait for a session to be let go.
const DRAIN: Duration = Duration::from_secs(300);

/// How the load is made.
#[derive(Clone, Copy, Debug)]
pub struct SustainedLoad {
    pub shape: EventShape,
    /// The number of the first event.
    pub first: u64,
    /// Events in an insert.
    pub batch: u64,
    /// Written and not yet applied at most.
    pub window: u64,
}

/// Microseconds of each process for an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuPerEvent {
    pub pods: f64,
    pub broker: f64,
    pub mongod: f64,
    /// The writer, and whoever counts what is applied.
    pub writer: f64,
}

/// One part of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadSample {
    /// Events per second in the read model.
    pub rate: f64,
    pub cpu: CpuPerEvent,
}

/// Counters at one moment.
struct LoadCounters {
    at: Instant,
    applied: u64,
    cpu: [Duration; 4],
}

/// A load while it runs.
struct RunningLoad<'a> {
    cluster: &'a BenchCluster,
    pods: &'a [BenchPod],
    counter: &'a AppliedCounter,
    writer: LoadWriter,
}

impl SustainedLoad {
    /// Writes for a warm-up and then for some parts of equal length, each measured on its own. Returns the parts and the events written, those before
    /// the first included.
    pub async fn run_for(
        &self,
        cluster: &BenchCluster,
        names: &PipelineNames,
        pods: &[BenchPod],
        counter: &AppliedCounter,
        warm_up: Duration,
        parts: &[Duration],
    ) -> (Vec<LoadSample>, u64) {
        let load = self.begin(cluster, names, pods, counter, u64::MAX);
        let writer = load.writer.clone();
        let writing = tokio::spawn(async move { writer.run().await });
        load.poll_for(warm_up).await;
        let mut samples = vec![];
        let mut before = load.counters().await;
        for part in parts {
            load.poll_for(*part).await;
            let now = load.counters().await;
            samples.push(before.sample_until(&now));
            before = now;
        }
        load.writer.stop.cancel();
        writing.await.expect("the writers end");
        (samples, load.writer.written.load(Relaxed))
    }

    /// Writes a number of events and waits until all are applied.
    ///
    /// # Panics
    /// When they are not applied in time.
    pub async fn run_count(
        &self,
        cluster: &BenchCluster,
        names: &PipelineNames,
        pods: &[BenchPod],
        counter: &AppliedCounter,
        count: u64,
    ) -> LoadSample {
        let load = self.begin(cluster, names, pods, counter, self.first + count);
        let before = load.counters().await;
        let writer = load.writer.clone();
        let writing = tokio::spawn(async move { writer.run().await });
        while !writing.is_finished() {
            load.poll().await;
        }
        writing.await.expect("the writers end");
        let drained = timeout(DRAIN, async { while load.poll().await < self.first + count {} }).await;
        assert!(drained.is_ok(), "{} of {count} events are applied", load.writer.applied.load(Relaxed) - self.first);
        before.sample_until(&load.counters().await)
    }

    fn begin<'a>(
        &self,
        cluster: &'a BenchCluster,
        names: &PipelineNames,
        pods: &'a [BenchPod],
        counter: &'a AppliedCounter,
        end: u64,
    ) -> RunningLoad<'a> {
        let writer = LoadWriter {
            events: events_collection(&names.source).clone_with_type::<RawDocumentBuf>(),
            shape: self.shape,
            first: self.first,
            end,
            batch: self.batch,
            window: self.window,
            written: Arc::new(AtomicU64::new(self.first)),
            applied: Arc::new(AtomicU64::new(self.first)),
            stop: CancellationToken::new(),
        };
        RunningLoad { cluster, pods, counter, writer }
    }
}

impl RunningLoad<'_> {
    async fn poll(&self) -> u64 {
        sleep(POLL.min(self.shortest_pause())).await;
        let applied = self.counter.count().await;
        self.writer.applied.store(applied, Relaxed);
        applied
    }

    /// A metrics request costs next to nothing.
    fn shortest_pause(&self) -> Duration {
        match self.counter {
            AppliedCounter::ReadModel(_) => POLL,
            AppliedCounter::Metrics(_) => Duration::from_millis(20),
        }
    }

    async fn poll_for(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.poll().await;
        }
    }

    async fn counters(&self) -> LoadCounters {
        let applied = self.counter.count().await;
        let pods = self.pods.iter().map(BenchPod::cpu).sum();
        let [broker, mongod, writer] =
            [self.cluster.broker.pid(), self.cluster.server, std::process::id()].map(cpu_time);
        LoadCounters { at: Instant::now(), applied, cpu: [pods, broker, mongod, writer] }
    }
}

impl LoadCounters {
    fn sample_until(&self, later: &Self) -> LoadSample {
        let events = later.applied.saturating_sub(self.applied).max(1) as f64;
        let cpu = |process: usize| later.cpu[process].saturating_sub(self.cpu[process]).as_secs_f64() * 1e6 / events;
        LoadSample {
            rate: events / later.at.duration_since(self.at).as_secs_f64(),
            cpu: CpuPerEvent { pods: cpu(0), broker: cpu(1), mongod: cpu(2), writer: cpu(3) },
        }
    }
}
