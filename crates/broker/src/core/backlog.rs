//! The messages of one session (or of an entity without sessions), in order, at 24 bytes each.
//!
//! Messages lie in chunks of at most [`CHUNK`], each sorted by counter. Finding one is two binary searches; taking the next
//! never walks over those already taken: `next` is the lowest counter never handed out, and the few that were handed out
//! and came back (abandoned, released, lock expired) are listed in `returned`, which therefore always come first.
//!
//! Knows nothing of locks' owners or of the journal; a message here is only a place, a count and a few flags.

use std::collections::{BTreeSet, VecDeque};

use super::expires::Expires;
use crate::journal::Location;

/// Large enough that a chunk's header costs nothing, small enough that removing from its middle is a short move.
const CHUNK: usize = 256;

const LOCKED: u16 = 1;
const DEFERRED: u16 = 1 << 1;
const ALTERED: u16 = 1 << 2;
const PARTITION_SHIFT: u32 = 8;

/// One stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) location: Location,
    /// Counter, less the chunk's base.
    offset: u32,
    pub(super) expires: Expires,
    pub(super) delivery_count: u16,
    flags: u16,
}

impl Message {
    pub(super) fn new(location: Location, partition: u8, expires: Expires) -> Self {
        Self { location, offset: 0, expires, delivery_count: 0, flags: u16::from(partition) << PARTITION_SHIFT }
    }

    pub(super) fn partition(self) -> u8 {
        (self.flags >> PARTITION_SHIFT) as u8
    }

    /// Flags and partition as a snapshot keeps them: a lock does not outlive the process.
    pub(super) fn lasting_flags(self) -> u16 {
        self.flags & !LOCKED
    }

    pub(super) fn with_lasting_flags(mut self, flags: u16) -> Self {
        self.flags = flags & !LOCKED;
        self
    }

    pub(super) fn is_locked(self) -> bool {
        self.flags & LOCKED != 0
    }

    pub(super) fn is_deferred(self) -> bool {
        self.flags & DEFERRED != 0
    }

    /// Whether the queue keeps alterations for this message.
    pub(super) fn is_altered(self) -> bool {
        self.flags & ALTERED != 0
    }

    pub(super) fn set_altered(&mut self, altered: bool) {
        self.flags = if altered { self.flags | ALTERED } else { self.flags & !ALTERED };
    }

    pub(super) fn set_deferred(&mut self) {
        self.flags |= DEFERRED;
    }

    fn is_available(self) -> bool {
        self.flags & (LOCKED | DEFERRED) == 0
    }
}

/// Chunks that hold a message with a time to live, by the earliest expiry in each: (when, session slot, chunk base).
pub(super) type Expiring = BTreeSet<(Expires, u32, u64)>;

#[derive(Debug)]
struct Chunk {
    /// Counter of the first message ever put here; names the chunk for its whole life.
    base: u64,
    messages: VecDeque<Message>,
    /// What this chunk is listed under in [`Expiring`]; never later than its earliest unlocked message.
    listed: Expires,
}

#[derive(Debug, Default)]
pub(super) struct Backlog {
    chunks: VecDeque<Chunk>,
    /// No available message has a counter in `..next`, save those in `returned`.
    next: u64,
    #[expect(clippy::box_collection, reason = "8 bytes rather than 24 in the many sessions where nothing came back")]
    returned: Option<Box<BTreeSet<u64>>>,
    available: u32,
    len: u32,
}

impl Backlog {
    #[cfg(test)]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The highest counter held.
    pub(super) fn last(&self) -> Option<u64> {
        let chunk = self.chunks.back()?;
        chunk.messages.back().map(|message| chunk.base + u64::from(message.offset))
    }

    pub(super) fn get(&self, counter: u64) -> Option<Message> {
        let (chunk, index) = self.find(counter)?;
        Some(self.chunks[chunk].messages[index])
    }

    pub(super) fn location_mut(&mut self, counter: u64) -> Option<&mut Location> {
        let (chunk, index) = self.find(counter)?;
        Some(&mut self.chunks[chunk].messages[index].location)
    }

    /// Adds a message after all others; `counter` must be above [`last`](Self::last).
    pub(super) fn append(&mut self, counter: u64, message: Message, slot: u32, expiring: &mut Expiring) {
        debug_assert!(self.last().is_none_or(|last| last < counter), "messages are appended in order");
        let fits = |chunk: &Chunk| chunk.messages.len() < CHUNK && counter - chunk.base <= u64::from(u32::MAX);
        if !self.chunks.back().is_some_and(fits) {
            grow(&mut self.chunks, 1, usize::MAX);
            self.chunks.push_back(Chunk { base: counter, messages: VecDeque::new(), listed: Expires::NEVER });
        }
        let chunk = self.chunks.back_mut().expect("a chunk with room: pushed above if there was none");
        let offset = (counter - chunk.base) as u32;
        grow(&mut chunk.messages, 2, CHUNK);
        chunk.messages.push_back(Message { offset, ..message });
        chunk.list(message.expires, slot, expiring);
        self.len += 1;
        self.available += u32::from(message.is_available());
    }

    /// The lowest counter that could be handed out.
    pub(super) fn first_available(&mut self) -> Option<u64> {
        if self.available == 0 {
            return None;
        }
        if let Some(first) = self.returned.as_ref().and_then(|returned| returned.first()) {
            return Some(*first);
        }
        let (counter, _) = self.iter_from(self.next).find(|(_, message)| message.is_available())?;
        // Whatever was stepped over is locked or deferred, and comes back through `returned` if it ever does.
        self.next = counter;
        Some(counter)
    }

