//! What has gone through the proxy, and what has not: by these a test knows that its fault really hit.

use std::{
    iter::Sum,
    ops::Add,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Direction;

/// A snapshot, of one connection or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections that have not ended.
    pub open: u64,
    /// Connections that a cut ended. (Those that a cut refuses never reach the proxy, and are not counted.)
    pub cut: u64,
    /// Connections that a reset ended.
    pub reset: u64,
    pub to_target: Traffic,
    pub to_client: Traffic,
}

/// Bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes taken from the sender.
    pub received: u64,
    /// Bytes handed to the receiver.
    pub delivered: u64,
    /// Of those delivered, how many were made late.
    pub delayed: u64,
    /// Bytes lost in a black hole.
    pub swallowed: u64,
    /// How many times something to be delivered met a freeze. Not bytes: a frozen direction is not read.
    pub withheld: u64,
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            open: self.open + other.open,
            cut: self.cut + other.cut,
            reset: self.reset + other.reset,
            to_target: self.to_target + other.to_target,
            to_client: self.to_client + other.to_client,
        }
    }
}

impl Sum for Counters {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            delivered: self.delivered + other.delivered,
            delayed: self.delayed + other.delayed,
            swallowed: self.swallowed + other.swallowed,
            withheld: self.withheld + other.withheld,
        }
    }
}

/// The live counts of one direction of one connection: written by its pump alone, read by anyone.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) received: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) delayed: AtomicU64,
    pub(super) swallowed: AtomicU64,
    pub(super) withheld: AtomicU64,
}

impl Meter {
    pub(super) fn read(&self) -> Traffic {
        Traffic {
            received: self.received.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            delayed: self.delayed.load(Relaxed),
            swallowed: self.swallowed.load(Relaxed),
            withheld: self.withheld.load(Relaxed),
        }
    }
}

/// The two meters of a connection.
#[derive(Debug, Default)]
pub(super) struct Meters {
    to_target: Meter,
    to_client: Meter,
}

impl Meters {
    pub(super) fn of(&self, direction: Direction) -> &Meter {
        match direction {
            Direction::ToTarget => &self.to_target,
            Direction::ToClient => &self.to_client,
        }
    }
}
