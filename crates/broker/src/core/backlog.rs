//! The messages of one session (or of an entity without sessions), in order, at 24 bytes each.
//!
//! Messages are stored in chunks of at most [`CHUNK`], each sorted by counter. A lookup is two binary searches. Finding
//! the next message never scans messages that are already delivered: `next` is the lowest counter that was never
//! delivered, and `returned` lists the few that were delivered and became available again (abandoned, released, lock
//! expired). Returned messages are always delivered first.
//!
//! Knows nothing about lock owners or the journal: a message here is a location, a delivery count and a few flags.

use std::collections::{BTreeSet, VecDeque};

use super::expiry_time::ExpiryTime;
use crate::journal::JournalLocation;

/// Large enough that the chunk header costs nothing, small enough that removing from the middle moves little.
const CHUNK: usize = 256;

const LOCKED: u16 = 1;
const DEFERRED: u16 = 1 << 1;
const OVERRIDDEN: u16 = 1 << 2;
/// How often the message was forwarded.
const HOPS: u16 = 0b111 << HOPS_SHIFT;
const HOPS_SHIFT: u32 = 3;
const PARTITION_SHIFT: u32 = 8;

/// One message in a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuedMessage {
    pub(super) location: JournalLocation,
    /// Counter minus the chunk's base.
    offset: u32,
    pub(super) expires: ExpiryTime,
    pub(super) delivery_count: u16,
    flags: u16,
}

impl QueuedMessage {
    pub(super) fn new(location: JournalLocation, partition: u8, expires: ExpiryTime) -> Self {
        Self { location, offset: 0, expires, delivery_count: 0, flags: u16::from(partition) << PARTITION_SHIFT }
    }

    pub(super) fn with_hops(mut self, hops: u8) -> Self {
        self.flags = self.flags & !HOPS | (u16::from(hops) << HOPS_SHIFT & HOPS);
        self
    }

    pub(super) fn hops(self) -> u8 {
        ((self.flags & HOPS) >> HOPS_SHIFT) as u8
    }

    pub(super) fn partition(self) -> u8 {
        (self.flags >> PARTITION_SHIFT) as u8
    }

    /// Flags and partition as a snapshot stores them. A lock does not survive a restart, so its flag is left out.
    pub(super) fn persistent_flags(self) -> u16 {
        self.flags & !LOCKED
    }

    pub(super) fn with_persistent_flags(mut self, flags: u16) -> Self {
        self.flags = flags & !LOCKED;
        self
    }

    pub(super) fn is_locked(self) -> bool {
        self.flags & LOCKED != 0
    }

    pub(super) fn is_deferred(self) -> bool {
        self.flags & DEFERRED != 0
    }

    /// Whether the queue stores overrides for this message.
    pub(super) fn has_overrides(self) -> bool {
        self.flags & OVERRIDDEN != 0
    }

    pub(super) fn set_has_overrides(&mut self, overridden: bool) {
        self.flags = if overridden { self.flags | OVERRIDDEN } else { self.flags & !OVERRIDDEN };
    }

    pub(super) fn set_deferred(&mut self) {
        self.flags |= DEFERRED;
    }

    pub(super) fn is_available(self) -> bool {
        self.flags & (LOCKED | DEFERRED) == 0
    }
}

/// Chunks that hold a message with a time to live: (earliest expiry in the chunk, session slot, chunk base).
pub(super) type ExpiryIndex = BTreeSet<(ExpiryTime, u32, u64)>;

#[derive(Debug)]
struct BacklogChunk {
    /// Counter of the first message ever stored in this chunk. Identifies the chunk for its whole life.
    base: u64,
    messages: VecDeque<QueuedMessage>,
    /// The chunk's entry in [`ExpiryIndex`]; never later than its earliest unlocked message.
    indexed_expiry: ExpiryTime,
}

#[derive(Debug, Default)]
pub(super) struct SessionBacklog {
    chunks: VecDeque<BacklogChunk>,
    /// No available message has a counter in `..next`, except those in `returned`.
    next: u64,
    #[expect(clippy::box_collection, reason = "8 bytes rather than 24 in the many sessions where nothing came back")]
    returned: Option<Box<BTreeSet<u64>>>,
    available: u32,
    len: u32,
}

impl SessionBacklog {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The highest counter in the backlog.
    pub(super) fn last(&self) -> Option<u64> {
        let chunk = self.chunks.back()?;
        chunk.messages.back().map(|message| chunk.base + u64::from(message.offset))
    }

