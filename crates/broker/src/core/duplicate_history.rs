//! Duplicate detection: the message ids seen within a time window, also of messages that are already gone.
//!
//! An id is stored as 112 bits of its SHA-256 plus a 16-bit tick: one `u128`. A false match would silently drop a
//! message; with ten million ids in the window its probability is below 1 in 10^26 per send.
//!
//! The set is a linear hash table of sorted pages. It grows one page at a time, so no insert waits for a full rebuild,
//! and pages stay nearly full: about 17 bytes per id. Old ids are removed page by page.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::id::Timestamp;

/// Average ids per page. A sorted insert moves at most two half pages (2 KB each).
const PAGE: usize = 256;
/// Pages grow by this many ids: few distinct sizes, so the allocator can reuse them.
const STEP: usize = 32;
/// Ticks per window. An id may be kept 1/256 of the window too long, never too short.
const TICKS: u64 = 256;
/// An age above this means that the clock went back, not that the id is old.
const FUTURE: u16 = 0xF000;

/// Identifies a message: the high 112 bits of a hash; the low 16 bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(pub(super) u128);

impl Fingerprint {
    pub(super) const BYTES: usize = 14;

    /// From a message id and, on partitioned entities, the partition key.
    pub(super) fn of(message_id: &str, partition_key: Option<&str>) -> Self {
        let mut hash = Sha256::new();
        hash.update((message_id.len() as u64).to_be_bytes());
        hash.update(message_id);
        hash.update(partition_key.unwrap_or_default());
        let digest = hash.finalize();
        let bytes: [u8; 16] = digest[..16].try_into().expect("a digest has 32 bytes");
        Self(u128::from_be_bytes(bytes) & !0xFFFF)
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut wide = [0; 16];
        wide[..Self::BYTES].copy_from_slice(&bytes);
        Self(u128::from_be_bytes(wide))
    }

    pub(super) fn bytes(self) -> [u8; Self::BYTES] {
        let wide = self.0.to_be_bytes();
        std::array::from_fn(|index| wide[index])
    }
}

#[derive(Debug)]
pub(super) struct DuplicateHistory {
    /// Sorted; each id is `fingerprint | tick`.
    pages: Vec<Vec<u128>>,
    /// Pages before `split` are addressed with one bit more than `level`.
    level: u32,
    split: usize,
    len: usize,
    window: u64,
    tick: u64,
    /// The next page to sweep, and when the last full sweep ended.
    sweep: usize,
    swept: Timestamp,
}

impl DuplicateHistory {
    pub(super) fn new(window: Duration) -> Self {
        let window = window.as_millis() as u64;
        let tick = (window / TICKS).max(1);
        Self { pages: vec![Vec::new()], level: 0, split: 0, len: 0, window, tick, sweep: 0, swept: Timestamp(0) }
    }

