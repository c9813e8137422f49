//! Attaches that wait for a session to become available, first come first served, each until its own deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::id::{LinkId, Timestamp};
use super::receivers::Mode;

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) link: LinkId,
    pub(super) mode: Mode,
    /// Credit granted before there is anything to grant it for: delivery-count and link-credit.
    pub(super) credit: (u32, u32),
    deadline: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    line: BTreeMap<u64, Waiter>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    tickets: HashMap<LinkId, u64>,
    next: u64,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn push(&mut self, link: LinkId, mode: Mode, deadline: Timestamp) {
        let ticket = self.next;
        self.next += 1;
        self.line.insert(ticket, Waiter { link, mode, credit: (0, 0), deadline });
        self.deadlines.insert((deadline, ticket));
        self.tickets.insert(link, ticket);
    }

    /// Keeps credit for when the attach is answered.
    pub(super) fn grant(&mut self, link: LinkId, delivery_count: u32, link_credit: u32) {
        if let Some(waiter) = self.tickets.get(&link).and_then(|ticket| self.line.get_mut(ticket)) {
            waiter.credit = (delivery_count, link_credit);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        let ticket = *self.line.first_key_value()?.0;
        self.take(ticket)
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Waiter> {
        let ticket = *self.tickets.get(&link)?;
        self.take(ticket)
    }

    pub(super) fn first_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes a waiter whose time is over.
    pub(super) fn pop_late(&mut self, now: Timestamp) -> Option<Waiter> {
        let (deadline, ticket) = *self.deadlines.first()?;
        if deadline <= now { self.take(ticket) } else { None }
    }

    fn take(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.line.remove(&ticket)?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        self.tickets.remove(&waiter.link);
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_come_is_the_first_to_go_and_the_late_leave() {
        let mut waiting = Waiting::default();
        for (link, deadline) in [(1, 30), (2, 10), (3, 20)] {
            waiting.push(LinkId(link), Mode::PeekLock, Timestamp(deadline));
        }
        assert_eq!(waiting.first_deadline(), Some(Timestamp(10)));
        assert!(waiting.pop_late(Timestamp(9)).is_none());
        assert_eq!(waiting.pop_late(Timestamp(10)).unwrap().link, LinkId(2));
        assert_eq!(waiting.pop().unwrap().link, LinkId(1));
        assert!(waiting.remove(LinkId(1)).is_none());
        assert_eq!(waiting.remove(LinkId(3)).unwrap().link, LinkId(3));
        assert!(waiting.is_empty() && waiting.first_deadline().is_none());
    }
}
