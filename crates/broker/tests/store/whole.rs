//! The real core over the real store, cut at every write boundary.
//!
//! Every group the core appends is also noted in memory. What a start recovers must be what replaying the noted groups, up to the position the
//! store recovered to, gives: whatever snapshots, cleaning and removal have made of the files since.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use broker::core::*;
use broker::journal::{AppendError, Entry, Journal, Location, Lsn, ReadError, Stored};
use broker::store::{Chore, Options, Store};
use bytes::Bytes;

use crate::crash::losses;
use crate::sim::{Boundary, Dice, Loss, SimDisk, SyncKind};

const START: Timestamp = Timestamp(1_800_000_000_000);

fn options() -> Options {
    Options { segment_bytes: 2 << 10, snapshot_every: 8 << 10, by_hand: true, ..Options::default() }
}

fn empty_core() -> Core {
    Core::new(Limits::default(), [7; 32])
}

fn recover(disk: &SimDisk) -> Result<(Core, Store), String> {
    let mut core = empty_core();
    let recovery = Store::open(disk.shared(), options()).map_err(|error| error.to_string())?;
    let replayed = recovery.replay(|meta, body| core.replay(meta, body)).map_err(|error| error.to_string())?;
    let store = replayed.finish(|visit| core.visit_bodies(visit)).map_err(|error| error.to_string())?;
    core.recovered(START);
    Ok((core, store))
}

type Group = Vec<(Vec<u8>, Option<(Location, Bytes)>)>;

/// Everything appended, in order, with the position after it.
#[derive(Default)]
struct Notes(Vec<(Lsn, Group)>);

/// A journal that takes notes.
struct Noting<'a> {
    journal: &'a mut dyn Journal,
    notes: &'a mut Notes,
}

impl Journal for Noting<'_> {
    fn append(&mut self, group: &[Entry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        let before = locations.len();
        self.journal.append(group, locations)?;
        let mut new = locations[before..].iter();
        let note = |entry: &Entry<'_>| {
            let body = entry.body.map(|body| (*new.next().expect("a location"), Bytes::copy_from_slice(body)));
            (entry.meta.to_vec(), body)
        };
        let noted = group.iter().map(note).collect();
        self.notes.0.push((self.journal.position(), noted));
        Ok(())
    }

    fn read(&self, location: Location) -> Result<Stored, ReadError> {
        self.journal.read(location)
    }

    fn retain(&mut self, location: Location, more: u32) {
        self.journal.retain(location, more);
    }

    fn release(&mut self, location: Location) {
        self.journal.release(location);
    }

    fn position(&self) -> Lsn {
        self.journal.position()
    }
}

/// The noted bodies, as a journal to look things up in; what is appended to it is forgotten.
struct Shelf(HashMap<Location, Stored>);

