//! The applier's settings, each default with its reason.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cursor::{OrderingMode, PipelineStart};
use crate::source::{SourceConfig, SourceKind};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Transactions side by side. Two keep a server of two cores busy: 61k events a second against 25k with one.
    pub connections: NonZeroUsize,
    /// Statements on read models in one transaction. Beyond a thousand nothing is gained, and a re-run costs more.
    pub group_statements: NonZeroUsize,
    /// Bytes of events in one transaction; a single larger event goes alone.
    pub group_bytes: usize,
    /// A group that took longer makes the next ones smaller.
    #[serde(with = "humantime_serde")]
    pub group_within: Duration,
    /// After this a transaction counts as failed, or as unknown when it was being committed. The server's own limit is 60 s.
    #[serde(with = "humantime_serde")]
    pub transaction_within: Duration,
    /// How long a group is run again before its sessions are told that it failed.
    #[serde(with = "humantime_serde")]
    pub retry_for: Duration,
    /// How long a gap may stay before what lies behind it is parked.
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
    /// An event that was delivered this often is applied in a transaction without others.
    pub alone_at_delivery: u32,
    /// One that was delivered this often is parked untried: half of what the bus allows before it dead-letters.
    pub park_at_delivery: NonZeroU32,
    pub on_poison: OnPoison,
    /// What an aggregate's first event is numbered.
    pub first_sequence: i64,
}

/// What becomes of the message of an event that cannot be applied. The aggregate is parked either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPoison {
    #[default]
    Park,
    /// The message goes to the bus's dead letters besides.
    DeadLetter,
}

/// Half of 2,000, the most that Service Bus takes.
const HALF_OF_ALL_DELIVERIES: u32 = 1000;

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
            alone_at_delivery: 5,
            park_at_delivery: NonZeroU32::new(HALF_OF_ALL_DELIVERIES).expect("1000 is not 0"),
            on_poison: OnPoison::Park,
            first_sequence: 1,
        }
    }
}

impl Config {
    /// What orders the events of this source. `filtered`: capture leaves event types out.
    pub fn mode(&self, source: &SourceConfig, start: PipelineStart, filtered: bool) -> OrderingMode {
        match (source.kind, &source.sequence) {
            (SourceKind::Events, Some(_)) => OrderingMode::Sequence { start, first: self.first_sequence, filtered },
            (SourceKind::Events, None) | (SourceKind::Documents, _) => OrderingMode::Position,
        }
    }
}
