//! Scans a data folder before anything is replayed: its format, segments, pieces and newest snapshot.
//!
//! Writes nothing except the `format` file of a new folder. Obsolete files are only listed; recovery removes them after
//! it has succeeded.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use super::disk::{Disk, DiskFile};
use super::error::OpenError;
use super::layout::{
    FORMAT, FORMAT_VERSION, PIECE_HEADER, PieceHeader, PieceName, SNAPSHOT_FOOTER, SNAPSHOT_HEADER, SnapshotFooter,
    SnapshotHeader, TEMPORARY, format_text, parse_format, parse_snapshot_name, temporary,
};

#[derive(Debug)]
pub(super) struct StoreInventory {
    pub(super) salt: u32,
    pub(super) segments: Vec<SegmentFiles>,
    pub(super) snapshot: Option<SnapshotFile>,
    /// Files that are no longer needed.
    pub(super) obsolete: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct SegmentFiles {
    pub(super) number: u32,
    /// Position of its first byte.
    pub(super) base: u64,
    /// In order: each piece replaces the previous ones from its `start` on. `start` rises.
    pub(super) pieces: Vec<PieceHeader>,
    /// Size of its files.
    pub(super) bytes: u64,
}

impl SegmentFiles {
    pub(super) fn last_piece(&self) -> PieceHeader {
        *self.pieces.last().expect("a segment has at least one piece: see Inventory::add")
    }
}

#[derive(Debug)]
pub(super) struct SnapshotFile {
    pub(super) file: String,
    pub(super) size: u64,
    pub(super) header: SnapshotHeader,
    pub(super) end: SnapshotFooter,
}

impl StoreInventory {
    pub(super) fn scan(disk: &dyn Disk) -> Result<Self, OpenError> {
        let mut names = disk.list().map_err(OpenError::io("list the data folder of", FORMAT))?;
        names.sort_unstable();
        let salt = load_or_create_salt(disk, &names)?;
        let mut inventory = Self { salt, segments: Vec::new(), snapshot: None, obsolete: Vec::new() };
        inventory.find_snapshot(disk, &names)?;
        inventory.find_segments(disk, &names)?;
        inventory.obsolete.extend(names.into_iter().filter(|name| name.ends_with(TEMPORARY)));
        Ok(inventory)
    }

    /// Where replay starts.
    pub(super) fn from(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.header.from)
    }

    fn find_snapshot(&mut self, disk: &dyn Disk, names: &[String]) -> Result<(), OpenError> {
        let mut snapshots: Vec<_> = names.iter().filter(|name| parse_snapshot_name(name).is_some()).collect();
        // Names sort by position. An older snapshot exists only if its removal was interrupted.
        let Some(newest) = snapshots.pop() else { return Ok(()) };
        self.obsolete.extend(snapshots.into_iter().cloned());
        self.snapshot = Some(read_snapshot_ends(disk, newest, self.salt)?);
        Ok(())
    }

    fn find_segments(&mut self, disk: &dyn Disk, names: &[String]) -> Result<(), OpenError> {
        let mut pieces: BTreeMap<u32, Vec<(PieceHeader, u64)>> = BTreeMap::new();
        for name in names.iter().filter_map(|name| PieceName::parse(name)) {
            let (header, size) = read_piece_header(disk, name, self.salt)?;
            pieces.entry(name.segment).or_default().push((header, size));
        }
        for (number, pieces) in pieces {
            self.add(number, pieces)?;
        }
        Ok(())
    }

    fn add(&mut self, number: u32, found: Vec<(PieceHeader, u64)>) -> Result<(), OpenError> {
        let base = found[0].0.base;
        let mut pieces: Vec<(PieceHeader, u64)> = Vec::with_capacity(found.len());
        for (header, size) in found {
            if header.base != base {
                let reason = "it starts at another position than the previous piece";
                return Err(OpenError::Damaged { file: header.name.to_string(), at: 0, reason });
            }
            let replaced = pieces.extract_if(.., |(piece, _)| piece.start >= header.start);
            self.obsolete.extend(replaced.map(|(piece, _)| piece.name.to_string()));
            pieces.push((header, size));
        }
        let bytes = pieces.iter().map(|(_, size)| size).sum();
        self.segments.push(SegmentFiles {
            number,
            base,
            pieces: pieces.into_iter().map(|(header, _)| header).collect(),
            bytes,
        });
        Ok(())
    }
}

