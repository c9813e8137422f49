//! The encoding of one appended group: a frame. Pure functions.
//!
//! ```text
//! frame  head (32): crc u32 · length u32 · lsn u64 · synced u64 · entries u32 · 0 u32     then the entries, zeros to 8
//! entry  head (12): crc u32 · meta length u32 · body length u32                          then meta, then body
//! ```
//! A frame is valid only with all of its entries, so a group exists completely or not at all. Each byte is covered by
//! one checksum: the header by its own, meta and body by their entry's. So one body can be read and verified alone.
//!
//! `lsn` is the frame's own position: leftover bytes of another frame never match. `synced` is how far the journal was
//! known to be durable when the frame was made. Recovery uses it to tell a torn tail (no frame claims it) from damage
//! (a frame does). All checksums start from the folder's random salt, so no sender can write a body that decodes as a
//! frame.

use std::ops::Range;

use crate::journal::JournalEntry;

pub(super) const FRAME_HEADER: usize = 32;
pub(super) const ENTRY_HEADER: usize = 12;
const ALIGN: usize = 8;
const NO_BODY: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogFrameHeader {
    pub(super) length: u32,
    pub(super) lsn: u64,
    pub(super) synced: u64,
    pub(super) entries: u32,
}

/// The ranges of one entry inside its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryBounds {
    /// Start of the entry's header, relative to the frame.
    pub(super) at: usize,
    pub(super) meta: Range<usize>,
    pub(super) body: Option<Range<usize>>,
}

