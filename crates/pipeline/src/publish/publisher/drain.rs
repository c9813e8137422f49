//! The end of a run: until when what was read may be brought out, and whether there is anything left to do.
//!
//! A bus or a store that is away must not keep a pod from ending: a leader that does not end keeps its lease, and nobody else can lead. What is
//! left behind is not lost. The checkpoint stands before it, and the next leader sends it.

use std::time::{Duration, Instant};

use super::{PublishState, Publisher};
use crate::capture::CaptureItem;
use crate::checkpoint::CheckpointStore;
use crate::publish::error::PublishEnd;
use crate::publish::topic::PublishTopic;

/// How much of a drain is kept for the last save: one write, acknowledged by a majority.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// The two moments at which a run that ends gives something up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrainDeadlines {
    /// Nothing more is sent; what was acknowledged is still saved.
    pub(super) send_until: Instant,
    /// It is over.
    pub(super) until: Instant,
}

impl DrainDeadlines {
    pub(super) fn begun(now: Instant, within: Duration) -> Self {
        let until = now + within;
        Self { send_until: until - LAST_SAVE.min(within / 4), until }
    }
}

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    /// What is told twice counts from the first time: a stop takes `drain` once.
    pub(super) fn begin_to_drain(&mut self, now: Instant) {
        if self.draining.is_some() {
            return;
        }
        self.draining = Some(DrainDeadlines::begun(now, self.config.drain));
        if self.handle.state() == PublishState::Publishing {
            self.handle.set(PublishState::Draining);
        }
    }

    /// `None` while there is something left to do, and time for it.
    pub(super) fn end(&self, now: Instant) -> Option<PublishEnd> {
        let drain = self.draining?;
        let brought_out = self.exhausted && self.pending.is_empty() && self.lanes.is_empty() && self.stores.is_empty();
        let saved = self.saves.is_done(&self.prefix);
        if brought_out && saved {
            return Some(PublishEnd::Drained);
        }
        let over = now >= drain.until || self.given_up && saved;
        over.then(|| PublishEnd::Unfinished { events: self.lanes.events() + self.not_in_a_lane() })
    }

    /// Not counted is what the intake still holds.
    fn not_in_a_lane(&self) -> usize {
        self.pending.iter().filter(|captured| !matches!(captured, CaptureItem::Watermark(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_save_has_its_share_of_the_drain_and_no_drain_is_longer_than_it_says() {
        let now = Instant::now();
        for (within, send) in [(0, 0), (400, 300), (2_000, 1_500), (10_000, 9_000), (60_000, 59_000)] {
            let [within, send] = [within, send].map(Duration::from_millis);
            assert_eq!(
                DrainDeadlines::begun(now, within),
                DrainDeadlines { send_until: now + send, until: now + within }
            );
        }
    }
}
