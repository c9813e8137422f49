//! Applier settings, each default with its reason.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cursor::{OrderingMode, PipelineStart};
use crate::source::SourceConfig;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Concurrent transactions. Two keep a server with two cores busy: 61k events a second against 25k with one.
    pub connections: NonZeroUsize,
    /// Read-model statements per transaction. More than a thousand gain nothing and make a retry more expensive.
    pub group_statements: NonZeroUsize,
    /// Event bytes per transaction; a single larger event is applied alone.
    pub group_bytes: usize,
    /// After a transaction that took longer, the next groups are smaller.
    #[serde(with = "humantime_serde")]
    pub group_within: Duration,
    /// Timeout of a transaction; its result is then failed, or unknown during the commit. The server's own limit is 60 s.
    #[serde(with = "humantime_serde")]
    pub transaction_within: Duration,
    /// How long a transaction is retried before its sessions get the failure.
    #[serde(with = "humantime_serde")]
    pub retry_for: Duration,
    /// How long a gap may last before the events behind it are parked.
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
    /// An event with this delivery count is applied in a transaction of its own.
    pub alone_at_delivery: u32,
    /// An event with this delivery count is parked untried: half of the count at which the bus dead-letters.
    pub park_at_delivery: NonZeroU32,
    pub on_poison: OnPoison,
    /// Sequence of the first event of an aggregate.
    pub first_sequence: i64,
}

/// What happens to the message of an event that cannot be applied. The aggregate is parked either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPoison {
    #[default]
    Park,
    /// The message is dead-lettered, too.
    DeadLetter,
}

/// Half of 10, the default of Service Bus; a pod sets half of what its subscription has.
const HALF_OF_DEFAULT_DELIVERY_COUNT: u32 = 5;

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: NonZeroUsize::new(2).expect("2 is not 0"),
            group_statements: NonZeroUsize::new(1000).expect("1000 is not 0"),
            group_bytes: 8 * 1024 * 1024,
            group_within: Duration::from_secs(2),
            transaction_within: Duration::from_secs(20),
            retry_for: Duration::from_secs(30),
            gap_timeout: Duration::from_secs(10),
            alone_at_delivery: 3,
            park_at_delivery: NonZeroU32::new(HALF_OF_DEFAULT_DELIVERY_COUNT).expect("5 is not 0"),
            on_poison: OnPoison::Park,
            first_sequence: 1,
        }
    }
}

impl Config {
    /// How the events of this source are ordered. `filtered`: capture filters event types.
    pub fn mode(&self, source: &SourceConfig, start: PipelineStart, filtered: bool) -> OrderingMode {
        if source.is_sequenced() {
            OrderingMode::Sequence { start, first: self.first_sequence, filtered }
        } else {
            OrderingMode::Position
        }
    }
}
