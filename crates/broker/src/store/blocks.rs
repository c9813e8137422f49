//! A stream of records (meta and body location) in checksummed blocks, used for snapshots and segment indexes.
//!
//! ```text
//! block   length u32 · crc u32                                           then records
//! record  meta length u32 · segment u32 · offset u32 · body length u32   then meta; without a body, segment is all ones
//! ```

use std::io;

use super::disk::DiskFile;
use super::frame::{checksum, u32_at};
use crate::journal::JournalLocation;

const BLOCK_HEADER: usize = 8;
const RECORD_HEADER: usize = 16;
const NO_BODY: u32 = u32::MAX;

/// Large enough that headers and reads cost little, small enough that a reader needs little memory.
const BLOCK: usize = 128 << 10;

/// Collects records into blocks.
#[derive(Debug, Default)]
pub(super) struct BlockWriter {
    bytes: Vec<u8>,
    /// Start of the current block; equal to the length if there is none.
    open: usize,
}

impl BlockWriter {
    pub(super) fn push(&mut self, meta: &[u8], body: Option<JournalLocation>, salt: u32) {
        if self.open == self.bytes.len() {
            self.bytes.extend_from_slice(&[0; BLOCK_HEADER]);
        }
        let JournalLocation { segment, offset, len } =
            body.unwrap_or(JournalLocation { segment: NO_BODY, offset: 0, len: 0 });
        for field in [meta.len() as u32, segment, offset, len] {
            self.bytes.extend_from_slice(&field.to_le_bytes());
        }
        self.bytes.extend_from_slice(meta);
        if self.bytes.len() - self.open >= BLOCK {
            self.close(salt);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes all bytes collected so far, as complete blocks.
    pub(super) fn take(&mut self, salt: u32) -> Vec<u8> {
        self.close(salt);
        self.open = 0;
        std::mem::take(&mut self.bytes)
    }

    fn close(&mut self, salt: u32) {
        let Some(block) = self.bytes.get_mut(self.open..).filter(|block| !block.is_empty()) else { return };
        let length = (block.len() - BLOCK_HEADER) as u32;
        let crc = checksum(salt, &block[BLOCK_HEADER..]);
        block[..4].copy_from_slice(&length.to_le_bytes());
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        self.open = self.bytes.len();
    }
}

#[derive(Debug)]
pub(super) enum BlockReadError {
    Damaged { at: u64 },
    Io(io::Error),
}

/// Passes every record in `from..to` of the file to `record`, in order; returns how many there were.
pub(super) fn read_blocks(
    file: &dyn DiskFile,
    from: u64,
    to: u64,
    salt: u32,
    mut record: impl FnMut(&[u8], Option<JournalLocation>),
) -> Result<u64, BlockReadError> {
    let mut at = from;
    let mut block = Vec::new();
    let mut count = 0;
    while at < to {
        let whole = read_block(file, at, to, salt, &mut block).map_err(BlockReadError::Io)?;
        let records = if whole { decode_records(&block, &mut record) } else { None };
        count += records.ok_or(BlockReadError::Damaged { at })?;
        at += (BLOCK_HEADER + block.len()) as u64;
    }
    Ok(count)
}

/// Reads the records of the block at `at` into `block`; `false` if they are incomplete or fail their checksum.
fn read_block(file: &dyn DiskFile, at: u64, to: u64, salt: u32, block: &mut Vec<u8>) -> io::Result<bool> {
    let mut header = [0; BLOCK_HEADER];
    let records_at = at + BLOCK_HEADER as u64;
    if records_at > to || file.read_at(&mut header, at)? < header.len() {
        return Ok(false);
    }
    let length = u32_at(&header, 0);
    if records_at + u64::from(length) > to {
        return Ok(false);
    }
    block.resize(length as usize, 0);
    Ok(file.read_at(block, records_at)? == block.len() && checksum(salt, block) == u32_at(&header, 4))
}

fn decode_records(mut block: &[u8], record: &mut impl FnMut(&[u8], Option<JournalLocation>)) -> Option<u64> {
    let mut count = 0;
    while !block.is_empty() {
        let header = block.get(..RECORD_HEADER)?;
        let end = RECORD_HEADER + u32_at(header, 0) as usize;
        let meta = block.get(RECORD_HEADER..end)?;
        let location =
            JournalLocation { segment: u32_at(header, 4), offset: u32_at(header, 8), len: u32_at(header, 12) };
        record(meta, (location.segment != NO_BODY).then_some(location));
        block = &block[end..];
        count += 1;
    }
    Some(count)
}