/// The folder's salt; created together with the `format` file in a new folder.
fn load_or_create_salt(disk: &dyn Disk, names: &[String]) -> Result<u32, OpenError> {
    if names.iter().any(|name| name == FORMAT) {
        return read_salt(disk);
    }
    // Without the format file nothing else in the folder can be trusted; a new folder has no other files.
    if let Some(file) =
        names.iter().find(|name| PieceName::parse(name).is_some() || parse_snapshot_name(name).is_some())
    {
        return Err(OpenError::Foreign { file: file.clone() });
    }
    // Unpredictable is enough here: it only keeps senders from forging frames.
    let salt = RandomState::new().hash_one(FORMAT) as u32;
    write_format(disk, salt).map_err(OpenError::io("write", FORMAT))?;
    Ok(salt)
}

fn read_salt(disk: &dyn Disk) -> Result<u32, OpenError> {
    let mut bytes = [0; 256];
    let file = disk.open(FORMAT).map_err(OpenError::io("open", FORMAT))?;
    let read = file.read_at(&mut bytes, 0).map_err(OpenError::io("read", FORMAT))?;
    match std::str::from_utf8(&bytes[..read]).ok().and_then(parse_format) {
        Some((FORMAT_VERSION, Some(salt))) => Ok(salt),
        Some((found, _)) if found != FORMAT_VERSION => Err(OpenError::Format { found, known: FORMAT_VERSION }),
        _ => Err(OpenError::Foreign { file: FORMAT.to_owned() }),
    }
}

fn write_format(disk: &dyn Disk, salt: u32) -> std::io::Result<()> {
    let file = disk.create(&temporary(FORMAT))?;
    file.write_at(format_text(salt).as_bytes(), 0)?;
    file.sync()?;
    disk.rename(&temporary(FORMAT), FORMAT)?;
    disk.sync_folder()
}

fn read_piece_header(disk: &dyn Disk, name: PieceName, salt: u32) -> Result<(PieceHeader, u64), OpenError> {
    let file_name = name.to_string();
    let file = disk.open(&file_name).map_err(OpenError::io("open", &file_name))?;
    let bytes = read_some(&*file, PIECE_HEADER, 0).map_err(OpenError::io("read", &file_name))?;
    let header = PieceHeader::decode(&bytes, salt).filter(|header| header.name == name);
    let size = file.size().map_err(OpenError::io("measure", &file_name))?;
    header.map(|header| (header, size)).ok_or(OpenError::Damaged { file: file_name, at: 0, reason: "no valid header" })
}

fn read_snapshot_ends(disk: &dyn Disk, name: &str, salt: u32) -> Result<SnapshotFile, OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    let size = file.size().map_err(OpenError::io("measure", name))?;
    let end_at = size.saturating_sub(SNAPSHOT_FOOTER);
    let header = read_some(&*file, SNAPSHOT_HEADER, 0).map_err(OpenError::io("read", name))?;
    let end = read_some(&*file, SNAPSHOT_FOOTER, end_at).map_err(OpenError::io("read", name))?;
    let damaged = |at, reason| OpenError::Damaged { file: name.to_owned(), at, reason };
    Ok(SnapshotFile {
        file: name.to_owned(),
        size,
        header: SnapshotHeader::decode(&header, salt).ok_or_else(|| damaged(0, "no valid header"))?,
        end: SnapshotFooter::decode(&end, salt).ok_or_else(|| damaged(end_at, "no valid footer"))?,
    })
}

/// Reads at most `length` bytes at `at`.
pub(super) fn read_some(file: &dyn DiskFile, length: u64, at: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok(bytes)
}
