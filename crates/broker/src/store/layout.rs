//! The data folder's file names and the fixed headers and footers of its files. Pure functions.
//!
//! | name | is |
//! | --- | --- |
//! | `format` | format version and salt; written once |
//! | `lock` | held while a broker uses the folder |
//! | `0000001f-0000.seg` | segment 0x1f of the log, piece 0 |
//! | `0000000000a3f000.snapshot` | a complete snapshot that began at that position |
//! | `log.reserve`, `snapshot.reserve` | disk space reserved for a full disk |
//! | `*.tmp` | an unfinished file; ignored after a crash |
//!
//! A segment is usually one piece. After a failed write or sync, the unsynced rest is written again as a further piece,
//! which replaces everything from its `start` on. Recovery does the same with bytes that it cannot prove durable. A
//! location (segment, offset) never changes.
//!
//! A file gets its final name only after its first bytes are durable. So a file with an invalid header is damaged,
//! never unfinished.

use super::frame::{checksum, u32_at, u64_at};

pub(super) const FORMAT: &str = "format";
pub(super) const LOCK: &str = "lock";
pub(super) const LOG_RESERVE: &str = "log.reserve";
pub(super) const SNAPSHOT_RESERVE: &str = "snapshot.reserve";
pub(super) const TEMPORARY: &str = ".tmp";

/// Raised when an older version cannot read folders written by this one.
pub(super) const FORMAT_VERSION: u32 = 1;

pub(super) fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PieceName {
    pub(super) segment: u32,
    pub(super) piece: u32,
}

impl PieceName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (segment, piece) = name.strip_suffix(".seg")?.split_once('-')?;
        let parsed =
            Self { segment: u32::from_str_radix(segment, 16).ok()?, piece: u32::from_str_radix(piece, 16).ok()? };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl std::fmt::Display for PieceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:04x}.seg", self.segment, self.piece)
    }
}

pub(super) fn snapshot_name(from: u64) -> String {
    format!("{from:016x}.snapshot")
}

pub(super) fn parse_snapshot_name(name: &str) -> Option<u64> {
    let from = u64::from_str_radix(name.strip_suffix(".snapshot")?, 16).ok()?;
    (snapshot_name(from) == name).then_some(from)
}

/// The contents of `format`.
pub(super) fn format_text(salt: u32) -> String {
    format!("headwater broker store\nformat {FORMAT_VERSION}\nsalt {salt:08x}\n")
}

/// Version and salt from [`format_text`]. Of a later format only the version is understood.
pub(super) fn parse_format(text: &str) -> Option<(u32, Option<u32>)> {
    let mut lines = text.strip_prefix("headwater broker store\n")?.lines();
    let version = lines.next()?.strip_prefix("format ")?.parse().ok()?;
    let salt = lines.next().and_then(|line| u32::from_str_radix(line.strip_prefix("salt ")?, 16).ok());
    Some((version, salt))
}

const PIECE_MAGIC: &[u8; 8] = b"HWLOG\0\0\x01";
pub(super) const PIECE_HEADER: u64 = 64;

/// The header of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceHeader {
    pub(super) name: PieceName,
    /// Position of the segment's first byte.
    pub(super) base: u64,
    /// Offset in the segment at which this piece starts; it replaces earlier pieces from there on.
    pub(super) start: u32,
    /// If this file exists under its final name, the journal is durable up to this position.
    pub(super) durable: u64,
}

impl PieceHeader {
    pub(super) fn encode(self, salt: u32) -> [u8; PIECE_HEADER as usize] {
        let mut bytes = [0; PIECE_HEADER as usize];
        bytes[..8].copy_from_slice(PIECE_MAGIC);
        bytes[12..16].copy_from_slice(&self.name.segment.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.name.piece.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.base.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.to_le_bytes());
        set_checksum(&mut bytes, salt);
        bytes
    }

    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = verify_checksum(bytes, PIECE_HEADER as usize, PIECE_MAGIC, salt)?;
        Some(Self {
            name: PieceName { segment: u32_at(bytes, 12), piece: u32_at(bytes, 16) },
            start: u32_at(bytes, 20),
            base: u64_at(bytes, 24),
            durable: u64_at(bytes, 32),
        })
    }

    /// The position in the file of the segment's byte at `offset`.
    pub(super) fn file_offset(self, offset: u32) -> u64 {
        PIECE_HEADER + u64::from(offset - self.start)
    }
}

const SEGMENT_FOOTER_MAGIC: &[u8; 8] = b"HWSEALED";
pub(super) const SEGMENT_FOOTER: u64 = 32;

/// The footer of a closed segment: where the index of its metas starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentFooter {
    pub(super) index_at: u64,
    /// Position of the segment's end.
    pub(super) end: u64,
}

