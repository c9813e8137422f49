//! From a data folder to a running [`LogStore`]: open, replay, count references.
//!
//! Replay reads the newest snapshot and every segment from its start on. Of closed segments it reads only the index, so
//! no body is read. Older segments contain only bodies and are not read.
//!
//! Only the last segment can be incomplete after a crash, because a segment gets its name after the previous one is
//! durable. Where its frames become invalid, either no frame claims that this position was synced (a torn tail: it was
//! never acknowledged, and the log ends here) or one does (damage: the start fails).
//!
//! Valid frames that nothing proves durable are kept, but written again as a new piece: after a failed sync and a
//! process crash, the page cache may show bytes that the disk does not have.

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use super::blocks::{BlockReadError, read_blocks};
use super::disk::Disk;
use super::error::OpenError;
use super::frame::{decode_entries, decode_header, highest_claim};
use super::inventory::{SegmentFiles, StoreInventory, read_some};
use super::layout::{
    LOCK, PieceHeader, PieceName, SEGMENT_FOOTER, SNAPSHOT_FOOTER, SNAPSHOT_HEADER, SegmentFooter, temporary,
};
use super::reserved_space;
use super::segment_table::SegmentTable;
use super::unsynced_tail::{StoreHealth, UnsyncedTail};
use super::writer::publish;
use super::{LogStore, StoreOptions};
use crate::journal::JournalLocation;

/// A folder that is locked and scanned, but not yet read.
pub struct LockedStoreFolder {
    disk: Arc<dyn Disk>,
    options: StoreOptions,
    lock: Box<dyn Any + Send>,
    inventory: StoreInventory,
}

/// A folder whose entries are replayed. It still needs to know which bodies are referenced.
pub struct ReplayedStoreFolder {
    disk: Arc<dyn Disk>,
    options: StoreOptions,
    lock: Box<dyn Any + Send>,
    inventory: StoreInventory,
    tail: LogTail,
}

/// Everything a [`LogStore`] starts from.
pub(super) struct RecoveredStore {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) options: StoreOptions,
    pub(super) lock: Box<dyn Any + Send>,
    pub(super) salt: u32,
    pub(super) state: UnsyncedTail,
    pub(super) segment_table: SegmentTable,
    pub(super) end: u64,
    pub(super) next_segment: u32,
    pub(super) from: u64,
    pub(super) snapshot_bytes: u64,
}

/// The end of the journal, and its last frames that nothing proves durable.
#[derive(Debug, Default)]
struct LogTail {
    end: u64,
    durable: u64,
    unproven: Vec<u8>,
    /// The last segment is not closed: allocated space or torn frames may follow its end.
    open: bool,
}

impl LockedStoreFolder {
    pub(super) fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<Self, OpenError> {
        let lock = disk.lock(LOCK).map_err(OpenError::io("lock", LOCK))?.ok_or(OpenError::Locked)?;
        let inventory = StoreInventory::scan(&*disk)?;
        Ok(Self { disk, options, lock, inventory })
    }

    /// Passes every record of the newest snapshot, then every entry since it began, in order.
    pub fn replay<E: Error + Send + Sync + 'static>(
        self,
        mut take: impl FnMut(&[u8], Option<JournalLocation>) -> Result<(), E>,
    ) -> Result<ReplayedStoreFolder, OpenError> {
        // `replay_all` cannot stop early, so the first error is kept.
        let mut refused = None;
        let replayed = self.replay_all(|meta, body| {
            if let Err(error) = take(meta, body) {
                refused.get_or_insert(error);
            }
        })?;
        match refused {
            Some(error) => Err(OpenError::Record(Box::new(error))),
            None => Ok(replayed),
        }
    }

    fn replay_all(
        self,
        mut entry: impl FnMut(&[u8], Option<JournalLocation>),
    ) -> Result<ReplayedStoreFolder, OpenError> {
        let Self { disk, options, lock, inventory } = self;
        let reader = SegmentReader { disk: &*disk, salt: inventory.salt };
        if let Some(snapshot) = &inventory.snapshot {
            let file = disk.open(&snapshot.file).map_err(OpenError::io("open", &snapshot.file))?;
            let records =
                read_blocks(&*file, SNAPSHOT_HEADER, snapshot.size - SNAPSHOT_FOOTER, reader.salt, &mut entry);
            match records {
                Ok(records) if records == snapshot.end.records => {}
                Ok(_) => return Err(damaged(&snapshot.file, snapshot.size - SNAPSHOT_FOOTER, "records are missing")),
                Err(error) => return Err(reader.to_open_error(&snapshot.file, error)),
            }
        }
        let tail = reader.replay_segments(&inventory, &mut entry)?;
        Ok(ReplayedStoreFolder { disk, options, lock, inventory, tail })
    }
}

