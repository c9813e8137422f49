//! Basic identifiers: timestamps, entities, queues, links, sequence numbers, lock tokens.

use std::fmt;
use std::time::Duration;

/// Milliseconds since the Unix epoch. Always passed in: the core never reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Id of a queue, topic or subscription. Never reused, so an old record cannot apply to a new entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
pub struct EntityId(pub u32);

/// The message queues of a queue or subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subqueue {
    Main,
    DeadLetter,
    /// Messages that could not be forwarded: `$Transfer/$DeadLetterQueue`.
    TransferDeadLetter,
}

impl Subqueue {
    /// The queue that a scan over all queues of an entity visits next.
    pub(super) fn next(self) -> Option<Self> {
        match self {
            Self::Main => Some(Self::DeadLetter),
            Self::DeadLetter => Some(Self::TransferDeadLetter),
            Self::TransferDeadLetter => None,
        }
    }
}

/// A queue that receivers attach to: an entity's main queue or one of its dead-letter queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    pub entity: EntityId,
    pub subqueue: Subqueue,
}

impl QueueId {
    pub fn main(entity: EntityId) -> Self {
        Self { entity, subqueue: Subqueue::Main }
    }

    pub fn dead_letter(entity: EntityId) -> Self {
        Self { entity, subqueue: Subqueue::DeadLetter }
    }

    pub fn transfer_dead_letter(entity: EntityId) -> Self {
        Self { entity, subqueue: Subqueue::TransferDeadLetter }
    }
}

/// A client connection. The engine assigns ids and never reuses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

impl ConnectionId {
    /// The id of one of its links.
    pub fn link(self, number: u32) -> CoreLinkId {
        CoreLinkId(u64::from(self.0) << 32 | u64::from(number))
    }
}

/// A link, identified by the engine: the connection in the upper half, a number that is never reused in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreLinkId(pub u64);

impl CoreLinkId {
    pub fn connection(self) -> ConnectionId {
        ConnectionId((self.0 >> 32) as u32)
    }
}

/// A sequence number as clients see it: the partition in the top 16 bits, a rising counter in the low 48.
///
/// All partitions of an entity share one counter. It still rises within each partition, and it alone tells which of two
/// messages came first. The price is gaps within a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceNumber(pub u64);

const COUNTER_BITS: u32 = 48;

impl SequenceNumber {
    pub fn new(partition: u8, counter: u64) -> Self {
        debug_assert!(counter < 1 << COUNTER_BITS);
        Self(u64::from(partition) << COUNTER_BITS | counter)
    }

    pub fn partition(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    pub fn counter(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The token that settles one delivery: a GUID, new for every delivery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockToken(pub u128);

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockToken({:032x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_number_keeps_partition_and_counter_apart() {
        let number = SequenceNumber::new(15, 7);
        assert_eq!((number.partition(), number.counter()), (15, 7));
        assert_eq!(number.0, 0x000f_0000_0000_0007);
    }

    #[test]
    fn a_timestamp_does_not_overflow() {
        assert_eq!(Timestamp(5).after(Duration::MAX), Timestamp(u64::MAX));
    }
}