impl SegmentFooter {
    pub(super) fn encode(self, salt: u32) -> [u8; SEGMENT_FOOTER as usize] {
        let mut bytes = [0; SEGMENT_FOOTER as usize];
        bytes[..8].copy_from_slice(SEGMENT_FOOTER_MAGIC);
        bytes[16..24].copy_from_slice(&self.index_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.end.to_le_bytes());
        set_checksum(&mut bytes, salt);
        bytes
    }

    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = verify_checksum(bytes, SEGMENT_FOOTER as usize, SEGMENT_FOOTER_MAGIC, salt)?;
        Some(Self { index_at: u64_at(bytes, 16), end: u64_at(bytes, 24) })
    }
}

const SNAPSHOT_MAGIC: &[u8; 8] = b"HWSNAP\0\x01";
const SNAPSHOT_END_MAGIC: &[u8; 8] = b"HWSNAPED";
pub(super) const SNAPSHOT_HEADER: u64 = 32;
pub(super) const SNAPSHOT_FOOTER: u64 = 32;

/// The header of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotHeader {
    /// Entries from this position on are replayed over the snapshot.
    pub(super) from: u64,
    /// The segment that starts at `from`. Stored so that segment numbers rise even if no segment is left.
    pub(super) segment: u32,
}

impl SnapshotHeader {
    pub(super) fn encode(self, salt: u32) -> [u8; SNAPSHOT_HEADER as usize] {
        let mut bytes = [0; SNAPSHOT_HEADER as usize];
        bytes[..8].copy_from_slice(SNAPSHOT_MAGIC);
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.from.to_le_bytes());
        set_checksum(&mut bytes, salt);
        bytes
    }

    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = verify_checksum(bytes, SNAPSHOT_HEADER as usize, SNAPSHOT_MAGIC, salt)?;
        Some(Self { segment: u32_at(bytes, 12), from: u64_at(bytes, 16) })
    }
}

/// The footer of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotFooter {
    pub(super) records: u64,
    /// Position at which it was complete. If the file exists under its final name, the journal is durable up to here.
    pub(super) end: u64,
}

impl SnapshotFooter {
    pub(super) fn encode(self, salt: u32) -> [u8; SNAPSHOT_FOOTER as usize] {
        let mut bytes = [0; SNAPSHOT_FOOTER as usize];
        bytes[..8].copy_from_slice(SNAPSHOT_END_MAGIC);
        bytes[16..24].copy_from_slice(&self.records.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.end.to_le_bytes());
        set_checksum(&mut bytes, salt);
        bytes
    }

    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = verify_checksum(bytes, SNAPSHOT_FOOTER as usize, SNAPSHOT_END_MAGIC, salt)?;
        Some(Self { records: u64_at(bytes, 16), end: u64_at(bytes, 24) })
    }
}

/// Every header has its checksum at 8..12, over all bytes that follow.
fn set_checksum(bytes: &mut [u8], salt: u32) {
    let crc = checksum(salt, &bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn verify_checksum<'a>(bytes: &'a [u8], length: usize, magic: &[u8; 8], salt: u32) -> Option<&'a [u8]> {
    let bytes = bytes.get(..length)?;
    (&bytes[..8] == magic && u32_at(bytes, 8) == checksum(salt, &bytes[12..])).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_like_segments_and_foreign_names_are_ignored() {
        let name = PieceName { segment: 0x1f, piece: 2 };
        assert_eq!(name.to_string(), "0000001f-0002.seg");
        assert_eq!(PieceName::parse("0000001f-0002.seg"), Some(name));
        for foreign in ["1f-2.seg", "0000001F-0002.seg", "0000001f-0002.seg.tmp", "lost+found", "format"] {
            assert_eq!(PieceName::parse(foreign), None, "{foreign}");
        }
        assert!(PieceName { segment: 9, piece: 9 }.to_string() < PieceName { segment: 0xa, piece: 0 }.to_string());
        assert_eq!(parse_snapshot_name(&snapshot_name(0xa3f000)), Some(0xa3f000));
    }

    #[test]
    fn headers_decode_and_any_changed_byte_is_detected() {
        let header = PieceHeader { name: PieceName { segment: 7, piece: 1 }, base: 99, start: 40, durable: 160 };
        let bytes = header.encode(5);
        assert_eq!(PieceHeader::decode(&bytes, 5), Some(header));
        assert_eq!(PieceHeader::decode(&bytes, 6), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(PieceHeader::decode(&damaged, 5), None, "byte {at}");
        }
    }

    #[test]
    fn the_version_of_a_later_format_is_still_read() {
        assert_eq!(parse_format(&format_text(0xabc)), Some((FORMAT_VERSION, Some(0xabc))));
        assert_eq!(parse_format("headwater broker store\nformat 9\nwhatever\n"), Some((9, None)));
        assert_eq!(parse_format("something else"), None);
    }
}
