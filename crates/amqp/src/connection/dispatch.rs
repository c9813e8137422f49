//! Dispatches frames to handlers. A protocol violation closes the link, the AMQP session or the connection, whichever is the smallest.

use bytes::{Bytes, BytesMut};

use super::session::SessionState;
use super::{Connection, ConnectionPhase, LinkId, SessionId};
use crate::Symbol;
use crate::codec::Decoder;
use crate::condition;
use crate::connection::ConnectionEvent;
use crate::frame::{FrameHeader, take_frames};
use crate::performative::{Error, Performative};

/// A protocol violation, and what it closes.
#[derive(Debug)]
pub(super) enum ProtocolViolation {
    Connection(Error),
    Session(SessionId, Error),
    Link(LinkId, Error),
}

pub(super) type HandlerResult = Result<(), Box<ProtocolViolation>>;

impl ProtocolViolation {
    pub(super) fn connection(condition: Symbol, text: impl Into<String>) -> Box<Self> {
        Box::new(Self::Connection(Error::new(condition, text)))
    }

    pub(super) fn session(session: SessionId, condition: Symbol, text: impl Into<String>) -> Box<Self> {
        Box::new(Self::Session(session, Error::new(condition, text)))
    }

    pub(super) fn link(link: LinkId, condition: Symbol, text: impl Into<String>) -> Box<Self> {
        Box::new(Self::Link(link, Error::new(condition, text)))
    }
}

impl Connection {
    /// Handles all complete frames in the buffer. `false` if there are none.
    pub(super) fn process_frames(&mut self, input: &mut BytesMut) -> bool {
        let run = match take_frames(input, self.config.max_frame_size) {
            Ok(run) if run.is_empty() => return false,
            Ok(run) => run,
            Err(error) => {
                self.fail(Error::new(condition::FRAMING_ERROR, error.to_string()));
                return true;
            }
        };
        let mut at = 0;
        while self.phase != ConnectionPhase::Closed {
            let Ok(Some(head)) = FrameHeader::parse(&run[at..], self.config.max_frame_size) else { break };
            let body = &run[at + head.body..at + head.size];
            at += head.size;
            if let Err(violation) = self.handle_frame(head, &run, body) {
                self.close_with_error(*violation);
            }
        }
        true
    }

    #[inline]
    fn handle_frame(&mut self, head: FrameHeader, run: &Bytes, body: &[u8]) -> HandlerResult {
        if head.sasl {
            return Err(ProtocolViolation::connection(condition::FRAMING_ERROR, "SASL frame after SASL has ended"));
        }
        if body.is_empty() {
            return Ok(());
        }
        let mut reader = Decoder::within(run, body);
        let performative = Performative::decode(&mut reader)
            .map_err(|error| ProtocolViolation::connection(condition::DECODE_ERROR, error.to_string()))?;
        if self.phase == ConnectionPhase::Closing && !matches!(performative, Performative::Close(_)) {
            return Ok(());
        }
        match performative {
            Performative::Open(open) => self.on_open(open),
            Performative::Close(close) => {
                self.on_close(close);
                Ok(())
            }
            early if !self.peer.opened => {
                Err(ProtocolViolation::connection(condition::ILLEGAL_STATE, format!("{} before open", early.name())))
            }
            Performative::Begin(begin) => self.on_begin(head.channel, &begin),
            other => self.on_session_frame(head, other, reader),
        }
    }

    #[inline]
    fn on_session_frame(
        &mut self,
        head: FrameHeader,
        performative: Performative,
        payload: Decoder<'_>,
    ) -> HandlerResult {
        let channel = head.channel;
        let session = self.channels.get(usize::from(channel)).copied().flatten();
        let Some(session) = session else {
            let text = format!("{} on channel {channel}, which has no AMQP session", performative.name());
            return Err(ProtocolViolation::connection(condition::NOT_ALLOWED, text));
        };
        let ended =
            self.sessions.get(session.0).is_none_or(|session| matches!(session.state, SessionState::EndSent { .. }));
        if ended && !matches!(performative, Performative::End(_)) {
            return Ok(());
        }
        match performative {
            Performative::Transfer(transfer) => self.on_transfer(session, transfer, payload),
            Performative::Disposition(disposition) => self.on_disposition(session, disposition),
            Performative::Flow(flow) => self.on_flow(session, &flow),
            Performative::Attach(attach) => self.on_attach(session, attach, head.size),
            Performative::Detach(detach) => self.on_detach(session, detach),
            Performative::End(end) => {
                self.on_end(session, channel, end);
                Ok(())
            }
            Performative::Open(_) | Performative::Begin(_) | Performative::Close(_) => {
                unreachable!("handled by frame(): they belong to no session")
            }
        }
    }

    pub(super) fn close_with_error(&mut self, violation: ProtocolViolation) {
        match violation {
            ProtocolViolation::Connection(error) => self.fail(error),
            ProtocolViolation::Session(session, error) => self.abort_session(session, error),
            ProtocolViolation::Link(link, error) => self.abort_link(link, error),
        }
    }

    pub(super) fn emit(&mut self, event: ConnectionEvent) {
        self.events.push_back(event);
    }
}