    /// Marks a message as handed out.
    pub(super) fn lock(&mut self, counter: u64) -> Option<Message> {
        let (chunk, index) = self.find(counter)?;
        let message = &mut self.chunks[chunk].messages[index];
        debug_assert!(!message.is_locked());
        let was_available = message.is_available();
        message.flags |= LOCKED;
        let message = *message;
        if was_available {
            self.no_longer_available(counter);
        }
        Some(message)
    }

    /// Ends a lock: the message can be handed out again, or, if deferred, asked for again.
    pub(super) fn unlock(&mut self, counter: u64, slot: u32, expiring: &mut Expiring) {
        let Some((chunk, index)) = self.find(counter) else { return };
        let chunk = &mut self.chunks[chunk];
        let message = &mut chunk.messages[index];
        debug_assert!(message.is_locked());
        message.flags &= !LOCKED;
        let message = *message;
        chunk.list(message.expires, slot, expiring);
        if message.is_available() {
            self.available += 1;
            if counter < self.next {
                self.returned.get_or_insert_default().insert(counter);
            }
        }
    }

    /// Changes a message's count, alterations or place. Availability must not change: see [`lock`](Self::lock).
    pub(super) fn alter(&mut self, counter: u64, change: impl FnOnce(&mut Message)) {
        if let Some((chunk, index)) = self.find(counter) {
            let message = &mut self.chunks[chunk].messages[index];
            let before = message.is_available();
            change(message);
            if before && !message.is_available() {
                self.no_longer_available(counter);
            }
        }
    }

    pub(super) fn remove(&mut self, counter: u64, slot: u32, expiring: &mut Expiring) -> Option<Message> {
        let (place, index) = self.find(counter)?;
        let chunk = &mut self.chunks[place];
        let message = chunk.messages.remove(index).expect("found above");
        if chunk.messages.is_empty() {
            chunk.unlist(slot, expiring);
            self.chunks.remove(place);
            shrink(&mut self.chunks);
        } else {
            shrink(&mut chunk.messages);
        }
        self.len -= 1;
        if message.is_available() {
            self.no_longer_available(counter);
        }
        Some(message)
    }

    /// Messages from `counter` on, in order.
    pub(super) fn iter_from(&self, counter: u64) -> impl Iterator<Item = (u64, Message)> + '_ {
        let first = self.chunks.partition_point(|chunk| chunk.base <= counter).saturating_sub(1);
        self.chunks.range(first.min(self.chunks.len())..).flat_map(move |chunk| {
            let below = counter.saturating_sub(chunk.base);
            let start = chunk.messages.partition_point(|message| u64::from(message.offset) < below);
            chunk.messages.range(start..).map(|message| (chunk.base + u64::from(message.offset), *message))
        })
    }

    /// Messages of one chunk that are past their time and not locked. The chunk is listed again under what remains.
    pub(super) fn expired(&mut self, base: u64, slot: u32, due: Expires, expiring: &mut Expiring) -> Vec<u64> {
        let Ok(place) = self.chunks.binary_search_by_key(&base, |chunk| chunk.base) else { return Vec::new() };
        let chunk = &mut self.chunks[place];
        chunk.unlist(slot, expiring);
        let unlocked = chunk.messages.iter().filter(|message| !message.is_locked());
        let (past, ahead): (Vec<&Message>, Vec<&Message>) = unlocked.partition(|message| message.expires <= due);
        let next = ahead.iter().map(|message| message.expires).min().unwrap_or(Expires::NEVER);
        let past = past.iter().map(|message| base + u64::from(message.offset)).collect();
        chunk.list(next, slot, expiring);
        past
    }

    /// Lists a message's chunk under the message's own time again, after it could not be made to leave.
    pub(super) fn list_again(&mut self, counter: u64, slot: u32, expiring: &mut Expiring) {
        if let Some((chunk, index)) = self.find(counter) {
            let chunk = &mut self.chunks[chunk];
            chunk.list(chunk.messages[index].expires, slot, expiring);
        }
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.capacity() * size_of::<Chunk>();
        let messages: usize = self.chunks.iter().map(|chunk| chunk.messages.capacity() * size_of::<Message>()).sum();
        chunks + messages + self.returned.as_ref().map_or(0, |returned| 24 + returned.len() * 12)
    }

    fn find(&self, counter: u64) -> Option<(usize, usize)> {
        let place = self.chunks.partition_point(|chunk| chunk.base <= counter).checked_sub(1)?;
        let chunk = &self.chunks[place];
        let offset = u32::try_from(counter - chunk.base).ok()?;
        let index = chunk.messages.binary_search_by_key(&offset, |message| message.offset).ok()?;
        Some((place, index))
    }

    fn no_longer_available(&mut self, counter: u64) {
        self.available -= 1;
        if let Some(returned) = &mut self.returned {
            returned.remove(&counter);
            if returned.is_empty() {
                self.returned = None;
            }
        }
    }
}

impl Chunk {
    fn list(&mut self, expires: Expires, slot: u32, expiring: &mut Expiring) {
        if expires < self.listed {
            self.unlist(slot, expiring);
            self.listed = expires;
            expiring.insert((expires, slot, self.base));
        }
    }

    fn unlist(&mut self, slot: u32, expiring: &mut Expiring) {
        if self.listed != Expires::NEVER {
            expiring.remove(&(self.listed, slot, self.base));
            self.listed = Expires::NEVER;
        }
    }
}

/// Grows by a quarter rather than doubling: with a hundred thousand short backlogs, slack is what costs.
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