impl Journal for Shelf {
    fn append(&mut self, group: &[Entry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        let bodies = group.iter().filter_map(|entry| entry.body);
        locations.extend(bodies.map(|body| Location { segment: u32::MAX, offset: 0, len: body.len() as u32 }));
        Ok(())
    }

    fn read(&self, location: Location) -> Result<Stored, ReadError> {
        self.0.get(&location).cloned().ok_or(ReadError::Missing(location))
    }

    fn retain(&mut self, _location: Location, _more: u32) {}

    fn release(&mut self, _location: Location) {}

    fn position(&self) -> Lsn {
        Lsn(0)
    }
}

/// The core that the notes up to `end` make.
fn expected(notes: &Notes, end: Lsn) -> (Core, Shelf) {
    let mut core = empty_core();
    let mut shelf = Shelf(HashMap::new());
    for (meta, body) in notes.0.iter().take_while(|(position, _)| *position <= end).flat_map(|(_, group)| group) {
        core.replay(meta, body.as_ref().map(|(location, _)| *location)).expect("what the core wrote");
        if let Some((location, body)) = body {
            let meta = Bytes::copy_from_slice(meta);
            shelf.0.insert(*location, Stored { meta, body: body.clone() });
        }
    }
    core.recovered(START);
    (core, shelf)
}

/// Everything a client could find out.
fn contents(core: &mut Core, journal: &mut dyn Journal, ids: u64) -> Vec<String> {
    let mut effects = Vec::new();
    let mut turn = Turn { now: START, journal, effects: &mut effects };
    let mut seen = Vec::new();
    let views: Vec<_> = core.entities().map(|view| (view.path.to_owned(), view.id, view.counts)).collect();
    for (path, id, counts) in views {
        seen.push(format!("{path} {counts:?}"));
        for queue in [QueueId::main(id), QueueId::dead_letter(id)] {
            let Ok(peeked) = core.peek(&mut turn, queue, None, SequenceNumber(0), usize::MAX) else { continue };
            for message in peeked {
                let stored = turn.journal.read(message.location).map_err(|error| error.to_string());
                let stored = stored.map(|stored| (stored.body, Envelope::decode(&stored.meta).expect("an envelope")));
                let (number, state, count) = (message.sequence, message.state, message.delivery_count);
                seen.push(format!("{path} {number} {state:?} {count} {:?} {stored:?}", message.alterations));
            }
        }
        let mut sessions = core.sessions(&mut turn, QueueId::main(id), None, 0, usize::MAX).unwrap_or_default();
        sessions.sort_unstable();
        for (number, session) in sessions.into_iter().enumerate() {
            let (link, queue) = (LinkId(9_000 + number as u64), QueueId::main(id));
            let filter = SessionFilter::Named((*session).into());
            core.attach(&mut turn, link, queue, Mode::PeekLock, filter).expect("nobody holds it");
            let state = core.session_state(&mut turn, queue, &session).map_err(|error| error.to_string());
            seen.push(format!("{path} session {session} {state:?}"));
            core.detach(&mut turn, link);
        }
    }
    // Which ids are remembered shows when they are sent again.
    if let Ok(entity) = core.resolve_inlet("sessions") {
        for id in 0..ids {
            let sent = core.send(&mut turn, entity, &[in_session(id, 0)]).expect("room");
            seen.push(format!("id {id} is known: {}", sent[0].is_none()));
        }
    }
    seen
}

fn in_session(id: u64, session: u64) -> Incoming {
    let session: Box<str> = format!("s{session}").into();
    Incoming {
        body: vec![id as u8; 40 + (id % 7) as usize * 50].into(),
        message_id: Some(format!("m{id}").into()),
        partition_key: Some(session.clone()),
        session_id: Some(session),
        ..Incoming::default()
    }
}

/// A broker that does a bit of everything.
struct Run {
    core: Core,
    store: Store,
    notes: Notes,
    now: Timestamp,
    dice: Dice,
    effects: Vec<Effect>,
    ids: u64,
    links: u64,
    snapshot: Option<Snapshot>,
    evacuation: Option<Evacuation>,
    evacuations: usize,
}

impl Run {
    fn turn<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T) -> T {
        let mut journal = Noting { journal: &mut self.store, notes: &mut self.notes };
        act(&mut self.core, &mut Turn { now: self.now, journal: &mut journal, effects: &mut self.effects })
    }

    fn furnish(&mut self) {
        let mut queue = QueueDescription::default();
        queue.outlet.requires_session = true;
        queue.inlet.requires_duplicate_detection = true;
        queue.inlet.enable_partitioning = true;
        self.turn(|core, turn| core.create(turn, "sessions", Description::Queue(queue))).unwrap();
        self.turn(|core, turn| core.create(turn, "topic", Description::Topic(TopicDescription::default()))).unwrap();
        for name in ["one", "two"] {
            let path = format!("topic/Subscriptions/{name}");
            let description = Description::Subscription(SubscriptionDescription::default());
            self.turn(|core, turn| core.create(turn, &path, description)).unwrap();
        }
    }

    fn act(&mut self) {
        match self.dice.below(10) {
            0..3 => self.send_to_session(),
            3 | 4 => self.send_to_topic(),
            5 | 6 => self.receive_session(),
            7 => self.receive("topic/Subscriptions/one", 3),
            8 => self.receive("topic/Subscriptions/two", 4),
            _ => {
                self.now = self.now.after(Duration::from_millis(self.dice.below(900)));
                self.turn(Core::tick);
            }
        }
    }

    fn send_to_session(&mut self) {
        let entity = self.core.resolve_inlet("sessions").unwrap();
        let session = self.dice.below(5);
        let mut messages = Vec::new();
        for _ in 0..=self.dice.below(3) {
            // Now and then one that was sent before.
            let again = self.ids > 10 && self.dice.below(6) == 0;
            let id = if again { self.dice.below(self.ids) } else { self.ids };
            self.ids = self.ids.max(id + 1);
            messages.push(in_session(id, session));
        }
        self.turn(|core, turn| core.send(turn, entity, &messages)).unwrap();
    }

    fn send_to_topic(&mut self) {
        let entity = self.core.resolve_inlet("topic").unwrap();
        let body = vec![self.links as u8; 30 + self.dice.below(300) as usize];
        let later = self.dice.below(4) == 0;
        let scheduled_for = later.then(|| self.now.after(Duration::from_millis(1_000)));
        let message = Incoming { body: body.into(), scheduled_for, ..Incoming::default() };
        self.turn(|core, turn| core.send(turn, entity, &[message])).unwrap();
    }

