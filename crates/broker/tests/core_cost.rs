//! What the core costs: memory for each stored message, and time for each step, flat whatever is stored.
//!
//! Each test is a process of its own under nextest, so the memory it counts is its own. `CORE_COST_MESSAGES` makes the
//! store larger: 5000000 is the size the broker promises.

use std::time::Duration;

use broker::core::*;
use broker::journal::{AppendError, Entry, Journal, Location, Lsn, ReadError, Stored};
use bytes::Bytes;

/// A journal that keeps nothing: what is left is the core's own.
#[derive(Default)]
struct Void {
    position: u64,
    references: i64,
}

impl Journal for Void {
    fn append(&mut self, group: &[Entry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        for entry in group {
            self.references += i64::from(entry.references);
            if let Some(body) = entry.body {
                let (segment, offset) = ((self.position >> 26) as u32, (self.position & ((1 << 26) - 1)) as u32);
                locations.push(Location { segment, offset, len: body.len() as u32 });
                self.position += body.len() as u64;
            }
            self.position += entry.meta.len() as u64;
        }
        Ok(())
    }

    fn read(&self, location: Location) -> Result<Stored, ReadError> {
        Err(ReadError::Missing(location))
    }

    fn retain(&mut self, _: Location, more: u32) {
        self.references += i64::from(more);
    }

    fn release(&mut self, _: Location) {
        self.references -= 1;
    }

    fn position(&self) -> Lsn {
        Lsn(self.position)
    }
}

const START: Timestamp = Timestamp(1_800_000_000_000);

struct Bench {
    core: Core,
    journal: Void,
    effects: Vec<Effect>,
    queue: QueueId,
    sent: u64,
    body: Bytes,
}

impl Bench {
    fn new(detects: bool, ttl: Option<Duration>) -> Self {
        let mut description = QueueDescription::default();
        description.inlet.requires_duplicate_detection = detects;
        description.inlet.max_size_in_megabytes = 81_920;
        description.outlet.requires_session = true;
        description.common.default_message_time_to_live = ttl;
        let mut bench = Self {
            core: Core::new(Limits::default(), [1; 32]),
            journal: Void::default(),
            effects: Vec::new(),
            queue: QueueId::main(EntityId(0)),
            sent: 0,
            body: Bytes::from(vec![0; 1024]),
        };
        let id = bench.turn(|core, turn| core.create(turn, "q", Description::Queue(description))).unwrap();
        bench.queue = QueueId::main(id);
        bench
    }

    fn turn<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T) -> T {
        let now = Timestamp(START.0 + self.sent / 100);
        act(&mut self.core, &mut Turn { now, journal: &mut self.journal, effects: &mut self.effects })
    }

    /// Sends so many messages, over so many sessions in turn.
    fn fill(&mut self, messages: u64, sessions: u64) {
        for _ in 0..messages {
            let message = Incoming {
                body: self.body.clone(),
                message_id: Some(format!("{:064x}", self.sent).into()),
                session_id: Some(format!("aggregate-{:024}", self.sent % sessions).into()),
                ..Incoming::default()
            };
            let entity = self.queue.entity;
            self.turn(|core, turn| core.send(turn, entity, &[message])).unwrap();
            self.sent += 1;
        }
    }

