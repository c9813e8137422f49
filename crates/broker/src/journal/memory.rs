//! Journals without a disk: [`VolatileJournal`] for `--ephemeral`, [`MemoryJournal`] for tests.
//!
//! `VolatileJournal` keeps bodies only while they are referenced. `MemoryJournal` keeps everything ever appended, so
//! that a test can recover a core from any prefix, and can refuse appends.

use bytes::Bytes;

use super::{AppendError, Journal, JournalEntry, JournalLocation, Lsn, ReadError, ReadJournalEntry};

/// Keeps bodies in memory and frees them with their last reference. Nothing can be recovered from it.
#[derive(Debug, Default)]
pub struct VolatileJournal {
    slots: Vec<Option<VolatileSlot>>,
    free: Vec<u32>,
    appended: u64,
}

#[derive(Debug)]
struct VolatileSlot {
    stored: ReadJournalEntry,
    references: u32,
}

impl Journal for VolatileJournal {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        for entry in group {
            let Some(body) = entry.body else { continue };
            let stored =
                ReadJournalEntry { meta: Bytes::copy_from_slice(entry.meta), body: Bytes::copy_from_slice(body) };
            let slot = Some(VolatileSlot { stored, references: entry.references });
            let offset = if let Some(index) = self.free.pop() {
                self.slots[index as usize] = slot;
                index
            } else {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            };
            locations.push(JournalLocation { segment: 0, offset, len: body.len() as u32 });
        }
        self.appended += 1;
        Ok(())
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        match self.slots.get(location.offset as usize) {
            Some(Some(slot)) => Ok(slot.stored.clone()),
            _ => Err(ReadError::Missing(location)),
        }
    }

    fn retain(&mut self, location: JournalLocation, more: u32) {
        if let Some(Some(slot)) = self.slots.get_mut(location.offset as usize) {
            slot.references += more;
        }
    }

    fn release(&mut self, location: JournalLocation) {
        let Some(place) = self.slots.get_mut(location.offset as usize) else { return };
        let Some(slot) = place else { return };
        slot.references = slot.references.saturating_sub(1);
        // The slot is reused: nothing can refer to the location any more.
        if slot.references == 0 {
            *place = None;
            self.free.push(location.offset);
        }
    }

    fn position(&self) -> Lsn {
        Lsn(self.appended)
    }
}

/// A journal for tests: keeps every group, counts references, and can refuse appends.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    groups: Vec<Vec<MemoryEntry>>,
    /// Bodies by offset, with their remaining references.
    bodies: Vec<(ReadJournalEntry, i64)>,
    /// Groups per segment; 0 means a single segment.
    pub groups_per_segment: u32,
    /// While true, every append fails as if the disk were full.
    pub full: bool,
}

/// An entry in a [`MemoryJournal`].
#[derive(Debug, Clone)]
pub struct MemoryEntry {
    pub meta: Vec<u8>,
    pub body: Option<JournalLocation>,
}

impl MemoryJournal {
    /// All groups appended so far, oldest first: what a store would replay.
    pub fn groups(&self) -> &[Vec<MemoryEntry>] {
        &self.groups
    }

    /// Remaining references to each body ever appended, in append order.
    pub fn references(&self) -> impl Iterator<Item = i64> + '_ {
        self.bodies.iter().map(|(_, references)| *references)
    }

    fn segment(&self) -> u32 {
        (self.groups.len() as u32).checked_div(self.groups_per_segment).unwrap_or(0)
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError> {
        if self.full {
            return Err(AppendError::Full);
        }
        let segment = self.segment();
        let mut entries = Vec::with_capacity(group.len());
        for entry in group {
            let body = entry.body.map(|body| {
                let location = JournalLocation { segment, offset: self.bodies.len() as u32, len: body.len() as u32 };
                let stored =
                    ReadJournalEntry { meta: Bytes::copy_from_slice(entry.meta), body: Bytes::copy_from_slice(body) };
                self.bodies.push((stored, i64::from(entry.references)));
                locations.push(location);
                location
            });
            entries.push(MemoryEntry { meta: entry.meta.to_vec(), body });
        }
        self.groups.push(entries);
        Ok(())
    }

    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError> {
        let body = self.bodies.get(location.offset as usize);
        body.map(|(stored, _)| stored.clone()).ok_or(ReadError::Missing(location))
    }

    fn retain(&mut self, location: JournalLocation, more: u32) {
        self.bodies[location.offset as usize].1 += i64::from(more);
    }

    fn release(&mut self, location: JournalLocation) {
        self.bodies[location.offset as usize].1 -= 1;
    }

    fn position(&self) -> Lsn {
        Lsn(self.groups.len() as u64)
    }
}
