//! The real core on the real store, with power cuts at every write boundary.
//!
//! Every group that the core appends is also recorded in memory. A restart must recover exactly what replaying the
//! recorded groups up to the recovered position gives, whatever snapshots, compaction and removal have done to the
//! files.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use broker::core::*;
use broker::journal::{AppendError, Journal, JournalEntry, JournalLocation, Lsn, ReadError, ReadJournalEntry};
use broker::store::{LogStore, MaintenanceTask, StoreOptions};
use bytes::Bytes;

use crate::power_loss::losses;
use crate::simulated_disk::{PowerLoss, SimulatedDisk, SyncKind, TestRandom, WriteBoundary};

const START: Timestamp = Timestamp(1_800_000_000_000);

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 2 << 10, snapshot_every: 8 << 10, manual_io: true, ..StoreOptions::default() }
}

fn empty_core() -> Core {
    Core::new(BrokerLimits::default(), [7; 32])
}

fn recover(disk: &SimulatedDisk) -> Result<(Core, LogStore), String> {
    let mut core = empty_core();
    let recovery = LogStore::open(disk.shared(), options()).map_err(|error| error.to_string())?;
    let replayed = recovery.replay(|meta, body| core.replay(meta, body)).map_err(|error| error.to_string())?;
    let store = replayed.finish(|visit| core.visit_bodies(visit)).map_err(|error| error.to_string())?;
    core.finish_recovery(START);
    Ok((core, store))
}

type RecordedGroup = Vec<(Vec<u8>, Option<(JournalLocation, Bytes)>)>;

/// Every appended group, in order, with the position after it.
#[derive(Default)]
struct AppendLog(Vec<(Lsn, RecordedGroup)>);

/// A journal that records every append.
struct RecordingJournal<'a> {
    journal: &'a mut dyn Journal,
    append_log: &'a mut AppendLog,
}

impl Journal for RecordingJournal<'_> {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        let before = locations.len();
        self.journal.append(group, locations)?;
        let mut new = locations[before..].iter();
        let note = |entry: &JournalEntry<'_>| {
            let body = entry.body.map(|body| (*new.next().expect("a location"), Bytes::copy_from_slice(body)));
            (entry.meta.to_vec(), body)
        };
        let acknowledged = group.iter().map(note).collect();
        self.append_log.0.push((self.journal.position(), acknowledged));
        Ok(())
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        self.journal.read(location)
    }

    fn retain(&mut self, location: JournalLocation, more: u32) {
        self.journal.retain(location, more);
    }

    fn release(&mut self, location: JournalLocation) {
        self.journal.release(location);
    }

    fn position(&self) -> Lsn {
        self.journal.position()
    }
}

/// The recorded bodies, as a journal for reads. Appends are not stored.
struct BodyLookup(HashMap<JournalLocation, ReadJournalEntry>);

impl Journal for BodyLookup {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        let bodies = group.iter().filter_map(|entry| entry.body);
        locations.extend(bodies.map(|body| JournalLocation { segment: u32::MAX, offset: 0, len: body.len() as u32 }));
        Ok(())
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        self.0.get(&location).cloned().ok_or(ReadError::Missing(location))
    }

    fn retain(&mut self, _location: JournalLocation, _more: u32) {}

    fn release(&mut self, _location: JournalLocation) {}

    fn position(&self) -> Lsn {
        Lsn(0)
    }
}

/// The core after replaying the recorded groups up to `end`.
fn expected(append_log: &AppendLog, end: Lsn) -> (Core, BodyLookup) {
    let mut core = empty_core();
    let mut bodies = BodyLookup(HashMap::new());
    for (meta, body) in append_log.0.iter().take_while(|(position, _)| *position <= end).flat_map(|(_, group)| group) {
        core.replay(meta, body.as_ref().map(|(location, _)| *location)).expect("what the core wrote");
        if let Some((location, body)) = body {
            let meta = Bytes::copy_from_slice(meta);
            bodies.0.insert(*location, ReadJournalEntry { meta, body: body.clone() });
        }
    }
    core.finish_recovery(START);
    (core, bodies)
}

