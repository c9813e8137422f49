//! When a snapshot is due, and the one in the making, as the engine sees it. The [janitor](super::background) writes the file.

use std::sync::atomic::Ordering;

use super::active_segment::ActiveSegment;
use super::background::BackgroundJob;
use super::blocks::BlockWriter;
use super::layout::{SnapshotFooter, SnapshotHeader};
use super::segment_table::SegmentTable;
use super::store_threads::StoreThreads;
use super::unsynced_tail::StoreHealth;
use crate::journal::Location;

/// Records are handed over in portions of this size.
const CHUNK_BYTES: usize = 256 << 10;

/// No more steps while this much waits for the janitor: a snapshot must not fill the memory.
const MAX_QUEUED: usize = 4 << 20;

/// A snapshot is due again when the log has grown by this many times its size: it then costs at most half of what the log does.
const GROWTH: u64 = 2;

pub(super) struct SnapshotSchedule {
    every: u64,
    /// Where the newest complete one began, and its size.
    from: u64,
    bytes: u64,
    progress: SnapshotProgress,
    /// After a failure none is begun before the log is this long, or room has been made.
    not_before: u64,
}

enum SnapshotProgress {
    Idle,
    /// The core hands over records.
    Gathering {
        blocks: BlockWriter,
        records: u64,
    },
    /// All records are there; it may be published when the journal is durable to its end.
    Complete(SnapshotFooter),
    /// The janitor publishes it.
    Publishing,
}

impl SnapshotSchedule {
    pub(super) fn new(every: u64, from: u64, bytes: u64) -> Self {
        Self { every, from, bytes, progress: SnapshotProgress::Idle, not_before: 0 }
    }

    /// Where the newest complete snapshot began.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the core should hand over records now, and if so, whether from the beginning.
    pub(super) fn next_step(
        &mut self,
        active: &ActiveSegment,
        health: &StoreHealth,
        segment_table: &SegmentTable,
        threads: &StoreThreads,
    ) -> Option<bool> {
        match self.progress {
            SnapshotProgress::Idle if self.is_due(active, health, segment_table) => {
                self.begin(active, health, threads);
                Some(true)
            }
            SnapshotProgress::Gathering { .. } if threads.queued_bytes.load(Ordering::Relaxed) < MAX_QUEUED => {
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
            // Where room is short, any segment that only waits for a snapshot is worth one.
            StoreHealth::Full => grown || segment_table.bytes_awaiting_snapshot(self.from) > 0,
            StoreHealth::Failing(_) => false,
        }
    }

    /// It counts from the beginning of the open segment: replaying more than has happened since changes nothing, and replay never has to
    /// begin inside a segment.
    fn begin(&mut self, active: &ActiveSegment, health: &StoreHealth, threads: &StoreThreads) {
        self.progress = SnapshotProgress::Gathering { blocks: BlockWriter::default(), records: 0 };
        let head = SnapshotHeader { from: active.base(), segment: active.segment() };
        threads.send(BackgroundJob::SnapshotBegin { head, from_reserve: !health.is_good() });
    }

    pub(super) fn put_record(&mut self, meta: &[u8], body: Option<Location>, salt: u32, threads: &StoreThreads) {
        let SnapshotProgress::Gathering { blocks, records } = &mut self.progress else { return };
        blocks.push(meta, body, salt);
        *records += 1;
        if blocks.len() >= CHUNK_BYTES {
            send_bytes(blocks.take(salt), threads);
        }
    }

    pub(super) fn finish(&mut self, position: u64, salt: u32, threads: &StoreThreads) {
        let SnapshotProgress::Gathering { blocks, records } = &mut self.progress else { return };
        send_bytes(blocks.take(salt), threads);
        self.progress = SnapshotProgress::Complete(SnapshotFooter { records: *records, end: position });
    }

    /// What it reflects must not be lost while it stays: a settlement that was never durable would be believed.
    pub(super) fn publish_when_durable(&mut self, synced: u64, threads: &StoreThreads) {
        if let SnapshotProgress::Complete(end) = self.progress
            && end.end <= synced
        {
            threads.send(BackgroundJob::SnapshotPublish(end));
            self.progress = SnapshotProgress::Publishing;
        }
    }

    pub(super) fn record_published(&mut self, from: u64, bytes: u64) {
        (self.from, self.bytes, self.progress) = (from, bytes, SnapshotProgress::Idle);
    }

    pub(super) fn record_failure(&mut self, position: u64) {
        self.progress = SnapshotProgress::Idle;
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
