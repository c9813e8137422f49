//! Costs of the core: memory per stored message and time per step must not depend on what is stored.
//!
//! Under nextest each test is its own process, so it measures only its own memory. `CORE_COST_MESSAGES` sets the number
//! of messages; the broker promises 5000000.

use std::time::Duration;

use broker::ServiceTier;
use broker::core::*;
use broker::journal::{
    AppendError, Journal, JournalEntry, JournalLocation, Lsn, ReadError, ReadJournalEntry, VolatileJournal,
};
use bytes::Bytes;

/// A journal that stores nothing, so that only the core's own memory is measured.
#[derive(Default)]
struct NullJournal {
    position: u64,
    references: i64,
}

impl Journal for NullJournal {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        for entry in group {
            self.references += i64::from(entry.references);
            if let Some(body) = entry.body {
                let (segment, offset) = ((self.position >> 26) as u32, (self.position & ((1 << 26) - 1)) as u32);
                locations.push(JournalLocation { segment, offset, len: body.len() as u32 });
                self.position += body.len() as u64;
            }
            self.position += entry.meta.len() as u64;
        }
        Ok(())
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        Err(ReadError::Missing(location))
    }

    fn retain(&mut self, _: JournalLocation, more: u32) {
        self.references += i64::from(more);
    }

    fn release(&mut self, _: JournalLocation) {
        self.references -= 1;
    }

    fn position(&self) -> Lsn {
        Lsn(self.position)
    }
}

const START: Timestamp = Timestamp(1_800_000_000_000);

/// Limits of the tier with the largest entities.
fn premium() -> BrokerLimits {
    BrokerLimits { tier: ServiceTier::Premium, ..BrokerLimits::default() }
}

struct CostFixture {
    core: Core,
    journal: NullJournal,
    effects: Vec<LinkEffect>,
    queue: QueueId,
    sent: u64,
    body: Bytes,
}

impl CostFixture {
    fn new(detects: bool, ttl: Option<Duration>) -> Self {
        let mut description = QueueDescription::default();
        description.ingress.requires_duplicate_detection = detects;
        description.ingress.max_size_in_megabytes = 81_920;
        description.egress.requires_session = true;
        description.common.default_message_time_to_live = ttl;
        let mut fixture = Self {
            core: Core::new(premium(), [1; 32]),
            journal: NullJournal::default(),
            effects: Vec::new(),
            queue: QueueId::main(EntityId(0)),
            sent: 0,
            body: Bytes::from(vec![0; 1024]),
        };
        let id = fixture.call(|core, call| core.create(call, "q", EntityDefinition::Queue(description))).unwrap();
        fixture.queue = QueueId::main(id);
        fixture
    }

    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        let now = Timestamp(START.0 + self.sent / 100);
        act(&mut self.core, &mut CallContext { now, journal: &mut self.journal, effects: &mut self.effects })
    }

    /// Sends `messages`, round robin over `sessions`.
    fn fill(&mut self, messages: u64, sessions: u64) {
        for _ in 0..messages {
            let message = IncomingMessage {
                body: self.body.clone(),
                message_id: Some(format!("{:064x}", self.sent).into()),
                session_id: Some(format!("aggregate-{:024}", self.sent % sessions).into()),
                ..IncomingMessage::default()
            };
            let entity = self.queue.entity;
            self.call(|core, call| core.send(call, entity, &[message])).unwrap();
            self.sent += 1;
        }
    }

    /// Accepts the next session, receives and completes one message, and releases the session.
    fn receive_and_complete(&mut self, link: u64) {
        let (link, queue) = (CoreLinkId(link), self.queue);
        let filter = SessionFilter::Next { timeout: Duration::ZERO };
        self.call(|core, call| core.attach(call, link, queue, ReceiveMode::PeekLock, filter)).unwrap();
        self.call(|core, call| core.flow(call, link, 0, 1, false));
        let Some(LinkEffect::Deliver { delivery, .. }) = self.effects.pop() else { panic!("a message is there") };
        self.call(|core, call| core.settle(call, queue, &[delivery.token], &SettlementOutcome::Complete)).unwrap();
        self.call(|core, call| core.detach(call, link));
        self.effects.clear();
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split_whitespace().nth(1).expect("a second field").parse().expect("a number");
    pages * 4096
}

/// CPU time of this thread, independent of other load on the machine.
fn thread_cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux");
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

fn messages() -> u64 {
    std::env::var("CORE_COST_MESSAGES").map_or(500_000, |text| text.parse().expect("a number of messages"))
}

/// The whole broker may use 300 MB for five million messages with their duplicate history: 60 bytes each. Some of that
/// is needed by the store and by connections.
#[test]
fn a_stored_message_with_its_id_costs_about_fifty_bytes() {
    for sessions in [10, 100_000] {
        let (before, mut fixture) = (resident(), CostFixture::new(true, None));
        fixture.fill(messages(), sessions);
        let each = (resident() - before) as f64 / messages() as f64;
        println!("{sessions} sessions: {each:.1} bytes each, {} MB", (resident() - before) >> 20);
        // A session costs about 360 bytes for its id and header, whatever it holds.
        let heads = sessions as f64 * 400.0 / messages() as f64;
        assert!(each < 52.0 + heads, "{sessions} sessions: {each} bytes each");
        std::mem::forget(fixture);
    }
}

