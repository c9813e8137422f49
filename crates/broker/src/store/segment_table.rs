//! The live bytes of each segment: which segments can be deleted, and which are worth compacting. No I/O.
//!
//! [`crate::journal`] has the rules for deletion. Compaction copies the live bodies of a segment and pays for that with
//! the space it frees. A segment is *sparse* when at most a quarter of it is live: each byte copied frees three, and
//! stored messages use at most about four times their size. Only segments kept by nothing but their bodies are
//! compacted: a young one often empties by itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::JournalLocation;

/// Bytes per entry besides the body, for segments written before this start, whose entries were not counted.
const USUAL_OVERHEAD: u64 = 128;

/// Sparse segments are compacted when they are at least this fraction (1/n) of the log.
const WORTH_A_PASS: u64 = 16;

#[derive(Debug, Default, Clone)]
struct SegmentUsage {
    /// Position of the segment's current end.
    end: u64,
    bytes: u64,
    /// Entries with bodies, and their bytes besides the bodies.
    entries: u64,
    overhead: u64,
    references: u64,
    /// Bytes of bodies, once per reference.
    live: u64,
    /// Nothing more is appended.
    closed: bool,
    /// Position when the last reference was released.
    dead_at: u64,
    /// A job to delete it is queued.
    removing: bool,
}

impl SegmentUsage {
    fn is_sparse(&self) -> bool {
        // Without the overhead, a segment full of tiny live messages would look sparse.
        let each = self.overhead.checked_div(self.entries).unwrap_or(USUAL_OVERHEAD);
        self.closed && self.references > 0 && (self.live + self.references * each) * 4 <= self.bytes
    }
}

#[derive(Debug, Default)]
pub(super) struct SegmentTable {
    segments: BTreeMap<u32, SegmentUsage>,
    /// Closed and without references, not being removed.
    dead: BTreeSet<u32>,
    /// Closed and sparse.
    sparse: BTreeSet<u32>,
    bytes: u64,
}

impl SegmentTable {
    /// `segment` has grown by `length` bytes and now ends at `end`.
    pub(super) fn extend(&mut self, segment: u32, length: u64, end: u64) {
        let usage = self.segments.entry(segment).or_default();
        usage.bytes += length;
        usage.end = end;
        self.bytes += length;
    }

    /// Adds an entry with a body and `overhead` other bytes.
    pub(super) fn add_entry(&mut self, location: JournalLocation, overhead: u64, references: u32) {
        let Some(usage) = self.segments.get_mut(&location.segment) else { return };
        usage.entries += 1;
        usage.overhead += overhead;
        usage.references += u64::from(references);
        usage.live += u64::from(location.len) * u64::from(references);
    }

    pub(super) fn close(&mut self, segment: u32) {
        let Some(usage) = self.segments.get_mut(&segment) else { return };
        usage.closed = true;
        usage.dead_at = usage.dead_at.max(usage.end);
        self.classify(segment);
    }

    pub(super) fn retain(&mut self, location: JournalLocation, more: u32) {
        let Some(usage) = self.segments.get_mut(&location.segment) else { return };
        usage.references += u64::from(more);
        usage.live += u64::from(location.len) * u64::from(more);
        if usage.closed {
            self.classify(location.segment);
        }
    }

    pub(super) fn release(&mut self, location: JournalLocation, position: u64) {
        let Some(usage) = self.segments.get_mut(&location.segment) else { return };
        debug_assert!(usage.references > 0, "a reference is released once");
        usage.references = usage.references.saturating_sub(1);
        usage.live = usage.live.saturating_sub(u64::from(location.len));
        // Only the last release counts: at that position the segment became dead.
        usage.dead_at = position;
        if usage.closed {
            self.classify(location.segment);
        }
    }

    /// Counts a reference during recovery; `false` if its segment does not exist.
    pub(super) fn count_reference(&mut self, location: JournalLocation) -> bool {
        let Some(usage) = self.segments.get_mut(&location.segment) else { return false };
        usage.references += 1;
        usage.live += u64::from(location.len);
        true
    }

    fn classify(&mut self, segment: u32) {
        let usage = &self.segments[&segment];
        set(&mut self.dead, segment, usage.references == 0 && !usage.removing);
        set(&mut self.sparse, segment, usage.is_sparse());
    }

    /// Takes the segments that can be deleted, given the durable position and the start of the newest snapshot.
    pub(super) fn take_dead(&mut self, synced: u64, from: u64) -> Vec<u32> {
        let can_be_deleted = |usage: &SegmentUsage| usage.end <= from && usage.dead_at <= synced;
        let deletable: Vec<_> =
            self.dead.iter().copied().filter(|segment| can_be_deleted(&self.segments[segment])).collect();
        for segment in &deletable {
            self.dead.remove(segment);
            self.segments.get_mut(segment).expect("dead segments are in the table").removing = true;
        }
        deletable
    }