/// Everything a client can observe.
fn contents(core: &mut Core, journal: &mut dyn Journal, ids: u64) -> Vec<String> {
    let mut effects = Vec::new();
    let mut call = CallContext { now: START, journal, effects: &mut effects };
    let mut seen = Vec::new();
    let views: Vec<_> = core.entities().map(|view| (view.path.to_owned(), view.id, view.counts)).collect();
    for (path, id, counts) in views {
        seen.push(format!("{path} {counts:?}"));
        for queue in [QueueId::main(id), QueueId::dead_letter(id)] {
            let Ok(peeked) = core.peek(&mut call, queue, None, SequenceNumber(0), usize::MAX) else { continue };
            for message in peeked {
                let stored = call.journal.read(message.location).map_err(|error| error.to_string());
                let stored =
                    stored.map(|stored| (stored.body, StoredEnvelope::decode(&stored.meta).expect("an envelope")));
                let (number, state, count) = (message.sequence, message.state, message.delivery_count);
                seen.push(format!("{path} {number} {state:?} {count} {:?} {stored:?}", message.overrides));
            }
        }
        let mut sessions = core.sessions(&mut call, QueueId::main(id), None, 0, usize::MAX).unwrap_or_default();
        sessions.sort_unstable();
        for (number, session) in sessions.into_iter().enumerate() {
            let (link, queue) = (CoreLinkId(9_000 + number as u64), QueueId::main(id));
            let filter = SessionFilter::Named((*session).into());
            core.attach(&mut call, link, queue, ReceiveMode::PeekLock, filter).expect("nobody holds it");
            let state = core.session_state(&mut call, queue, &session).map_err(|error| error.to_string());
            seen.push(format!("{path} session {session} {state:?}"));
            core.detach(&mut call, link);
        }
    }
    // Sending an id again shows whether it is remembered.
    if let Ok(entity) = core.resolve_send_address("sessions") {
        for id in 0..ids {
            let sent = core.send(&mut call, entity, &[in_session(id, 0)]).expect("room");
            seen.push(format!("id {id} is known: {}", sent[0].is_none()));
        }
    }
    seen
}

fn in_session(id: u64, session: u64) -> IncomingMessage {
    let session: Box<str> = format!("s{session}").into();
    IncomingMessage {
        body: vec![id as u8; 40 + (id % 7) as usize * 50].into(),
        message_id: Some(format!("m{id}").into()),
        partition_key: Some(session.clone()),
        session_id: Some(session),
        ..IncomingMessage::default()
    }
}

/// A broker that performs random actions of every kind.
struct BrokerRun {
    core: Core,
    store: LogStore,
    append_log: AppendLog,
    now: Timestamp,
    random: TestRandom,
    effects: Vec<LinkEffect>,
    ids: u64,
    links: u64,
    snapshot: Option<SnapshotCursor>,
    compaction: Option<Compaction>,
    compactions: usize,
}