#[test]
fn a_time_to_live_costs_little_memory() {
    let (before, mut fixture) = (resident(), CostFixture::new(false, Some(Duration::from_secs(86_400))));
    fixture.fill(messages(), 1_000);
    let each = (resident() - before) as f64 / messages() as f64;
    println!("{each:.1} bytes each");
    assert!(each < 32.0, "{each}");
}

#[test]
fn consumed_messages_free_their_memory() {
    let mut fixture = CostFixture::new(false, None);
    fixture.fill(200_000, 20_000);
    let full = resident();
    (0..200_000).for_each(|link| fixture.receive_and_complete(link));
    assert_eq!(fixture.journal.references, 0, "every body was released");
    let before = resident();
    fixture.fill(200_000, 20_000);
    // The allocator may keep freed memory, but reuses it.
    assert!(resident() < full.max(before) + full / 10);
}

#[test]
fn a_step_takes_constant_time() {
    let mut figures = Vec::new();
    for (stored, sessions) in [(1_000, 10), (10_000, 1_000), (messages(), 10), (messages(), 100_000)] {
        let mut fixture = CostFixture::new(true, None);
        fixture.fill(stored, sessions);
        let (start, rounds) = (thread_cpu_time(), 1_000);
        fixture.fill(rounds, sessions);
        let sent = thread_cpu_time() - start;
        (0..rounds).for_each(|link| fixture.receive_and_complete(link));
        let walked = thread_cpu_time() - start - sent;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / rounds as f64;
        println!("{stored} stored, {sessions} sessions: send {:.2} us, walk {:.2} us", micros(sent), micros(walked));
        figures.push(micros(sent) + micros(walked));
    }
    // Cache misses cost a little; a scan of all stored messages would cost a thousand times more.
    assert!(figures[2..].iter().all(|figure| *figure < figures[0] * 10.0), "{figures:?}");
}

/// Forwards a thousand of `stored` messages; returns microseconds for each.
fn forwarding_time(stored: u64, sessions: u64) -> f64 {
    let (mut core, mut journal) = (Core::new(premium(), [1; 32]), VolatileJournal::default());
    let mut call = |now: u64, act: &mut dyn FnMut(&mut Core, &mut CallContext<'_>)| {
        let mut effects = Vec::new();
        act(
            &mut core,
            &mut CallContext { now: Timestamp(START.0 + now), journal: &mut journal, effects: &mut effects },
        );
    };
    let mut description = QueueDescription::default();
    description.ingress.max_size_in_megabytes = 81_920;
    description.egress.requires_session = true;
    let queue = |description: &QueueDescription| EntityDefinition::Queue(description.clone());
    let mut ids = Vec::new();
    for path in ["to", "from"] {
        call(0, &mut |core, call| ids.push(core.create(call, path, queue(&description)).unwrap()));
    }
    for n in 0..stored {
        let session_id = Some(format!("{}", n % sessions).into());
        let message = IncomingMessage { session_id, ..IncomingMessage::default() };
        call(0, &mut |core, call| drop(core.send(call, ids[1], std::slice::from_ref(&message)).unwrap()));
    }
    description.egress.forward_to = Some("to".into());
    call(0, &mut |core, call| core.update(call, "from", queue(&description)).unwrap());
    let start = thread_cpu_time();
    for tick in 1..=4 {
        call(tick, &mut |core, call| core.tick(call));
    }
    let time = thread_cpu_time() - start;
    let mut moved = 0;
    call(4, &mut |core, _| moved = core.entity("to").unwrap().counts.active);
    assert!(moved >= 1_000 && moved < stored, "{moved}");
    time.as_secs_f64() * 1e6 / moved as f64
}

#[test]
fn forwarding_takes_constant_time_per_message() {
    let few = forwarding_time(2_000, 10);
    for (stored, sessions) in [(200_000, 10), (200_000, 1_000), (200_000, 100_000)] {
        let many = forwarding_time(stored, sessions);
        println!("2000 in 10 sessions: {few:.2} us, {stored} in {sessions} sessions: {many:.2} us");
        // Collecting all of them in every tick would cost a hundred times more.
        assert!(many < few * 10.0, "{sessions} sessions: {many} us, few: {few} us");
    }
}

#[test]
fn half_a_million_messages_recover_in_seconds() {
    let mut fixture = CostFixture::new(true, None);
    fixture.fill(messages(), 10_000);
    let mut records = Vec::new();
    let mut snapshot = SnapshotCursor::new(START);
    let start = thread_cpu_time();
    let mut longest = Duration::ZERO;
    loop {
        let step = thread_cpu_time();
        let more = fixture.core.write_snapshot(&mut snapshot, 64 << 10, |record| records.push(record.to_vec()));
        longest = longest.max(thread_cpu_time() - step);
        if !more {
            break;
        }
    }
    let latest_snapshot = thread_cpu_time() - start;
    let start = thread_cpu_time();
    let mut recovered = Core::new(premium(), [2; 32]);
    for record in &records {
        recovered.replay(record, None).unwrap();
    }
    recovered.finish_recovery(START);
    let replayed = thread_cpu_time() - start;
    let bytes: usize = records.iter().map(Vec::len).sum();
    println!("snapshot {} MB in {latest_snapshot:?} (longest step {longest:?}), replayed in {replayed:?}", bytes >> 20);
    assert_eq!(recovered.entity("q").unwrap().counts.active, messages());
    assert!(replayed < Duration::from_secs(2) * (messages() / 1_000_000).max(1) as u32, "{replayed:?}");
}
