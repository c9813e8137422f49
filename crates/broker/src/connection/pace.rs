//! How much a peer can make the broker hold: deliveries it has granted credit for and does not take, messages it has half
//! sent, requests whose answers it does not fetch.
//!
//! Credit is the peer's word and may be any number. The core is told only of as much as one link should have under way, and of more when
//! that has been written to the socket. What all links of a connection, and all connections, have under way together is bounded by the
//! core itself (`core::outgoing`), which is told here what was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use super::links::Receiver;
use crate::engine::EngineRequest;

/// Bytes of deliveries that one link has under way: enough to keep the engine and the socket busy.
const PORTION: usize = 1 << 20;
/// The same in deliveries. At least a few, however large they are; never so many that a change in their size matters.
const FEWEST: u32 = 2;
const MOST: u32 = 1_000;
/// A link begins as if its messages were this large.
const UNKNOWN_SIZE: usize = 64 << 10;
/// Bytes that may wait for a peer's session windows before it is sent nothing more.
const MUCH_BACKLOG: usize = 256 << 10;

/// Bytes written that the core is told of together. Much less than what every connection may have under way, so that none waits for good.
const WORTH_TELLING: usize = 64 << 10;

/// What one receiver was promised, in deliveries as the core counts them.
#[derive(Debug)]
pub(super) struct Pace {
    /// Deliveries that came from the core, and credit drained.
    seen: u32,
    /// As far as the core may go.
    until: u32,
    /// The size of a delivery, rather too large than too small.
    size: usize,
    thirsty: bool,
    /// The peer wants its credit used at once or given back, and was not answered yet.
    pub(super) draining: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { seen: 0, until: 0, size: UNKNOWN_SIZE, thirsty: false, draining: false }
    }
}

impl Pace {
    fn portion(&self) -> u32 {
        u32::try_from(PORTION / self.size.max(1)).unwrap_or(MOST).clamp(FEWEST, MOST)
    }

    /// What the core is told of the peer's credit: where counting begins, and how many.
    pub(super) fn promise(&mut self, credit: u32) -> (u32, u32) {
        let credit = credit.min(self.portion());
        self.until = self.seen.wrapping_add(credit);
        (self.seen, credit)
    }

    /// A delivery has come, whether or not it could be passed on.
    pub(super) fn came(&mut self, size: usize) {
        self.seen = self.seen.wrapping_add(1);
        self.size = size.max(self.size - self.size / 8);
    }

    /// The core has counted so far, deliveries and credit it gave up. If it gave up none, what it was promised since still stands.
    pub(super) fn drained(&mut self, delivery_count: u32, unused: u32) {
        self.seen = delivery_count;
        if unused > 0 {
            self.until = delivery_count;
        }
    }

    /// Is there credit beyond what was promised, and most of that used?
    fn wants_more(&self, credit: u32) -> bool {
        let left = self.until.wrapping_sub(self.seen);
        let left = if left > i32::MAX as u32 { 0 } else { left };
        credit > left && left <= self.portion() / 2
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Is the core to be told of more credit, once there is room?
    pub(super) fn note_thirst(&mut self, link: amqp::LinkId) {
        let credit = self.amqp.credit(link);
        let Some(Receiver { pace, .. }) = self.links.receiver(link) else { return };
        if !pace.thirsty && pace.wants_more(credit) {
            pace.thirsty = true;
            self.thirsty.push(link);
        }
    }

    /// Tells the core of more credit where there is some, unless the peer keeps its windows shut.
    pub(super) fn quench(&mut self) {
        if self.thirsty.is_empty() || self.is_backlogged() {
            return;
        }
        for link in std::mem::take(&mut self.thirsty) {
            let credit = self.amqp.credit(link);
            let Some(Receiver { core, pace, .. }) = self.links.receiver(link) else { continue };
            pace.thirsty = false;
            if credit > 0 {
                let (delivery_count, credit) = pace.promise(credit);
                let drain = pace.draining;
                self.asked.push(EngineRequest::Flow { link: *core, delivery_count, credit, drain });
            }
        }
    }

    /// Tells the core what was written, when it is worth telling. While the peer's windows hold something up, nothing is.
    pub(super) fn report_written(&mut self) {
        if self.amqp.backlog_len() > 0 {
            return;
        }
        let written = self.under_way - self.links.waiting().min(self.under_way);
        if written >= WORTH_TELLING {
            self.under_way -= written;
            self.asked.push(EngineRequest::Written { connection: self.line.id(), bytes: written });
        }
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.amqp.backlog_len() > MUCH_BACKLOG
    }
}

/// Bytes of half-received messages in all connections together.
const ALL_HALVES: usize = 64 << 20;
/// What every connection may have, however greedy the others are: the largest message of a Standard namespace.
const OWN_HALF: usize = 256 << 10;

pub(crate) type Shared = Arc<AtomicUsize>;

/// One connection's part in a number that all share; gone with it.
#[derive(Debug)]
struct Part {
    own: usize,
    all: Shared,
}

impl Part {
    fn of(all: &Shared) -> Self {
        Self { own: 0, all: Arc::clone(all) }
    }