impl BrokerRun {
    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        let mut journal = RecordingJournal { journal: &mut self.store, append_log: &mut self.append_log };
        act(&mut self.core, &mut CallContext { now: self.now, journal: &mut journal, effects: &mut self.effects })
    }

    fn create_entities(&mut self) {
        let mut queue = QueueDescription::default();
        queue.egress.requires_session = true;
        queue.ingress.requires_duplicate_detection = true;
        queue.ingress.enable_partitioning = true;
        self.call(|core, call| core.create(call, "sessions", EntityDefinition::Queue(queue))).unwrap();
        self.call(|core, call| core.create(call, "topic", EntityDefinition::Topic(TopicDescription::default())))
            .unwrap();
        for name in ["one", "two"] {
            let path = format!("topic/Subscriptions/{name}");
            let description = EntityDefinition::Subscription(SubscriptionDescription::default());
            self.call(|core, call| core.create(call, &path, description)).unwrap();
        }
    }

    fn random_action(&mut self) {
        match self.random.below(10) {
            0..3 => self.send_to_session(),
            3 | 4 => self.send_to_topic(),
            5 | 6 => self.receive_session(),
            7 => self.receive("topic/Subscriptions/one", 3),
            8 => self.receive("topic/Subscriptions/two", 4),
            _ => {
                self.now = self.now.after(Duration::from_millis(self.random.below(900)));
                self.call(Core::tick);
            }
        }
    }

    fn send_to_session(&mut self) {
        let entity = self.core.resolve_send_address("sessions").unwrap();
        let session = self.random.below(5);
        let mut messages = Vec::new();
        for _ in 0..=self.random.below(3) {
            // Sometimes an id that was sent before.
            let again = self.ids > 10 && self.random.below(6) == 0;
            let id = if again { self.random.below(self.ids) } else { self.ids };
            self.ids = self.ids.max(id + 1);
            messages.push(in_session(id, session));
        }
        self.call(|core, call| core.send(call, entity, &messages)).unwrap();
    }

    fn send_to_topic(&mut self) {
        let entity = self.core.resolve_send_address("topic").unwrap();
        let body = vec![self.links as u8; 30 + self.random.below(300) as usize];
        let later = self.random.below(4) == 0;
        let scheduled_for = later.then(|| self.now.after(Duration::from_millis(1_000)));
        let message = IncomingMessage { body: body.into(), scheduled_for, ..IncomingMessage::default() };
        self.call(|core, call| core.send(call, entity, &[message])).unwrap();
    }

    fn receive_session(&mut self) {
        let queue = self.core.resolve_receive_address("sessions").unwrap();
        let session = format!("s{}", self.random.below(5));
        let link = self.attach(queue, SessionFilter::Named(session.as_str().into()));
        match self.random.below(4) {
            0 => {
                let state = Bytes::from(vec![self.links as u8; self.random.below(120) as usize]);
                self.call(|core, call| core.set_session_state(call, queue, &session, Some(state))).unwrap();
            }
            1 => self.call(|core, call| core.set_session_state(call, queue, &session, None)).unwrap(),
            _ => {}
        }
        self.take(queue, link, 4);
    }

    fn receive(&mut self, path: &str, most: u32) {
        let queue = self.core.resolve_receive_address(path).unwrap();
        let link = self.attach(queue, SessionFilter::None);
        self.take(queue, link, most);
    }

    fn attach(&mut self, queue: QueueId, filter: SessionFilter) -> CoreLinkId {
        self.links += 1;
        let link = CoreLinkId(self.links);
        self.call(|core, call| core.attach(call, link, queue, ReceiveMode::PeekLock, filter)).unwrap();
        link
    }

    /// Receives up to `most` messages, settles them in random ways, and detaches.
    fn take(&mut self, queue: QueueId, link: CoreLinkId, most: u32) {
        self.call(|core, call| core.flow(call, link, 0, most, false));
        for effect in std::mem::take(&mut self.effects) {
            let LinkEffect::Deliver { delivery, .. } = effect else { continue };
            let outcome = match self.random.below(12) {
                0 => SettlementOutcome::Abandon { properties: Vec::new() },
                1 => SettlementOutcome::Defer { properties: Vec::new() },
                2 => SettlementOutcome::DeadLetter {
                    reason: Some("bad".into()),
                    description: None,
                    properties: Vec::new(),
                },
                3 => SettlementOutcome::Release,
                _ => SettlementOutcome::Complete,
            };
            self.call(|core, call| core.settle(call, queue, &[delivery.token], &outcome)).unwrap();
        }
        self.call(|core, call| core.detach(call, link));
    }

    /// One maintenance step of the store.
    fn run_maintenance(&mut self) -> bool {
        match self.store.next_maintenance() {
            None => return false,
            Some(MaintenanceTask::Snapshot { restart }) => {
                if restart {
                    self.snapshot = Some(SnapshotCursor::new(self.now));
                }
                let snapshot = self.snapshot.as_mut().expect("a fresh one comes first");
                if !self.core.write_snapshot(snapshot, 500, |record| self.store.put_snapshot_record(record, None)) {
                    self.store.finish_snapshot();
                }
            }
            Some(MaintenanceTask::Compact(segments)) => {
                let compaction = self.compaction.get_or_insert_with(|| Compaction::of(segments));
                let mut cleaning = self.store.compaction_journal();
                let mut journal = RecordingJournal { journal: &mut cleaning, append_log: &mut self.append_log };
                let mut call = CallContext { now: self.now, journal: &mut journal, effects: &mut self.effects };
                let more = self.core.compact(&mut call, compaction, 5).unwrap();
                if !more {
                    self.compaction = None;
                    self.compactions += 1;
                    self.store.finish_compaction();
                }
            }
        }
        true
    }

    fn settle_store(&mut self) {
        while self.run_maintenance() || self.store.run_pending_io() {}
    }
}

