//! The primitive encodings of records.

use crate::core::id::{EntityId, QueueId, Subqueue, Timestamp};
use crate::journal::Location;

use super::MalformedRecord;

pub(super) struct RecordWriter<'b>(pub(super) &'b mut Vec<u8>);

impl RecordWriter<'_> {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn int(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// `None` as 0, `Some(n)` as n + 1.
    pub(super) fn option(&mut self, value: Option<u64>) {
        self.int(value.map_or(0, |value| value.saturating_add(1)));
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.int(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// The length as in [`option`](Self::option): an empty session id differs from an absent one.
    pub(super) fn option_text(&mut self, text: Option<&str>) {
        self.option(text.map(|text| text.len() as u64));
        self.0.extend_from_slice(text.unwrap_or_default().as_bytes());
    }

    pub(super) fn queue(&mut self, queue: QueueId) {
        self.int(u64::from(queue.entity.0) << 1 | u64::from(queue.subqueue == Subqueue::DeadLetter));
    }

    pub(super) fn location(&mut self, location: Location) {
        self.int(location.segment.into());
        self.int(location.offset.into());
        self.int(location.len.into());
    }

    /// Rising numbers as differences; settling a range gives a long list of ones.
    pub(super) fn rising(&mut self, numbers: &[u64]) {
        self.int(numbers.len() as u64);
        let mut last = 0;
        for number in numbers {
            self.int(number.wrapping_sub(last));
            last = *number;
        }
    }
}

pub(super) struct RecordReader<'a>(pub(super) &'a [u8]);

type Read<T> = Result<T, MalformedRecord>;

impl<'a> RecordReader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MalformedRecord("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn int(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(MalformedRecord("an integer is too long"))
    }

    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Read<T> {
        T::try_from(self.int()?).map_err(|_| MalformedRecord("an integer is out of range"))
    }

    /// A length, checked against the remaining bytes: a damaged length must not allocate all memory.
    pub(super) fn count(&mut self) -> Read<usize> {
        let count: usize = self.small()?;
        if count > self.0.len() { Err(MalformedRecord("a list is longer than its record")) } else { Ok(count) }
    }

    pub(super) fn option(&mut self) -> Read<Option<u64>> {
        Ok(self.int()?.checked_sub(1))
    }

    pub(super) fn bytes(&mut self) -> Read<&'a [u8]> {
        let len = self.count()?;
        self.take(len)
    }

    pub(super) fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedRecord("a text is not UTF-8"))
    }

    pub(super) fn option_text(&mut self) -> Read<Option<&'a str>> {
        let Some(len) = self.option()? else { return Ok(None) };
        let bytes = self.take(len as usize)?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| MalformedRecord("a text is not UTF-8"))
    }

    pub(super) fn entity(&mut self) -> Read<EntityId> {
        self.small().map(EntityId)
    }

    pub(super) fn moment(&mut self) -> Read<Timestamp> {
        self.int().map(Timestamp)
    }

    pub(super) fn queue(&mut self) -> Read<QueueId> {
        let packed = self.int()?;
        let entity = EntityId(u32::try_from(packed >> 1).map_err(|_| MalformedRecord("an entity is out of range"))?);
        Ok(if packed & 1 == 1 { QueueId::dead_letter(entity) } else { QueueId::main(entity) })
    }

    pub(super) fn location(&mut self) -> Read<Location> {
        Ok(Location { segment: self.small()?, offset: self.small()?, len: self.small()? })
    }

    pub(super) fn rising(&mut self) -> Read<Vec<u64>> {
        let mut last: u64 = 0;
        (0..self.count()?)
            .map(|_| {
                last = last.wrapping_add(self.int()?);
                Ok(last)
            })
            .collect()
    }
}
