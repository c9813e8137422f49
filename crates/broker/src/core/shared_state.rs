//! State shared by all parts of the core: lock tokens, timers, limits, links, and the buffer that encodes records.

use std::collections::{BTreeSet, HashMap};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::call_context::CallContext;
use super::id::{CoreLinkId, LockToken, QueueId};
use super::outgoing_byte_budget::OutgoingByteBudget;
use super::record::JournalRecord;
use super::sessions::TableSlot;
use super::timers::TimerQueue;
use crate::ServiceTier;
use crate::journal::{AppendError, JournalEntry, JournalLocation};

/// Limits of one broker; they apply to all entities.
#[derive(Debug, Clone)]
pub struct BrokerLimits {
    /// Its features apply to all entities.
    pub tier: ServiceTier,
    /// In bytes. An entity can set its own limit (`MaxMessageSizeInKilobytes`).
    pub max_message_size: usize,
    /// Queues and topics, and subscriptions of one topic.
    pub max_entities: usize,
    pub max_subscriptions: usize,
    /// Of the queues and topics.
    pub max_partitioned: usize,
    /// Unsettled deliveries per link, whatever its credit. Bounds the memory that a peer can use by granting credit and
    /// never settling.
    pub max_unsettled: u32,
    /// Unwritten bytes over all connections. Unlimited unless the engine reports [written
    /// bytes](super::Core::record_written).
    pub max_outgoing: usize,
}

impl Default for BrokerLimits {
    /// Entities as many as a namespace of the service has. 10,000 unsettled deliveries is more than any SDK prefetches.
    fn default() -> Self {
        Self {
            tier: ServiceTier::Standard,
            max_message_size: ServiceTier::Standard.max_message_size(),
            max_entities: ServiceTier::Standard.max_entities(),
            max_subscriptions: 2_000,
            max_partitioned: 100,
            max_unsettled: 10_000,
            max_outgoing: usize::MAX,
        }
    }
}

#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) limits: BrokerLimits,
    pub(super) timers: TimerQueue,
    /// The queue of each receiver link, attached or waiting.
    pub(super) links: HashMap<CoreLinkId, QueueId>,
    pub(super) outgoing: OutgoingByteBudget,
    /// During a commit: the sessions to serve after it.
    pub(super) postponed: Option<BTreeSet<(QueueId, TableSlot)>>,
    tokens: StdRng,
    buffer: Vec<u8>,
}

impl SharedState {
    pub(super) fn new(limits: BrokerLimits, seed: [u8; 32]) -> Self {
        let tokens = StdRng::from_seed(seed);
        let outgoing = OutgoingByteBudget::new(limits.max_outgoing);
        Self {
            limits,
            timers: TimerQueue::default(),
            links: HashMap::new(),
            outgoing,
            postponed: None,
            tokens,
            buffer: Vec::new(),
        }
    }

    pub(super) fn next_token(&mut self) -> LockToken {
        LockToken(u128::from(self.tokens.next_u64()) << 64 | u128::from(self.tokens.next_u64()))
    }

    /// Appends one record without a body.
    pub(super) fn append_record(
        &mut self,
        call: &mut CallContext<'_>,
        record: &JournalRecord<'_>,
    ) -> Result<(), AppendError> {
        self.buffer.clear();
        record.encode(&mut self.buffer);
        let entry = JournalEntry { meta: &self.buffer, body: None, references: 0 };
        call.journal.append(&[entry], &mut Vec::new())
    }

    /// Appends records without bodies as one group.
    pub(super) fn append_records(
        &mut self,
        call: &mut CallContext<'_>,
        records: &[JournalRecord<'_>],
    ) -> Result<(), AppendError> {
        let mut group = self.begin_group();
        records.iter().for_each(|record| group.push(|buffer| record.encode(buffer), None, 0));
        self.append(call, group, &mut Vec::new())
    }

    /// Starts a group in the shared buffer; [`append`](Self::append) returns the buffer.
    pub(super) fn begin_group<'a>(&mut self) -> RecordGroup<'a> {
        // Reused between groups: an append should not allocate.
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        RecordGroup { buffer, parts: Vec::new() }
    }

    /// Appends a group; does nothing if it is empty.
    pub(super) fn append(
        &mut self,
        call: &mut CallContext<'_>,
        group: RecordGroup<'_>,
        locations: &mut Vec<JournalLocation>,
    ) -> Result<(), AppendError> {
        let result = if group.parts.is_empty() { Ok(()) } else { call.journal.append(&group.entries(), locations) };
        self.buffer = group.buffer;
        result
    }
}

/// Records collected for one append.
pub(super) struct RecordGroup<'a> {
    buffer: Vec<u8>,
    parts: Vec<(usize, Option<&'a [u8]>, u32)>,
}

impl<'a> RecordGroup<'a> {
    pub(super) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>), body: Option<&'a [u8]>, references: u32) {
        encode(&mut self.buffer);
        self.parts.push((self.buffer.len(), body, references));
    }

    fn entries(&self) -> Vec<JournalEntry<'_>> {
        let mut start = 0;
        let cut = |(end, body, references): &(usize, Option<&'a [u8]>, u32)| {
            let meta = &self.buffer[start..*end];
            start = *end;
            JournalEntry { meta, body: *body, references: *references }
        };
        self.parts.iter().map(cut).collect()
    }
}
