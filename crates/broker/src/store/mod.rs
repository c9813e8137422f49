//! The durable [`Journal`]: a segmented log in one folder that deletes segments that are no longer needed.
//!
//! [`LogStore::open`] → [`LockedStoreFolder::replay`] → [`ReplayedStoreFolder::finish`] → [`LogStore`]. From then on the engine
//! thread calls it:
//! * [`append`](Journal::append) copies the group into memory. [`flush`](LogStore::flush) wakes the writer, which
//!   writes and syncs everything collected so far, while more is appended. [`synced`](LogStore::synced) reports the
//!   durable position; [`StoreOptions::wake`] is called when it changes.
//! * [`next_maintenance`](LogStore::next_maintenance), called on every wake-up, removes dead segments and returns the
//!   core's next task: a step of a snapshot or of a compaction.
//!
//! Only [`read`](Journal::read) can wait for the disk; mostly it finds its bytes in memory or in the page cache.
//!
//! # Reading order
//! | file | content |
//! | --- | --- |
//! | `layout`, `frame`, `blocks` | the bytes on disk |
//! | `disk` | the file system, as a trait |
//! | `active_segment` → `unsynced_tail` → `writer` | an append on its way to disk, and what a failed sync means |
//! | `body_reader` | reading bodies back |
//! | `segment_table`, `snapshot_schedule` | which segments can be deleted or compacted, when a snapshot is due |
//! | `background`, `store_threads` | indexes, snapshots and removal; the two threads |
//! | `reserved_space` | what still works when the disk is full |
//! | `inventory` → `recovery` | from a folder to a running store |
//!
//! `docs/decisions/005-broker-store.md` explains why the broker has its own store, with measurements.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

mod active_segment;
mod background;
mod blocks;
mod body_reader;
mod disk;
mod error;
mod frame;
mod inventory;
mod layout;
mod recovery;
mod reserved_space;
mod segment_table;
mod snapshot_schedule;
mod store_threads;
mod unsynced_tail;
mod writer;

pub use disk::{Disk, DiskFile, StoreFolder};
pub use error::OpenError;
pub use recovery::{LockedStoreFolder, ReplayedStoreFolder};
pub use unsynced_tail::{StoreHealth, WakeFn};

use active_segment::ActiveSegment;
use background::{BackgroundJob, JobReport};
use body_reader::BodyReader;
use recovery::RecoveredStore;
use segment_table::SegmentTable;
use snapshot_schedule::SnapshotSchedule;
use store_threads::StoreThreads;
use unsynced_tail::{SharedTail, UnsyncedTail};

use crate::journal::{AppendError, Journal, JournalEntry, JournalLocation, Lsn, ReadError, ReadJournalEntry};

/// Settings of a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// A segment is closed at this size. Disk space is freed by whole segments.
    pub segment_bytes: u32,
    /// A snapshot is due after this many bytes of log, or after twice its own size if that is more.
    pub snapshot_every: u64,
    /// Above this many unsynced bytes [`LogStore::is_congested`] returns true.
    pub max_unsynced: u64,
    /// Called from any thread when [`LogStore::next_maintenance`] or [`LogStore::synced`] has news.
    pub wake: WakeFn,
    /// Starts no threads: [`LogStore::run_pending_io`] does their work. For tests that need a fixed order of writes.
    pub manual_io: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            // Creating a file takes about 2 ms: at 32 MiB that is under 1 % of the time at full speed.
            segment_bytes: 32 << 20,
            snapshot_every: 256 << 20,
            // Far more than keeps a disk busy, and little memory.
            max_unsynced: 16 << 20,
            wake: Arc::new(|| {}),
            manual_io: false,
        }
    }
}

/// Appends fail above this many times [`StoreOptions::max_unsynced`], so that a stuck disk does not use up the memory.
const UNSYNCED_LIMIT_FACTOR: u64 = 4;

/// Offsets have 32 bits, and a group is never split.
const LARGEST_GROUP: usize = 1 << 30;

/// The core's next task. The core performs one small step and asks again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaintenanceTask {
    /// Pass records to [`LogStore::put_snapshot_record`], then call [`LogStore::finish_snapshot`]. `restart`: start
    /// from the beginning.
    Snapshot { restart: bool },
    /// Append the live bodies of these segments again through [`LogStore::compaction_journal`] and release the old
    /// locations. The list stays the same until the segments are empty or [`LogStore::finish_compaction`] is called.
    Compact(Vec<u32>),
}

/// Disk space and memory that the store uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of the log on disk, and its number of segments.
    pub bytes: u64,
    pub segments: usize,
    /// Bytes appended and not yet durable.
    pub unsynced: u64,
    /// Size of the newest snapshot.
    pub snapshot: u64,
}

