//! Reads bodies back, through a bounded number of open files.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::frame::{ENTRY_HEAD, decode_entry, entry_length};
use super::layout::{PieceHead, PieceName};
use crate::journal::{Location, ReadError, Stored};

/// Enough for every segment that is read at the same time; far below any limit on open files.
const OPEN_FILES: usize = 64;

/// Most metas are shorter, so that one read brings both halves.
const USUAL_META: usize = 192;

pub(super) struct Files {
    disk: Arc<dyn Disk>,
    /// Oldest first.
    open: VecDeque<(PieceName, Arc<dyn DiskFile>)>,
}

impl Files {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, open: VecDeque::new() }
    }

    pub(super) fn read(&mut self, piece: PieceHead, location: Location, salt: u32) -> Result<Stored, ReadError> {
        let file = self.file(piece.name).map_err(ReadError::Io)?;
        let at = piece.place(location.offset);
        let mut bytes = vec![0; ENTRY_HEAD + USUAL_META + location.len as usize];
        let read = file.read_at(&mut bytes, at).map_err(ReadError::Io)?;
        bytes.truncate(read);
        let length = entry_length(&bytes).ok_or(ReadError::Missing(location))?;
        if length > bytes.len() {
            // A damaged head may name any length; no more is read than its meta can explain.
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

    /// The segment is removed: a file that is still open would keep its room.
    pub(super) fn forget(&mut self, segment: u32) {
        self.open.retain(|(name, _)| name.segment != segment);
    }

    fn file(&mut self, name: PieceName) -> std::io::Result<Arc<dyn DiskFile>> {
        // The most recent are asked for most.
        if let Some((_, file)) = self.open.iter().rev().find(|(open, _)| *open == name) {
            return Ok(Arc::clone(file));
        }
        let file = self.disk.open(&name.to_string())?;
        if self.open.len() == OPEN_FILES {
            self.open.pop_front();
        }
        self.open.push_back((name, Arc::clone(&file)));
        Ok(file)
    }
}

/// Bounds what a damaged length can make us read.
const LARGEST_META: usize = 1 << 20;

/// The entry that `bytes` begin with, which are the tail's and change hands: so they are copied.
pub(super) fn entry_in(bytes: &[u8], location: Location, salt: u32) -> Result<Stored, ReadError> {
    let length = entry_length(bytes).and_then(|length| bytes.get(..length)).ok_or(ReadError::Missing(location))?;
    entry(Bytes::copy_from_slice(length), location, salt)
}

fn entry(bytes: Bytes, location: Location, salt: u32) -> Result<Stored, ReadError> {
    let bounds = decode_entry(&bytes, 0, salt).ok_or(ReadError::Corrupt(location))?;
    let body = bounds.body.filter(|body| body.len() == location.len as usize).ok_or(ReadError::Missing(location))?;
    Ok(Stored { meta: bytes.slice(bounds.meta), body: bytes.slice(body) })
}