    /// Sparse segments that nothing but their bodies keeps.
    ///
    /// Empty while they are few, because the core scans all messages to compact them. `urgent` returns them in any
    /// case.
    pub(super) fn sparse_segments(&self, from: u64, urgent: bool) -> Vec<u32> {
        let ready = |segment: &u32| self.segments[segment].end <= from;
        let sparse: Vec<_> = self.sparse.iter().copied().filter(ready).collect();
        let bytes: u64 = sparse.iter().map(|segment| self.segments[segment].bytes).sum();
        if urgent || bytes * WORTH_A_PASS >= self.bytes { sparse } else { Vec::new() }
    }

    /// Whether anything refers to bodies in the segment.
    pub(super) fn is_referenced(&self, segment: u32) -> bool {
        self.segments.get(&segment).is_some_and(|usage| usage.references > 0)
    }

    /// Bytes in dead segments that only wait for a snapshot that starts after `from`.
    pub(super) fn bytes_awaiting_snapshot(&self, from: u64) -> u64 {
        self.dead.iter().map(|segment| &self.segments[segment]).filter(|a| a.end > from).map(|a| a.bytes).sum()
    }

    pub(super) fn remove(&mut self, segment: u32) {
        if let Some(usage) = self.segments.remove(&segment) {
            self.bytes -= usage.bytes;
        }
    }

    pub(super) fn mark_not_removed(&mut self, segment: u32) {
        if let Some(usage) = self.segments.get_mut(&segment) {
            usage.removing = false;
            self.dead.insert(segment);
        }
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }
}

fn set(segments: &mut BTreeSet<u32>, segment: u32, is_in: bool) {
    if is_in {
        segments.insert(segment)
    } else {
        segments.remove(&segment)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u32, len: u32) -> JournalLocation {
        JournalLocation { segment, offset: 0, len }
    }

    /// Segment 1 ends at 10,000 and holds ten bodies of 900 bytes.
    fn segment_table() -> SegmentTable {
        let mut segment_table = SegmentTable::default();
        segment_table.extend(1, 10_000, 10_000);
        (0..10).for_each(|_| segment_table.add_entry(location(1, 900), 100, 1));
        segment_table
    }

    #[test]
    fn only_a_durably_dead_segment_before_a_snapshot_is_deleted() {
        let mut segment_table = segment_table();
        segment_table.close(1);
        (0..10).for_each(|_| segment_table.release(location(1, 900), 12_000));
        assert!(segment_table.take_dead(11_999, 10_000).is_empty(), "the last release is not durable");
        assert!(segment_table.take_dead(12_000, 9_999).is_empty(), "no snapshot covers its small records");
        assert_eq!(segment_table.bytes_awaiting_snapshot(9_999), 10_000);
        assert_eq!(segment_table.take_dead(12_000, 10_000), [1]);
        assert!(segment_table.take_dead(12_000, 10_000).is_empty(), "it is handed out once");
        segment_table.mark_not_removed(1);
        assert_eq!(segment_table.take_dead(12_000, 10_000), [1]);
        segment_table.remove(1);
        assert_eq!((segment_table.bytes(), segment_table.segments()), (0, 0));
    }

    #[test]
    fn the_active_segment_is_never_deleted() {
        let mut segment_table = segment_table();
        (0..10).for_each(|_| segment_table.release(location(1, 900), 10_000));
        assert!(segment_table.take_dead(u64::MAX, u64::MAX).is_empty());
        segment_table.close(1);
        assert_eq!(segment_table.take_dead(u64::MAX, u64::MAX), [1]);
    }

    #[test]
    fn a_segment_is_sparse_when_at_most_a_quarter_is_live() {
        let mut segment_table = segment_table();
        segment_table.close(1);
        (0..7).for_each(|_| segment_table.release(location(1, 900), 12_000));
        assert!(segment_table.sparse_segments(10_000, false).is_empty());
        segment_table.release(location(1, 900), 12_000);
        assert_eq!(segment_table.sparse_segments(10_000, false), [1]);
        assert!(segment_table.sparse_segments(9_999, false).is_empty(), "a snapshot must cover it first");
        segment_table.retain(location(1, 900), 5);
        assert!(segment_table.sparse_segments(10_000, false).is_empty());
    }

    #[test]
    fn a_few_sparse_segments_wait_unless_urgent() {
        let mut segment_table = segment_table();
        segment_table.close(1);
        (0..9).for_each(|_| segment_table.release(location(1, 900), 12_000));
        segment_table.extend(2, 200_000, 210_000);
        assert!(segment_table.sparse_segments(10_000, false).is_empty());
        assert_eq!(segment_table.sparse_segments(10_000, true), [1]);
    }

    #[test]
    fn a_segment_full_of_tiny_live_messages_is_not_sparse() {
        let mut segment_table = SegmentTable::default();
        segment_table.extend(1, 10_000, 10_000);
        (0..50).for_each(|_| segment_table.add_entry(location(1, 1), 199, 1));
        segment_table.close(1);
        assert!(segment_table.sparse_segments(10_000, false).is_empty());
    }
}
