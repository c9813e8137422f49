//! A minimal core that is easy to check: messages in sessions, duplicate history and session state, on any journal.
//!
//! Like the real core it appends absolute values, writes snapshots in steps while it changes, and compacts in steps.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use broker::journal::{AppendError, Journal, JournalEntry, JournalLocation};
use broker::store::{LogStore, MaintenanceTask};

use crate::simulated_disk::TestRandom;

/// A client operation. Its number is stored with it, so a recovered state shows how many operations it contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreOp {
    /// One group of messages.
    Send {
        messages: Vec<MiniMessage>,
    },
    Settle {
        sequence: u64,
    },
    SetState {
        session: u8,
        value: Vec<u8>,
    },
    ClearState {
        session: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MiniMessage {
    pub(crate) sequence: u64,
    pub(crate) session: u8,
    pub(crate) body: Vec<u8>,
}

/// What a client can observe, including bodies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VisibleState {
    pub(crate) messages: BTreeMap<u64, (u8, Vec<u8>)>,
    pub(crate) history: BTreeSet<u64>,
    pub(crate) states: BTreeMap<u8, Vec<u8>>,
}

impl VisibleState {
    /// The state after these operations.
    pub(crate) fn after(ops: &[StoreOp]) -> Self {
        let mut state = Self::default();
        ops.iter().for_each(|op| state.apply(op));
        state
    }

    pub(crate) fn apply(&mut self, op: &StoreOp) {
        match op {
            StoreOp::Send { messages } => {
                for message in messages {
                    self.messages.insert(message.sequence, (message.session, message.body.clone()));
                    self.history.insert(message.sequence);
                }
            }
            StoreOp::Settle { sequence } => {
                self.messages.remove(sequence);
            }
            StoreOp::SetState { session, value } => {
                self.states.insert(*session, value.clone());
            }
            StoreOp::ClearState { session } => {
                self.states.remove(session);
            }
        }
    }
}

/// One record: a tag, the number of its operation, and a key.
const MESSAGE: u8 = 1;
const SETTLED: u8 = 2;
const STATE: u8 = 3;
const STATE_CLEARED: u8 = 4;
const KNOWN: u8 = 5;
const OPS: u8 = 6;

fn record(tag: u8, ops: u64, key: u64, session: u8) -> Vec<u8> {
    let mut meta = vec![tag, session];
    meta.extend_from_slice(&ops.to_le_bytes());
    meta.extend_from_slice(&key.to_le_bytes());
    meta
}

#[derive(Debug, Default)]
pub(crate) struct MiniCore {
    /// Operations applied so far.
    pub(crate) ops: u64,
    messages: BTreeMap<u64, (u8, JournalLocation)>,
    history: BTreeSet<u64>,
    states: BTreeMap<u8, JournalLocation>,
}

impl MiniCore {
    pub(crate) fn apply(&mut self, op: &StoreOp, journal: &mut impl Journal) -> Result<(), AppendError> {
        let ops = self.ops + 1;
        match op {
            StoreOp::Send { messages } => self.send(messages, ops, journal)?,
            StoreOp::Settle { sequence } => {
                append(journal, &record(SETTLED, ops, *sequence, 0), None)?;
                if let Some((_, location)) = self.messages.remove(sequence) {
                    journal.release(location);
                }
            }
            StoreOp::SetState { session, value } => {
                let location = append(journal, &record(STATE, ops, 0, *session), Some(value))?;
                let old = self.states.insert(*session, location.expect("a state has a body"));
                old.into_iter().for_each(|old| journal.release(old));
            }
            StoreOp::ClearState { session } => {
                append(journal, &record(STATE_CLEARED, ops, 0, *session), None)?;
                self.states.remove(session).into_iter().for_each(|old| journal.release(old));
            }
        }
        self.ops = ops;
        Ok(())
    }

