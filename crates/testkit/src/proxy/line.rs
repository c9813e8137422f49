//! The bytes of one direction that are on their way: first in, first out, each due a delay after it arrived.
//!
//! Bounded. When the line is full its owner stops reading, so a slow receiver is felt by the sender through TCP, as it
//! would be without a proxy. Pure: the time is an argument.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Enough that a delay does not throttle: a quarter of a second's delay still carries 1 MiB/s.
pub(super) const CAPACITY: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct Line {
    chunks: VecDeque<Chunk>,
    length: usize,
    ended: Option<Instant>,
}

struct Chunk {
    arrived: Instant,
    bytes: Vec<u8>,
    delivered: usize,
}

/// What is to be delivered next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Bytes(&'a [u8]),
    /// The sender has closed its side.
    End,
}

impl Line {
    /// How many bytes may still be pushed.
    pub(super) fn room(&self) -> usize {
        if self.ended.is_some() { 0 } else { CAPACITY - self.length }
    }

    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        self.length += bytes.len();
        self.chunks.push_back(Chunk { arrived: now, bytes: bytes.to_vec(), delivered: 0 });
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// What comes next, and when it is due. The delay is asked for here and not on arrival, so that lifting it frees
    /// what is already on its way.
    pub(super) fn next(&self, delay: Duration) -> Option<(Instant, Next<'_>)> {
        match self.chunks.front() {
            Some(chunk) => Some((chunk.arrived + delay, Next::Bytes(&chunk.bytes[chunk.delivered..]))),
            None => self.ended.map(|ended| (ended + delay, Next::End)),
        }
    }

    /// Takes `count` bytes of the front chunk off the line.
    pub(super) fn advance(&mut self, count: usize) {
        let front = self.chunks.front_mut().expect("only bytes given out by next() are taken off");
        front.delivered += count;
        self.length -= count;
        if front.delivered == front.bytes.len() {
            self.chunks.pop_front();
        }
    }

    /// Throws away all bytes on their way; says how many.
    pub(super) fn spill(&mut self) -> usize {
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
        let (mut line, start) = (Line::default(), Instant::now());
        line.push(b"one", start);
        line.push(b"two", start + LATE / 2);
        assert_eq!(line.next(LATE), Some((start + LATE, Next::Bytes(b"one"))));
        line.advance(2);
        assert_eq!(line.next(LATE), Some((start + LATE, Next::Bytes(b"e"))));
        line.advance(1);
        assert_eq!(line.next(LATE), Some((start + LATE * 3 / 2, Next::Bytes(b"two"))));
    }

    #[test]
    fn lifting_the_delay_frees_what_is_on_its_way() {
        let (mut line, start) = (Line::default(), Instant::now());
        line.push(b"late", start);
        assert_eq!(line.next(Duration::ZERO), Some((start, Next::Bytes(b"late"))));
    }

    #[test]
    fn the_end_comes_after_the_last_byte_and_is_as_late_as_a_byte() {
        let (mut line, start) = (Line::default(), Instant::now());
        line.push(b"x", start);
        line.end(start);
        assert_eq!(line.next(LATE), Some((start + LATE, Next::Bytes(b"x"))));
        line.advance(1);
        assert_eq!(line.next(LATE), Some((start + LATE, Next::End)));
        assert_eq!(line.room(), 0);
    }

    #[test]
    fn a_full_line_has_no_room_until_bytes_leave() {
        let (mut line, start) = (Line::default(), Instant::now());
        line.push(&vec![0; CAPACITY], start);
        assert_eq!(line.room(), 0);
        line.advance(10);
        assert_eq!(line.room(), 10);
        assert_eq!(line.spill(), CAPACITY - 10);
        assert_eq!(line.room(), CAPACITY);
        assert_eq!(line.next(LATE), None);
    }
}
