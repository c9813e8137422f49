//! The core's timers: one per kind of event and queue or entity, not one per lock or message. Their owners keep those
//! in order.

use std::collections::{BTreeSet, HashMap};

use super::id::{EntityId, QueueId, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A message lock expires.
    MessageLock(QueueId),
    SessionLock(QueueId),
    /// A waiting attach times out.
    Attach(QueueId),
    /// A message expires.
    Expiry(QueueId),
    /// The journal refused a required append: try again.
    Retry(QueueId),
    /// The queue has messages to forward.
    Forward(QueueId),
    /// A scheduled message is due.
    ScheduledMessages(EntityId),
    /// A transaction has taken too long.
    Transactions,
    /// The duplicate history is swept.
    History(EntityId),
    /// An entity may be idle for too long.
    Idle(EntityId),
}

#[derive(Debug, Default)]
pub(super) struct TimerQueue {
    due: BTreeSet<(Timestamp, Timer)>,
    set: HashMap<Timer, Timestamp>,
}

impl TimerQueue {
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Sets a timer unless it is already set for the same time or earlier. It may fire without work to do, but never
    /// late.
    pub(super) fn set(&mut self, timer: Timer, at: Timestamp) {
        if let Some(set) = self.set.get(&timer).copied() {
            // An early timer only finds nothing to do and sets itself again.
            if set <= at {
                return;
            }
            self.due.remove(&(set, timer));
        }
        self.set.insert(timer, at);
        self.due.insert((at, timer));
    }

    /// Removes and returns the next due timer.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        let (at, timer) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, timer));
        self.set.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_at_the_earliest_time_set() {
        let (mut timers, timer) = (TimerQueue::default(), Timer::ScheduledMessages(EntityId(1)));
        for at in [20, 10, 30] {
            timers.set(timer, Timestamp(at));
        }
        assert_eq!(timers.pop_due(Timestamp(9)), None);
        assert_eq!(timers.pop_due(Timestamp(10)), Some(timer));
        assert_eq!((timers.pop_due(Timestamp(99)), timers.next_deadline()), (None, None));
    }
}
