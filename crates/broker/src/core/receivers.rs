//! The receiver links of one queue: their credit and their round-robin order.

use std::collections::{HashMap, VecDeque};

use super::id::CoreLinkId;
use super::sessions::TableSlot;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveMode {
    PeekLock,
    ReceiveAndDelete,
}

#[derive(Debug)]
pub(super) struct QueueReceiver {
    pub(super) mode: ReceiveMode,
    /// The session it holds.
    pub(super) slot: Option<TableSlot>,
    /// AMQP delivery-count: messages delivered plus credit drained.
    delivered: u32,
    credit: u32,
    unsettled: u32,
    queued: bool,
    /// The peer asked to drain: use its credit now or give it up.
    pub(super) draining: bool,
}

impl QueueReceiver {
    pub(super) fn new(mode: ReceiveMode, slot: Option<TableSlot>) -> Self {
        Self { mode, slot, delivered: 0, credit: 0, unsettled: 0, queued: false, draining: false }
    }

    pub(super) fn can_take_more(&self, max_unsettled: u32) -> bool {
        self.credit > 0 && self.unsettled < max_unsettled
    }

    pub(super) fn count_delivery(&mut self) {
        self.delivered = self.delivered.wrapping_add(1);
        self.credit -= 1;
        // Receive-and-delete deliveries are settled at once.
        self.unsettled += u32::from(self.mode == ReceiveMode::PeekLock);
    }

    /// Sets the credit from an AMQP flow: `link_credit` beyond the `delivery_count` the peer had seen. Deliveries still
    /// in flight to the peer are thereby counted once.
    pub(super) fn set_credit(&mut self, delivery_count: u32, link_credit: u32) {
        let limit = delivery_count.wrapping_add(link_credit);
        let credit = limit.wrapping_sub(self.delivered);
        // Serial-number arithmetic: a negative credit means that the peer granted less than was already delivered.
        self.credit = if credit > i32::MAX as u32 { 0 } else { credit };
    }

    /// Gives up the remaining credit; returns the new delivery count and how much credit was unused.
    pub(super) fn drain(&mut self) -> (u32, u32) {
        let unused = std::mem::take(&mut self.credit);
        // AMQP: draining advances delivery-count as if the credit were used.
        self.delivered = self.delivered.wrapping_add(unused);
        self.draining = false;
        (self.delivered, unused)
    }
}

#[derive(Debug, Default)]
pub(super) struct QueueReceivers {
    links: HashMap<CoreLinkId, QueueReceiver>,
    /// Links with credit, in round-robin order. Links that no longer need messages are removed when they reach the
    /// front.
    round_robin: VecDeque<CoreLinkId>,
}

impl QueueReceivers {
    pub(super) fn insert(&mut self, link: CoreLinkId, receiver: QueueReceiver) {
        self.links.insert(link, receiver);
    }

    pub(super) fn remove(&mut self, link: CoreLinkId) -> Option<QueueReceiver> {
        let receiver = self.links.remove(&link)?;
        if receiver.queued {
            self.round_robin.retain(|other| *other != link);
        }
        Some(receiver)
    }

    pub(super) fn get(&self, link: CoreLinkId) -> Option<&QueueReceiver> {
        self.links.get(&link)
    }

    pub(super) fn get_mut(&mut self, link: CoreLinkId) -> Option<&mut QueueReceiver> {
        self.links.get_mut(&link)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = CoreLinkId> + '_ {
        self.links.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// One delivery of this link is settled; the link may take another.
    pub(super) fn record_settled(&mut self, link: CoreLinkId) {
        let Some(receiver) = self.links.get_mut(&link) else { return };
        receiver.unsettled = receiver.unsettled.saturating_sub(1);
        if receiver.slot.is_none() && receiver.credit > 0 && !receiver.queued {
            receiver.queued = true;
            self.round_robin.push_back(link);
        }
    }

    /// Adds a link to the round-robin order if it can take a message.
    pub(super) fn join_round_robin(&mut self, link: CoreLinkId, max_unsettled: u32) {
        if let Some(receiver) = self.links.get_mut(&link)
            && receiver.can_take_more(max_unsettled)
            && !receiver.queued
        {
            receiver.queued = true;
            self.round_robin.push_back(link);
        }
    }

    /// The link at the front. It stays there until [`rotate`](Self::rotate).
    pub(super) fn next_receiver(&mut self, max_unsettled: u32) -> Option<CoreLinkId> {
        while let Some(link) = self.round_robin.front().copied() {
            match self.links.get_mut(&link) {
                Some(receiver) if receiver.can_take_more(max_unsettled) => return Some(link),
                Some(receiver) => receiver.queued = false,
                None => debug_assert!(false, "a link that is gone has no turn"),
            }
            self.round_robin.pop_front();
        }
        None
    }

    /// Removes the front link from the round-robin order.
    pub(super) fn skip_front(&mut self) {
        if let Some(receiver) = self.round_robin.pop_front().and_then(|link| self.links.get_mut(&link)) {
            receiver.queued = false;
        }
    }

    /// Moves the front link to the back.
    pub(super) fn rotate(&mut self) {
        if let Some(link) = self.round_robin.pop_front() {
            self.round_robin.push_back(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_credit(links: &[(u64, u32)]) -> QueueReceivers {
        let mut receivers = QueueReceivers::default();
        for (link, credit) in links {
            let mut receiver = QueueReceiver::new(ReceiveMode::PeekLock, None);
            receiver.set_credit(0, *credit);
            receivers.insert(CoreLinkId(*link), receiver);
            receivers.join_round_robin(CoreLinkId(*link), 100);
        }
        receivers
    }

    fn serve(receivers: &mut QueueReceivers, max_unsettled: u32) -> Option<u64> {
        let link = receivers.next_receiver(max_unsettled)?;
        receivers.get_mut(link).unwrap().count_delivery();
        receivers.rotate();
        Some(link.0)
    }

    #[test]
    fn links_with_credit_are_served_round_robin() {
        let mut receivers = with_credit(&[(1, 3), (2, 1), (3, 0)]);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut receivers, 100)).collect();
        assert_eq!(served, [1, 2, 1, 1]);
    }

    #[test]
    fn credit_counts_deliveries_the_peer_has_not_seen_yet() {
        let mut receivers = with_credit(&[(1, 5)]);
        serve(&mut receivers, 100);
        serve(&mut receivers, 100);
        let receiver = receivers.get_mut(CoreLinkId(1)).unwrap();
        // The peer had seen neither of the two deliveries when it granted five.
        receiver.set_credit(0, 5);
        assert_eq!(receiver.credit, 3);
        receiver.set_credit(0, 1);
        assert_eq!(receiver.credit, 0);
        receiver.set_credit(2, 4);
        assert_eq!((receiver.drain(), receiver.credit), ((6, 4), 0));
    }

    #[test]
    fn a_link_that_settles_nothing_stops_receiving() {
        let mut receivers = with_credit(&[(1, 50)]);
        let served = std::iter::from_fn(|| serve(&mut receivers, 4)).count();
        assert_eq!(served, 4);
        receivers.record_settled(CoreLinkId(1));
        assert_eq!(std::iter::from_fn(|| serve(&mut receivers, 4)).count(), 1);
    }
}
