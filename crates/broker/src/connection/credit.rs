//! Bounds on what a peer can make the broker hold: deliveries it has granted credit for and does not read, messages it has
//! sent only in part, responses it does not fetch.
//!
//! A peer may grant any credit. This module passes on to the core only as much as one link should have in flight, and more after that has been
//! written to the socket. The core itself (`core::outgoing`) bounds what all links of a connection, and all connections, have in flight
//! together; this module reports to it what was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};

use super::BrokerConnection;
use super::links::ReceiverLink;
use crate::engine::EngineRequest;

/// Bytes of deliveries that one link has in flight: enough to keep the engine and the socket busy.
const LINK_WINDOW_BYTES: usize = 1 << 20;
/// The window in deliveries. At least a few, however large they are; never so many that a change in their size matters.
const MIN_WINDOW: u32 = 2;
const MAX_WINDOW: u32 = 1_000;
/// The assumed message size of a new link.
const INITIAL_MESSAGE_SIZE: usize = 64 << 10;
/// Bytes that may wait for a peer's session windows before it is sent nothing more.
const MAX_BACKLOG: usize = 256 << 10;

/// Written bytes are reported to the core in steps of this size. Much less than what every connection may have in flight, so that
/// a report is never too late.
const REPORT_THRESHOLD: usize = 64 << 10;

/// How much of a receiver's credit the core may use, counted in deliveries as the core counts them.
#[derive(Debug)]
pub(super) struct CoreCredit {
    /// Deliveries that came from the core, and credit drained.
    delivered: u32,
    /// The delivery count up to which the core may deliver.
    granted_until: u32,
    /// Estimated size of a delivery, rather too large than too small.
    message_size: usize,
    /// True while the link is listed in `links_needing_credit`.
    needs_credit: bool,
    /// The peer has sent a drain that is not answered yet.
    pub(super) draining: bool,
}

impl Default for CoreCredit {
    fn default() -> Self {
        Self {
            delivered: 0,
            granted_until: 0,
            message_size: INITIAL_MESSAGE_SIZE,
            needs_credit: false,
            draining: false,
        }
    }
}

impl CoreCredit {
    fn window(&self) -> u32 {
        u32::try_from(LINK_WINDOW_BYTES / self.message_size.max(1)).unwrap_or(MAX_WINDOW).clamp(MIN_WINDOW, MAX_WINDOW)
    }

    /// Grants the core up to one window of the peer's credit. Returns the delivery count and the credit to tell the core.
    pub(super) fn grant(&mut self, credit: u32) -> (u32, u32) {
        let credit = credit.min(self.window());
        self.granted_until = self.delivered.wrapping_add(credit);
        (self.delivered, credit)
    }

    /// Counts a delivery from the core, whether or not it could be sent.
    pub(super) fn record_delivery(&mut self, size: usize) {
        self.delivered = self.delivered.wrapping_add(1);
        self.message_size = size.max(self.message_size - self.message_size / 8);
    }

    /// Records the core's reply to a drain. If the core gave up no credit, grants made since then still stand.
    pub(super) fn record_drain(&mut self, delivery_count: u32, unused: u32) {
        self.delivered = delivery_count;
        if unused > 0 {
            self.granted_until = delivery_count;
        }
    }