fn start(disk: &SimulatedDisk, seed: u64) -> BrokerRun {
    let (core, store) = recover(disk).unwrap();
    BrokerRun {
        core,
        store,
        append_log: AppendLog::default(),
        now: START,
        random: TestRandom::new(seed),
        effects: Vec::new(),
        ids: 0,
        links: 0,
        snapshot: None,
        compaction: None,
        compactions: 0,
    }
}

fn run(disk: &SimulatedDisk, seed: u64, acts: usize) -> BrokerRun {
    let mut run = start(disk, seed);
    run.create_entities();
    for act in 0..acts {
        run.random_action();
        run.run_maintenance();
        run.store.run_background_io();
        if act % 3 == 0 {
            run.store.run_pending_io();
            disk.set_acknowledged(run.store.synced().0);
        }
    }
    run.settle_store();
    run
}

/// The expected contents at each position, computed on demand.
struct ExpectedContents<'a> {
    append_log: &'a AppendLog,
    ids: u64,
    seen: HashMap<Lsn, Vec<String>>,
}

impl ExpectedContents<'_> {
    fn at(&mut self, end: Lsn) -> &[String] {
        self.seen.entry(end).or_insert_with(|| {
            let (mut core, mut bodies) = expected(self.append_log, end);
            contents(&mut core, &mut bodies, self.ids)
        })
    }
}

/// Recovers and compares, then again after everything unsynced is lost.
fn check_power_loss(
    boundary: &WriteBoundary,
    loss: PowerLoss,
    expectations: &mut ExpectedContents<'_>,
) -> Result<(), String> {
    let mut disk = SimulatedDisk::after_power_loss(boundary, loss);
    let mut acknowledged = boundary.acknowledged;
    for _ in 0..2 {
        let (mut core, mut store) = recover(&disk)?;
        let end = store.position();
        if end.0 < acknowledged {
            return Err(format!("{acknowledged} was acknowledged, {end:?} is there"));
        }
        acknowledged = end.0;
        let found = contents(&mut core, &mut store, expectations.ids);
        let wanted = expectations.at(end);
        if let Some((wanted, found)) = wanted.iter().zip(&found).find(|(wanted, found)| wanted != found) {
            return Err(format!("`{found}` instead of `{wanted}`"));
        }
        if wanted.len() != found.len() {
            return Err(format!("{} things instead of {}", found.len(), wanted.len()));
        }
        // The messages just sent are not synced and are lost with the power.
        drop(store);
        disk = disk.after(PowerLoss::Everything);
    }
    Ok(())
}