    fn set(&mut self, own: usize) {
        if own != self.own {
            self.all.fetch_add(own.wrapping_sub(self.own), Ordering::Relaxed);
            self.own = own;
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Links of all connections together: ten for each of the five thousand connections that the service allows. One takes about a kilobyte.
const ALL_LINKS: usize = 50_000;

/// How many links a connection has, of all that the broker takes.
#[derive(Debug)]
pub(super) struct Places(Part);

impl Places {
    pub(super) fn of(all: &Shared) -> Self {
        Self(Part::of(all))
    }

    pub(super) fn are_free(&self) -> bool {
        self.0.all.load(Ordering::Relaxed) < ALL_LINKS
    }

    pub(super) fn hold(&mut self, links: usize) {
        self.0.set(links);
    }
}

/// One connection's part in what is half received: a quarter of what is still free. So one alone may have much, and many greedy ones
/// together no more than the bound and the little that is everyone's.
#[derive(Debug)]
pub(super) struct Half(Part);

impl Half {
    pub(super) fn of(all: &Shared) -> Self {
        Self(Part::of(all))
    }

    pub(super) fn allowance(&self) -> usize {
        let free = ALL_HALVES.saturating_sub(self.0.all.load(Ordering::Relaxed));
        (free / 4).max(OWN_HALF)
    }

    pub(super) fn hold(&mut self, bytes: usize) {
        self.0.set(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_promised_a_portion_and_more_when_most_of_it_has_come() {
        let mut pace = Pace::default();
        assert_eq!(pace.promise(u32::MAX), (0, 16));
        for seen in 1..=16 {
            pace.came(1024);
            assert_eq!(pace.wants_more(u32::MAX - seen), seen > 3, "{seen}: the portion grows as messages prove small");
        }
        let (from, credit) = pace.promise(u32::MAX - 16);
        assert!(from == 16 && (100..=MOST).contains(&credit), "{credit}");
    }

    #[test]
    fn large_messages_come_few_at_a_time() {
        let mut pace = Pace::default();
        pace.promise(100);
        pace.came(1 << 20);
        assert_eq!(pace.promise(99), (1, FEWEST));
        assert!(!pace.wants_more(99), "just promised");
    }

    #[test]
    fn credit_that_is_all_promised_is_not_promised_twice() {
        let mut pace = Pace::default();
        assert_eq!(pace.promise(10), (0, 10));
        pace.came(100);
        assert!(!pace.wants_more(9));
        pace.drained(10, 9);
        assert_eq!(pace.promise(3), (10, 3));
    }

    #[test]
    fn a_drain_that_used_its_portion_leaves_what_was_promised_since() {
        let mut pace = Pace::default();
        assert_eq!(pace.promise(100), (0, 16));
        (0..16).for_each(|_| pace.came(100));
        pace.promise(84);
        pace.drained(16, 0);
        assert!(!pace.wants_more(84), "already promised");
    }

    #[test]
    fn many_greedy_connections_leave_room_for_a_modest_one() {
        let all = Shared::default();
        let mut greedy: Vec<_> = (0..100).map(|_| Half::of(&all)).collect();
        for half in &mut greedy {
            half.hold(half.allowance());
        }
        let held = all.load(Ordering::Relaxed);
        assert!((ALL_HALVES / 2..=ALL_HALVES + 100 * OWN_HALF).contains(&held), "{held}");
        assert!(Half::of(&all).allowance() >= OWN_HALF);
        drop(greedy);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn links_are_counted_for_all_connections_and_given_back() {
        let all = Shared::default();
        let (mut many, mut few) = (Places::of(&all), Places::of(&all));
        few.hold(1);
        many.hold(ALL_LINKS - 1);
        assert!(!few.are_free());
        many.hold(10);
        assert!(few.are_free());
        drop((many, few));
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
