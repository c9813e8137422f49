//! The durable [`Journal`]: a log in segments, in one folder, that gives back the room of what is no longer needed.
//!
//! [`Store::open`] → [`Recovery::replay`] → [`Replayed::finish`] → [`Store`]. From then on one thread, the engine's, calls it:
//! * [`append`](Journal::append) copies the group into memory and returns; [`flush`](Store::flush) wakes the writer, which brings everything gathered to
//!   the disk with one sync, while more gathers; [`synced`](Store::synced) tells how far it has come, and [`Options::wake`] is called when that changes;
//! * [`tend`](Store::tend), called when woken, removes dead segments and says what the core should do next: a step of a snapshot, or of cleaning.
//!
//! Nothing here blocks on the disk but [`read`](Journal::read), which mostly finds its bytes in memory or in the page cache.
//!
//! | file | holds |
//! | --- | --- |
//! | `shared` | the unsynced tail, between engine and writer |
//! | `writer` | tail to disk, and what a failed sync means |
//! | `janitor` | indexes, snapshots, removal |
//! | `ledger` | which segments may go, which are worth cleaning |
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

mod active;
mod blocks;
mod disk;
mod error;
mod files;
mod frame;
mod hands;
mod inventory;
mod janitor;
mod layout;
mod ledger;
mod recovery;
mod reserve;
mod shared;
mod snapshot;
mod writer;

pub use disk::{Disk, DiskFile, Folder};
pub use error::OpenError;
pub use recovery::{Recovery, Replayed};
pub use shared::{Health, Wake};

use active::Active;
use files::Files;
use hands::Hands;
use janitor::{Job, Report};
use ledger::Ledger;
use recovery::Beginning;
use shared::{Shared, State};
use snapshot::Snapshots;

use crate::journal::{AppendError, Entry, Journal, Location, Lsn, ReadError, Stored};

/// How a store is set up.
#[derive(Clone)]
pub struct Options {
    /// A segment is closed when it is this long. Room is given back by whole segments.
    pub segment_bytes: u32,
    /// A snapshot is taken after this many bytes of log, or twice its own size if that is more.
    pub snapshot_every: u64,
    /// More unsynced bytes than this, and [`Store::congested`] says so.
    pub backlog: u64,
    /// Called, from any thread, when [`Store::tend`] or [`Store::synced`] has something new.
    pub wake: Wake,
    /// No threads: [`Store::work`] does their part. For tests that want the same order of writes each time.
    pub by_hand: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // A new file costs about 2 ms: at 32 MiB that is under 1 % of the time at full speed.
            segment_bytes: 32 << 20,
            snapshot_every: 256 << 20,
            // Far more than a disk needs to be busy, and little memory.
            backlog: 16 << 20,
            wake: Arc::new(|| {}),
            by_hand: false,
        }
    }
}

/// Beyond this many times [`Options::backlog`], appends are refused, so that a dead disk does not eat the memory.
const BACKLOG_LIMIT: u64 = 4;

/// Offsets are 32 bits, and a group is never split.
const LARGEST_GROUP: usize = 1 << 30;

/// What the core should do next, in a small step, before it is asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chore {
    /// Hand records to [`Store::snapshot_put`], then call [`Store::snapshot_done`] when there are no more. `fresh`: from the beginning.
    Snapshot { fresh: bool },
    /// Append what lives in these segments again, through [`Store::cleaning`], and release the old places. The list stays the same until they are
    /// empty, or until [`Store::evacuation_done`] says that everything has been looked through.
    Evacuate(Vec<u32>),
}

/// What the store takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the log on disk, and in how many segments.
    pub bytes: u64,
    pub segments: usize,
    /// Bytes appended and not yet durable.
    pub unsynced: u64,
    /// Bytes of the newest snapshot.
    pub snapshot: u64,
}

/// The durable journal.
pub struct Store {
    options: Options,
    shared: Arc<Shared>,
    salt: u32,
    active: Active,
    ledger: Ledger,
    snapshots: Snapshots,
    /// Being emptied.
    evacuating: Vec<u32>,
    /// No evacuation is begun before the log is this long.
    next_evacuation: u64,
    files: RefCell<Files>,
    hands: Hands,
    /// The folder is ours until this is dropped, after everything else.
    _lock: Box<dyn Any + Send>,
}