    fn send(&mut self, messages: &[MiniMessage], ops: u64, journal: &mut impl Journal) -> Result<(), AppendError> {
        let metas: Vec<_> = messages.iter().map(|m| record(MESSAGE, ops, m.sequence, m.session)).collect();
        let entries = metas.iter().zip(messages);
        let group: Vec<_> =
            entries.map(|(meta, m)| JournalEntry { meta, body: Some(&m.body), references: 1 }).collect();
        let mut locations = Vec::new();
        journal.append(&group, &mut locations)?;
        for (message, location) in messages.iter().zip(locations) {
            self.messages.insert(message.sequence, (message.session, location));
            self.history.insert(message.sequence);
        }
        Ok(())
    }

    pub(crate) fn replay(&mut self, meta: &[u8], body: Option<JournalLocation>) -> Result<(), Infallible> {
        let number = |at: usize| u64::from_le_bytes(meta[at..at + 8].try_into().unwrap());
        let (session, ops, key) = (meta[1], number(2), number(10));
        self.ops = self.ops.max(ops);
        match meta[0] {
            MESSAGE => {
                self.messages.insert(key, (session, body.expect("a message has a body")));
                self.history.insert(key);
            }
            SETTLED => {
                self.messages.remove(&key);
            }
            STATE => {
                self.states.insert(session, body.expect("a state has a body"));
            }
            STATE_CLEARED => {
                self.states.remove(&session);
            }
            KNOWN => {
                self.history.insert(key);
            }
            OPS => {}
            tag => panic!("no record has the tag {tag}"),
        }
        Ok(())
    }

    pub(crate) fn visit_bodies(&self, visit: &mut dyn FnMut(JournalLocation)) {
        self.messages.values().for_each(|(_, location)| visit(*location));
        self.states.values().for_each(|location| visit(*location));
    }

    /// The observable state, with every body read back.
    pub(crate) fn visible(&self, journal: &impl Journal) -> Result<VisibleState, String> {
        let body = |location: JournalLocation| -> Result<Vec<u8>, String> {
            journal.read(location).map(|stored| stored.body.to_vec()).map_err(|error| error.to_string())
        };
        let mut visible = VisibleState { history: self.history.clone(), ..VisibleState::default() };
        for (sequence, (session, location)) in &self.messages {
            visible.messages.insert(*sequence, (*session, body(*location)?));
        }
        for (session, location) in &self.states {
            visible.states.insert(*session, body(*location)?);
        }
        Ok(visible)
    }

    /// Writes a few records of a snapshot; returns `true` when it is complete.
    fn snapshot(&self, cursor: &mut MiniSnapshotCursor, mut put: impl FnMut(&[u8], Option<JournalLocation>)) -> bool {
        const BUDGET: usize = 5;
        let next = |after: Option<u64>| after.map_or(0, |after| after + 1);
        if !cursor.states {
            cursor.states = true;
            put(&record(OPS, self.ops, 0, 0), None);
            for (session, location) in &self.states {
                put(&record(STATE, 0, 0, *session), Some(*location));
            }
            return false;
        }
        for sequence in self.history.range(next(cursor.known)..).take(BUDGET) {
            put(&record(KNOWN, 0, *sequence, 0), None);
            cursor.known = Some(*sequence);
        }
        for (sequence, (session, location)) in self.messages.range(next(cursor.message)..).take(BUDGET) {
            put(&record(MESSAGE, 0, *sequence, *session), Some(*location));
            cursor.message = Some(*sequence);
        }
        self.history.range(next(cursor.known)..).next().is_none()
            && self.messages.range(next(cursor.message)..).next().is_none()
    }

    /// Moves a few bodies out of the segments; returns `true` when none is left there.
    fn compact(&mut self, segments: &[u32], journal: &mut impl Journal) -> Result<bool, AppendError> {
        const BUDGET: usize = 3;
        for (session, location) in self.states.iter_mut().filter(|(_, at)| segments.contains(&at.segment)) {
            let body = journal.read(*location).expect("what lives can be read").body;
            let moved = append(journal, &record(STATE, 0, 0, *session), Some(&body))?;
            journal.release(std::mem::replace(location, moved.expect("a state has a body")));
        }
        let mut here = self.messages.iter_mut().filter(|(_, (_, at))| segments.contains(&at.segment));
        for (sequence, (session, location)) in here.by_ref().take(BUDGET) {
            let body = journal.read(*location).expect("what lives can be read").body;
            let moved = append(journal, &record(MESSAGE, 0, *sequence, *session), Some(&body))?;
            journal.release(std::mem::replace(location, moved.expect("a message has a body")));
        }
        Ok(here.next().is_none())
    }
}

