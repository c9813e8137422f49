//! The primitive encodings of records.

use crate::core::id::{EntityId, QueueId, Subqueue, Timestamp};
use crate::journal::JournalLocation;

use super::MalformedRecord;

/// Marks a transfer dead-letter queue; above all entity ids, which version 1 wrote with one bit for the subqueue.
const TRANSFER: u64 = 1 << 40;

pub(super) struct RecordEncoder<'b>(pub(super) &'b mut Vec<u8>);

impl RecordEncoder<'_> {
    pub(super) fn write_byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn write_int(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// `None` as 0, `Some(n)` as n + 1.
    pub(super) fn write_option(&mut self, value: Option<u64>) {
        self.write_int(value.map_or(0, |value| value.saturating_add(1)));
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_int(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// The length as in [`write_option`](Self::write_option): an empty session id differs from an absent one.
    pub(super) fn write_option_text(&mut self, text: Option<&str>) {
        self.write_option(text.map(|text| text.len() as u64));
        self.0.extend_from_slice(text.unwrap_or_default().as_bytes());
    }

    pub(super) fn write_queue(&mut self, queue: QueueId) {
        let subqueue = match queue.subqueue {
            Subqueue::Main => 0,
            Subqueue::DeadLetter => 1,
            Subqueue::TransferDeadLetter => TRANSFER,
        };
        self.write_int(u64::from(queue.entity.0) << 1 | subqueue);
    }

    pub(super) fn write_location(&mut self, location: JournalLocation) {
        self.write_int(location.segment.into());
        self.write_int(location.offset.into());
        self.write_int(location.len.into());
    }

    /// Rising numbers as differences; settling a range gives a long list of ones.
    pub(super) fn write_rising(&mut self, numbers: &[u64]) {
        self.write_int(numbers.len() as u64);
        let mut last = 0;
        for number in numbers {
            self.write_int(number.wrapping_sub(last));
            last = *number;
        }
    }
}

pub(super) struct RecordDecoder<'a>(pub(super) &'a [u8]);

pub(super) type DecodeResult<T> = Result<T, MalformedRecord>;

impl<'a> RecordDecoder<'a> {
    pub(super) fn take(&mut self, len: usize) -> DecodeResult<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MalformedRecord("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn read_byte(&mut self) -> DecodeResult<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn read_int(&mut self) -> DecodeResult<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(MalformedRecord("an integer is too long"))
    }

    pub(super) fn read_small<T: TryFrom<u64>>(&mut self) -> DecodeResult<T> {
        T::try_from(self.read_int()?).map_err(|_| MalformedRecord("an integer is out of range"))
    }

    /// A length, checked against the remaining bytes: a damaged length must not allocate all memory.
    pub(super) fn read_length(&mut self) -> DecodeResult<usize> {
        let count: usize = self.read_small()?;
        if count > self.0.len() { Err(MalformedRecord("a list is longer than its record")) } else { Ok(count) }
    }

    pub(super) fn read_option(&mut self) -> DecodeResult<Option<u64>> {
        Ok(self.read_int()?.checked_sub(1))
    }

    pub(super) fn read_bytes(&mut self) -> DecodeResult<&'a [u8]> {
        let len = self.read_length()?;
        self.take(len)
    }

    pub(super) fn read_text(&mut self) -> DecodeResult<&'a str> {
        std::str::from_utf8(self.read_bytes()?).map_err(|_| MalformedRecord("a text is not UTF-8"))
    }

    pub(super) fn read_option_text(&mut self) -> DecodeResult<Option<&'a str>> {
        let Some(len) = self.read_option()? else { return Ok(None) };
        let bytes = self.take(len as usize)?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| MalformedRecord("a text is not UTF-8"))
    }

    pub(super) fn read_entity(&mut self) -> DecodeResult<EntityId> {
        self.read_small().map(EntityId)
    }

    pub(super) fn read_timestamp(&mut self) -> DecodeResult<Timestamp> {
        self.read_int().map(Timestamp)
    }

    pub(super) fn read_queue(&mut self) -> DecodeResult<QueueId> {
        let packed = self.read_int()?;
        let entity = u32::try_from((packed & !TRANSFER) >> 1);
        let entity = EntityId(entity.map_err(|_| MalformedRecord("an entity is out of range"))?);
        Ok(match (packed & TRANSFER, packed & 1) {
            (0, 0) => QueueId::main(entity),
            (0, _) => QueueId::dead_letter(entity),
            _ => QueueId::transfer_dead_letter(entity),
        })
    }

    pub(super) fn read_location(&mut self) -> DecodeResult<JournalLocation> {
        Ok(JournalLocation { segment: self.read_small()?, offset: self.read_small()?, len: self.read_small()? })
    }

    pub(super) fn read_rising(&mut self) -> DecodeResult<Vec<u64>> {
        let mut last: u64 = 0;
        (0..self.read_length()?)
            .map(|_| {
                last = last.wrapping_add(self.read_int()?);
                Ok(last)
            })
            .collect()
    }
}
