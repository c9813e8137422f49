//! Opens and closes the connection.

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::{CommandError, Connection, ConnectionEvent, ConnectionPhase};
use crate::condition;
use crate::frame::MIN_MAX_FRAME_SIZE;
use crate::performative::{Close, Error, Open};

impl Connection {
    /// Sends a close and waits for the peer's close, reported as [`ConnectionEvent::Closed`]. The owner limits the wait.
    pub fn close(&mut self, error: Option<Error>) -> Result<(), CommandError> {
        match self.phase {
            ConnectionPhase::Closed | ConnectionPhase::Closing => Err(CommandError::Closed),
            ConnectionPhase::Frames => {
                self.write_close(error);
                self.phase = ConnectionPhase::Closing;
                Ok(())
            }
            _ => {
                self.phase = ConnectionPhase::Closed;
                self.emit(ConnectionEvent::Closed { error: error.map(Box::new), by_peer: false });
                Ok(())
            }
        }
    }

    pub(super) fn on_open(&mut self, open: Box<Open>) -> HandlerResult {
        if self.peer.opened {
            return Err(ProtocolViolation::connection(condition::ILLEGAL_STATE, "second open"));
        }
        if open.max_frame_size < MIN_MAX_FRAME_SIZE {
            return Err(ProtocolViolation::connection(condition::INVALID_FIELD, "max-frame-size is below 512"));
        }
        self.peer.opened = true;
        self.peer.max_frame_size = open.max_frame_size;
        self.peer.channel_max = open.channel_max;
        self.timers.record_open(open.idle_time_out);
        if self.is_server() {
            self.write_open();
        }
        self.emit(ConnectionEvent::Opened(open));
        Ok(())
    }

    pub(super) fn on_close(&mut self, close: Close) {
        let by_peer = self.phase == ConnectionPhase::Frames;
        if by_peer {
            self.write_close(None);
        }
        self.phase = ConnectionPhase::Closed;
        self.emit(ConnectionEvent::Closed { error: close.error, by_peer });
    }

    /// Closes the connection because of a protocol violation or a timeout.
    pub(super) fn fail(&mut self, error: Error) {
        if self.phase == ConnectionPhase::Closed {
            return;
        }
        if self.phase == ConnectionPhase::Frames {
            self.write_close(Some(error.clone()));
        }
        self.phase = ConnectionPhase::Closed;
        self.emit(ConnectionEvent::Closed { error: Some(Box::new(error)), by_peer: false });
    }

    /// A close before any open is illegal, so an open is sent first.
    fn write_close(&mut self, error: Option<Error>) {
        if !self.peer.opened && self.is_server() {
            self.write_open();
        }
        let close = Close { error: error.map(Box::new) };
        self.output.write_frame(0, |buffer| close.encode(buffer));
    }

    fn is_server(&self) -> bool {
        matches!(self.side, super::ConnectionSide::Server(_))
    }
}
