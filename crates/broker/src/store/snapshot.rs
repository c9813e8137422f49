//! When a snapshot is due, and the one in the making, as the engine sees it. The [janitor](super::janitor) writes the file.

use std::sync::atomic::Ordering;

use super::active::Active;
use super::blocks::Blocks;
use super::hands::Hands;
use super::janitor::Job;
use super::layout::{SnapshotEnd, SnapshotHead};
use super::ledger::Ledger;
use super::shared::Health;
use crate::journal::Location;

/// Records are handed over in portions of this size.
const PORTION: usize = 256 << 10;

/// No more steps while this much waits for the janitor: a snapshot must not fill the memory.
const WAITING: usize = 4 << 20;

/// A snapshot is due again when the log has grown by this many times its size: it then costs at most half of what the log does.
const GROWTH: u64 = 2;

pub(super) struct Snapshots {
    every: u64,
    /// Where the newest complete one began, and its size.
    from: u64,
    bytes: u64,
    making: Making,
    /// After a failure none is begun before the log is this long, or room has been made.
    not_before: u64,
}

enum Making {
    Nothing,
    /// The core hands over records.
    Gathering {
        blocks: Blocks,
        records: u64,
    },
    /// All records are there; it may be published when the journal is durable to its end.
    Complete(SnapshotEnd),
    /// The janitor publishes it.
    Leaving,
}

impl Snapshots {
    pub(super) fn new(every: u64, from: u64, bytes: u64) -> Self {
        Self { every, from, bytes, making: Making::Nothing, not_before: 0 }
    }

    /// Where the newest complete snapshot began.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the core should hand over records now, and if so, whether from the beginning.
    pub(super) fn next_step(
        &mut self,
        active: &Active,
        health: &Health,
        ledger: &Ledger,
        hands: &Hands,
    ) -> Option<bool> {
        match self.making {
            Making::Nothing if self.is_due(active, health, ledger) => {
                self.begin(active, health, hands);
                Some(true)
            }
            Making::Gathering { .. } if hands.waiting.load(Ordering::Relaxed) < WAITING => Some(false),
            _ => None,
        }
    }

    fn is_due(&self, active: &Active, health: &Health, ledger: &Ledger) -> bool {
        if active.end() < self.not_before || active.base() <= self.from {
            return false;
        }
        let grown = active.end() - self.from >= self.every.max(GROWTH * self.bytes);
        match health {
            Health::Good => grown,
            // Where room is short, any segment that only waits for a snapshot is worth one.
            Health::Full => grown || ledger.wants_snapshot(self.from) > 0,
            Health::Failing(_) => false,
        }
    }

    /// It counts from the beginning of the open segment: replaying more than has happened since changes nothing, and replay never has to
    /// begin inside a segment.
    fn begin(&mut self, active: &Active, health: &Health, hands: &Hands) {
        self.making = Making::Gathering { blocks: Blocks::default(), records: 0 };
        let head = SnapshotHead { from: active.base(), segment: active.segment() };
        hands.send(Job::SnapshotBegin { head, from_reserve: !health.is_good() });
    }

    pub(super) fn put(&mut self, meta: &[u8], body: Option<Location>, salt: u32, hands: &Hands) {
        let Making::Gathering { blocks, records } = &mut self.making else { return };
        blocks.push(meta, body, salt);
        *records += 1;
        if blocks.len() >= PORTION {
            hand_over(blocks.take(salt), hands);
        }
    }

    pub(super) fn done(&mut self, position: u64, salt: u32, hands: &Hands) {
        let Making::Gathering { blocks, records } = &mut self.making else { return };
        hand_over(blocks.take(salt), hands);
        self.making = Making::Complete(SnapshotEnd { records: *records, end: position });
    }

    /// What it reflects must not be lost while it stays: a settlement that was never durable would be believed.
    pub(super) fn publish_when_durable(&mut self, synced: u64, hands: &Hands) {
        if let Making::Complete(end) = self.making
            && end.end <= synced
        {
            hands.send(Job::SnapshotPublish(end));
            self.making = Making::Leaving;
        }
    }

    pub(super) fn published(&mut self, from: u64, bytes: u64) {
        (self.from, self.bytes, self.making) = (from, bytes, Making::Nothing);
    }

    pub(super) fn failed(&mut self, position: u64) {
        self.making = Making::Nothing;
        self.not_before = position + self.every / 8;
    }

    pub(super) fn room_was_made(&mut self) {
        self.not_before = 0;
    }
}

fn hand_over(bytes: Vec<u8>, hands: &Hands) {
    hands.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
    hands.send(Job::SnapshotBytes(bytes));
}