    /// Number of ids, including some that may be past the window.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, id: Fingerprint, now: Timestamp) -> bool {
        if now.0.saturating_sub(self.swept.0) > self.window * (TICKS / 4) {
            // After such a long time without a sweep, 16 bits cannot tell old from new. The next insert sweeps
            // everything.
            return false;
        }
        let page = &self.pages[self.page_of(id)];
        page.get(position(page, id)).is_some_and(|found| is_same_id(*found, id) && !self.is_past_window(*found, now))
    }

    /// Adds an id seen at `at`. If it is known, the later time wins; only recovery inserts the same id twice.
    pub(super) fn insert(&mut self, id: Fingerprint, at: Timestamp) {
        self.catch_up(at);
        let moment = id.0 | u128::from(self.tick_of(at));
        let index = self.page_of(id);
        let place = position(&self.pages[index], id);
        match self.pages[index].get(place).copied() {
            Some(found) if is_same_id(found, id) => {
                // Wrapping difference: positive means that the new tick is later.
                if (moment as u16).wrapping_sub(found as u16) < FUTURE {
                    self.pages[index][place] = moment;
                }
            }
            _ => {
                let page = &mut self.pages[index];
                if page.len() == page.capacity() {
                    // `Vec` would double the page; most of that space would stay unused.
                    page.reserve_exact(page.len().clamp(4, STEP));
                }
                page.insert(place, moment);
                self.len += 1;
                self.grow();
            }
        }
    }

    /// Sweeps a share of the pages. `SWEEPS` calls per window cover all pages twice.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let share = self.pages.len().div_ceil(Self::SWEEPS as usize / 2);
        for _ in 0..share {
            self.sweep_page(self.sweep, now);
            self.sweep += 1;
            if self.sweep >= self.pages.len() {
                self.sweep = 0;
                self.swept = now;
            }
        }
    }

    /// How many times per window [`sweep`](Self::sweep) must be called.
    pub(super) const SWEEPS: u32 = 64;

    pub(super) fn sweep_interval(&self) -> Duration {
        Duration::from_millis(self.window / u64::from(Self::SWEEPS))
    }

    /// One page for a snapshot: each id with the time it was seen.
    pub(super) fn page(&self, index: usize, now: Timestamp) -> Option<impl Iterator<Item = (Fingerprint, Timestamp)>> {
        let page = self.pages.get(index)?;
        let current = now.0 / self.tick;
        Some(page.iter().map(move |id| {
            let age = u64::from((current as u16).wrapping_sub(*id as u16));
            // A tick from the future (the clock went back) counts as seen now.
            let age = if age >= u64::from(FUTURE) { 0 } else { age };
            (Fingerprint(id & !0xFFFF), Timestamp(current.saturating_sub(age) * self.tick))
        }))
    }

    /// The same ids with another window. Visits all ids; only an administrator's update calls it.
    pub(super) fn with_window(&self, window: Duration, now: Timestamp) -> Self {
        let mut new = Self::new(window);
        for index in 0..self.pages.len() {
            for (id, at) in self.page(index, now).into_iter().flatten() {
                new.insert(id, at);
            }
        }
        new.sweep_all(now);
        new
    }

    /// Removes old ids after a long time without sweeps (a restart).
    pub(super) fn catch_up(&mut self, now: Timestamp) {
        if now.0.saturating_sub(self.swept.0) > self.window * (TICKS / 8) {
            self.sweep_all(now);
        }
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let pages: usize = self.pages.iter().map(|page| page.capacity() * size_of::<u128>()).sum();
        pages + self.pages.capacity() * size_of::<Vec<u128>>()
    }

    fn sweep_all(&mut self, now: Timestamp) {
        // After half the tick range the 16-bit ages are ambiguous, and everything is past the window.
        let unseen = now.0.saturating_sub(self.swept.0) > self.window * (TICKS / 2) && self.swept.0 != 0;
        for index in 0..self.pages.len() {
            if unseen {
                self.len -= self.pages[index].len();
                self.pages[index] = Vec::new();
            } else {
                self.sweep_page(index, now);
            }
        }
        (self.sweep, self.swept) = (0, now);
    }

    fn sweep_page(&mut self, index: usize, now: Timestamp) {
        let mut page = std::mem::take(&mut self.pages[index]);
        let before = page.len();
        page.retain(|id| !self.is_past_window(*id, now));
        self.len -= before - page.len();
        if page.len() + STEP < page.capacity() {
            page.shrink_to(page.len());
        }
        self.pages[index] = page;
    }

    /// Adds one page when the average page is full, and moves half of the page at `split` to it (linear hashing).
    fn grow(&mut self) {
        if self.len <= self.pages.len() * PAGE {
            return;
        }
        // This bit decides between the old page and the new one.
        let bit = 1 << self.level;
        let (stay, mut leave): (Vec<u128>, Vec<u128>) =
            self.pages[self.split].iter().partition(|id| address(**id) & bit == 0);
        leave.shrink_to_fit();
        self.pages[self.split] = stay;
        self.pages[self.split].shrink_to_fit();
        self.pages.push(leave);
        self.split += 1;
        // All pages of this level are split: the next round uses one bit more.
        if self.split == 1 << self.level {
            self.level += 1;
            self.split = 0;
        }
    }

    fn page_of(&self, id: Fingerprint) -> usize {
        let address = address(id.0);
        let page = address & ((1 << self.level) - 1);
        if page < self.split { address & ((1 << (self.level + 1)) - 1) } else { page }
    }

    fn tick_of(&self, at: Timestamp) -> u16 {
        (at.0 / self.tick) as u16
    }

    fn is_past_window(&self, id: u128, now: Timestamp) -> bool {
        let age = self.tick_of(now).wrapping_sub(id as u16);
        u64::from(age) > self.window.div_ceil(self.tick) && age < FUTURE
    }
}

/// The bits that select the page: the low end of the hash. The high end orders ids within the page.
fn address(id: u128) -> usize {
    (id >> 16) as usize
}

fn position(page: &[u128], id: Fingerprint) -> usize {
    page.partition_point(|found| *found < id.0)
}

fn is_same_id(found: u128, id: Fingerprint) -> bool {
    found & !0xFFFF == id.0
}

#[cfg(test)]
mod tests;
