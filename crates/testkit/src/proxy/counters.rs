//! Byte and connection counters. A test uses them to prove that its fault took effect.

use std::{
    iter::Sum,
    ops::Add,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Direction;

/// A snapshot of one connection or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections that are still open.
    pub open: u64,
    /// Connections closed by a cut. (Refused connections never reach the proxy and are not counted.)
    pub cut: u64,
    /// Connections closed by a reset.
    pub reset: u64,
    pub to_target: ProxyTraffic,
    pub to_client: ProxyTraffic,
}

/// Bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyTraffic {
    /// Bytes read from the sender.
    pub received: u64,
    /// Bytes written to the receiver.
    pub delivered: u64,
    /// Delivered bytes that were delayed.
    pub delayed: u64,
    /// Bytes lost in a black hole.
    pub dropped: u64,
    /// How often a freeze held data. Not bytes: a frozen direction is not read.
    pub withheld: u64,
}

impl Add for ProxyCounters {
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

impl Sum for ProxyCounters {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl Add for ProxyTraffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            delivered: self.delivered + other.delivered,
            delayed: self.delayed + other.delayed,
            dropped: self.dropped + other.dropped,
            withheld: self.withheld + other.withheld,
        }
    }
}

/// The live counters of one direction of one connection. Only its pump writes them.
#[derive(Debug, Default)]
pub(super) struct TrafficMeter {
    pub(super) received: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) delayed: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) withheld: AtomicU64,
}

impl TrafficMeter {
    pub(super) fn read(&self) -> ProxyTraffic {
        ProxyTraffic {
            received: self.received.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            delayed: self.delayed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            withheld: self.withheld.load(Relaxed),
        }
    }
}

/// The two meters of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionMeters {
    to_target: TrafficMeter,
    to_client: TrafficMeter,
}

impl ConnectionMeters {
    pub(super) fn of(&self, direction: Direction) -> &TrafficMeter {
        match direction {
            Direction::ToTarget => &self.to_target,
            Direction::ToClient => &self.to_client,
        }
    }
}