    /// Accepts the next session, takes one message, settles it and lets the session go.
    fn walk(&mut self, link: u64) {
        let (link, queue) = (LinkId(link), self.queue);
        let filter = SessionFilter::Next { timeout: Duration::ZERO };
        self.turn(|core, turn| core.attach(turn, link, queue, Mode::PeekLock, filter)).unwrap();
        self.turn(|core, turn| core.flow(turn, link, 0, 1, false));
        let Some(Effect::Deliver { delivery, .. }) = self.effects.pop() else { panic!("a message is there") };
        self.turn(|core, turn| core.settle(turn, queue, &[delivery.token], &Outcome::Complete)).unwrap();
        self.turn(|core, turn| core.detach(turn, link));
        self.effects.clear();
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split_whitespace().nth(1).expect("a second field").parse().expect("a number");
    pages * 4096
}

/// Time this thread has worked, whatever else the machine does.
fn worked() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux");
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

fn messages() -> u64 {
    std::env::var("CORE_COST_MESSAGES").map_or(500_000, |text| text.parse().expect("a number of messages"))
}

/// The whole broker may use 300 MB for five million messages with their duplicate history: 60 bytes each, of which some
/// must be left for the store and for connections.
#[test]
fn a_stored_message_with_its_history_costs_about_fifty_bytes_in_few_sessions_or_many() {
    for sessions in [10, 100_000] {
        let (before, mut bench) = (resident(), Bench::new(true, None));
        bench.fill(messages(), sessions);
        let each = (resident() - before) as f64 / messages() as f64;
        println!("{sessions} sessions: {each:.1} bytes each, {} MB", (resident() - before) >> 20);
        // 100,000 sessions cost their ids and heads, about 360 bytes each, whatever they hold.
        let heads = sessions as f64 * 400.0 / messages() as f64;
        assert!(each < 52.0 + heads, "{sessions} sessions: {each} bytes each");
        std::mem::forget(bench);
    }
}

#[test]
fn a_time_to_live_costs_next_to_nothing() {
    let (before, mut bench) = (resident(), Bench::new(false, Some(Duration::from_secs(86_400))));
    bench.fill(messages(), 1_000);
    let each = (resident() - before) as f64 / messages() as f64;
    println!("{each:.1} bytes each");
    assert!(each < 32.0, "{each}");
}

#[test]
fn consumed_messages_give_their_memory_back() {
    let mut bench = Bench::new(false, None);
    bench.fill(200_000, 20_000);
    let full = resident();
    (0..200_000).for_each(|link| bench.walk(link));
    assert_eq!(bench.journal.references, 0, "every body was released");
    let before = resident();
    bench.fill(200_000, 20_000);
    // Freed memory may stay with the allocator, but it is used again.
    assert!(resident() < full.max(before) + full / 10);
}

#[test]
fn a_step_takes_as_long_whatever_is_stored() {
    let mut figures = Vec::new();
    for (stored, sessions) in [(1_000, 10), (10_000, 1_000), (messages(), 10), (messages(), 100_000)] {
        let mut bench = Bench::new(true, None);
        bench.fill(stored, sessions);
        let (start, rounds) = (worked(), 1_000);
        bench.fill(rounds, sessions);
        let sent = worked() - start;
        (0..rounds).for_each(|link| bench.walk(link));
        let walked = worked() - start - sent;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / rounds as f64;
        println!("{stored} stored, {sessions} sessions: send {:.2} us, walk {:.2} us", micros(sent), micros(walked));
        figures.push(micros(sent) + micros(walked));
    }
    // Memory further away costs a little; anything that walks over what is stored would cost a thousandfold.
    assert!(figures[2..].iter().all(|figure| *figure < figures[0] * 10.0), "{figures:?}");
}

#[test]
fn half_a_million_messages_are_recovered_in_seconds() {
    let mut bench = Bench::new(true, None);
    bench.fill(messages(), 10_000);
    let mut records = Vec::new();
    let mut snapshot = Snapshot::begin(START);
    let start = worked();
    let mut longest = Duration::ZERO;
    loop {
        let step = worked();
        let more = bench.core.snapshot(&mut snapshot, 64 << 10, |record| records.push(record.to_vec()));
        longest = longest.max(worked() - step);
        if !more {
            break;
        }
    }
    let taken = worked() - start;
    let start = worked();
    let mut recovered = Core::new(Limits::default(), [2; 32]);
    for record in &records {
        recovered.replay(record, None).unwrap();
    }
    recovered.recovered(START);
    let replayed = worked() - start;
    let bytes: usize = records.iter().map(Vec::len).sum();
    println!("snapshot {} MB in {taken:?} (longest step {longest:?}), replayed in {replayed:?}", bytes >> 20);
    assert_eq!(recovered.entity("q").unwrap().counts.active, messages());
    assert!(replayed < Duration::from_secs(2) * (messages() / 1_000_000).max(1) as u32, "{replayed:?}");
}