/// Cuts the power at every boundary of a run; returns the first problem found.
fn first_loss(disk: &SimulatedDisk, seed: u64) -> Option<String> {
    disk.record();
    let run = run(disk, seed, 400);
    let boundaries = disk.boundaries();
    let did = |what: &str, end: &str| {
        let is = |boundary: &&WriteBoundary| boundary.operation.starts_with(what) && boundary.operation.ends_with(end);
        boundaries.iter().filter(is).count()
    };
    let cleaned = (did("rename", ".snapshot"), did("remove", ".seg"), run.compactions);
    assert!(cleaned.0 >= 3 && cleaned.1 >= 10 && cleaned.2 >= 2, "too little is cleaned: {cleaned:?}");
    let mut expectations = ExpectedContents { append_log: &run.append_log, ids: run.ids, seen: HashMap::new() };
    let mut cuts = boundaries.iter().enumerate().flat_map(|(index, boundary)| {
        [losses(index)[1], losses(index)[2 + index % 2]].map(|loss| (index, boundary, loss))
    });
    cuts.find_map(|(index, boundary, loss)| {
        let error = check_power_loss(boundary, loss, &mut expectations).err()?;
        Some(format!("{loss:?} at boundary {index} ({}): {error}", boundary.operation))
    })
}

#[test]
fn the_broker_recovers_from_a_power_cut_at_any_write() {
    assert_eq!(first_loss(&SimulatedDisk::default(), 1), None);
}

#[test]
fn the_broker_recovers_from_any_power_cut_with_another_seed() {
    assert_eq!(first_loss(&SimulatedDisk::default(), 2), None);
}

#[test]
fn without_the_sync_of_a_group_the_broker_loses_something() {
    let disk = SimulatedDisk::default();
    disk.ignore(SyncKind::Piece);
    assert!(first_loss(&disk, 1).is_some());
}

#[test]
fn deleting_all_entities_frees_all_disk_space() {
    let disk = SimulatedDisk::default();
    let mut run = run(&disk, 5, 600);
    let before = run.store.usage();
    assert!(before.segments > 8, "{before:?}");
    for path in ["sessions", "topic"] {
        run.call(|core, call| core.delete(call, path)).unwrap();
    }
    // A snapshot is due only after more appends.
    let body = Bytes::from(vec![1; 1_000]);
    let queue = EntityDefinition::Queue(QueueDescription::default());
    let entity = run.call(|core, call| core.create(call, "after", queue)).unwrap();
    let egress = QueueId::main(entity);
    for _ in 0..50 {
        let message = IncomingMessage { body: body.clone(), ..IncomingMessage::default() };
        run.call(|core, call| core.send(call, entity, &[message])).unwrap();
        let link = run.attach(egress, SessionFilter::None);
        run.call(|core, call| core.flow(call, link, 0, 10, false));
        for effect in std::mem::take(&mut run.effects) {
            let LinkEffect::Deliver { delivery, .. } = effect else { continue };
            run.call(|core, call| core.settle(call, egress, &[delivery.token], &SettlementOutcome::Complete)).unwrap();
        }
        run.call(|core, call| core.detach(call, link));
        run.settle_store();
    }
    let usage = run.store.usage();
    assert!(usage.bytes < 16 << 10, "{before:?} before, {usage:?} after");
}

#[test]
fn a_restart_keeps_locked_messages_and_their_count() {
    let disk = SimulatedDisk::default();
    let mut run = run(&disk, 6, 60);
    let queue = run.core.resolve_receive_address("topic/Subscriptions/one").unwrap();
    run.send_to_topic();
    let link = run.attach(queue, SessionFilter::None);
    run.call(|core, call| core.flow(call, link, 0, 1, false));
    run.store.run_pending_io();
    let (ids, end) = (run.ids, run.store.position());
    let (mut wanted, mut bodies) = expected(&run.append_log, end);
    drop(run.store);
    let disk = Arc::new(disk.after(PowerLoss::Everything));
    let (mut core, mut store) = recover(&disk).unwrap();
    assert_eq!(contents(&mut core, &mut store, ids), contents(&mut wanted, &mut bodies, ids));
}
