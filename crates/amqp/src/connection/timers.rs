//! Heartbeats out, silence in.

use std::time::{Duration, Instant};

use super::{Config, Connection, Phase};
use crate::condition;
use crate::frame::write_empty_frame;
use crate::performative::Error;

/// No peer makes us send heartbeats faster than this, whatever it announces.
const FASTEST_HEARTBEAT: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Timers {
    /// The latest time we were told.
    clock: Instant,
    last_received: Instant,
    last_sent: Instant,
    /// Set until the peer's open has arrived.
    handshake: Option<Instant>,
    silence: Option<Duration>,
    heartbeat: Option<Duration>,
}

impl Timers {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            clock: now,
            last_received: now,
            last_sent: now,
            handshake: Some(now + config.handshake_time_out),
            silence: config.idle_time_out,
            heartbeat: None,
        }
    }

    pub(super) fn received(&mut self, now: Instant) {
        self.clock = self.clock.max(now);
        self.last_received = self.clock;
    }

    /// The clock may lag behind here, which only makes a heartbeat early.
    pub(super) fn sent(&mut self) {
        self.last_sent = self.clock;
    }

    /// The peer's open has arrived. Heartbeats come well inside half of the time it gives us; 0 means it never minds.
    pub(super) fn opened(&mut self, peer_idle_time_out: Option<u32>) {
        self.handshake = None;
        self.heartbeat = peer_idle_time_out
            .filter(|&milliseconds| milliseconds > 0)
            .map(|milliseconds| (Duration::from_millis(milliseconds.into()) * 2 / 5).max(FASTEST_HEARTBEAT));
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let silence = self.silence.map(|limit| self.last_received + limit);
        let heartbeat = self.heartbeat.map(|interval| self.last_sent + interval);
        [self.handshake, silence, heartbeat].into_iter().flatten().min()
    }

    fn silent(&self) -> bool {
        self.silence.is_some_and(|limit| self.clock >= self.last_received + limit)
    }

    fn handshake_late(&self) -> bool {
        self.handshake.is_some_and(|deadline| self.clock >= deadline)
    }

    fn heartbeat_due(&self) -> bool {
        self.heartbeat.is_some_and(|interval| self.clock >= self.last_sent + interval)
    }
}

impl Connection {
    pub(super) fn tick(&mut self, now: Instant) {
        self.timers.clock = self.timers.clock.max(now);
        if self.timers.handshake_late() {
            return self.fail(Error::new(condition::CONNECTION_FORCED, "no open arrived in time"));
        }
        if self.timers.silent() {
            return self.fail(Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "nothing arrived for the idle time-out"));
        }
        if self.timers.heartbeat_due() {
            // Output that still waits will do as a sign of life.
            if self.output.len() == 0 && self.phase == Phase::Frames {
                write_empty_frame(self.output.frames());
            }
            self.timers.sent();
        }
    }
}
