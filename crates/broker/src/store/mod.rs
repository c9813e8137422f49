//! The durable [`Journal`]: a log in segments, in one folder, that gives back the room of what is no longer needed.
//!
//! [`LogStore::open`] → [`Recovery::replay`] → [`ReplayedFolder::finish`] → [`LogStore`]. From then on one thread, the engine's, calls it:
//! * [`append`](Journal::append) copies the group into memory and returns; [`flush`](LogStore::flush) wakes the writer, which brings everything gathered to
//!   the disk with one sync, while more gathers; [`synced`](LogStore::synced) tells how far it has come, and [`StoreOptions::wake`] is called when that changes;
//! * [`tend`](LogStore::tend), called when woken, removes dead segments and says what the core should do next: a step of a snapshot, or of cleaning.
//!
//! Nothing here blocks on the disk but [`read`](Journal::read), which mostly finds its bytes in memory or in the page cache.
//!
//! | file | holds |
//! | --- | --- |
//! | `shared` | the unsynced tail, between engine and writer |
//! | `writer` | tail to disk, and what a failed sync means |
//! | `background` | indexes, snapshots, removal |
//! | `segment_table` | which segments may go, which are worth cleaning |
//! | `inventory`, `recovery` | from a folder to a running store |
//! | `frame`, `blocks`, `layout` | the bytes |
//! | `reserve` | room for when there is none |
//! | `disk` | the file system, as a trait |
//!
//! Why it is ours, and the numbers: `docs/decisions/005-broker-store.md`.

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

pub use disk::{DataFolder, Disk, DiskFile};
pub use error::OpenError;
pub use recovery::{Recovery, ReplayedFolder};
pub use unsynced_tail::{StoreHealth, WakeFn};

use active_segment::ActiveSegment;
use background::{BackgroundJob, JobReport};
use body_reader::BodyReader;
use recovery::Recovered;
use segment_table::SegmentTable;
use snapshot_schedule::SnapshotSchedule;
use store_threads::StoreThreads;
use unsynced_tail::{SharedTail, UnsyncedTail};

use crate::journal::{AppendError, Journal, JournalEntry, Location, Lsn, ReadError, StoredEntry};

/// How a store is set up.
#[derive(Clone)]
pub struct StoreOptions {
    /// A segment is closed when it is this long. Room is given back by whole segments.
    pub segment_bytes: u32,
    /// A snapshot is taken after this many bytes of log, or twice its own size if that is more.
    pub snapshot_every: u64,
    /// More unsynced bytes than this, and [`LogStore::congested`] says so.
    pub max_unsynced: u64,
    /// Called, from any thread, when [`LogStore::tend`] or [`LogStore::synced`] has something new.
    pub wake: WakeFn,
    /// No threads: [`LogStore::work`] does their part. For tests that want the same order of writes each time.
    pub manual_io: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            // A new file costs about 2 ms: at 32 MiB that is under 1 % of the time at full speed.
            segment_bytes: 32 << 20,
            snapshot_every: 256 << 20,
            // Far more than a disk needs to be busy, and little memory.
            max_unsynced: 16 << 20,
            wake: Arc::new(|| {}),
            manual_io: false,
        }
    }
}

/// Beyond this many times [`StoreOptions::backlog`], appends are refused, so that a dead disk does not eat the memory.
const UNSYNCED_LIMIT_FACTOR: u64 = 4;

/// Offsets are 32 bits, and a group is never split.
const LARGEST_GROUP: usize = 1 << 30;

/// What the core should do next, in a small step, before it is asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaintenanceTask {
    /// Hand records to [`LogStore::put_snapshot_record`], then call [`LogStore::finish_snapshot`] when there are no more. `restart`: from the beginning.
    Snapshot { restart: bool },
    /// Append what lives in these segments again, through [`LogStore::cleaning`], and release the old places. The list stays the same until they are
    /// empty, or until [`LogStore::finish_compaction`] says that everything has been looked through.
    Compact(Vec<u32>),
}

/// What the store takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of the log on disk, and in how many segments.
    pub bytes: u64,
    pub segments: usize,
    /// Bytes appended and not yet durable.
    pub unsynced: u64,
    /// Bytes of the newest snapshot.
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
    /// Being emptied.
    compacting: Vec<u32>,
    /// No evacuation is begun before the log is this long.
    next_compaction: u64,
    body_reader: RefCell<BodyReader>,
    threads: StoreThreads,
    /// The folder is ours until this is dropped, after everything else.
    _lock: Box<dyn Any + Send>,
}

impl LogStore {
    /// Locks the folder and finds out what is in it.
    pub fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<Recovery, OpenError> {
        Recovery::open(disk, options)
    }