    fn receive_session(&mut self) {
        let queue = self.core.resolve_outlet("sessions").unwrap();
        let session = format!("s{}", self.dice.below(5));
        let link = self.attach(queue, SessionFilter::Named(session.as_str().into()));
        match self.dice.below(4) {
            0 => {
                let state = Bytes::from(vec![self.links as u8; self.dice.below(120) as usize]);
                self.turn(|core, turn| core.set_session_state(turn, queue, &session, Some(state))).unwrap();
            }
            1 => self.turn(|core, turn| core.set_session_state(turn, queue, &session, None)).unwrap(),
            _ => {}
        }
        self.take(queue, link, 4);
    }

    fn receive(&mut self, path: &str, most: u32) {
        let queue = self.core.resolve_outlet(path).unwrap();
        let link = self.attach(queue, SessionFilter::None);
        self.take(queue, link, most);
    }

    fn attach(&mut self, queue: QueueId, filter: SessionFilter) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        self.turn(|core, turn| core.attach(turn, link, queue, Mode::PeekLock, filter)).unwrap();
        link
    }

    /// Receives up to `most`, settles them one way or another, and goes.
    fn take(&mut self, queue: QueueId, link: LinkId, most: u32) {
        self.turn(|core, turn| core.flow(turn, link, 0, most, false));
        for effect in std::mem::take(&mut self.effects) {
            let Effect::Deliver { delivery, .. } = effect else { continue };
            let outcome = match self.dice.below(12) {
                0 => Outcome::Abandon { properties: Vec::new() },
                1 => Outcome::Defer { properties: Vec::new() },
                2 => Outcome::DeadLetter { reason: Some("bad".into()), description: None, properties: Vec::new() },
                3 => Outcome::Release,
                _ => Outcome::Complete,
            };
            self.turn(|core, turn| core.settle(turn, queue, &[delivery.token], &outcome)).unwrap();
        }
        self.turn(|core, turn| core.detach(turn, link));
    }

    /// One step of what the store wants.
    fn chore(&mut self) -> bool {
        match self.store.tend() {
            None => return false,
            Some(Chore::Snapshot { fresh }) => {
                if fresh {
                    self.snapshot = Some(Snapshot::begin(self.now));
                }
                let snapshot = self.snapshot.as_mut().expect("a fresh one comes first");
                if !self.core.snapshot(snapshot, 500, |record| self.store.snapshot_put(record, None)) {
                    self.store.snapshot_done();
                }
            }
            Some(Chore::Evacuate(segments)) => {
                let evacuation = self.evacuation.get_or_insert_with(|| Evacuation::of(segments));
                let mut cleaning = self.store.cleaning();
                let mut journal = Noting { journal: &mut cleaning, notes: &mut self.notes };
                let mut turn = Turn { now: self.now, journal: &mut journal, effects: &mut self.effects };
                let more = self.core.evacuate(&mut turn, evacuation, 5).unwrap();
                if !more {
                    self.evacuation = None;
                    self.evacuations += 1;
                    self.store.evacuation_done();
                }
            }
        }
        true
    }

    fn rest(&mut self) {
        while self.chore() || self.store.work() {}
    }
}

fn start(disk: &SimDisk, seed: u64) -> Run {
    let (core, store) = recover(disk).unwrap();
    Run {
        core,
        store,
        notes: Notes::default(),
        now: START,
        dice: Dice::new(seed),
        effects: Vec::new(),
        ids: 0,
        links: 0,
        snapshot: None,
        evacuation: None,
        evacuations: 0,
    }
}

fn run(disk: &SimDisk, seed: u64, acts: usize) -> Run {
    let mut run = start(disk, seed);
    run.furnish();
    for act in 0..acts {
        run.act();
        run.chore();
        run.store.work_aside();
        if act % 3 == 0 {
            run.store.work();
            disk.note(run.store.synced().0);
        }
    }
    run.rest();
    run
}

/// What the notes say should be seen at each position that was asked for.
struct Expectations<'a> {
    notes: &'a Notes,
    ids: u64,
    seen: HashMap<Lsn, Vec<String>>,
}

impl Expectations<'_> {
    fn at(&mut self, end: Lsn) -> &[String] {
        self.seen.entry(end).or_insert_with(|| {
            let (mut core, mut shelf) = expected(self.notes, end);
            contents(&mut core, &mut shelf, self.ids)
        })
    }
}