struct SegmentReader<'a> {
    disk: &'a dyn Disk,
    salt: u32,
}

impl SegmentReader<'_> {
    fn replay_segments(
        &self,
        inventory: &StoreInventory,
        entry: &mut impl FnMut(&[u8], Option<JournalLocation>),
    ) -> Result<LogTail, OpenError> {
        let from = inventory.from();
        let proven = inventory.snapshot.as_ref().map_or(0, |snapshot| snapshot.end.end);
        let mut tail = LogTail { end: from, durable: proven, ..LogTail::default() };
        let since: Vec<_> = inventory.segments.iter().filter(|segment| segment.base >= from).collect();
        for (index, segment) in since.iter().enumerate() {
            // Each segment is read up to the start of the next, so only the first one can start too late.
            if segment.base != tail.end {
                return Err(OpenError::Missing { after: "snapshot".to_owned() });
            }
            match since.get(index + 1) {
                Some(next) => {
                    self.replay_finished(segment, next.base, entry)?;
                    tail.end = next.base;
                    tail.durable = tail.durable.max(next.base);
                }
                None => tail = self.replay_last(segment, tail.durable, entry)?,
            }
        }
        // The snapshot proves more than the segments contain: some are missing.
        if tail.durable > tail.end {
            return Err(OpenError::Missing { after: "snapshot".to_owned() });
        }
        Ok(tail)
    }

    /// Replays a segment that was durable up to `end` before the next one was created.
    fn replay_finished(
        &self,
        segment: &SegmentFiles,
        end: u64,
        entry: &mut impl FnMut(&[u8], Option<JournalLocation>),
    ) -> Result<(), OpenError> {
        match self.replay_index(segment, entry)? {
            Some(indexed) if indexed == end => return Ok(()),
            Some(_) => return Err(OpenError::Missing { after: segment.last_piece().name.to_string() }),
            None => {}
        }
        for (index, piece) in segment.pieces.iter().enumerate() {
            let until = segment.pieces.get(index + 1).map_or(end, |next| segment.base + u64::from(next.start));
            let bytes = self.read_piece(piece)?;
            let reached = self.replay_frames(piece, &bytes, until, &mut 0, entry);
            if reached != until {
                return Err(damaged_frame(piece, reached));
            }
        }
        Ok(())
    }

    /// Replays the index, if it is valid, and returns the segment's end.
    fn replay_index(
        &self,
        segment: &SegmentFiles,
        entry: &mut impl FnMut(&[u8], Option<JournalLocation>),
    ) -> Result<Option<u64>, OpenError> {
        let name = segment.last_piece().name.to_string();
        let file = self.disk.open(&name).map_err(OpenError::io("open", &name))?;
        let size = file.size().map_err(OpenError::io("measure", &name))?;
        let Some(footer_at) = size.checked_sub(SEGMENT_FOOTER) else { return Ok(None) };
        let bytes = read_some(&*file, SEGMENT_FOOTER, footer_at).map_err(OpenError::io("read", &name))?;
        let Some(footer) = SegmentFooter::decode(&bytes, self.salt) else { return Ok(None) };
        match read_blocks(&*file, footer.index_at, footer_at, self.salt, entry) {
            Ok(_) => Ok(Some(footer.end)),
            // The frames contain the same entries. Those already replayed come again in the same order, which changes
            // nothing.
            Err(BlockReadError::Damaged { .. }) => Ok(None),
            Err(error) => Err(self.to_open_error(&name, error)),
        }
    }

    fn replay_last(
        &self,
        segment: &SegmentFiles,
        proven: u64,
        entry: &mut impl FnMut(&[u8], Option<JournalLocation>),
    ) -> Result<LogTail, OpenError> {
        if let Some(end) = self.replay_index(segment, entry)? {
            return Ok(LogTail { end, durable: end.max(proven), ..LogTail::default() });
        }
        let last = segment.last_piece();
        let mut earlier = segment.clone();
        // Earlier pieces were durable before the last one was created.
        earlier.pieces.pop();
        let last_at = segment.base + u64::from(last.start);
        if !earlier.pieces.is_empty() {
            self.replay_finished(&earlier, last_at, entry)?;
        }
        let bytes = self.read_piece(&last)?;
        let mut durable = proven.max(last.durable);
        let end = self.replay_frames(&last, &bytes, u64::MAX, &mut durable, entry);
        let rest = &bytes[(end - last_at) as usize..];
        if durable > end || highest_claim(rest, end, self.salt).is_some_and(|claim| claim > end) {
            return Err(damaged_frame(&last, end));
        }
        let unproven = bytes[(durable - last_at) as usize..(end - last_at) as usize].to_vec();
        Ok(LogTail { end, durable, unproven, open: true })
    }

    /// Passes the entries of valid frames until an invalid one or `until`; returns where it stopped.
    fn replay_frames(
        &self,
        piece: &PieceHeader,
        bytes: &[u8],
        until: u64,
        claimed: &mut u64,
        entry: &mut impl FnMut(&[u8], Option<JournalLocation>),
    ) -> u64 {
        let start = piece.base + u64::from(piece.start);
        let mut at = 0;
        while start + (at as u64) < until {
            let lsn = start + at as u64;
            let Some(header) = decode_header(&bytes[at..], self.salt).filter(|header| header.lsn == lsn) else { break };
            let frame = &bytes[at..bytes.len().min(at + header.length as usize)];
            let Some(entries) = decode_entries(frame, header, self.salt) else { break };
            for bounds in entries {
                let location = bounds.body.map(|body| JournalLocation {
                    segment: piece.name.segment,
                    offset: piece.start + (at + bounds.at) as u32,
                    len: body.len() as u32,
                });
                entry(&frame[bounds.meta], location);
            }
            *claimed = (*claimed).max(header.synced);
            at += header.length as usize;
        }
        start + at as u64
    }

    /// Reads a piece without its header. It is at most one segment, and freed at once.
    fn read_piece(&self, piece: &PieceHeader) -> Result<Vec<u8>, OpenError> {
        let name = piece.name.to_string();
        let file = self.disk.open(&name).map_err(OpenError::io("open", &name))?;
        let size = file.size().map_err(OpenError::io("measure", &name))?;
        let at = piece.file_offset(piece.start);
        read_some(&*file, size.saturating_sub(at), at).map_err(OpenError::io("read", &name))
    }

    fn to_open_error(&self, file: &str, error: BlockReadError) -> OpenError {
        match error {
            BlockReadError::Damaged { at } => damaged(file, at, "a block fails its checksum"),
            BlockReadError::Io(source) => OpenError::io("read", file)(source),
        }
    }
}