    fn start(recovered: Recovered) -> Result<Self, OpenError> {
        let Recovered { disk, options, lock, salt, state, segment_table, end, next_segment, from, snapshot_bytes } =
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

    /// Wakes the writer: call it after a burst of appends.
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

    /// Whether the disk falls behind; then take no more sends until woken.
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

    /// Waits until everything appended so far is durable; `false` when `patience` is over first.
    pub fn wait_synced(&mut self, patience: Duration) -> bool {
        self.flush();
        self.threads.run_pending_io();
        self.shared.wait_for_sync(self.active.end(), patience)
    }

    /// An orderly end: everything is durable, and the next start knows it without writing anything again.
    pub fn close(mut self, patience: Duration) -> bool {
        let durable = self.wait_synced(patience);
        // An empty group proves, by what it claims, that all before it is durable.
        let claimed = durable && self.append(&[], &mut Vec::new()).is_ok();
        claimed && self.wait_synced(patience)
    }

    /// Does the part of the writer and the janitor, when there are no threads for it; says whether there was anything to do.
    pub fn run_pending_io(&mut self) -> bool {
        self.threads.run_pending_io()
    }

    /// Does only the janitor's part, which the threads may do at any moment.
    pub fn run_background_io(&mut self) -> bool {
        self.threads.run_background_io()
    }

    /// Removes what may go, and says what to do next. Cheap; call it when woken, and again after each chore.
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

    /// One record of the snapshot in the making.
    pub fn put_snapshot_record(&mut self, meta: &[u8], body: Option<Location>) {
        self.snapshots.put_record(meta, body, self.salt, &self.threads);
    }

    /// The snapshot has all its records. It counts when everything it may reflect is durable.
    pub fn finish_snapshot(&mut self) {
        self.snapshots.finish(self.active.end(), self.salt, &self.threads);
        self.flush();
    }

    /// The core has looked through everything. If that emptied no segment, the next pass waits: what it could not move is on its way out.
    pub fn finish_compaction(&mut self) {
        self.compacting.clear();
        self.next_compaction = self.active.end() + u64::from(self.options.segment_bytes);
    }

    /// This journal, for [`MaintenanceTask::Compact`]: it may use the room that is kept for making room.
    pub fn compaction_journal(&mut self) -> CompactionJournal<'_> {
        CompactionJournal(self)
    }

    fn process_reports(&mut self) {
        while let Some(report) = self.threads.next_report() {
            match report {
                JobReport::Published { from, bytes } => self.snapshots.record_published(from, bytes),
                JobReport::SnapshotFailed => self.snapshots.record_failure(self.active.end()),
                JobReport::Removed { segment } => {
                    self.segment_table.remove(segment);
                    self.snapshots.allow_retry();
                    self.next_compaction = 0;
                }
                JobReport::NotRemoved { segment } => self.segment_table.keep_dead(segment),
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
        locations: &mut Vec<Location>,
        with_reserve: bool,
    ) -> Result<(), AppendError> {
        let length = frame::encoded_length(group);
        if length > LARGEST_GROUP {
            return Err(AppendError::Io(io::Error::new(io::ErrorKind::InvalidInput, "the group is too large")));
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
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
        let crowded = unsynced > 0 && unsynced + length > self.options.max_unsynced * UNSYNCED_LIMIT_FACTOR;
        match &state.health {
            StoreHealth::Failing(error) if bodies || crowded => {
                Err(AppendError::Io(io::Error::new(error.kind(), Arc::clone(error))))
            }
            StoreHealth::Full if bodies || crowded => Err(AppendError::Full),
            StoreHealth::Good if crowded => Err(AppendError::Full),
            _ => Ok(()),
        }
    }
}

impl Journal for LogStore {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        self.append_group(group, locations, false)
    }

    fn read(&self, location: Location) -> Result<StoredEntry, ReadError> {
        let state = self.shared.lock();
        if let Some(bytes) = state.unsynced(location.segment, location.offset) {
            return body_reader::decode_stored(bytes, location, self.salt);
        }
        let piece = state.piece(location.segment, location.offset).ok_or(ReadError::Missing(location))?;
        drop(state);
        self.body_reader.borrow_mut().read(piece, location, self.salt)
    }

    fn is_durable(&self, location: Location) -> bool {
        self.shared.lock().unsynced(location.segment, location.offset).is_none()
    }

    fn retain(&mut self, location: Location, more: u32) {
        self.segment_table.retain(location, more);
    }

    fn release(&mut self, location: Location) {
        self.segment_table.release(location, self.active.end());
    }

    fn position(&self) -> Lsn {
        Lsn(self.active.end())
    }
}

/// See [`LogStore::cleaning`].
pub struct CompactionJournal<'a>(&'a mut LogStore);

impl Journal for CompactionJournal<'_> {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        self.0.append_group(group, locations, true)
    }

    fn read(&self, location: Location) -> Result<StoredEntry, ReadError> {
        self.0.read(location)
    }

    fn retain(&mut self, location: Location, more: u32) {
        self.0.retain(location, more);
    }

    fn release(&mut self, location: Location) {
        self.0.release(location);
    }

    fn position(&self) -> Lsn {
        self.0.position()
    }
}
