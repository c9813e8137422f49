//! Who wants to be called when. One alarm for each kind of thing that can fall due in a queue or entity, not one for each
//! lock or message: those are kept in order by their owners.

use std::collections::{BTreeSet, HashMap};

use super::id::{EntityId, QueueId, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// A message lock ends.
    MessageLock(QueueId),
    SessionLock(QueueId),
    /// An attach has waited long enough for a session.
    Attach(QueueId),
    /// A message's time to live ends.
    Expiry(QueueId),
    /// The journal refused something that must happen: try again.
    Retry(QueueId),
    /// A scheduled message is due.
    Schedule(EntityId),
    /// Duplicate history is swept.
    History(EntityId),
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Timestamp, Alarm)>,
    set: HashMap<Alarm, Timestamp>,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Sets an alarm, unless it is already set for as early or earlier. An alarm may ring for nothing; it is never late.
    pub(super) fn arm(&mut self, alarm: Alarm, at: Timestamp) {
        if let Some(set) = self.set.get(&alarm).copied() {
            if set <= at {
                return;
            }
            self.due.remove(&(set, alarm));
        }
        self.set.insert(alarm, at);
        self.due.insert((at, alarm));
    }

    /// Takes the next alarm that is due.
    pub(super) fn ring(&mut self, now: Timestamp) -> Option<Alarm> {
        let (at, alarm) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, alarm));
        self.set.remove(&alarm);
        Some(alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_rings_once_at_the_earliest_time_asked_for() {
        let (mut timers, alarm) = (Timers::default(), Alarm::Schedule(EntityId(1)));
        for at in [20, 10, 30] {
            timers.arm(alarm, Timestamp(at));
        }
        assert_eq!(timers.ring(Timestamp(9)), None);
        assert_eq!(timers.ring(Timestamp(10)), Some(alarm));
        assert_eq!((timers.ring(Timestamp(99)), timers.next()), (None, None));
    }
}
