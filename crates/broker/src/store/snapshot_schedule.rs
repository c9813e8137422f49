//! Decides when a snapshot is due and tracks the one in progress. The [background worker](super::background) writes the
//! file.

use std::sync::atomic::Ordering;

use super::active_segment::ActiveSegment;
use super::background::BackgroundJob;
use super::blocks::BlockWriter;
use super::layout::{SnapshotFooter, SnapshotHeader};
use super::segment_table::SegmentTable;
use super::store_threads::StoreThreads;
use super::unsynced_tail::StoreHealth;
use crate::journal::JournalLocation;

/// Records are sent to the background worker in parts of this size.
const CHUNK_BYTES: usize = 256 << 10;

/// No further step while this much waits for the background worker: bounds the memory.
const MAX_QUEUED: usize = 4 << 20;

/// The next snapshot is due when the log has grown by this many times the snapshot's size. So snapshots write at most
/// half of what the log does.
const GROWTH: u64 = 2;

pub(super) struct SnapshotSchedule {
    every: u64,
    /// Start and size of the newest complete snapshot.
    from: u64,
    bytes: u64,
    progress: PendingSnapshot,
    /// After a failure no snapshot starts before this position, unless space was freed.
    not_before: u64,
}

enum PendingSnapshot {
    Idle,
    /// The core passes records.
    Gathering {
        blocks: BlockWriter,
        records: u64,
    },
    /// All records are written. It can be published when the journal is durable up to its end.
    Complete(SnapshotFooter),
    /// The background worker publishes it.
    Publishing,
}

impl SnapshotSchedule {
    pub(super) fn new(every: u64, from: u64, bytes: u64) -> Self {
        Self { every, from, bytes, progress: PendingSnapshot::Idle, not_before: 0 }
    }

    /// Where the newest complete snapshot started.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the core should pass records now; `Some(true)` means from the beginning.
    pub(super) fn next_step(
        &mut self,
        active: &ActiveSegment,
        health: &StoreHealth,
        segment_table: &SegmentTable,
        threads: &StoreThreads,
    ) -> Option<bool> {
        match self.progress {
            PendingSnapshot::Idle if self.is_due(active, health, segment_table) => {
                self.begin(active, health, threads);
                Some(true)
            }
            PendingSnapshot::Gathering { .. } if threads.queued_bytes.load(Ordering::Relaxed) < MAX_QUEUED => {
                Some(false)
            }
            _ => None,
        }
    }

    fn is_due(&self, active: &ActiveSegment, health: &StoreHealth, segment_table: &SegmentTable) -> bool {
        if active.end() < self.not_before || active.base() <= self.from {
            return false;
        }
        let grown = active.end() - self.from >= self.every.max(GROWTH * self.bytes);
        match health {
            StoreHealth::Good => grown,
            // On a full disk, a snapshot is worthwhile if any dead segment waits only for it.
            StoreHealth::Full => grown || segment_table.bytes_awaiting_snapshot(self.from) > 0,
            // It could not be written either.
            StoreHealth::Failing(_) => false,
        }
    }

    /// The snapshot starts at the beginning of the active segment, not at the current position: replaying more than
    /// needed changes nothing, and replay never has to start inside a segment.
    fn begin(&mut self, active: &ActiveSegment, health: &StoreHealth, threads: &StoreThreads) {
        self.progress = PendingSnapshot::Gathering { blocks: BlockWriter::default(), records: 0 };
        let header = SnapshotHeader { from: active.base(), segment: active.segment() };
        threads.send(BackgroundJob::SnapshotBegin { header, from_reserve: !health.is_good() });
    }

    pub(super) fn put_record(&mut self, meta: &[u8], body: Option<JournalLocation>, salt: u32, threads: &StoreThreads) {
        let PendingSnapshot::Gathering { blocks, records } = &mut self.progress else { return };
        blocks.push(meta, body, salt);
        *records += 1;
        if blocks.len() >= CHUNK_BYTES {
            send_bytes(blocks.take(salt), threads);
        }
    }

    pub(super) fn finish(&mut self, position: u64, salt: u32, threads: &StoreThreads) {
        let PendingSnapshot::Gathering { blocks, records } = &mut self.progress else { return };
        send_bytes(blocks.take(salt), threads);
        self.progress = PendingSnapshot::Complete(SnapshotFooter { records: *records, end: position });
    }

    /// Publishing too early would be unsafe: the snapshot may contain a settlement that a crash then takes back.
    pub(super) fn publish_when_durable(&mut self, synced: u64, threads: &StoreThreads) {
        if let PendingSnapshot::Complete(end) = self.progress
            && end.end <= synced
        {
            threads.send(BackgroundJob::SnapshotPublish(end));
            self.progress = PendingSnapshot::Publishing;
        }
    }

    pub(super) fn record_published(&mut self, from: u64, bytes: u64) {
        (self.from, self.bytes, self.progress) = (from, bytes, PendingSnapshot::Idle);
    }

    pub(super) fn record_failure(&mut self, position: u64) {
        self.progress = PendingSnapshot::Idle;
        // Not at once again: the cause is usually a full disk.
        self.not_before = position + self.every / 8;
    }

    pub(super) fn allow_retry(&mut self) {
        self.not_before = 0;
    }
}

fn send_bytes(bytes: Vec<u8>, threads: &StoreThreads) {
    threads.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
    threads.send(BackgroundJob::SnapshotBytes(bytes));
}
