//! The bytes of one direction in flight: first in, first out, each due a delay after its arrival.
//!
//! Bounded. When the queue is full its owner stops reading, so that TCP back-pressure reaches the sender as it would
//! without a proxy. Pure: the time is an argument.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Enough that a delay does not throttle: a quarter of a second's delay still carries 1 MiB/s.
pub(super) const CAPACITY: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct DelayQueue {
    chunks: VecDeque<QueuedChunk>,
    length: usize,
    ended: Option<Instant>,
}

struct QueuedChunk {
    arrived: Instant,
    bytes: Vec<u8>,
    delivered: usize,
}

/// The next delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextBytes<'a> {
    Bytes(&'a [u8]),
    /// The sender has closed its side.
    End,
}

impl DelayQueue {
    /// How many more bytes fit.
    pub(super) fn free_bytes(&self) -> usize {
        if self.ended.is_some() { 0 } else { CAPACITY - self.length }
    }

    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        self.length += bytes.len();
        self.chunks.push_back(QueuedChunk { arrived: now, bytes: bytes.to_vec(), delivered: 0 });
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The next delivery and when it is due. The delay is an argument here and not of [`Self::push`], so that lifting it
    /// also releases queued bytes.
    pub(super) fn next(&self, delay: Duration) -> Option<(Instant, NextBytes<'_>)> {
        match self.chunks.front() {
            Some(chunk) => Some((chunk.arrived + delay, NextBytes::Bytes(&chunk.bytes[chunk.delivered..]))),
            None => self.ended.map(|ended| (ended + delay, NextBytes::End)),
        }
    }

    /// Removes `count` bytes from the front chunk.
    pub(super) fn advance(&mut self, count: usize) {
        let front = self.chunks.front_mut().expect("only bytes returned by next() are removed");
        front.delivered += count;
        self.length -= count;
        if front.delivered == front.bytes.len() {
            self.chunks.pop_front();
        }
    }

    /// Discards all queued bytes; returns how many.
    pub(super) fn discard_all(&mut self) -> usize {
        self.chunks.clear();
        std::mem::take(&mut self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(1);

    #[test]
    fn bytes_are_due_in_order_each_a_delay_after_its_arrival() {
        let (mut queue, start) = (DelayQueue::default(), Instant::now());
        queue.push(b"one", start);
        queue.push(b"two", start + LATE / 2);
        assert_eq!(queue.next(LATE), Some((start + LATE, NextBytes::Bytes(b"one"))));
        queue.advance(2);
        assert_eq!(queue.next(LATE), Some((start + LATE, NextBytes::Bytes(b"e"))));
        queue.advance(1);
        assert_eq!(queue.next(LATE), Some((start + LATE * 3 / 2, NextBytes::Bytes(b"two"))));
    }

    #[test]
    fn lifting_the_delay_releases_queued_bytes() {
        let (mut queue, start) = (DelayQueue::default(), Instant::now());
        queue.push(b"late", start);
        assert_eq!(queue.next(Duration::ZERO), Some((start, NextBytes::Bytes(b"late"))));
    }

    #[test]
    fn the_end_is_delayed_like_the_last_byte() {
        let (mut queue, start) = (DelayQueue::default(), Instant::now());
        queue.push(b"x", start);
        queue.end(start);
        assert_eq!(queue.next(LATE), Some((start + LATE, NextBytes::Bytes(b"x"))));
        queue.advance(1);
        assert_eq!(queue.next(LATE), Some((start + LATE, NextBytes::End)));
        assert_eq!(queue.free_bytes(), 0);
    }

    #[test]
    fn a_full_queue_has_no_space_until_bytes_leave() {
        let (mut queue, start) = (DelayQueue::default(), Instant::now());
        queue.push(&vec![0; CAPACITY], start);
        assert_eq!(queue.free_bytes(), 0);
        queue.advance(10);
        assert_eq!(queue.free_bytes(), 10);
        assert_eq!(queue.discard_all(), CAPACITY - 10);
        assert_eq!(queue.free_bytes(), CAPACITY);
        assert_eq!(queue.next(LATE), None);
    }
}
