//! Attaches that wait for a session: first come, first served, each with its own deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::id::{CoreLinkId, Timestamp};
use super::receivers::ReceiveMode;

#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingAttach {
    pub(super) link: CoreLinkId,
    pub(super) mode: ReceiveMode,
    /// Credit granted before the attach completes: delivery-count and link-credit.
    pub(super) credit: (u32, u32),
    deadline: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct WaitingAttaches {
    by_ticket: BTreeMap<u64, WaitingAttach>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    tickets: HashMap<CoreLinkId, u64>,
    next: u64,
}

impl WaitingAttaches {
    pub(super) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    pub(super) fn push(&mut self, link: CoreLinkId, mode: ReceiveMode, deadline: Timestamp) {
        let ticket = self.next;
        self.next += 1;
        self.by_ticket.insert(ticket, WaitingAttach { link, mode, credit: (0, 0), deadline });
        self.deadlines.insert((deadline, ticket));
        self.tickets.insert(link, ticket);
    }

    /// Stores the credit until the attach completes.
    pub(super) fn set_credit(&mut self, link: CoreLinkId, delivery_count: u32, link_credit: u32) {
        if let Some(waiting_attach) = self.tickets.get(&link).and_then(|ticket| self.by_ticket.get_mut(ticket)) {
            waiting_attach.credit = (delivery_count, link_credit);
        }
    }

    pub(super) fn pop(&mut self) -> Option<WaitingAttach> {
        let ticket = *self.by_ticket.first_key_value()?.0;
        self.take(ticket)
    }

    pub(super) fn remove(&mut self, link: CoreLinkId) -> Option<WaitingAttach> {
        let ticket = *self.tickets.get(&link)?;
        self.take(ticket)
    }

    pub(super) fn first_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns an attach whose deadline has passed.
    pub(super) fn pop_timed_out(&mut self, now: Timestamp) -> Option<WaitingAttach> {
        let (deadline, ticket) = *self.deadlines.first()?;
        if deadline <= now { self.take(ticket) } else { None }
    }

    fn take(&mut self, ticket: u64) -> Option<WaitingAttach> {
        let waiting_attach = self.by_ticket.remove(&ticket)?;
        self.deadlines.remove(&(waiting_attach.deadline, ticket));
        self.tickets.remove(&waiting_attach.link);
        Some(waiting_attach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attaches_are_first_come_first_served_and_time_out() {
        let mut waiting = WaitingAttaches::default();
        for (link, deadline) in [(1, 30), (2, 10), (3, 20)] {
            waiting.push(CoreLinkId(link), ReceiveMode::PeekLock, Timestamp(deadline));
        }
        assert_eq!(waiting.first_deadline(), Some(Timestamp(10)));
        assert!(waiting.pop_timed_out(Timestamp(9)).is_none());
        assert_eq!(waiting.pop_timed_out(Timestamp(10)).unwrap().link, CoreLinkId(2));
        assert_eq!(waiting.pop().unwrap().link, CoreLinkId(1));
        assert!(waiting.remove(CoreLinkId(1)).is_none());
        assert_eq!(waiting.remove(CoreLinkId(3)).unwrap().link, CoreLinkId(3));
        assert!(waiting.is_empty() && waiting.first_deadline().is_none());
    }
}