    pub(super) fn get(&self, counter: u64) -> Option<QueuedMessage> {
        let (chunk, index) = self.find(counter)?;
        Some(self.chunks[chunk].messages[index])
    }

    pub(super) fn location_mut(&mut self, counter: u64) -> Option<&mut JournalLocation> {
        let (chunk, index) = self.find(counter)?;
        Some(&mut self.chunks[chunk].messages[index].location)
    }

    /// Appends a message; `counter` must be above [`last`](Self::last).
    pub(super) fn append(&mut self, counter: u64, message: QueuedMessage, slot: u32, expiry_index: &mut ExpiryIndex) {
        debug_assert!(self.last().is_none_or(|last| last < counter), "messages are appended in order");
        // Offsets have 32 bits. A long gap in the counters therefore starts a new chunk.
        let fits = |chunk: &BacklogChunk| chunk.messages.len() < CHUNK && counter - chunk.base <= u64::from(u32::MAX);
        if !self.chunks.back().is_some_and(fits) {
            grow(&mut self.chunks, 1, usize::MAX);
            self.chunks.push_back(BacklogChunk {
                base: counter,
                messages: VecDeque::new(),
                indexed_expiry: ExpiryTime::NEVER,
            });
        }
        let chunk = self.chunks.back_mut().expect("pushed above if there was none");
        let offset = (counter - chunk.base) as u32;
        // Start with two: most sessions hold one or two messages at a time.
        grow(&mut chunk.messages, 2, CHUNK);
        chunk.messages.push_back(QueuedMessage { offset, ..message });
        chunk.index_expiry(message.expires, slot, expiry_index);
        self.len += 1;
        self.available += u32::from(message.is_available());
    }

    /// The lowest counter that can be delivered.
    pub(super) fn first_available(&mut self) -> Option<u64> {
        if self.available == 0 {
            return None;
        }
        if let Some(first) = self.returned.as_ref().and_then(|returned| returned.first()) {
            return Some(*first);
        }
        let (counter, _) = self.iter_from(self.next).find(|(_, message)| message.is_available())?;
        // Every message skipped here is locked or deferred. If it becomes available again, it goes through `returned`.
        self.next = counter;
        Some(counter)
    }

    /// Marks a message as delivered.
    pub(super) fn lock(&mut self, counter: u64) -> Option<QueuedMessage> {
        let (chunk, index) = self.find(counter)?;
        let message = &mut self.chunks[chunk].messages[index];
        debug_assert!(!message.is_locked());
        let was_available = message.is_available();
        message.flags |= LOCKED;
        let message = *message;
        if was_available {
            self.mark_unavailable(counter);
        }
        Some(message)
    }

    /// Ends a lock. The message can be delivered again or, if deferred, received by sequence number again.
    pub(super) fn unlock(&mut self, counter: u64, slot: u32, expiry_index: &mut ExpiryIndex) {
        let Some((chunk, index)) = self.find(counter) else { return };
        let chunk = &mut self.chunks[chunk];
        let message = &mut chunk.messages[index];
        debug_assert!(message.is_locked());
        message.flags &= !LOCKED;
        let message = *message;
        chunk.index_expiry(message.expires, slot, expiry_index);
        if message.is_available() {
            self.available += 1;
            // A message at or above `next` is found by the scan anyway.
            if counter < self.next {
                self.returned.get_or_insert_default().insert(counter);
            }
        }
    }

    /// Updates a message's delivery count or flags. Must not make it available: only [`unlock`](Self::unlock) does.
    pub(super) fn update(&mut self, counter: u64, change: impl FnOnce(&mut QueuedMessage)) {
        if let Some((chunk, index)) = self.find(counter) {
            let message = &mut self.chunks[chunk].messages[index];
            let before = message.is_available();
            change(message);
            // Deferring an unlocked message during replay takes it out of the available ones.
            if before && !message.is_available() {
                self.mark_unavailable(counter);
            }
        }
    }

    pub(super) fn remove(&mut self, counter: u64, slot: u32, expiry_index: &mut ExpiryIndex) -> Option<QueuedMessage> {
        let (place, index) = self.find(counter)?;
        let chunk = &mut self.chunks[place];
        let message = chunk.messages.remove(index).expect("found above");
        if chunk.messages.is_empty() {
            chunk.unindex_expiry(slot, expiry_index);
            self.chunks.remove(place);
            shrink(&mut self.chunks);
        } else {
            shrink(&mut chunk.messages);
        }
        self.len -= 1;
        if message.is_available() {
            self.mark_unavailable(counter);
        }
        Some(message)
    }

