//! Receiver links of one queue: their credit, and whose turn it is.

use std::collections::{HashMap, VecDeque};

use super::id::LinkId;
use super::sessions::Slot;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    PeekLock,
    ReceiveAndDelete,
}

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) mode: Mode,
    /// The session it holds.
    pub(super) slot: Option<Slot>,
    /// AMQP's delivery-count: deliveries so far, and credit drained.
    delivered: u32,
    credit: u32,
    unsettled: u32,
    queued: bool,
    /// The peer wants its credit used at once or given up.
    pub(super) draining: bool,
}

impl Receiver {
    pub(super) fn new(mode: Mode, slot: Option<Slot>) -> Self {
        Self { mode, slot, delivered: 0, credit: 0, unsettled: 0, queued: false, draining: false }
    }

    pub(super) fn wants(&self, max_unsettled: u32) -> bool {
        self.credit > 0 && self.unsettled < max_unsettled
    }

    pub(super) fn count_delivery(&mut self) {
        self.delivered = self.delivered.wrapping_add(1);
        self.credit -= 1;
        self.unsettled += u32::from(self.mode == Mode::PeekLock);
    }

    /// Takes credit as AMQP grants it: `link_credit` beyond the `delivery_count` the peer had seen. Deliveries under way
    /// to it are thereby counted once.
    pub(super) fn grant(&mut self, delivery_count: u32, link_credit: u32) {
        let limit = delivery_count.wrapping_add(link_credit);
        let credit = limit.wrapping_sub(self.delivered);
        self.credit = if credit > i32::MAX as u32 { 0 } else { credit };
    }

    /// Gives up the remaining credit; returns the delivery count that says so, and how much it was.
    pub(super) fn drain(&mut self) -> (u32, u32) {
        let unused = std::mem::take(&mut self.credit);
        self.delivered = self.delivered.wrapping_add(unused);
        self.draining = false;
        (self.delivered, unused)
    }
}

#[derive(Debug, Default)]
pub(super) struct Receivers {
    links: HashMap<LinkId, Receiver>,
    /// Links with credit, in turn. Some may be satisfied by now; they are dropped when their turn comes.
    turns: VecDeque<LinkId>,
}

impl Receivers {
    pub(super) fn insert(&mut self, link: LinkId, receiver: Receiver) {
        self.links.insert(link, receiver);
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Receiver> {
        let receiver = self.links.remove(&link)?;
        if receiver.queued {
            self.turns.retain(|other| *other != link);
        }
        Some(receiver)
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Receiver> {
        self.links.get(&link)
    }

    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut Receiver> {
        self.links.get_mut(&link)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// One delivery of this link was settled, wherever from; the link may want another.
    pub(super) fn settled(&mut self, link: LinkId) {
        let Some(receiver) = self.links.get_mut(&link) else { return };
        receiver.unsettled = receiver.unsettled.saturating_sub(1);
        if receiver.slot.is_none() && receiver.credit > 0 && !receiver.queued {
            receiver.queued = true;
            self.turns.push_back(link);
        }
    }

    /// Gives a link its place in the round if it wants something.
    pub(super) fn queue(&mut self, link: LinkId, max_unsettled: u32) {
        if let Some(receiver) = self.links.get_mut(&link)
            && receiver.wants(max_unsettled)
            && !receiver.queued
        {
            receiver.queued = true;
            self.turns.push_back(link);
        }
    }

    /// The link whose turn it is. It keeps its place until [`next`](Self::next).
    pub(super) fn front(&mut self, max_unsettled: u32) -> Option<LinkId> {
        while let Some(link) = self.turns.front().copied() {
            match self.links.get_mut(&link) {
                Some(receiver) if receiver.wants(max_unsettled) => return Some(link),
                Some(receiver) => receiver.queued = false,
                None => debug_assert!(false, "a link that is gone has no turn"),
            }
            self.turns.pop_front();
        }
        None
    }

    /// Takes the link whose turn it is out of the round.
    pub(super) fn pass_over(&mut self) {
        if let Some(receiver) = self.turns.pop_front().and_then(|link| self.links.get_mut(&link)) {
            receiver.queued = false;
        }
    }

    /// Passes the turn on.
    pub(super) fn next(&mut self) {
        if let Some(link) = self.turns.pop_front() {
            self.turns.push_back(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_credit(links: &[(u64, u32)]) -> Receivers {
        let mut receivers = Receivers::default();
        for (link, credit) in links {
            let mut receiver = Receiver::new(Mode::PeekLock, None);
            receiver.grant(0, *credit);
            receivers.insert(LinkId(*link), receiver);
            receivers.queue(LinkId(*link), 100);
        }
        receivers
    }

    fn serve(receivers: &mut Receivers, max_unsettled: u32) -> Option<u64> {
        let link = receivers.front(max_unsettled)?;
        receivers.get_mut(link).unwrap().count_delivery();
        receivers.next();
        Some(link.0)
    }

    #[test]
    fn links_with_credit_take_turns() {
        let mut receivers = with_credit(&[(1, 3), (2, 1), (3, 0)]);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut receivers, 100)).collect();
        assert_eq!(served, [1, 2, 1, 1]);
    }

    #[test]
    fn credit_counts_deliveries_the_peer_has_not_seen_yet() {
        let mut receivers = with_credit(&[(1, 5)]);
        serve(&mut receivers, 100);
        serve(&mut receivers, 100);
        let receiver = receivers.get_mut(LinkId(1)).unwrap();
        // The peer had seen none of the two when it granted five.
        receiver.grant(0, 5);
        assert_eq!(receiver.credit, 3);
        receiver.grant(0, 1);
        assert_eq!(receiver.credit, 0);
        receiver.grant(2, 4);
        assert_eq!((receiver.drain(), receiver.credit), ((6, 4), 0));
    }

    #[test]
    fn a_link_that_settles_nothing_is_not_fed_for_ever() {
        let mut receivers = with_credit(&[(1, 50)]);
        let served = std::iter::from_fn(|| serve(&mut receivers, 4)).count();
        assert_eq!(served, 4);
        receivers.settled(LinkId(1));
        assert_eq!(std::iter::from_fn(|| serve(&mut receivers, 4)).count(), 1);
    }
}