/// Recovers, compares with the notes, and once more after everything unsynced is lost.
fn survives(boundary: &Boundary, loss: Loss, expectations: &mut Expectations<'_>) -> Result<(), String> {
    let mut disk = SimDisk::after_power_loss(boundary, loss);
    let mut acknowledged = boundary.noted;
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
        // What was just sent is not synced, and goes with the power.
        drop(store);
        disk = disk.after(Loss::Everything);
    }
    Ok(())
}

/// Cuts the power at every boundary of a run; tells the first time that something is wrong afterwards.
fn first_loss(disk: &SimDisk, seed: u64) -> Option<String> {
    disk.record();
    let run = run(disk, seed, 400);
    let boundaries = disk.boundaries();
    let did = |what: &str, end: &str| {
        let is = |boundary: &&Boundary| boundary.operation.starts_with(what) && boundary.operation.ends_with(end);
        boundaries.iter().filter(is).count()
    };
    let cleaned = (did("rename", ".snapshot"), did("remove", ".seg"), run.evacuations);
    assert!(cleaned.0 >= 3 && cleaned.1 >= 10 && cleaned.2 >= 2, "too little is cleaned: {cleaned:?}");
    let mut expectations = Expectations { notes: &run.notes, ids: run.ids, seen: HashMap::new() };
    let mut cuts = boundaries.iter().enumerate().flat_map(|(index, boundary)| {
        [losses(index)[1], losses(index)[2 + index % 2]].map(|loss| (index, boundary, loss))
    });
    cuts.find_map(|(index, boundary, loss)| {
        let error = survives(boundary, loss, &mut expectations).err()?;
        Some(format!("{loss:?} at boundary {index} ({}): {error}", boundary.operation))
    })
}

#[test]
fn the_broker_recovers_from_a_power_cut_at_any_write() {
    assert_eq!(first_loss(&SimDisk::default(), 1), None);
}

#[test]
fn the_broker_recovers_from_a_power_cut_at_any_write_of_another_history() {
    assert_eq!(first_loss(&SimDisk::default(), 2), None);
}

#[test]
fn the_broker_without_the_sync_of_a_group_loses_something() {
    let disk = SimDisk::default();
    disk.ignore(SyncKind::Piece);
    assert!(first_loss(&disk, 1).is_some());
}

#[test]
fn the_broker_gives_back_all_room_when_its_entities_are_deleted() {
    let disk = SimDisk::default();
    let mut run = run(&disk, 5, 600);
    let before = run.store.usage();
    assert!(before.segments > 8, "{before:?}");
    for path in ["sessions", "topic"] {
        run.turn(|core, turn| core.delete(turn, path)).unwrap();
    }
    // Something has to happen for a snapshot to be due.
    let body = Bytes::from(vec![1; 1_000]);
    let queue = Description::Queue(QueueDescription::default());
    let entity = run.turn(|core, turn| core.create(turn, "after", queue)).unwrap();
    let outlet = QueueId::main(entity);
    for _ in 0..50 {
        let message = Incoming { body: body.clone(), ..Incoming::default() };
        run.turn(|core, turn| core.send(turn, entity, &[message])).unwrap();
        let link = run.attach(outlet, SessionFilter::None);
        run.turn(|core, turn| core.flow(turn, link, 0, 10, false));
        for effect in std::mem::take(&mut run.effects) {
            let Effect::Deliver { delivery, .. } = effect else { continue };
            run.turn(|core, turn| core.settle(turn, outlet, &[delivery.token], &Outcome::Complete)).unwrap();
        }
        run.turn(|core, turn| core.detach(turn, link));
        run.rest();
    }
    let usage = run.store.usage();
    assert!(usage.bytes < 16 << 10, "{before:?} before, {usage:?} after");
}

#[test]
fn a_restart_keeps_what_was_locked_and_its_count() {
    let disk = SimDisk::default();
    let mut run = run(&disk, 6, 60);
    let queue = run.core.resolve_outlet("topic/Subscriptions/one").unwrap();
    run.send_to_topic();
    let link = run.attach(queue, SessionFilter::None);
    run.turn(|core, turn| core.flow(turn, link, 0, 1, false));
    run.store.work();
    let (ids, end) = (run.ids, run.store.position());
    let (mut wanted, mut shelf) = expected(&run.notes, end);
    drop(run.store);
    let disk = Arc::new(disk.after(Loss::Everything));
    let (mut core, mut store) = recover(&disk).unwrap();
    assert_eq!(contents(&mut core, &mut store, ids), contents(&mut wanted, &mut shelf, ids));
}
