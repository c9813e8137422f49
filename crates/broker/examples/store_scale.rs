//! Measures the store with millions of messages: rate, memory, start time, and disk space freed.
//!
//! `cargo run --release -p broker --example store_scale -- 5 /some/folder` stores five million durable messages of 1
//! KiB, one at a time, through the real core, in 1,000 sessions with duplicate detection. Then a new process opens the
//! folder, and another one drains it. Use a folder on the disk to be measured; the folder is left without messages, not
//! removed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::ServiceTier;
use broker::core::{
    BrokerLimits, CallContext, Compaction, Core, CoreLinkId, EntityDefinition, IncomingMessage, LinkEffect,
    MessageDelivery, QueueDescription, QueueId, ReceiveMode, SessionFilter, SettlementOutcome, SnapshotCursor,
    Timestamp,
};
use broker::journal::Journal;
use broker::store::{LogStore, MaintenanceTask, StoreFolder, StoreOptions};

const START: Timestamp = Timestamp(1_800_000_000_000);
const SESSIONS: u64 = 1_000;
const PATH: &str = "scale";

/// Limits of the tier with the largest entities.
fn premium() -> BrokerLimits {
    BrokerLimits { tier: ServiceTier::Premium, ..BrokerLimits::default() }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [millions, folder, rest @ ..] = &arguments[..] else { panic!("store_scale MILLIONS FOLDER") };
    let count = (millions.parse::<f64>().expect("a number of millions") * 1e6) as u64;
    let folder = PathBuf::from(folder);
    match rest.first().map(String::as_str) {
        None => {
            for step in ["fill", "open", "drain", "open"] {
                let program = std::env::current_exe().expect("this program");
                let status = Command::new(program).arg(millions).arg(&folder).arg(step).status().expect("run a step");
                assert!(status.success(), "{step} failed");
            }
        }
        Some("fill") => fill(&folder, count),
        Some("open") => drop(ScaleBroker::open(&folder)),
        Some("drain") => drain(&folder),
        Some(other) => panic!("no step {other}"),
    }
}

struct ScaleBroker {
    core: Core,
    store: LogStore,
    folder: PathBuf,
    effects: Vec<LinkEffect>,
    snapshot: Option<SnapshotCursor>,
    compaction: Option<Compaction>,
    slowest_chore: Duration,
}

impl ScaleBroker {
    fn open(folder: &Path) -> Self {
        let begun = Instant::now();
        let mut core = Core::new(premium(), [7; 32]);
        let disk = Arc::new(StoreFolder::new(folder).expect("a folder"));
        let recovery = LogStore::open(disk, StoreOptions::default()).expect("a sound folder");
        let replayed = recovery.replay(|meta, body| core.replay(meta, body)).expect("sound records");
        let replayed_after = begun.elapsed();
        let store = replayed.finish(|visit| core.visit_bodies(visit)).expect("a store");
        core.finish_recovery(START);
        let took = begun.elapsed();
        let broker = Self {
            core,
            store,
            folder: folder.to_owned(),
            effects: Vec::new(),
            snapshot: None,
            compaction: None,
            slowest_chore: Duration::ZERO,
        };
        println!(
            "open: {took:.2?} (replay {replayed_after:.2?}), {} messages, {}",
            broker.stored(),
            broker.footprint()
        );
        broker
    }

    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        act(&mut self.core, &mut CallContext { now: START, journal: &mut self.store, effects: &mut self.effects })
    }

    /// The engine's maintenance step.
    fn maintain(&mut self) {
        let begun = Instant::now();
        match self.store.next_maintenance() {
            None => {}
            Some(MaintenanceTask::Snapshot { restart }) => {
                if restart {
                    self.snapshot = Some(SnapshotCursor::new(START));
                }
                let snapshot = self.snapshot.as_mut().expect("a fresh one comes first");
                if !self.core.write_snapshot(snapshot, 64 << 10, |record| self.store.put_snapshot_record(record, None))
                {
                    self.store.finish_snapshot();
                }
            }
            Some(MaintenanceTask::Compact(segments)) => {
                let compaction = self.compaction.get_or_insert_with(|| Compaction::of(segments));
                let mut journal = self.store.compaction_journal();
                let mut call = CallContext { now: START, journal: &mut journal, effects: &mut self.effects };
                let more = self.core.compact(&mut call, compaction, 200).expect("room to clean");
                if !more {
                    self.compaction = None;
                    self.store.finish_compaction();
                }
            }
        }
        self.slowest_chore = self.slowest_chore.max(begun.elapsed());
    }

    fn stored(&self) -> u64 {
        self.core.entities().map(|entity| entity.counts.active).sum()
    }

    fn footprint(&self) -> String {
        let disk: u64 = std::fs::read_dir(&self.folder)
            .expect("the folder")
            .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
            .sum();
        let status = std::fs::read_to_string("/proc/self/status").expect("this system's /proc");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
        };
        let (now, most) = (field("VmRSS"), field("VmHWM"));
        format!("rss {now} MiB (most {most} MiB), disk {} MiB, {:?}", disk >> 20, self.store.usage())
    }
}