    /// Messages from `counter` on, in order.
    pub(super) fn iter_from(&self, counter: u64) -> impl Iterator<Item = (u64, QueuedMessage)> + '_ {
        let first = self.chunks.partition_point(|chunk| chunk.base <= counter).saturating_sub(1);
        // `first` is the chunk that may contain `counter`; later chunks start above it.
        self.chunks.range(first.min(self.chunks.len())..).flat_map(move |chunk| {
            let below = counter.saturating_sub(chunk.base);
            let start = chunk.messages.partition_point(|message| u64::from(message.offset) < below);
            chunk.messages.range(start..).map(|message| (chunk.base + u64::from(message.offset), *message))
        })
    }

    /// The unlocked messages of one chunk that have expired. The chunk is indexed again under its next expiry.
    pub(super) fn take_expired(
        &mut self,
        base: u64,
        slot: u32,
        due: ExpiryTime,
        expiry_index: &mut ExpiryIndex,
    ) -> Vec<u64> {
        let Ok(place) = self.chunks.binary_search_by_key(&base, |chunk| chunk.base) else { return Vec::new() };
        let chunk = &mut self.chunks[place];
        chunk.unindex_expiry(slot, expiry_index);
        let unlocked = chunk.messages.iter().filter(|message| !message.is_locked());
        let (past, ahead): (Vec<&QueuedMessage>, Vec<&QueuedMessage>) =
            unlocked.partition(|message| message.expires <= due);
        let next = ahead.iter().map(|message| message.expires).min().unwrap_or(ExpiryTime::NEVER);
        let past = past.iter().map(|message| base + u64::from(message.offset)).collect();
        chunk.index_expiry(next, slot, expiry_index);
        past
    }

    /// Indexes a message's chunk under the message's own expiry again, after the message could not be removed.
    pub(super) fn reindex_expiry(&mut self, counter: u64, slot: u32, expiry_index: &mut ExpiryIndex) {
        if let Some((chunk, index)) = self.find(counter) {
            let chunk = &mut self.chunks[chunk];
            chunk.index_expiry(chunk.messages[index].expires, slot, expiry_index);
        }
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.capacity() * size_of::<BacklogChunk>();
        let messages: usize =
            self.chunks.iter().map(|chunk| chunk.messages.capacity() * size_of::<QueuedMessage>()).sum();
        chunks + messages + self.returned.as_ref().map_or(0, |returned| 24 + returned.len() * 12)
    }

    fn find(&self, counter: u64) -> Option<(usize, usize)> {
        let place = self.chunks.partition_point(|chunk| chunk.base <= counter).checked_sub(1)?;
        let chunk = &self.chunks[place];
        let offset = u32::try_from(counter - chunk.base).ok()?;
        let index = chunk.messages.binary_search_by_key(&offset, |message| message.offset).ok()?;
        Some((place, index))
    }

    fn mark_unavailable(&mut self, counter: u64) {
        self.available -= 1;
        if let Some(returned) = &mut self.returned {
            returned.remove(&counter);
            if returned.is_empty() {
                self.returned = None;
            }
        }
    }
}

impl BacklogChunk {
    fn index_expiry(&mut self, expires: ExpiryTime, slot: u32, expiry_index: &mut ExpiryIndex) {
        if expires < self.indexed_expiry {
            self.unindex_expiry(slot, expiry_index);
            self.indexed_expiry = expires;
            expiry_index.insert((expires, slot, self.base));
        }
    }

    fn unindex_expiry(&mut self, slot: u32, expiry_index: &mut ExpiryIndex) {
        if self.indexed_expiry != ExpiryTime::NEVER {
            expiry_index.remove(&(self.indexed_expiry, slot, self.base));
            self.indexed_expiry = ExpiryTime::NEVER;
        }
    }
}

/// Grows by a quarter instead of doubling: with a hundred thousand short backlogs, spare capacity is the main cost.
fn grow<T>(items: &mut VecDeque<T>, least: usize, most: usize) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 4).max(least).min(most - items.len()));
    }
}

fn shrink<T>(items: &mut VecDeque<T>) {
    if items.capacity() > 8 && items.len() < items.capacity() / 4 {
        items.shrink_to(items.len() * 2);
    }
}

#[cfg(test)]
mod tests;