impl Store {
    /// Locks the folder and finds out what is in it.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Recovery, OpenError> {
        Recovery::open(disk, options)
    }

    fn start(beginning: Beginning) -> Result<Self, OpenError> {
        let Beginning { disk, options, lock, salt, state, ledger, end, next_segment, from, snapshot_bytes } = beginning;
        let shared = Arc::new(Shared::new(state));
        let hands = Hands::new(&disk, &shared, salt, &options).map_err(OpenError::Thread)?;
        Ok(Self {
            active: Active::new(next_segment, end),
            snapshots: Snapshots::new(options.snapshot_every, from, snapshot_bytes),
            evacuating: Vec::new(),
            next_evacuation: 0,
            files: RefCell::new(Files::new(disk)),
            options,
            shared,
            salt,
            ledger,
            hands,
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

    pub fn health(&self) -> Health {
        self.shared.lock().health.clone()
    }

    /// Whether the disk falls behind; then take no more sends until woken.
    pub fn congested(&self) -> bool {
        self.active.end() - self.shared.lock().synced > self.options.backlog
    }

    pub fn usage(&self) -> Usage {
        Usage {
            bytes: self.ledger.bytes(),
            segments: self.ledger.segments(),
            unsynced: self.active.end() - self.shared.lock().synced,
            snapshot: self.snapshots.bytes(),
        }
    }

    /// Waits until everything appended so far is durable; `false` when `patience` is over first.
    pub fn wait_synced(&mut self, patience: Duration) -> bool {
        self.flush();
        self.hands.work();
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
    pub fn work(&mut self) -> bool {
        self.hands.work()
    }

    /// Does only the janitor's part, which the threads may do at any moment.
    pub fn work_aside(&mut self) -> bool {
        self.hands.work_aside()
    }

    /// Removes what may go, and says what to do next. Cheap; call it when woken, and again after each chore.
    pub fn tend(&mut self) -> Option<Chore> {
        self.take_reports();
        let (synced, health) = {
            let state = self.shared.lock();
            (state.synced, state.health.clone())
        };
        self.snapshots.publish_when_durable(synced, &self.hands);
        self.remove_dead(synced);
        if let Some(fresh) = self.snapshots.next_step(&self.active, &health, &self.ledger, &self.hands) {
            return Some(Chore::Snapshot { fresh });
        }
        self.evacuation_step(&health)
    }

    fn evacuation_step(&mut self, health: &Health) -> Option<Chore> {
        if let Health::Failing(_) = health {
            return None;
        }
        if !self.evacuating.iter().any(|segment| self.ledger.is_referenced(*segment)) {
            let waits = self.active.end() < self.next_evacuation;
            let from = self.snapshots.from();
            self.evacuating = if waits { Vec::new() } else { self.ledger.sparse(from, !health.is_good()) };
        }
        (!self.evacuating.is_empty()).then(|| Chore::Evacuate(self.evacuating.clone()))
    }

    /// One record of the snapshot in the making.
    pub fn snapshot_put(&mut self, meta: &[u8], body: Option<Location>) {
        self.snapshots.put(meta, body, self.salt, &self.hands);
    }

    /// The snapshot has all its records. It counts when everything it may reflect is durable.
    pub fn snapshot_done(&mut self) {
        self.snapshots.done(self.active.end(), self.salt, &self.hands);
        self.flush();
    }

    /// The core has looked through everything. If that emptied no segment, the next pass waits: what it could not move is on its way out.
    pub fn evacuation_done(&mut self) {
        self.evacuating.clear();
        self.next_evacuation = self.active.end() + u64::from(self.options.segment_bytes);
    }

    /// This journal, for [`Chore::Evacuate`]: it may use the room that is kept for making room.
    pub fn cleaning(&mut self) -> Cleaning<'_> {
        Cleaning(self)
    }

    fn take_reports(&mut self) {
        while let Some(report) = self.hands.report() {
            match report {
                Report::Published { from, bytes } => self.snapshots.published(from, bytes),
                Report::SnapshotFailed => self.snapshots.failed(self.active.end()),
                Report::Removed { segment } => {
                    self.ledger.removed(segment);
                    self.snapshots.room_was_made();
                    self.next_evacuation = 0;
                }
                Report::NotRemoved { segment } => self.ledger.not_removed(segment),
            }
        }
    }

    fn remove_dead(&mut self, synced: u64) {
        for segment in self.ledger.take_dead(synced, self.snapshots.from()) {
            let pieces = self.shared.lock().pieces.remove(&segment).unwrap_or_default();
            let pieces = pieces.iter().map(|piece| piece.name).collect();
            self.files.borrow_mut().forget(segment);
            self.hands.send(Job::Remove { segment, pieces });
        }
    }

    fn append_group(
        &mut self,
        group: &[Entry<'_>],
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
        self.admit(&state, bodies && !with_reserve, length as u64)?;
        if !self.active.fits(length, self.options.segment_bytes)
            && let Some(closed) = self.active.roll(&mut state, self.salt)
        {
            self.ledger.close(closed);
        }
        let index_limit = self.options.segment_bytes as usize / 4;
        self.active.append(group, &mut state, self.salt, index_limit, &mut self.ledger, locations);
        Ok(())
    }

    fn admit(&self, state: &State, bodies: bool, length: u64) -> Result<(), AppendError> {
        let unsynced = self.active.end() - state.synced;
        let crowded = unsynced > 0 && unsynced + length > self.options.backlog * BACKLOG_LIMIT;
        match &state.health {
            Health::Failing(error) if bodies || crowded => {
                Err(AppendError::Io(io::Error::new(error.kind(), Arc::clone(error))))
            }
            Health::Full if bodies || crowded => Err(AppendError::Full),
            Health::Good if crowded => Err(AppendError::Full),
            _ => Ok(()),
        }
    }
}

impl Journal for Store {
    fn append(&mut self, group: &[Entry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        self.append_group(group, locations, false)
    }

    fn read(&self, location: Location) -> Result<Stored, ReadError> {
        let state = self.shared.lock();
        if let Some(bytes) = state.unsynced(location.segment, location.offset) {
            return files::entry_in(bytes, location, self.salt);
        }
        let piece = state.piece(location.segment, location.offset).ok_or(ReadError::Missing(location))?;
        drop(state);
        self.files.borrow_mut().read(piece, location, self.salt)
    }

    fn is_durable(&self, location: Location) -> bool {
        self.shared.lock().unsynced(location.segment, location.offset).is_none()
    }

    fn retain(&mut self, location: Location, more: u32) {
        self.ledger.retain(location, more);
    }

    fn release(&mut self, location: Location) {
        self.ledger.release(location, self.active.end());
    }

    fn position(&self) -> Lsn {
        Lsn(self.active.end())
    }
}

/// See [`Store::cleaning`].
pub struct Cleaning<'a>(&'a mut Store);

impl Journal for Cleaning<'_> {
    fn append(&mut self, group: &[Entry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError> {
        self.0.append_group(group, locations, true)
    }

    fn read(&self, location: Location) -> Result<Stored, ReadError> {
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