/// The durable journal.
pub struct LogStore {
    options: StoreOptions,
    shared: Arc<SharedTail>,
    salt: u32,
    active: ActiveSegment,
    segment_table: SegmentTable,
    snapshots: SnapshotSchedule,
    /// Segments being compacted.
    compacting: Vec<u32>,
    /// No compaction starts before the log reaches this position.
    next_compaction: u64,
    body_reader: RefCell<BodyReader>,
    threads: StoreThreads,
    /// Keeps the folder locked. The last field, so it is dropped after everything else.
    _lock: Box<dyn Any + Send>,
}

impl LogStore {
    /// Locks the folder and scans it.
    pub fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<LockedStoreFolder, OpenError> {
        LockedStoreFolder::open(disk, options)
    }

    fn start(recovered: RecoveredStore) -> Result<Self, OpenError> {
        let RecoveredStore { disk, options, lock, salt, state, segment_table, end, next_segment, from, snapshot_bytes } =
            recovered;
        let shared = Arc::new(SharedTail::new(state));
        let threads = StoreThreads::new(&disk, &shared, salt, &options).map_err(OpenError::Thread)?;
        Ok(Self {
            active: ActiveSegment::new(next_segment, end),
            snapshots: SnapshotSchedule::new(options.snapshot_every, from, snapshot_bytes),
            compacting: Vec::new(),
            next_compaction: 0,
            body_reader: RefCell::new(BodyReader::new(disk)),
            options,
            shared,
            salt,
            segment_table,
            threads,
            _lock: lock,
        })
    }

    /// Wakes the writer. Call it after a burst of appends.
    pub fn flush(&self) {
        self.shared.notify();
    }

    /// The journal is durable up to here.
    pub fn synced(&self) -> Lsn {
        Lsn(self.shared.lock().synced)
    }

    pub fn health(&self) -> StoreHealth {
        self.shared.lock().health.clone()
    }

    /// Whether the disk is behind. If so, accept no sends until the next wake-up.
    pub fn is_congested(&self) -> bool {
        self.active.end() - self.shared.lock().synced > self.options.max_unsynced
    }

    pub fn usage(&self) -> StoreUsage {
        StoreUsage {
            bytes: self.segment_table.bytes(),
            segments: self.segment_table.segments(),
            unsynced: self.active.end() - self.shared.lock().synced,
            snapshot: self.snapshots.bytes(),
        }
    }

    /// Waits until everything appended so far is durable; `false` on timeout.
    pub fn wait_synced(&mut self, timeout: Duration) -> bool {
        self.flush();
        self.threads.run_pending_io();
        self.shared.wait_for_sync(self.active.end(), timeout)
    }

    /// Closes the store cleanly: everything is durable, and the next start can prove it without rewriting anything.
    pub fn close(mut self, timeout: Duration) -> bool {
        let durable = self.wait_synced(timeout);
        // The `synced` field of an empty group proves that everything before it is durable.
        let claimed = durable && self.append(&[], &mut Vec::new()).is_ok();
        claimed && self.wait_synced(timeout)
    }

    /// Does the work of both threads if there are none; returns whether there was any.
    pub fn run_pending_io(&mut self) -> bool {
        self.threads.run_pending_io()
    }

    /// Does only the background worker's part, which its thread may do at any time.
    pub fn run_background_io(&mut self) -> bool {
        self.threads.run_background_io()
    }

    /// Removes dead segments and returns the next task. Cheap: call it on every wake-up and after each task.
    pub fn next_maintenance(&mut self) -> Option<MaintenanceTask> {
        self.process_reports();
        let (synced, health) = {
            let state = self.shared.lock();
            (state.synced, state.health.clone())
        };
        self.snapshots.publish_when_durable(synced, &self.threads);
        self.remove_dead_segments(synced);
        if let Some(restart) = self.snapshots.next_step(&self.active, &health, &self.segment_table, &self.threads) {
            return Some(MaintenanceTask::Snapshot { restart });
        }
        self.next_compaction_task(&health)
    }

    fn next_compaction_task(&mut self, health: &StoreHealth) -> Option<MaintenanceTask> {
        if let StoreHealth::Failing(_) = health {
            return None;
        }
        if !self.compacting.iter().any(|segment| self.segment_table.is_referenced(*segment)) {
            let waits = self.active.end() < self.next_compaction;
            let from = self.snapshots.from();
            self.compacting =
                if waits { Vec::new() } else { self.segment_table.sparse_segments(from, !health.is_good()) };
        }
        (!self.compacting.is_empty()).then(|| MaintenanceTask::Compact(self.compacting.clone()))
    }

    /// Adds one record to the snapshot in progress.
    pub fn put_snapshot_record(&mut self, meta: &[u8], body: Option<JournalLocation>) {
        self.snapshots.put_record(meta, body, self.salt, &self.threads);
    }

