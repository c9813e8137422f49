//! A slab whose keys become invalid on removal, so that a late command cannot reach the wrong link.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SlabKey {
    pub(super) slot: u32,
    generation: u32,
}

impl SlabKey {
    /// A number that no other key of the slab ever has.
    pub(super) fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<SlabSlot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct SlabSlot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The slot that the next [`insert`](Self::insert) takes.
    pub(super) fn next_slot(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }

    pub(super) fn insert(&mut self, value: T) -> SlabKey {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            entry.value = Some(value);
            return SlabKey { slot, generation: entry.generation };
        }
        let slot = self.entries.len() as u32;
        self.entries.push(SlabSlot { generation: 0, value: Some(value) });
        SlabKey { slot, generation: 0 }
    }

    #[inline]
    pub(super) fn get(&self, key: SlabKey) -> Option<&T> {
        let entry = self.entries.get(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(value)
    }

    /// The value in a slot, whatever its generation.
    pub(super) fn key_at(&self, slot: u32) -> Option<SlabKey> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.as_ref().map(|_| SlabKey { slot, generation: entry.generation })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| {
            let key = SlabKey { slot: slot as u32, generation: entry.generation };
            entry.value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_removed_value_does_not_reach_its_successor() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(first.slot, second.slot);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(slab.len(), 1);
    }
}
