//! Reads bodies back through a bounded number of open files. Sequential reads, as of a receiver with a backlog, use
//! read-ahead.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::frame::{ENTRY_HEADER, decode_entry, entry_length};
use super::layout::{PieceHeader, PieceName};
use crate::journal::{JournalLocation, ReadError, ReadJournalEntry};

/// Enough for all segments that are read at the same time; far below the limit on open files.
const OPEN_FILES: usize = 64;

/// Most metas are shorter, so that a single read returns meta and body.
const USUAL_META: usize = 192;

/// Bytes read at once if a read starts shortly after the last one, and how close that must be. In the worst case an
/// eighth of the bytes is used, which is still cheaper than one call per entry.
const AHEAD: usize = 32 << 10;
const NEAR: u64 = 4 << 10;

pub(super) struct BodyReader {
    disk: Arc<dyn Disk>,
    /// Oldest first.
    open: VecDeque<(PieceName, Arc<dyn DiskFile>)>,
    /// Start of the last entry read.
    last: Option<(PieceName, u64)>,
    ahead: BodyReadAhead,
}

/// Bytes of one file at the time of reading. Some may have been written since, so an entry counts only if its checksum
/// holds.
#[derive(Default)]
struct BodyReadAhead {
    place: Option<(PieceName, u64)>,
    bytes: Vec<u8>,
}

impl BodyReadAhead {
    fn fill(&mut self, name: PieceName, file: &dyn DiskFile, at: u64) -> std::io::Result<()> {
        self.place = None;
        self.bytes.resize(AHEAD, 0);
        let read = file.read_at(&mut self.bytes, at)?;
        self.bytes.truncate(read);
        self.place = Some((name, at));
        Ok(())
    }

    /// Copies the entry: the buffer is reused while callers keep entries.
    fn entry(&self, name: PieceName, at: u64, location: JournalLocation, salt: u32) -> Option<ReadJournalEntry> {
        let (_, from) = self.place.filter(|(of, _)| *of == name)?;
        let bytes = self.bytes.get(usize::try_from(at.checked_sub(from)?).ok()?..)?;
        decode_stored(bytes, location, salt).ok()
    }
}

impl BodyReader {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, open: VecDeque::new(), last: None, ahead: BodyReadAhead::default() }
    }

    pub(super) fn read(
        &mut self,
        piece: PieceHeader,
        location: JournalLocation,
        salt: u32,
    ) -> Result<ReadJournalEntry, ReadError> {
        let (name, at) = (piece.name, piece.file_offset(location.offset));
        let last = self.last.replace((name, at));
        // A stale buffer fails the checksum and falls through to a real read.
        if let Some(stored) = self.ahead.entry(name, at, location, salt) {
            return Ok(stored);
        }
        let file = self.open_file(name).map_err(ReadError::Io)?;
        if last.is_some_and(|(of, last)| of == name && (last + 1..last + NEAR).contains(&at)) {
            self.ahead.fill(name, &*file, at).map_err(ReadError::Io)?;
            if let Some(stored) = self.ahead.entry(name, at, location, salt) {
                return Ok(stored);
            }
        }
        let mut bytes = vec![0; ENTRY_HEADER + USUAL_META + location.len as usize];
        let read = file.read_at(&mut bytes, at).map_err(ReadError::Io)?;
        bytes.truncate(read);
        let length = entry_length(&bytes).ok_or(ReadError::Missing(location))?;
        if length > bytes.len() {
            // A damaged header may state any length; read no more than a plausible meta.
            let rest = length - bytes.len();
            if rest > LARGEST_META {
                return Err(ReadError::Corrupt(location));
            }
            bytes.resize(length, 0);
            let more = file.read_at(&mut bytes[read..], at + read as u64).map_err(ReadError::Io)?;
            bytes.truncate(read + more);
        }
        entry(Bytes::from(bytes), location, salt)
    }

    /// Closes the files of a removed segment: an open file would keep its disk space.
    pub(super) fn close_segment(&mut self, segment: u32) {
        self.open.retain(|(name, _)| name.segment != segment);
    }

    fn open_file(&mut self, name: PieceName) -> std::io::Result<Arc<dyn DiskFile>> {
        // Recent files are the most likely.
        if let Some((_, file)) = self.open.iter().rev().find(|(open, _)| *open == name) {
            return Ok(Arc::clone(file));
        }
        let file = self.disk.open(&name.to_string())?;
        if self.open.len() == OPEN_FILES {
            // The oldest file is not necessarily the least used, but reopening is cheap.
            self.open.pop_front();
        }
        self.open.push_back((name, Arc::clone(&file)));
        Ok(file)
    }
}

