//! The counters of one pod since its start, as plain numbers.

use crate::latency::LatencyBuckets;

/// Totals only rise; the others are as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCounters {
    pub pod: String,
    pub version: String,
    pub leads: bool,
    /// Terms this pod has gained.
    pub terms: u64,

    pub captured: u64,
    /// Changes to a source of events that are no inserts.
    pub foreign: u64,
    pub reopened: u64,
    pub published: u64,
    pub transfers: u64,
    /// Sent again although the first try may have arrived.
    pub uncertain: u64,
    /// Sent again after the bus said no for now.
    pub retried: u64,
    pub rejected: u64,
    pub oversize: u64,
    pub in_flight_events: u64,
    pub in_flight_bytes: u64,
    pub saves: u64,
    pub store_errors: u64,

    pub sessions_held: u64,
    pub sessions_accepted: u64,
    pub sessions_dropped: u64,
    pub locks_lost: u64,
    pub received: u64,
    pub redelivered: u64,
    pub settled: u64,
    /// Dead letters this pod parked, and such as it left for people.
    pub dead_letters_parked: u64,
    pub dead_letters_left: u64,

    pub applied: u64,
    /// By read model.
    pub applied_in: Vec<(String, u64)>,
    pub duplicates: u64,
    pub gaps_healed: u64,
    pub regressed: u64,
    pub parked: u64,
    pub transactions: u64,
    pub conflicts: u64,
    pub unknown_commits: u64,
    pub latency: LatencyBuckets,
}