impl ReplayedStoreFolder {
    /// Starts the store. `visit` calls its argument once per reference to a body.
    pub fn finish(mut self, visit: impl FnOnce(&mut dyn FnMut(JournalLocation))) -> Result<LogStore, OpenError> {
        self.rewrite_unproven().map_err(OpenError::io("rewrite the end of", "the log"))?;
        self.remove_obsolete_files();
        let segment_table = self.count_references(visit)?;
        let inventory = self.inventory;
        let last = inventory.segments.last().map_or(0, |last| last.number + 1);
        let from = inventory.from();
        let (first, snapshot_bytes) = inventory.snapshot.as_ref().map_or((0, 0), |s| (s.header.segment, s.size));
        let health = match reserved_space::restore(&*self.disk, u64::from(self.options.segment_bytes)) {
            Ok(()) => StoreHealth::Good,
            Err(error) if reserved_space::is_disk_full(&error) => StoreHealth::Full,
            Err(error) => StoreHealth::Failing(Arc::new(error)),
        };
        let pieces = inventory.segments.into_iter().map(|segment| (segment.number, segment.pieces)).collect();
        LogStore::start(RecoveredStore {
            disk: self.disk,
            options: self.options,
            lock: self.lock,
            salt: inventory.salt,
            state: UnsyncedTail::new(self.tail.end, health, pieces),
            segment_table,
            end: self.tail.end,
            next_segment: last.max(first),
            from,
            snapshot_bytes,
        })
    }

