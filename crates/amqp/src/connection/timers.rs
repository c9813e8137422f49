//! Sends heartbeats and detects idle peers.

use std::time::{Duration, Instant};

use super::{Config, Connection, ConnectionPhase};
use crate::condition;
use crate::frame::write_empty_frame;
use crate::performative::Error;

/// The shortest heartbeat interval, whatever the peer announces.
const FASTEST_HEARTBEAT: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct ConnectionTimers {
    /// The latest time passed in.
    clock: Instant,
    last_received: Instant,
    last_sent: Instant,
    /// Set until the peer's open has arrived.
    handshake_deadline: Option<Instant>,
    idle_limit: Option<Duration>,
    heartbeat: Option<Duration>,
}

impl ConnectionTimers {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            clock: now,
            last_received: now,
            last_sent: now,
            handshake_deadline: Some(now + config.handshake_time_out),
            idle_limit: config.idle_time_out,
            heartbeat: None,
        }
    }

    pub(super) fn record_received(&mut self, now: Instant) {
        self.clock = self.clock.max(now);
        self.last_received = self.clock;
    }

    /// The clock may lag here, which only makes a heartbeat early.
    pub(super) fn record_sent(&mut self) {
        self.last_sent = self.clock;
    }

    /// The peer's open has arrived. Heartbeats are sent well within half of its idle timeout; 0 means no timeout.
    pub(super) fn record_open(&mut self, peer_idle_time_out: Option<u32>) {
        self.handshake_deadline = None;
        self.heartbeat = peer_idle_time_out
            .filter(|&milliseconds| milliseconds > 0)
            .map(|milliseconds| (Duration::from_millis(milliseconds.into()) * 2 / 5).max(FASTEST_HEARTBEAT));
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let idle_limit = self.idle_limit.map(|limit| self.last_received + limit);
        let heartbeat = self.heartbeat.map(|interval| self.last_sent + interval);
        [self.handshake_deadline, idle_limit, heartbeat].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.idle_limit.is_some_and(|limit| self.clock >= self.last_received + limit)
    }

    fn is_handshake_overdue(&self) -> bool {
        self.handshake_deadline.is_some_and(|deadline| self.clock >= deadline)
    }

    fn is_heartbeat_due(&self) -> bool {
        self.heartbeat.is_some_and(|interval| self.clock >= self.last_sent + interval)
    }
}

impl Connection {
    pub(super) fn tick(&mut self, now: Instant) {
        self.timers.clock = self.timers.clock.max(now);
        if self.timers.is_handshake_overdue() {
            return self.fail(Error::new(condition::CONNECTION_FORCED, "no open arrived in time"));
        }
        if self.timers.is_idle() {
            return self.fail(Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "nothing arrived for the idle time-out"));
        }
        if self.timers.is_heartbeat_due() {
            // Waiting output also counts as a heartbeat.
            if self.output.len() == 0 && self.phase == ConnectionPhase::Frames {
                write_empty_frame(self.output.frame_buffer());
            }
            self.timers.record_sent();
        }
    }
}
