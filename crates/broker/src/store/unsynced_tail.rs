//! What the engine's thread and the [writer](super::writer) share: the unsynced tail of the journal, and how far it has come.
//!
//! The engine puts frames at the end; the writer takes all that gathered while it was busy with the last sync, so batches fit
//! themselves to the load. Bytes leave memory only when they are synced: until then they are read from here, and they are
//! what is written again, elsewhere, when a sync fails.
//!
//! The lock is held for a copy at most, never during I/O.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use super::layout::PieceHeader;

/// Called, from any thread, when [`LogStore::tend`](super::LogStore::tend) has something new to see.
pub type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// How the store is, as of its last attempt to write.
#[derive(Debug, Clone, Default)]
pub enum StoreHealth {
    #[default]
    Good,
    /// No room: bodies are refused, small records go to the reserve. Set when a file cannot be made, unset when the reserve is whole.
    Full,
    /// Writing fails for another reason; what was appended waits in memory and is tried again.
    Failing(Arc<io::Error>),
}

impl StoreHealth {
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Good)
    }
}

/// Consecutive frames of one segment.
#[derive(Debug)]
pub(super) struct TailChunk {
    pub(super) segment: u32,
    /// Position of the segment's first byte.
    pub(super) base: u64,
    /// Where in the segment the bytes begin.
    pub(super) offset: u32,
    pub(super) bytes: Vec<u8>,
    /// Set on a segment's last chunk (which may be empty): the index to close it with, empty for none.
    pub(super) closing: Option<Bytes>,
}

impl TailChunk {
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.offset) + self.bytes.len() as u64
    }

    fn slice(&self, segment: u32, offset: u32) -> Option<&[u8]> {
        let from = offset.checked_sub(self.offset).filter(|_| segment == self.segment)?;
        self.bytes.get(from as usize..).filter(|bytes| !bytes.is_empty())
    }
}

#[derive(Debug, Default)]
pub(super) struct UnsyncedTail {
    /// Not yet seen by the writer.
    pub(super) pending: VecDeque<TailChunk>,
    /// With the writer, not yet synced.
    pub(super) in_flight: VecDeque<Arc<TailChunk>>,
    /// The journal is durable up to here.
    pub(super) synced: u64,
    pub(super) health: StoreHealth,
    /// The files of each segment, in the order in which each replaces the one before from its start on.
    pub(super) pieces: BTreeMap<u32, Vec<PieceHeader>>,
    pub(super) stopping: bool,
    /// Buffers to gather in again: fresh ones would be paged in anew for every batch.
    spare: Vec<Vec<u8>>,
}

/// A buffer that grew beyond this in a burst is given back rather than kept.
const KEEP_BUFFER: usize = 4 << 20;

impl UnsyncedTail {
    pub(super) fn new(synced: u64, health: StoreHealth, pieces: BTreeMap<u32, Vec<PieceHeader>>) -> Self {
        Self { synced, health, pieces, ..Self::default() }
    }

    /// The chunk that the engine writes to, at `offset` of `segment`.
    pub(super) fn open_chunk(&mut self, segment: u32, base: u64, offset: u32) -> &mut TailChunk {
        let fits = self.pending.back().is_some_and(|chunk| chunk.segment == segment);
        if !fits {
            let bytes = self.spare.pop().unwrap_or_default();
            self.pending.push_back(TailChunk { segment, base, offset, bytes, closing: None });
        }
        self.pending.back_mut().expect("a chunk is there: pushed above unless one fitted")
    }

    /// Moves everything gathered to the writer's hands.
    pub(super) fn begin_write(&mut self) {
        self.in_flight.extend(self.pending.drain(..).map(Arc::new));
    }

    /// Everything up to `lsn` is durable.
    pub(super) fn advance(&mut self, lsn: u64) {
        self.synced = self.synced.max(lsn);
        while self.in_flight.front().is_some_and(|chunk| chunk.end() <= lsn) {
            let chunk = self.in_flight.pop_front().expect("not empty: just looked at");
            // The writer may still hold it; then its buffer is simply freed.
            if let Ok(TailChunk { mut bytes, .. }) = Arc::try_unwrap(chunk)
                && bytes.capacity() <= KEEP_BUFFER
                && self.spare.len() < 2
            {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }

    /// A new file is durable up to `end`; returns the pieces that it replaces altogether.
    pub(super) fn publish(&mut self, head: PieceHeader, end: u64) -> Vec<PieceHeader> {
        let pieces = self.pieces.entry(head.name.segment).or_default();
        let replaced = pieces.extract_if(.., |piece| piece.start >= head.start).collect();
        pieces.push(head);
        self.advance(end);
        replaced
    }

    /// The unsynced bytes from `offset` of `segment` to the end of their chunk.
    pub(super) fn unsynced(&self, segment: u32, offset: u32) -> Option<&[u8]> {
        let in_flight = self.in_flight.iter().find_map(|chunk| chunk.slice(segment, offset));
        in_flight.or_else(|| self.pending.iter().find_map(|chunk| chunk.slice(segment, offset)))
    }

    /// The file that holds `offset` of `segment`.
    pub(super) fn piece(&self, segment: u32, offset: u32) -> Option<PieceHeader> {
        self.pieces.get(&segment)?.iter().rev().find(|piece| piece.start <= offset).copied()
    }
}

#[derive(Debug, Default)]
pub(super) struct SharedTail {
    state: Mutex<UnsyncedTail>,
    /// Something was appended, or the store stops.
    appended: Condvar,
    /// The writer has made an attempt.
    attempted: Condvar,
}

impl SharedTail {
    pub(super) fn new(state: UnsyncedTail) -> Self {
        Self { state: Mutex::new(state), ..Self::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, UnsyncedTail> {
        self.state.lock().expect("no thread panics while it holds the lock: it only copies and counts")
    }

    /// Wakes the writer.
    pub(super) fn notify(&self) {
        self.appended.notify_one();
    }

    /// The writer has done something.
    pub(super) fn notify_attempt(&self) {
        self.attempted.notify_all();
    }

    /// Waits until the journal is durable up to `lsn`; `false` when `patience` is over first.
    pub(super) fn wait_for_sync(&self, lsn: u64, patience: Duration) -> bool {
        let waited = self.attempted.wait_timeout_while(self.lock(), patience, |state| state.synced < lsn);
        waited.is_ok_and(|(state, _)| state.synced >= lsn)
    }

    /// Waits until there is something to write, the store stops, or `patience` is over.
    pub(super) fn wait_for_work(&self, patience: Option<Duration>) {
        let idle = |state: &mut UnsyncedTail| state.pending.is_empty() && !state.stopping;
        let state = self.lock();
        match patience {
            None => drop(self.appended.wait_while(state, idle)),
            Some(patience) => drop(self.appended.wait_timeout_while(state, patience, idle)),
        }
    }

    /// Waits out `pause`, unless the store stops.
    pub(super) fn pause(&self, pause: Duration) {
        drop(self.appended.wait_timeout_while(self.lock(), pause, |state| !state.stopping));
    }
}