/// The length of the frame that [`encode`] writes.
pub(super) fn encoded_length(group: &[JournalEntry<'_>]) -> usize {
    let entries: usize =
        group.iter().map(|entry| ENTRY_HEADER + entry.meta.len() + entry.body.map_or(0, <[u8]>::len)).sum();
    (FRAME_HEADER + entries).next_multiple_of(ALIGN)
}

/// Appends the group's frame to `out`; calls `placed` with the offset of each entry in it.
pub(super) fn encode(
    group: &[JournalEntry<'_>],
    salt: u32,
    lsn: u64,
    synced: u64,
    out: &mut Vec<u8>,
    mut placed: impl FnMut(u32, &JournalEntry<'_>),
) {
    let start = out.len();
    let length = encoded_length(group);
    out.reserve(length);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&lsn.to_le_bytes());
    out.extend_from_slice(&synced.to_le_bytes());
    out.extend_from_slice(&(group.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let crc = checksum(salt, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    for entry in group {
        placed((out.len() - start) as u32, entry);
        encode_entry(entry, salt, out);
    }
    // Padding: frames start at multiples of 8.
    out.resize(start + length, 0);
}

fn encode_entry(entry: &JournalEntry<'_>, salt: u32, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(entry.meta.len() as u32).to_le_bytes());
    out.extend_from_slice(&entry.body.map_or(NO_BODY, |body| body.len() as u32).to_le_bytes());
    out.extend_from_slice(entry.meta);
    out.extend_from_slice(entry.body.unwrap_or_default());
    let crc = checksum(salt, &out[at + 4..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the header at the start of `bytes`, if its checksum holds.
pub(super) fn decode_header(bytes: &[u8], salt: u32) -> Option<LogFrameHeader> {
    let bytes = bytes.get(..FRAME_HEADER)?;
    if u32_at(bytes, 0) != checksum(salt, &bytes[4..]) {
        return None;
    }
    let header = LogFrameHeader {
        length: u32_at(bytes, 4),
        lsn: u64_at(bytes, 8),
        synced: u64_at(bytes, 16),
        entries: u32_at(bytes, 24),
    };
    (header.length as usize >= FRAME_HEADER && (header.length as usize).is_multiple_of(ALIGN)).then_some(header)
}

/// Decodes and verifies all entries of a frame; `None` if any of them fails.
pub(super) fn decode_entries(frame: &[u8], header: LogFrameHeader, salt: u32) -> Option<Vec<EntryBounds>> {
    let frame = frame.get(..header.length as usize)?;
    // The count comes from a verified header, but limit it anyway.
    let mut entries = Vec::with_capacity((header.entries as usize).min(frame.len() / ENTRY_HEADER));
    let mut at = FRAME_HEADER;
    for _ in 0..header.entries {
        let bounds = decode_entry(frame, at, salt)?;
        at = bounds.body.as_ref().map_or(bounds.meta.end, |body| body.end);
        entries.push(bounds);
    }
    Some(entries)
}

/// Decodes the entry at `at`, if it is complete and its checksum holds.
pub(super) fn decode_entry(bytes: &[u8], at: usize, salt: u32) -> Option<EntryBounds> {
    let (meta, body) = entry_bounds(bytes.get(at..)?)?;
    let end = at + body.as_ref().map_or(meta.end, |body| body.end);
    let checked = bytes.get(at + 4..end)?;
    (u32_at(bytes, at) == checksum(salt, checked)).then(|| EntryBounds {
        at,
        meta: at + meta.start..at + meta.end,
        body: body.map(|body| at + body.start..at + body.end),
    })
}

/// The length of the entry whose header starts `bytes`; nothing is verified.
pub(super) fn entry_length(bytes: &[u8]) -> Option<usize> {
    entry_bounds(bytes).map(|(meta, body)| body.map_or(meta.end, |body| body.end))
}

fn entry_bounds(header: &[u8]) -> Option<(Range<usize>, Option<Range<usize>>)> {
    let header = header.get(..ENTRY_HEADER)?;
    let meta = ENTRY_HEADER..ENTRY_HEADER.checked_add(u32_at(header, 4) as usize)?;
    let body = match u32_at(header, 8) {
        NO_BODY => None,
        length => Some(meta.end..meta.end.checked_add(length as usize)?),
    };
    Some((meta, body))
}

/// The highest `synced` that any frame header in `bytes` claims; `lsn` is the position of `bytes[0]`.
///
/// Frames start at multiples of 8 and contain their own position, so other bytes do not pass for a header.
pub(super) fn highest_claim(bytes: &[u8], lsn: u64, salt: u32) -> Option<u64> {
    let places = (0..bytes.len().saturating_sub(FRAME_HEADER - 1)).step_by(ALIGN);
    places
        .filter(|&at| u64_at(bytes, at + 8) == lsn + at as u64)
        .filter_map(|at| decode_header(&bytes[at..], salt))
        .map(|header| header.synced)
        .max()
}

/// CRC-32 with the folder's salt as initial value.
pub(super) fn checksum(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes: a range of four"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes: a range of eight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 77;

    fn group() -> Vec<JournalEntry<'static>> {
        vec![
            JournalEntry { meta: b"send 1", body: Some(b"the first body"), references: 1 },
            JournalEntry { meta: b"settle", body: None, references: 0 },
            JournalEntry { meta: b"", body: Some(b""), references: 2 },
        ]
    }

    fn frame() -> Vec<u8> {
        let mut out = b"12345678".to_vec();
        encode(&group(), SALT, 8, 3, &mut out, |_, _| {});
        out.split_off(8)
    }

    #[test]
    fn a_frame_decodes_to_its_group() {
        let frame = frame();
        let header = decode_header(&frame, SALT).unwrap();
        assert_eq!(header, LogFrameHeader { length: frame.len() as u32, lsn: 8, synced: 3, entries: 3 });
        let entries = decode_entries(&frame, header, SALT).unwrap();
        for (bounds, entry) in entries.iter().zip(group()) {
            assert_eq!(&frame[bounds.meta.clone()], entry.meta);
            assert_eq!(bounds.body.clone().map(|body| &frame[body]), entry.body);
        }
    }

    #[test]
    fn any_changed_bit_and_any_truncation_is_detected() {
        let frame = frame();
        let whole =
            |bytes: &[u8]| decode_header(bytes, SALT).and_then(|header| decode_entries(bytes, header, SALT)).is_some();
        assert!(whole(&frame));
        for cut in 0..frame.len() {
            assert!(!whole(&frame[..cut]), "cut at {cut}");
        }
        let content = decode_entries(&frame, decode_header(&frame, SALT).unwrap(), SALT).unwrap();
        let end = content.last().unwrap().body.clone().unwrap().end;
        for bit in 0..end * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!whole(&damaged), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_of_another_folder_or_position_makes_no_claim() {
        let mut bytes = vec![0xAB; 64];
        encode(&group(), SALT, 64, 40, &mut bytes, |_, _| {});
        assert_eq!(highest_claim(&bytes, 0, SALT), Some(40));
        assert_eq!(highest_claim(&bytes, 8, SALT), None);
        assert_eq!(highest_claim(&bytes, 0, SALT + 1), None);
    }
}
