//! The unsettled deliveries of one direction of an AMQP session, by delivery-id.
//!
//! Ids come nearly in sequence and leave mostly in ranges, so they live in chunks of 64 with a bitmap: adding is O(1)
//! amortised, a range of n costs n plus one tree lookup, and a range of four billion ids costs only the entries in it.
//! Ids wrap at 32 bits; here they are widened around the newest one, so that order survives the wrap.

use std::collections::BTreeMap;

use super::LinkId;

const CHUNK: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Unsettled {
    chunks: BTreeMap<u64, Box<UnsettledChunk>>,
    /// The newest id, widened to 64 bits. The first one starts far enough from zero to allow smaller ids.
    newest: Option<u64>,
    /// The chunk emptied last, kept for reuse.
    spare: Option<Box<UnsettledChunk>>,
}

#[derive(Debug)]
struct UnsettledChunk {
    live: u64,
    entries: [Option<UnsettledDelivery>; CHUNK as usize],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnsettledDelivery {
    pub(super) link: LinkId,
    pub(super) token: u64,
}

impl Unsettled {
    /// `false` if the id is already there.
    pub(super) fn insert(&mut self, id: u32, entry: UnsettledDelivery) -> bool {
        let wide = self.widen(id);
        self.newest = Some(self.newest.map_or(wide, |newest| newest.max(wide)));
        let spare = &mut self.spare;
        let chunk = self.chunks.entry(wide / CHUNK).or_insert_with(|| spare.take().unwrap_or_default());
        let bit = 1u64 << (wide % CHUNK);
        if chunk.live & bit != 0 {
            return false;
        }
        chunk.live |= bit;
        chunk.entries[(wide % CHUNK) as usize] = Some(entry);
        true
    }

    /// Calls `see` for every entry in `first..=last`, and removes them if `remove`. `false` if the range is reversed.
    pub(super) fn visit(
        &mut self,
        first: u32,
        last: u32,
        remove: bool,
        mut see: impl FnMut(u32, UnsettledDelivery),
    ) -> bool {
        let (first, last) = (self.widen(first), self.widen(last));
        if last < first {
            return false;
        }
        let emptied = self.chunks.extract_if(first / CHUNK..=last / CHUNK, |number, chunk| {
            let base = number * CHUNK;
            let from = first.saturating_sub(base).min(CHUNK - 1);
            let to = (last - base).min(CHUNK - 1);
            let wanted = (u64::MAX << from) & (u64::MAX >> (CHUNK - 1 - to));
            let mut bits = chunk.live & wanted;
            if remove {
                chunk.live &= !wanted;
            }
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(entry) = chunk.entries[bit as usize] {
                    see((base + u64::from(bit)) as u32, entry);
                }
            }
            chunk.live == 0
        });
        if let Some((_, chunk)) = emptied.last() {
            self.spare = Some(chunk);
        }
        true
    }

    /// Removes all deliveries of a link.
    pub(super) fn remove_link(&mut self, link: LinkId) {
        self.chunks.retain(|_, chunk| {
            for (bit, entry) in chunk.entries.iter().enumerate() {
                if entry.is_some_and(|entry| entry.link == link) {
                    chunk.live &= !(1 << bit);
                }
            }
            chunk.live != 0
        });
    }

    fn widen(&self, id: u32) -> u64 {
        match self.newest {
            None => (1 << 33) | u64::from(id),
            Some(newest) => {
                let distance = id.wrapping_sub(newest as u32) as i32;
                newest.wrapping_add_signed(distance.into())
            }
        }
    }
}

impl Default for UnsettledChunk {
    fn default() -> Self {
        Self { live: 0, entries: [None; CHUNK as usize] }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::slab::Slab;
    use super::*;

    fn link(slab: &mut Slab<()>) -> LinkId {
        LinkId(slab.insert(()))
    }

    #[test]
    fn a_range_over_the_wrap_is_seen_whole() {
        let link = link(&mut Slab::new());
        let mut unsettled = Unsettled::default();
        for step in 0..200u32 {
            assert!(
                unsettled.insert((u32::MAX - 99).wrapping_add(step), UnsettledDelivery { link, token: step.into() })
            );
        }
        let mut tokens = Vec::new();
        assert!(unsettled.visit(u32::MAX - 9, 9, true, |_, entry| tokens.push(entry.token)));
        assert_eq!(tokens, (90..110).collect::<Vec<_>>());
        let mut left = 0;
        unsettled.visit(u32::MAX - 99, 99, true, |_, _| left += 1);
        assert_eq!(left, 180);
        assert!(unsettled.chunks.is_empty());
    }

    #[test]
    fn the_largest_range_costs_no_more_than_what_is_there() {
        let link = link(&mut Slab::new());
        let mut unsettled = Unsettled::default();
        unsettled.insert(5, UnsettledDelivery { link, token: 1 });
        let mut seen = 0;
        unsettled.visit(5, 5u32.wrapping_add(i32::MAX as u32), true, |_, _| seen += 1);
        assert_eq!(seen, 1);
        assert!(!unsettled.visit(9, 3, true, |_, _| {}), "backwards");
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_set_holds(
            start: u32,
            steps in prop::collection::vec((0u32..300, 0u32..90, prop::bool::ANY, prop::bool::ANY), 1..60),
        ) {
            let link = link(&mut Slab::new());
            let mut unsettled = Unsettled::default();
            unsettled.insert(start, UnsettledDelivery { link, token: 0 });
            let mut model = BTreeSet::from([0u32]);
            for (offset, length, insert, remove) in steps {
                let id = start.wrapping_add(offset);
                if insert {
                    let fresh = model.insert(offset);
                    prop_assert_eq!(unsettled.insert(id, UnsettledDelivery { link, token: offset.into() }), fresh);
                    continue;
                }
                let mut seen = Vec::new();
                unsettled.visit(id, id.wrapping_add(length), remove, |id, entry| seen.push((id, entry.token)));
                let expected: Vec<_> = model.range(offset..=offset + length).copied().collect();
                prop_assert_eq!(seen, expected.iter().map(|&o| (start.wrapping_add(o), u64::from(o))).collect::<Vec<_>>());
                if remove {
                    expected.iter().for_each(|offset| { model.remove(offset); });
                }
            }
        }
    }
}
