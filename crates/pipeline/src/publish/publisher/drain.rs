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
const LAST_SAVE_RESERVE: Duration = Duration::from_secs(1);

/// The two moments at which a run that ends gives something up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrainDeadlines {
    /// Nothing more is sent; what was acknowledged is still saved.
    pub(super) send_until: Instant,
    /// It is over.
    pub(super) end_at: Instant,
}

impl DrainDeadlines {
    pub(super) fn new(now: Instant, within: Duration) -> Self {
        let end_at = now + within;
        Self { send_until: end_at - LAST_SAVE_RESERVE.min(within / 4), end_at }
    }
}

impl<T: PublishTopic, S: CheckpointStore + 'static> Publisher<T, S> {
    /// What is told twice counts from the first time: a stop takes `drain` once.
    pub(super) fn begin_drain(&mut self, now: Instant) {
        if self.draining.is_some() {
            return;
        }
        self.draining = Some(DrainDeadlines::new(now, self.config.drain));
        if self.handle.state() == PublishState::Publishing {
            self.handle.set_state(PublishState::Draining);
        }
    }

    /// `None` while there is something left to do, and time for it.
    pub(super) fn finished(&self, now: Instant) -> Option<PublishEnd> {
        let drain = self.draining?;
        let brought_out =
            self.exhausted && self.pending.is_empty() && self.lanes.is_empty() && self.pending_writes.is_empty();
        let saved = self.saver.is_idle(&self.prefix);
        if brought_out && saved {
            return Some(PublishEnd::Drained);
        }
        let over = now >= drain.end_at || self.given_up && saved;
        over.then(|| PublishEnd::Unfinished { events: self.lanes.events() + self.pending_events() })
    }

    /// Not counted is what the intake still holds.
    fn pending_events(&self) -> usize {
        self.pending.iter().filter(|captured| !matches!(captured, CaptureItem::Watermark(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_reserves_time_for_the_last_save() {
        let now = Instant::now();
        for (within, send) in [(0, 0), (400, 300), (2_000, 1_500), (10_000, 9_000), (60_000, 59_000)] {
            let [within, send] = [within, send].map(Duration::from_millis);
            assert_eq!(
                DrainDeadlines::new(now, within),
                DrainDeadlines { send_until: now + send, end_at: now + within }
            );
        }
    }
}