/// Bounds how much a damaged length can make us read.
const LARGEST_META: usize = 1 << 20;

/// Decodes the entry at the start of `bytes`. Copies it, because the unsynced tail reuses its buffers.
pub(super) fn decode_stored(bytes: &[u8], location: JournalLocation, salt: u32) -> Result<ReadJournalEntry, ReadError> {
    let length = entry_length(bytes).and_then(|length| bytes.get(..length)).ok_or(ReadError::Missing(location))?;
    entry(Bytes::copy_from_slice(length), location, salt)
}

fn entry(bytes: Bytes, location: JournalLocation, salt: u32) -> Result<ReadJournalEntry, ReadError> {
    let bounds = decode_entry(&bytes, 0, salt).ok_or(ReadError::Corrupt(location))?;
    let body = bounds.body.filter(|body| body.len() == location.len as usize).ok_or(ReadError::Missing(location))?;
    Ok(ReadJournalEntry { meta: bytes.slice(bounds.meta), body: bytes.slice(body) })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::StoreFolder;
    use super::super::frame::encode;
    use super::*;
    use crate::journal::JournalEntry;

    const SALT: u32 = 7;
    const BODY: usize = 1_000;
    const NAME: PieceName = PieceName { segment: 1, piece: 0 };

    /// A file that counts its reads.
    struct CountingFile(Vec<u8>, Arc<AtomicUsize>);

    impl DiskFile for CountingFile {
        fn size(&self) -> io::Result<u64> {
            Ok(self.0.len() as u64)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let read = rest.len().min(buf.len());
            buf[..read].copy_from_slice(&rest[..read]);
            Ok(read)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn allocate(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn truncate(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// A piece with this many messages, and their locations.
    fn piece(messages: u8) -> (PieceHeader, Vec<u8>, Vec<JournalLocation>) {
        let header = PieceHeader { name: NAME, base: 0, start: 0, durable: 0 };
        let mut bytes = vec![0; header.file_offset(0) as usize];
        let mut locations = Vec::new();
        for n in 0..messages {
            let (body, offset) = ([n; BODY], (bytes.len() as u64 - header.file_offset(0)) as u32);
            let group = [JournalEntry { meta: b"meta", body: Some(&body), references: 1 }];
            encode(&group, SALT, offset.into(), 0, &mut bytes, |at, _| {
                locations.push(JournalLocation { segment: 1, offset: offset + at, len: BODY as u32 });
            });
        }
        (header, bytes, locations)
    }

    fn body_reader(bytes: Vec<u8>) -> (BodyReader, Arc<AtomicUsize>) {
        let reads = Arc::new(AtomicUsize::new(0));
        let mut body_reader =
            BodyReader::new(Arc::new(StoreFolder::new(std::env::temp_dir()).expect("the temporary folder exists")));
        body_reader.open.push_back((NAME, Arc::new(CountingFile(bytes, Arc::clone(&reads)))));
        (body_reader, reads)
    }

    #[test]
    fn sequential_reads_share_a_read_ahead() {
        let (header, bytes, locations) = piece(100);
        let (mut body_reader, reads) = body_reader(bytes);
        for (n, location) in locations.iter().enumerate() {
            assert_eq!(body_reader.read(header, *location, SALT).unwrap().body, vec![n as u8; BODY]);
        }
        assert!(reads.swap(0, Ordering::Relaxed) <= 6, "32 KiB at a time");
        for (n, location) in locations.iter().enumerate().rev().step_by(7) {
            assert_eq!(body_reader.read(header, *location, SALT).unwrap().body, vec![n as u8; BODY]);
        }
        assert!(body_reader.ahead.bytes.len() <= AHEAD);
    }

    #[test]
    fn bytes_written_after_the_read_ahead_are_read_again() {
        let (header, bytes, locations) = piece(10);
        let mut early = bytes.clone();
        early[header.file_offset(locations[5].offset) as usize..].fill(0);
        let (mut body_reader, _) = body_reader(early);
        body_reader.read(header, locations[0], SALT).unwrap();
        body_reader.read(header, locations[1], SALT).unwrap();
        body_reader.open[0].1 = Arc::new(CountingFile(bytes, Arc::default()));
        for (n, location) in locations.iter().enumerate() {
            assert_eq!(body_reader.read(header, *location, SALT).unwrap().body, vec![n as u8; BODY]);
        }
    }
}