fn append(
    journal: &mut impl Journal,
    meta: &[u8],
    body: Option<&[u8]>,
) -> Result<Option<JournalLocation>, AppendError> {
    let mut locations = Vec::new();
    journal.append(&[JournalEntry { meta, body, references: u32::from(body.is_some()) }], &mut locations)?;
    Ok(locations.pop())
}

#[derive(Debug, Default)]
pub(crate) struct MiniSnapshotCursor {
    states: bool,
    known: Option<u64>,
    message: Option<u64>,
}

/// The engine's part: runs the store's maintenance tasks.
#[derive(Debug)]
pub(crate) struct MiniEngine {
    pub(crate) core: MiniCore,
    cursor: MiniSnapshotCursor,
}

impl MiniEngine {
    pub(crate) fn new(core: MiniCore) -> Self {
        Self { core, cursor: MiniSnapshotCursor::default() }
    }

    pub(crate) fn assert_visible(&self, store: &LogStore, ops: &[StoreOp]) {
        assert_eq!(self.core.visible(store).unwrap(), VisibleState::after(ops));
    }

    /// Maintains and writes until there is nothing left to do.
    pub(crate) fn run_to_idle(&mut self, store: &mut LogStore) {
        while self.run_maintenance(store) || store.run_pending_io() {}
    }

    /// A few steps of maintenance, each followed by the writes it causes.
    pub(crate) fn run_steps(&mut self, store: &mut LogStore, steps: usize) {
        for _ in 0..steps {
            self.run_maintenance(store);
            store.run_pending_io();
        }
    }

    /// One maintenance step; `false` if there is nothing to do.
    pub(crate) fn run_maintenance(&mut self, store: &mut LogStore) -> bool {
        match store.next_maintenance() {
            None => false,
            Some(MaintenanceTask::Snapshot { restart }) => {
                if restart {
                    self.cursor = MiniSnapshotCursor::default();
                }
                if self.core.snapshot(&mut self.cursor, |meta, body| store.put_snapshot_record(meta, body)) {
                    store.finish_snapshot();
                }
                true
            }
            Some(MaintenanceTask::Compact(segments)) => {
                // Refused for lack of space: the store asks again.
                let done = self.core.compact(&segments, &mut store.compaction_journal());
                if done.as_ref().is_ok_and(|done| *done) {
                    store.finish_compaction();
                }
                done.is_ok()
            }
        }
    }
}

/// Operations in which most messages are settled soon, some late, and one in twelve never.
pub(crate) fn workload(seed: u64, count: usize) -> Vec<StoreOp> {
    let mut random = TestRandom::new(seed);
    let mut sequence = 0;
    let mut open: Vec<u64> = Vec::new();
    let mut ops = Vec::new();
    while ops.len() < count {
        match random.below(20) {
            0..8 => {
                let mut messages = Vec::new();
                for _ in 0..=random.below(3) {
                    sequence += 1;
                    let body = vec![sequence as u8; 20 + random.below(200) as usize];
                    messages.push(MiniMessage { sequence, session: random.below(4) as u8, body });
                    if !sequence.is_multiple_of(12) {
                        open.push(sequence);
                    }
                }
                ops.push(StoreOp::Send { messages });
            }
            8..18 if !open.is_empty() => {
                let at = random.below(open.len().min(6) as u64) as usize;
                ops.push(StoreOp::Settle { sequence: open.remove(at) });
            }
            18 => {
                let value = vec![ops.len() as u8; random.below(100) as usize];
                ops.push(StoreOp::SetState { session: random.below(4) as u8, value });
            }
            19 if random.below(2) == 0 => ops.push(StoreOp::ClearState { session: random.below(4) as u8 }),
            _ => {}
        }
    }
    ops
}
