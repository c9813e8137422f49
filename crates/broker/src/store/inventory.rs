//! What is found in a data folder before anything is read from it: its format, its segments and pieces, its newest snapshot.
//!
//! Changes nothing, but for the `format` file of a new folder. What is no longer needed is only listed, to be removed when the start has succeeded.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use super::disk::{Disk, DiskFile};
use super::error::OpenError;
use super::layout::{
    FORMAT, FORMAT_VERSION, PIECE_HEAD, PieceHead, PieceName, SNAPSHOT_END, SNAPSHOT_HEAD, SnapshotEnd, SnapshotHead,
    TEMPORARY, format_text, parse_format, parse_snapshot_name, temporary,
};

#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) salt: u32,
    pub(super) segments: Vec<Segment>,
    pub(super) snapshot: Option<Snapshot>,
    /// Files that nothing needs.
    pub(super) leftovers: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) number: u32,
    /// Position of its first byte.
    pub(super) base: u64,
    /// In the order in which each replaces the one before from its start on; `start` rises.
    pub(super) pieces: Vec<PieceHead>,
    /// Bytes in its files.
    pub(super) bytes: u64,
}

impl Segment {
    pub(super) fn last_piece(&self) -> PieceHead {
        *self.pieces.last().expect("a segment is made of at least one piece: see Inventory::add")
    }
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) file: String,
    pub(super) size: u64,
    pub(super) head: SnapshotHead,
    pub(super) end: SnapshotEnd,
}

impl Inventory {
    pub(super) fn take(disk: &dyn Disk) -> Result<Self, OpenError> {
        let mut names = disk.list().map_err(OpenError::io("list the data folder for", FORMAT))?;
        names.sort_unstable();
        let salt = salt(disk, &names)?;
        let mut inventory = Self { salt, segments: Vec::new(), snapshot: None, leftovers: Vec::new() };
        inventory.find_snapshot(disk, &names)?;
        inventory.find_segments(disk, &names)?;
        inventory.leftovers.extend(names.into_iter().filter(|name| name.ends_with(TEMPORARY)));
        Ok(inventory)
    }

    /// Where replay begins.
    pub(super) fn from(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.head.from)
    }

    fn find_snapshot(&mut self, disk: &dyn Disk, names: &[String]) -> Result<(), OpenError> {
        let mut snapshots: Vec<_> = names.iter().filter(|name| parse_snapshot_name(name).is_some()).collect();
        let Some(newest) = snapshots.pop() else { return Ok(()) };
        self.leftovers.extend(snapshots.into_iter().cloned());
        self.snapshot = Some(read_snapshot_ends(disk, newest, self.salt)?);
        Ok(())
    }

    fn find_segments(&mut self, disk: &dyn Disk, names: &[String]) -> Result<(), OpenError> {
        let mut pieces: BTreeMap<u32, Vec<(PieceHead, u64)>> = BTreeMap::new();
        for name in names.iter().filter_map(|name| PieceName::parse(name)) {
            let (head, size) = read_piece_head(disk, name, self.salt)?;
            pieces.entry(name.segment).or_default().push((head, size));
        }
        for (number, pieces) in pieces {
            self.add(number, pieces)?;
        }
        Ok(())
    }

    fn add(&mut self, number: u32, found: Vec<(PieceHead, u64)>) -> Result<(), OpenError> {
        let base = found[0].0.base;
        let mut pieces: Vec<(PieceHead, u64)> = Vec::with_capacity(found.len());
        for (head, size) in found {
            if head.base != base {
                let what = "it begins elsewhere than the piece before it";
                return Err(OpenError::Damaged { file: head.name.to_string(), at: 0, what });
            }
            let replaced = pieces.extract_if(.., |(piece, _)| piece.start >= head.start);
            self.leftovers.extend(replaced.map(|(piece, _)| piece.name.to_string()));
            pieces.push((head, size));
        }
        let bytes = pieces.iter().map(|(_, size)| size).sum();
        self.segments.push(Segment { number, base, pieces: pieces.into_iter().map(|(head, _)| head).collect(), bytes });
        Ok(())
    }
}

/// The folder's salt, made with the `format` file when the folder is new.
fn salt(disk: &dyn Disk, names: &[String]) -> Result<u32, OpenError> {
    if names.iter().any(|name| name == FORMAT) {
        return read_salt(disk);
    }
    // Without its format nothing else in the folder can be believed; a new one has nothing else.
    if let Some(file) =
        names.iter().find(|name| PieceName::parse(name).is_some() || parse_snapshot_name(name).is_some())
    {
        return Err(OpenError::Foreign { file: file.clone() });
    }
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

fn read_piece_head(disk: &dyn Disk, name: PieceName, salt: u32) -> Result<(PieceHead, u64), OpenError> {
    let file_name = name.to_string();
    let file = disk.open(&file_name).map_err(OpenError::io("open", &file_name))?;
    let bytes = read_some(&*file, PIECE_HEAD, 0).map_err(OpenError::io("read", &file_name))?;
    let head = PieceHead::decode(&bytes, salt).filter(|head| head.name == name);
    let size = file.size().map_err(OpenError::io("measure", &file_name))?;
    head.map(|head| (head, size)).ok_or(OpenError::Damaged { file: file_name, at: 0, what: "no valid head" })
}

fn read_snapshot_ends(disk: &dyn Disk, name: &str, salt: u32) -> Result<Snapshot, OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    let size = file.size().map_err(OpenError::io("measure", name))?;
    let end_at = size.saturating_sub(SNAPSHOT_END);
    let head = read_some(&*file, SNAPSHOT_HEAD, 0).map_err(OpenError::io("read", name))?;
    let end = read_some(&*file, SNAPSHOT_END, end_at).map_err(OpenError::io("read", name))?;
    let damaged = |at, what| OpenError::Damaged { file: name.to_owned(), at, what };
    Ok(Snapshot {
        file: name.to_owned(),
        size,
        head: SnapshotHead::decode(&head, salt).ok_or_else(|| damaged(0, "no valid head"))?,
        end: SnapshotEnd::decode(&end, salt).ok_or_else(|| damaged(end_at, "no valid end"))?,
    })
}

/// At most `length` bytes at `at`.
pub(super) fn read_some(file: &dyn DiskFile, length: u64, at: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok(bytes)
}