fn fill(folder: &Path, count: u64) {
    let mut broker = ScaleBroker::open(folder);
    let mut description = QueueDescription::default();
    description.ingress.max_size_in_megabytes = 81_920;
    description.ingress.requires_duplicate_detection = true;
    description.egress.requires_session = true;
    let queue =
        broker.call(|core, call| core.create(call, PATH, EntityDefinition::Queue(description))).expect("a queue");
    let body = bytes::Bytes::from(noise());
    let begun = Instant::now();
    for number in 0..count {
        let message = IncomingMessage {
            body: body.clone(),
            message_id: Some(format!("message-{number}").into()),
            session_id: Some(format!("session-{}", number % SESSIONS).into()),
            ..IncomingMessage::default()
        };
        broker.call(|core, call| core.send(call, queue, &[message])).expect("room");
        if number.is_multiple_of(64) {
            broker.store.flush();
            broker.maintain();
        }
        while broker.store.is_congested() {
            std::thread::yield_now();
        }
        if (number + 1).is_multiple_of(1_000_000) {
            println!("{} million after {:.1?}, {}", (number + 1) / 1_000_000, begun.elapsed(), broker.footprint());
        }
    }
    assert!(broker.store.wait_synced(Duration::from_secs(60)), "the disk is stuck");
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    println!(
        "fill: {rate:.0} durable single sends/s, slowest chore {:.1?}, {}",
        broker.slowest_chore,
        broker.footprint()
    );
}

/// Receives and completes everything, session by session.
fn drain(folder: &Path) {
    let mut broker = ScaleBroker::open(folder);
    let queue = broker.core.resolve_receive_address(PATH).expect("the queue that was filled");
    let (count, begun) = (broker.stored(), Instant::now());
    for session in 0..SESSIONS {
        drain_session(&mut broker, queue, CoreLinkId(session), &format!("session-{session}"));
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    println!("drain: {rate:.0} received and completed/s, slowest chore {:.1?}", broker.slowest_chore);
    let deadline = Instant::now() + Duration::from_secs(60);
    while broker.store.usage().bytes > 300 << 20 && Instant::now() < deadline {
        broker.maintain();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(broker.store.wait_synced(Duration::from_secs(60)), "the disk is stuck");
    println!("drained: {}", broker.footprint());
}

fn drain_session(broker: &mut ScaleBroker, queue: QueueId, link: CoreLinkId, session: &str) {
    let filter = SessionFilter::Named(session.into());
    broker.call(|core, call| core.attach(call, link, queue, ReceiveMode::PeekLock, filter)).expect("the session");
    let mut delivered = 0;
    loop {
        broker.call(|core, call| core.flow(call, link, delivered, 100, false));
        let deliveries: Vec<MessageDelivery> = broker
            .effects
            .drain(..)
            .filter_map(|effect| match effect {
                LinkEffect::Deliver { delivery, .. } => Some(delivery),
                _ => None,
            })
            .collect();
        if deliveries.is_empty() {
            break;
        }
        for delivery in &deliveries {
            let stored = broker.store.read(delivery.location).expect("a body");
            assert_eq!(stored.body.len(), 1024);
        }
        delivered += deliveries.len() as u32;
        let tokens: Vec<_> = deliveries.iter().map(|delivery| delivery.token).collect();
        broker
            .call(|core, call| core.settle(call, queue, &tokens, &SettlementOutcome::Complete))
            .expect("locks are held");
        broker.store.flush();
        broker.maintain();
    }
    broker.call(|core, call| core.detach(call, link));
}

/// Bytes that no file system can compress.
fn noise() -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..1024).map(next).collect()
}
