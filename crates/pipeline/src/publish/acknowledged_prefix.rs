//! The unbroken prefix of acknowledged events. Pure.
//!
//! Every captured item gets the next number. Numbers are acknowledged in any order. The checkpoint may move to the last item up to which all
//! items are acknowledged.

use std::collections::VecDeque;

use mongodb::bson::Timestamp;

use crate::checkpoint::CheckpointPhase;
use crate::failpoints::Failpoint;

/// The number of a captured item in capture order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureOrdinal(u64);

/// A position that the checkpoint may move to.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointPosition {
    pub phase: CheckpointPhase,
    pub cluster_time: Option<Timestamp>,
}

/// Tracks the items after the prefix.
#[derive(Debug)]
pub struct AcknowledgedPrefix {
    /// Ordinal of the first slot.
    first: u64,
    slots: VecDeque<PrefixSlot>,
    reached: Option<CheckpointPosition>,
    cluster_time: Option<Timestamp>,
    passed: u64,
    follows_what_was_sent: bool,
}

#[derive(Debug)]
struct PrefixSlot {
    acknowledged: bool,
    event: bool,
    position: CheckpointPosition,
}

impl Default for AcknowledgedPrefix {
    fn default() -> Self {
        Self::with_failpoint(Failpoint::CheckpointAhead.is_enabled())
    }
}

impl AcknowledgedPrefix {
    pub(super) fn with_failpoint(follows_what_was_sent: bool) -> Self {
        Self { first: 0, slots: VecDeque::new(), reached: None, cluster_time: None, passed: 0, follows_what_was_sent }
    }

    /// Adds an event, which needs an acknowledgement.
    pub fn push_event(&mut self, position: CheckpointPosition) -> CaptureOrdinal {
        self.push(position, true)
    }

    /// Adds a position without an event. It replaces a watermark right before it: the server sends one with every reply, and all of them may have to
    /// wait for one event.
    pub fn push_watermark(&mut self, position: CheckpointPosition) {
        match self.slots.back_mut() {
            Some(last) if !last.event => {
                let cluster_time = position.cluster_time.or(last.position.cluster_time);
                last.position = CheckpointPosition { cluster_time, ..position };
            }
            Some(_) | None => {
                let ordinal = self.push(position, false);
                self.acknowledge(ordinal);
            }
        }
    }

    fn push(&mut self, position: CheckpointPosition, event: bool) -> CaptureOrdinal {
        self.slots.push_back(PrefixSlot { acknowledged: false, event, position });
        CaptureOrdinal(self.first + self.slots.len() as u64 - 1)
    }

    /// Records that an event is sent and not acknowledged. Has no effect without the failpoint.
    pub fn record_sent(&mut self, ordinal: CaptureOrdinal) {
        if self.follows_what_was_sent {
            self.acknowledge(ordinal);
        }
    }

    pub fn acknowledge(&mut self, ordinal: CaptureOrdinal) {
        let slot = ordinal.0.checked_sub(self.first).and_then(|at| self.slots.get_mut(usize::try_from(at).ok()?));
        let Some(slot) = slot else { return };
        slot.acknowledged = true;
        while self.slots.front().is_some_and(|slot| slot.acknowledged) {
            let slot = self.slots.pop_front().expect("there is a front");
            self.first += 1;
            self.passed += u64::from(slot.event);
            self.cluster_time = slot.position.cluster_time.or(self.cluster_time);
            self.reached = Some(slot.position);
        }
    }

    /// The end of the prefix, and the number of events since the last call. `None` if it has not moved.
    pub fn take(&mut self) -> Option<(CheckpointPosition, u64)> {
        let reached = self.reached.take()?;
        Some((reached, std::mem::take(&mut self.passed)))
    }

    /// Number of events since the last [`take`](Self::take); `None` if the prefix has not moved.
    pub fn advanced_by(&self) -> Option<u64> {
        self.reached.as_ref().map(|_| self.passed)
    }

    /// Cluster time of the last item of the prefix that has one.
    pub fn cluster_time(&self) -> Option<Timestamp> {
        self.cluster_time
    }

    /// Whether every item is acknowledged.
    pub fn is_complete(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::event::ResumeToken;
    use mongodb::bson::doc;

    pub(crate) fn position(number: u64) -> CheckpointPosition {
        let token = ResumeToken::try_from(doc! { "_data": format!("82{number:010}") }).unwrap();
        CheckpointPosition { phase: CheckpointPhase::Stream { token }, cluster_time: None }
    }

    #[test]
    fn the_prefix_waits_for_its_oldest_item() {
        let mut prefix = AcknowledgedPrefix::with_failpoint(false);
        let ordinals: Vec<_> = (0..4).map(|number| prefix.push_event(position(number))).collect();
        prefix.acknowledge(ordinals[1]);
        prefix.acknowledge(ordinals[2]);
        assert_eq!(prefix.take(), None);
        prefix.acknowledge(ordinals[0]);
        assert_eq!(prefix.take(), Some((position(2), 3)));
        assert_eq!(prefix.take(), None, "the prefix has not moved since");
        prefix.acknowledge(ordinals[0]);
        prefix.acknowledge(ordinals[3]);
        assert_eq!(prefix.take(), Some((position(3), 1)));
        assert!(prefix.is_complete());
    }

    #[test]
    fn a_watermark_passes_when_all_before_is_acknowledged() {
        let mut prefix = AcknowledgedPrefix::with_failpoint(false);
        prefix.push_watermark(position(1));
        assert_eq!(prefix.take(), Some((position(1), 0)));
        let event = prefix.push_event(position(2));
        prefix.push_watermark(position(3));
        assert_eq!(prefix.advanced_by(), None);
        prefix.acknowledge(event);
        assert_eq!(prefix.take(), Some((position(3), 1)));
    }

    #[test]
    fn watermarks_behind_one_event_take_one_slot() {
        let mut prefix = AcknowledgedPrefix::with_failpoint(false);
        let event = prefix.push_event(position(0));
        for number in 1..=1_000_000 {
            prefix.push_watermark(position(number));
        }
        assert_eq!(prefix.slots.len(), 2);
        let later = prefix.push_event(position(1_000_001));
        prefix.push_watermark(position(1_000_002));
        prefix.acknowledge(later);
        assert_eq!(prefix.take(), None);
        prefix.acknowledge(event);
        assert_eq!(prefix.take(), Some((position(1_000_002), 2)));
        assert!(prefix.is_complete());
    }

    #[test]
    fn sent_events_move_the_prefix_only_with_the_failpoint() {
        for enabled in [false, true] {
            let mut prefix = AcknowledgedPrefix::with_failpoint(enabled);
            let ordinal = prefix.push_event(position(1));
            prefix.record_sent(ordinal);
            assert_eq!(prefix.take().is_some(), enabled);
        }
    }
}
