//! The segment that the engine appends to, and its growing index.

use bytes::Bytes;

use super::blocks::BlockWriter;
use super::frame::{ENTRY_HEADER, encode};
use super::segment_table::SegmentTable;
use super::unsynced_tail::UnsyncedTail;
use crate::journal::{JournalEntry, JournalLocation};

pub(super) struct ActiveSegment {
    segment: u32,
    /// Position of the segment's first byte.
    base: u64,
    /// Bytes appended so far.
    length: u32,
    /// `None` if the index would be so large that reading the whole segment costs no more.
    index: Option<BlockWriter>,
}

impl ActiveSegment {
    pub(super) fn new(segment: u32, base: u64) -> Self {
        Self { segment, base, length: 0, index: Some(BlockWriter::default()) }
    }

    pub(super) fn segment(&self) -> u32 {
        self.segment
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The journal's position.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.length)
    }

    /// Whether `length` more bytes fit. An empty segment accepts any length.
    pub(super) fn fits(&self, length: usize, segment_bytes: u32) -> bool {
        self.length == 0 || self.length as usize + length <= segment_bytes as usize
    }

    pub(super) fn append(
        &mut self,
        group: &[JournalEntry<'_>],
        state: &mut UnsyncedTail,
        salt: u32,
        index_limit: usize,
        segment_table: &mut SegmentTable,
        locations: &mut Vec<JournalLocation>,
    ) {
        // The frame states what is durable now, which recovery uses as proof.
        let (lsn, synced, segment, at) = (self.end(), state.synced, self.segment, self.length);
        let chunk = state.open_chunk(segment, self.base, at);
        let before = chunk.bytes.len();
        let index = &mut self.index;
        // The segment must be in the table before its entries are counted.
        segment_table.extend(segment, 0, lsn);
        encode(group, salt, lsn, synced, &mut chunk.bytes, |entry_at, entry| {
            let body =
                entry.body.map(|body| JournalLocation { segment, offset: at + entry_at, len: body.len() as u32 });
            if let Some(location) = body {
                segment_table.add_entry(location, (ENTRY_HEADER + entry.meta.len()) as u64, entry.references);
                locations.push(location);
            }
            if let Some(index) = index {
                index.push(entry.meta, body, salt);
            }
        });
        let length = chunk.bytes.len() - before;
        self.length += length as u32;
        segment_table.extend(segment, length as u64, self.end());
        // Many small records: their index would be as large as the segment.
        if self.index.as_ref().is_some_and(|index| index.len() > index_limit) {
            self.index = None;
        }
    }

    /// Closes the segment and starts the next one; returns the closed one. An empty segment stays open.
    pub(super) fn roll(&mut self, state: &mut UnsyncedTail, salt: u32) -> Option<u32> {
        if self.length == 0 {
            return None;
        }
        let index = self.index.take().map_or_else(Bytes::new, |mut index| Bytes::from(index.take(salt)));
        state.open_chunk(self.segment, self.base, self.length).closing = Some(index);
        let closed = self.segment;
        *self = Self::new(closed + 1, self.end());
        Some(closed)
    }
}