    /// The snapshot has all its records. It becomes valid when everything it may contain is durable.
    pub fn finish_snapshot(&mut self) {
        self.snapshots.finish(self.active.end(), self.salt, &self.threads);
        self.flush();
    }

    /// The core has scanned everything. The next pass waits until the log has grown, because bodies that this pass did
    /// not move are about to be released.
    pub fn finish_compaction(&mut self) {
        self.compacting.clear();
        self.next_compaction = self.active.end() + u64::from(self.options.segment_bytes);
    }

    /// This journal for [`MaintenanceTask::Compact`]: it may use the reserved disk space.
    pub fn compaction_journal(&mut self) -> ReserveBackedJournal<'_> {
        ReserveBackedJournal(self)
    }

    fn process_reports(&mut self) {
        while let Some(report) = self.threads.next_report() {
            match report {
                JobReport::Published { from, bytes } => self.snapshots.record_published(from, bytes),
                JobReport::SnapshotFailed => self.snapshots.record_failure(self.active.end()),
                JobReport::Removed { segment } => {
                    self.segment_table.remove(segment);
                    self.snapshots.allow_retry();
                    // Space was freed: another pass may be worthwhile at once.
                    self.next_compaction = 0;
                }
                JobReport::NotRemoved { segment } => self.segment_table.mark_not_removed(segment),
            }
        }
    }

    fn remove_dead_segments(&mut self, synced: u64) {
        for segment in self.segment_table.take_dead(synced, self.snapshots.from()) {
            let pieces = self.shared.lock().pieces.remove(&segment).unwrap_or_default();
            let pieces = pieces.iter().map(|piece| piece.name).collect();
            self.body_reader.borrow_mut().close_segment(segment);
            self.threads.send(BackgroundJob::Remove { segment, pieces });
        }
    }

    fn append_group(
        &mut self,
        group: &[JournalEntry<'_>],
        locations: &mut Vec<JournalLocation>,
        with_reserve: bool,
    ) -> Result<(), AppendError> {
        let length = frame::encoded_length(group);
        if length > LARGEST_GROUP {
            return Err(AppendError::Io(io::Error::new(io::ErrorKind::InvalidInput, "the group is too large")));
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        // Small records may use the reserve: settlements free space.
        let bodies = group.iter().any(|entry| entry.body.is_some());
        self.check_capacity(&state, bodies && !with_reserve, length as u64)?;
        if !self.active.fits(length, self.options.segment_bytes)
            && let Some(closed) = self.active.roll(&mut state, self.salt)
        {
            self.segment_table.close(closed);
        }
        let index_limit = self.options.segment_bytes as usize / 4;
        self.active.append(group, &mut state, self.salt, index_limit, &mut self.segment_table, locations);
        Ok(())
    }

    fn check_capacity(&self, state: &UnsyncedTail, bodies: bool, length: u64) -> Result<(), AppendError> {
        let unsynced = self.active.end() - state.synced;
        let over_limit = unsynced > 0 && unsynced + length > self.options.max_unsynced * UNSYNCED_LIMIT_FACTOR;
        match &state.health {
            StoreHealth::Failing(error) if bodies || over_limit => {
                Err(AppendError::Io(io::Error::new(error.kind(), Arc::clone(error))))
            }
            StoreHealth::Full if bodies || over_limit => Err(AppendError::Full),
            // The disk works but is far behind.
            StoreHealth::Good if over_limit => Err(AppendError::Full),
            _ => Ok(()),
        }
    }
}

impl Journal for LogStore {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        self.append_group(group, locations, false)
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        let state = self.shared.lock();
        if let Some(bytes) = state.unsynced(location.segment, location.offset) {
            return body_reader::decode_stored(bytes, location, self.salt);
        }
        let piece = state.piece(location.segment, location.offset).ok_or(ReadError::Missing(location))?;
        drop(state);
        self.body_reader.borrow_mut().read(piece, location, self.salt)
    }

    fn is_durable(&self, location: JournalLocation) -> bool {
        self.shared.lock().unsynced(location.segment, location.offset).is_none()
    }

    fn retain(&mut self, location: JournalLocation, more: u32) {
        self.segment_table.retain(location, more);
    }

    fn release(&mut self, location: JournalLocation) {
        self.segment_table.release(location, self.active.end());
    }

    fn position(&self) -> Lsn {
        Lsn(self.active.end())
    }
}

/// See [`LogStore::compaction_journal`].
pub struct ReserveBackedJournal<'a>(&'a mut LogStore);

impl Journal for ReserveBackedJournal<'_> {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        self.0.append_group(group, locations, true)
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        self.0.read(location)
    }

    fn retain(&mut self, location: JournalLocation, more: u32) {
        self.0.retain(location, more);
    }

    fn release(&mut self, location: JournalLocation) {
        self.0.release(location);
    }

    fn position(&self) -> Lsn {
        self.0.position()
    }
}
