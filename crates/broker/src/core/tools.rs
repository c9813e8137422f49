//! What every part of the core shares: tokens, timers, limits, the list of links, and the pen that writes records.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::id::{LinkId, LockToken, QueueId};
use super::outgoing::Outgoing;
use super::record::Record;
use super::timers::Timers;
use super::turn::Turn;
use crate::journal::{AppendError, Entry, Location};

/// Bounds of one broker, whatever its entities ask for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes; an entity may set its own (`MaxMessageSizeInKilobytes`).
    pub max_message_size: usize,
    /// Deliveries a link may leave unsettled before it gets no more, whatever its credit: bounds what a peer that grants
    /// all credit and settles nothing can make the broker remember.
    pub max_unsettled: u32,
    /// Bytes that may be on their way to all peers together. Without bound unless the shell says what it has
    /// [written](super::Core::written).
    pub max_outgoing: usize,
}

impl Default for Limits {
    /// 1 MiB is Premium's default; 10,000 is more than any SDK prefetches.
    fn default() -> Self {
        Self { max_message_size: 1 << 20, max_unsettled: 10_000, max_outgoing: usize::MAX }
    }
}

#[derive(Debug)]
pub(super) struct Tools {
    pub(super) limits: Limits,
    pub(super) timers: Timers,
    /// Where each receiver link is attached or waits.
    pub(super) links: HashMap<LinkId, QueueId>,
    pub(super) outgoing: Outgoing,
    tokens: StdRng,
    page: Vec<u8>,
}

impl Tools {
    pub(super) fn new(limits: Limits, seed: [u8; 32]) -> Self {
        let tokens = StdRng::from_seed(seed);
        let outgoing = Outgoing::new(limits.max_outgoing);
        Self { limits, timers: Timers::default(), links: HashMap::new(), outgoing, tokens, page: Vec::new() }
    }

    pub(super) fn token(&mut self) -> LockToken {
        LockToken(u128::from(self.tokens.next_u64()) << 64 | u128::from(self.tokens.next_u64()))
    }

    /// Writes one record without a body.
    pub(super) fn note(&mut self, turn: &mut Turn<'_>, record: &Record<'_>) -> Result<(), AppendError> {
        self.page.clear();
        record.encode(&mut self.page);
        let entry = Entry { meta: &self.page, body: None, references: 0 };
        turn.journal.append(&[entry], &mut Vec::new())
    }

    /// Writes records without bodies as one group.
    pub(super) fn note_all(&mut self, turn: &mut Turn<'_>, records: &[Record<'_>]) -> Result<(), AppendError> {
        let mut group = self.group();
        records.iter().for_each(|record| group.push(|page| record.encode(page), None, 0));
        self.append(turn, group, &mut Vec::new())
    }

    /// Begins a group on the shared page; [`append`](Self::append) gives the page back.
    pub(super) fn group<'a>(&mut self) -> Group<'a> {
        let mut page = std::mem::take(&mut self.page);
        page.clear();
        Group { page, parts: Vec::new() }
    }

    /// Writes a group. An empty one is none.
    pub(super) fn append(
        &mut self,
        turn: &mut Turn<'_>,
        group: Group<'_>,
        locations: &mut Vec<Location>,
    ) -> Result<(), AppendError> {
        let result = if group.parts.is_empty() { Ok(()) } else { turn.journal.append(&group.entries(), locations) };
        self.page = group.page;
        result
    }
}

/// Records being gathered for one append.
pub(super) struct Group<'a> {
    page: Vec<u8>,
    parts: Vec<(usize, Option<&'a [u8]>, u32)>,
}

impl<'a> Group<'a> {
    pub(super) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>), body: Option<&'a [u8]>, references: u32) {
        encode(&mut self.page);
        self.parts.push((self.page.len(), body, references));
    }

    fn entries(&self) -> Vec<Entry<'_>> {
        let mut start = 0;
        let cut = |(end, body, references): &(usize, Option<&'a [u8]>, u32)| {
            let meta = &self.page[start..*end];
            start = *end;
            Entry { meta, body: *body, references: *references }
        };
        self.parts.iter().map(cut).collect()
    }
}