    /// True if the peer's credit exceeds what is granted, and most of the grant is used.
    fn needs_more(&self, credit: u32) -> bool {
        let left = self.granted_until.wrapping_sub(self.delivered);
        // Counts wrap at 32 bits: a distance above `i32::MAX` means that more came than is granted.
        let left = if left > i32::MAX as u32 { 0 } else { left };
        credit > left && left <= self.window() / 2
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> BrokerConnection<S> {
    /// Lists the link for the next `grant_credit`, if the core should get more credit.
    pub(super) fn mark_if_credit_needed(&mut self, link: amqp::LinkId) {
        let peer_credit = self.amqp.credit(link);
        let Some(ReceiverLink { credit, .. }) = self.links.receiver(link) else { return };
        if !credit.needs_credit && credit.needs_more(peer_credit) {
            credit.needs_credit = true;
            self.links_needing_credit.push(link);
        }
    }

    /// Tells the core of more credit for the listed links, unless the peer keeps its session windows closed.
    pub(super) fn grant_credit(&mut self) {
        if self.links_needing_credit.is_empty() || self.is_backlogged() {
            return;
        }
        for link in std::mem::take(&mut self.links_needing_credit) {
            let peer_credit = self.amqp.credit(link);
            let Some(ReceiverLink { core_id, credit, .. }) = self.links.receiver(link) else { continue };
            credit.needs_credit = false;
            if peer_credit > 0 {
                let drain = credit.draining;
                let (delivery_count, credit) = credit.grant(peer_credit);
                self.pending.push(EngineRequest::Flow { link: *core_id, delivery_count, credit, drain });
            }
        }
    }

    /// Reports written bytes to the core, above a threshold. While the peer's session windows hold frames back, nothing counts as written.
    pub(super) fn report_written(&mut self) {
        if self.amqp.backlog_len() > 0 {
            return;
        }
        let written = self.unwritten_bytes - self.links.unsent_response_bytes().min(self.unwritten_bytes);
        if written >= REPORT_THRESHOLD {
            self.unwritten_bytes -= written;
            self.pending.push(EngineRequest::Written { connection: self.line.id(), bytes: written });
        }
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.amqp.backlog_len() > MAX_BACKLOG
    }
}

/// Bytes of partly received messages in all connections together.
const MAX_PARTIAL_BYTES: usize = 64 << 20;
/// Guaranteed to every connection, whatever the others use: the largest message of a Standard namespace.
const MIN_PARTIAL_BYTES: usize = 256 << 10;

pub(crate) type SharedCounter = Arc<AtomicUsize>;

/// One connection's contribution to a shared counter; subtracted on drop.
#[derive(Debug)]
struct CounterShare {
    own: usize,
    total: SharedCounter,
}

impl CounterShare {
    fn new(total: &SharedCounter) -> Self {
        Self { own: 0, total: Arc::clone(total) }
    }

    fn set(&mut self, own: usize) {
        if own != self.own {
            // Wrapping: adds a negative difference too.
            self.total.fetch_add(own.wrapping_sub(self.own), Ordering::Relaxed);
            self.own = own;
        }
    }
}

impl Drop for CounterShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Links of all connections together: ten for each of the 5,000 connections that the service allows. A link takes about one kilobyte.
const MAX_LINKS: usize = 50_000;

/// Bounds the number of links of all connections together.
#[derive(Debug)]
pub(super) struct LinkBudget(CounterShare);

impl LinkBudget {
    pub(super) fn new(total: &SharedCounter) -> Self {
        Self(CounterShare::new(total))
    }

    pub(super) fn has_room(&self) -> bool {
        self.0.total.load(Ordering::Relaxed) < MAX_LINKS
    }

    pub(super) fn set(&mut self, links: usize) {
        self.0.set(links);
    }
}

/// Bounds the bytes of partly received messages. A connection may use a quarter of what is free: so one alone may use much, and many
/// together use no more than the bound plus the guaranteed minimum of each.
#[derive(Debug)]
pub(super) struct PartialDeliveryBudget(CounterShare);

impl PartialDeliveryBudget {
    pub(super) fn new(total: &SharedCounter) -> Self {
        Self(CounterShare::new(total))
    }

    pub(super) fn allowance(&self) -> usize {
        let free = MAX_PARTIAL_BYTES.saturating_sub(self.0.total.load(Ordering::Relaxed));
        (free / 4).max(MIN_PARTIAL_BYTES)
    }

    pub(super) fn set(&mut self, bytes: usize) {
        self.0.set(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_gets_a_window_and_more_when_most_of_it_is_used() {
        let mut credit = CoreCredit::default();
        assert_eq!(credit.grant(u32::MAX), (0, 16));
        for delivered in 1..=16 {
            credit.record_delivery(1024);
            assert_eq!(
                credit.needs_more(u32::MAX - delivered),
                delivered > 3,
                "{delivered}: the window grows as messages prove small"
            );
        }
        let (from, credit) = credit.grant(u32::MAX - 16);
        assert!(from == 16 && (100..=MAX_WINDOW).contains(&credit), "{credit}");
    }

    #[test]
    fn large_messages_get_a_small_window() {
        let mut credit = CoreCredit::default();
        credit.grant(100);
        credit.record_delivery(1 << 20);
        assert_eq!(credit.grant(99), (1, MIN_WINDOW));
        assert!(!credit.needs_more(99), "just granted");
    }

    #[test]
    fn credit_is_not_granted_twice() {
        let mut credit = CoreCredit::default();
        assert_eq!(credit.grant(10), (0, 10));
        credit.record_delivery(100);
        assert!(!credit.needs_more(9));
        credit.record_drain(10, 9);
        assert_eq!(credit.grant(3), (10, 3));
    }

    #[test]
    fn a_drain_that_used_its_window_keeps_later_grants() {
        let mut credit = CoreCredit::default();
        assert_eq!(credit.grant(100), (0, 16));
        (0..16).for_each(|_| credit.record_delivery(100));
        credit.grant(84);
        credit.record_drain(16, 0);
        assert!(!credit.needs_more(84), "already granted");
    }

    #[test]
    fn greedy_connections_leave_the_minimum_for_others() {
        let all = SharedCounter::default();
        let mut greedy: Vec<_> = (0..100).map(|_| PartialDeliveryBudget::new(&all)).collect();
        for budget in &mut greedy {
            budget.set(budget.allowance());
        }
        let held = all.load(Ordering::Relaxed);
        assert!((MAX_PARTIAL_BYTES / 2..=MAX_PARTIAL_BYTES + 100 * MIN_PARTIAL_BYTES).contains(&held), "{held}");
        assert!(PartialDeliveryBudget::new(&all).allowance() >= MIN_PARTIAL_BYTES);
        drop(greedy);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn links_are_counted_across_connections_until_dropped() {
        let all = SharedCounter::default();
        let (mut many, mut few) = (LinkBudget::new(&all), LinkBudget::new(&all));
        few.set(1);
        many.set(MAX_LINKS - 1);
        assert!(!few.has_room());
        many.set(10);
        assert!(few.has_room());
        drop((many, few));
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