    fn rewrite_unproven(&mut self) -> std::io::Result<()> {
        let LogTail { end, durable, unproven, .. } = &self.tail;
        let Some(segment) = self.inventory.segments.last_mut().filter(|_| !unproven.is_empty()) else {
            return Ok(());
        };
        let last = segment.last_piece();
        // A new piece, not a second sync of the old file: its pages may already be lost.
        let name = PieceName { segment: last.name.segment, piece: last.name.piece + 1 };
        let start = (durable - segment.base) as u32;
        let mut header = PieceHeader { name, base: segment.base, start, durable: *end };
        let size = header.file_offset(start) + unproven.len() as u64;
        let (file, _) = reserved_space::create_with_space(&*self.disk, &temporary(&name.to_string()), size, size)?;
        file.write_at(unproven, header.file_offset(start))?;
        publish(&*self.disk, &mut header, &*file, *end, self.inventory.salt)?;
        let replaced = segment.pieces.extract_if(.., |piece| piece.start >= start);
        self.inventory.obsolete.extend(replaced.map(|piece| piece.name.to_string()));
        segment.pieces.push(header);
        Ok(())
    }

    /// Frees disk space. A failure only delays that until the next start.
    fn remove_obsolete_files(&mut self) {
        for name in self.inventory.obsolete.drain(..) {
            let _ = self.disk.remove(&name);
        }
        let _ = self.disk.sync_folder();
        let Some(segment) = self.inventory.segments.last().filter(|_| self.tail.open) else { return };
        let ends = segment.pieces[1..].iter().map(|next| next.start).chain([(self.tail.end - segment.base) as u32]);
        for (piece, end) in segment.pieces.iter().zip(ends) {
            let _ = self.disk.open(&piece.name.to_string()).and_then(|file| file.truncate(piece.file_offset(end)));
        }
    }

    fn count_references(
        &mut self,
        visit: impl FnOnce(&mut dyn FnMut(JournalLocation)),
    ) -> Result<SegmentTable, OpenError> {
        let mut segment_table = SegmentTable::default();
        let segments = &self.inventory.segments;
        for (index, segment) in segments.iter().enumerate() {
            let end = segments.get(index + 1).map_or(self.tail.end, |next| next.base);
            segment_table.extend(segment.number, segment.bytes, end);
        }
        let mut lost = None;
        visit(&mut |location| {
            // Reported after the visit, because the closure cannot return an error.
            if !segment_table.count_reference(location) {
                lost = Some(location.segment);
            }
        });
        for segment in segments {
            segment_table.close(segment.number);
        }
        match lost {
            Some(segment) => Err(OpenError::Lost { segment }),
            None => Ok(segment_table),
        }
    }
}

fn damaged(file: &str, at: u64, reason: &'static str) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), at, reason }
}

fn damaged_frame(piece: &PieceHeader, lsn: u64) -> OpenError {
    let at = piece.file_offset((lsn - piece.base) as u32);
    damaged(&piece.name.to_string(), at, "a durable frame is not readable")
}
