//! The unsynced tail of the journal, shared between the engine and the [writer](super::writer), and the durable
//! position.
//!
//! The engine appends frames; the writer takes everything collected during its last sync, so the batch size follows the
//! load. Bytes stay in memory until they are synced: until then reads come from here, and after a failed sync they are
//! written again to another file.
//!
//! The lock is held only for a copy, never during I/O.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use super::layout::PieceHeader;

/// Called from any thread when [`LogStore::next_maintenance`](super::LogStore::next_maintenance) has news.
pub type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// Result of the last attempt to write.
#[derive(Debug, Clone, Default)]
pub enum StoreHealth {
    #[default]
    Good,
    /// The disk is full: bodies are refused, small records use the reserve. Set when a file cannot be created, cleared
    /// when the reserve is complete.
    Full,
    /// Writing fails for another reason. Appended bytes stay in memory and are written again.
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
    /// Offset of the bytes in the segment.
    pub(super) offset: u32,
    pub(super) bytes: Vec<u8>,
    /// Set on a segment's last chunk, which may have no bytes: the index to close the segment with, empty for none.
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
    /// Not yet taken by the writer.
    pub(super) pending: VecDeque<TailChunk>,
    /// Taken by the writer, not yet synced.
    pub(super) in_flight: VecDeque<Arc<TailChunk>>,
    /// The journal is durable up to here.
    pub(super) synced: u64,
    pub(super) health: StoreHealth,
    /// The files of each segment, in order: each replaces the previous ones from its start on.
    pub(super) pieces: BTreeMap<u32, Vec<PieceHeader>>,
    pub(super) stopping: bool,
    /// Buffers for reuse: the kernel would have to page in new ones for every batch.
    spare: Vec<Vec<u8>>,
}

/// Larger buffers are freed instead of reused.
const KEEP_BUFFER: usize = 4 << 20;

impl UnsyncedTail {
    pub(super) fn new(synced: u64, health: StoreHealth, pieces: BTreeMap<u32, Vec<PieceHeader>>) -> Self {
        Self { synced, health, pieces, ..Self::default() }
    }

    /// The chunk that the engine appends to, at `offset` of `segment`.
    pub(super) fn open_chunk(&mut self, segment: u32, base: u64, offset: u32) -> &mut TailChunk {
        let fits = self.pending.back().is_some_and(|chunk| chunk.segment == segment);
        if !fits {
            let bytes = self.spare.pop().unwrap_or_default();
            self.pending.push_back(TailChunk { segment, base, offset, bytes, closing: None });
        }
        self.pending.back_mut().expect("pushed above if none fits")
    }

    /// Moves everything collected to the writer.
    pub(super) fn begin_write(&mut self) {
        self.in_flight.extend(self.pending.drain(..).map(Arc::new));
    }

    /// Everything up to `lsn` is durable.
    pub(super) fn advance(&mut self, lsn: u64) {
        self.synced = self.synced.max(lsn);
        // Only complete chunks: a sync may end inside a later one.
        while self.in_flight.front().is_some_and(|chunk| chunk.end() <= lsn) {
            let chunk = self.in_flight.pop_front().expect("not empty: checked above");
            // If the writer still uses the chunk, its buffer is freed later instead of reused.
            if let Ok(TailChunk { mut bytes, .. }) = Arc::try_unwrap(chunk)
                && bytes.capacity() <= KEEP_BUFFER
                && self.spare.len() < 2
            {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }

    /// A new file is durable up to `end`; returns the pieces it replaces completely.
    pub(super) fn publish(&mut self, header: PieceHeader, end: u64) -> Vec<PieceHeader> {
        let pieces = self.pieces.entry(header.name.segment).or_default();
        let replaced = pieces.extract_if(.., |piece| piece.start >= header.start).collect();
        pieces.push(header);
        self.advance(end);
        replaced
    }

    /// The unsynced bytes from `offset` of `segment` to the end of their chunk.
    pub(super) fn unsynced(&self, segment: u32, offset: u32) -> Option<&[u8]> {
        let in_flight = self.in_flight.iter().find_map(|chunk| chunk.slice(segment, offset));
        in_flight.or_else(|| self.pending.iter().find_map(|chunk| chunk.slice(segment, offset)))
    }

    /// The file that contains `offset` of `segment`.
    pub(super) fn piece(&self, segment: u32, offset: u32) -> Option<PieceHeader> {
        self.pieces.get(&segment)?.iter().rev().find(|piece| piece.start <= offset).copied()
    }
}

#[derive(Debug, Default)]
pub(super) struct SharedTail {
    state: Mutex<UnsyncedTail>,
    /// Something was appended, or the store stops.
    appended: Condvar,
    /// The writer finished an attempt.
    attempted: Condvar,
}

impl SharedTail {
    pub(super) fn new(state: UnsyncedTail) -> Self {
        Self { state: Mutex::new(state), ..Self::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, UnsyncedTail> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Wakes the writer.
    pub(super) fn notify(&self) {
        self.appended.notify_one();
    }

    /// The writer finished an attempt.
    pub(super) fn notify_attempt(&self) {
        self.attempted.notify_all();
    }

    /// Waits until the journal is durable up to `lsn`; `false` on timeout.
    pub(super) fn wait_for_sync(&self, lsn: u64, timeout: Duration) -> bool {
        let waited = self.attempted.wait_timeout_while(self.lock(), timeout, |state| state.synced < lsn);
        waited.is_ok_and(|(state, _)| state.synced >= lsn)
    }

    /// Waits until there is something to write, the store stops, or the time limit is reached.
    pub(super) fn wait_for_work(&self, timeout: Option<Duration>) {
        let idle = |state: &mut UnsyncedTail| state.pending.is_empty() && !state.stopping;
        let state = self.lock();
        match timeout {
            None => drop(self.appended.wait_while(state, idle)),
            Some(timeout) => drop(self.appended.wait_timeout_while(state, timeout, idle)),
        }
    }

    /// Waits for `pause`, unless the store stops.
    pub(super) fn pause(&self, pause: Duration) {
        drop(self.appended.wait_timeout_while(self.lock(), pause, |state| !state.stopping));
    }
}
