//! AMQP sessions: a channel each way, transfer windows, and the links inside.

use std::collections::VecDeque;

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::send::QueuedTransfer;
use super::unsettled::Unsettled;
use super::{CommandError, Connection, ConnectionEvent, ConnectionPhase, LinkId, SessionId};
use crate::condition;
use crate::performative::{Begin, End, Error};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) state: SessionState,
    /// Also the session's slot.
    pub(super) channel: u16,
    remote_channel: Option<u16>,
    /// The transfer-id of our next frame.
    pub(super) next_outgoing_id: u32,
    /// Transfer frames that the peer still accepts.
    pub(super) remote_incoming_window: u32,
    pub(super) next_delivery_id: u32,
    /// The transfer-id of the peer's next frame.
    pub(super) next_incoming_id: u32,
    /// Transfer frames the peer may still send.
    pub(super) incoming_window: u32,
    remote_handle_max: u32,
    /// Links by the peer's handle, and by ours.
    pub(super) remote_handles: Vec<Option<LinkId>>,
    pub(super) local_handles: Vec<Option<LinkId>>,
    pub(super) sent: Unsettled,
    pub(super) received: Unsettled,
    /// Transfers that wait for the peer's window.
    pub(super) backlog: VecDeque<QueuedTransfer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// Our begin waits for the peer's reply.
    BeginSent,
    Active,
    /// Our end is sent; frames that the peer sent before it saw the end are ignored. `report` if the owner waits for the event.
    EndSent {
        report: bool,
    },
}

impl Session {
    pub(super) fn has_begun(&self) -> bool {
        self.state != SessionState::BeginSent
    }

    /// Allocates the lowest free handle; `None` if the peer allows no more.
    pub(super) fn allocate_handle(&mut self, link: LinkId) -> Option<u32> {
        let free = self.local_handles.iter().position(Option::is_none).unwrap_or(self.local_handles.len());
        let handle = u32::try_from(free).ok().filter(|handle| *handle <= self.remote_handle_max)?;
        if free == self.local_handles.len() {
            self.local_handles.push(None);
        }
        self.local_handles[free] = Some(link);
        Some(handle)
    }

    pub(super) fn remote_handle(&self, handle: u32) -> Option<LinkId> {
        self.remote_handles.get(handle as usize).copied().flatten()
    }

    /// `handle` has been checked against `handle_max`.
    pub(super) fn set_remote_handle(&mut self, handle: u32, link: LinkId) {
        let index = handle as usize;
        if index >= self.remote_handles.len() {
            self.remote_handles.resize(index + 1, None);
        }
        self.remote_handles[index] = Some(link);
    }
}

impl Connection {
    /// Begins an AMQP session. Links may be attached to it at once, before [`ConnectionEvent::SessionBegun`].
    pub fn begin_session(&mut self) -> Result<SessionId, CommandError> {
        self.check_open()?;
        let slot = self.sessions.next_slot();
        if slot > u32::from(self.peer.channel_max) {
            return Err(CommandError::TooManySessions);
        }
        let session = self.new_session(SessionState::BeginSent, slot as u16);
        self.write_begin(session, None);
        Ok(session)
    }

    /// Ends an AMQP session and all its links. [`ConnectionEvent::SessionEnded`] follows when the peer has ended it too.
    pub fn end_session(&mut self, session: SessionId, error: Option<Error>) -> Result<(), CommandError> {
        self.check_open()?;
        let state = self.sessions.get(session.0).ok_or(CommandError::SessionGone)?.state;
        if matches!(state, SessionState::EndSent { .. }) {
            return Err(CommandError::SessionGone);
        }
        self.drop_links(session, None);
        self.write_end(session, error, true);
        Ok(())
    }

    pub(super) fn on_begin(&mut self, channel: u16, begin: &Begin) -> HandlerResult {
        if channel > self.config.channel_max {
            return Err(ProtocolViolation::connection(condition::FRAMING_ERROR, "channel is above channel-max"));
        }
        if self.channels.get(usize::from(channel)).copied().flatten().is_some() {
            return Err(ProtocolViolation::connection(condition::ILLEGAL_STATE, "begin on a channel in use"));
        }
        let (session, by_peer) = match begin.remote_channel {
            Some(ours) => (self.begun_session(ours)?, false),
            None => (self.accept_session()?, true),
        };
        self.set_channel(channel, session);
        let state = self.sessions.get_mut(session.0).expect("just found or made");
        let ended = matches!(state.state, SessionState::EndSent { .. });
        state.remote_channel = Some(channel);
        state.next_incoming_id = begin.next_outgoing_id;
        state.remote_incoming_window = begin.incoming_window;
        state.remote_handle_max = begin.handle_max;
        if ended {
            return Ok(());
        }
        state.state = SessionState::Active;
        if by_peer {
            self.write_begin(session, Some(channel));
        }
        self.emit(ConnectionEvent::SessionBegun { session, by_peer });
        Ok(())
    }

    fn begun_session(&self, ours: u16) -> Result<SessionId, Box<ProtocolViolation>> {
        let unknown =
            || ProtocolViolation::connection(condition::NOT_ALLOWED, "begin answers a channel that asked nothing");
        let key = self.sessions.key_at(ours.into()).ok_or_else(unknown)?;
        let session = self.sessions.get(key).expect("key_at gives live keys");
        if session.remote_channel.is_some() { Err(unknown()) } else { Ok(SessionId(key)) }
    }

    fn accept_session(&mut self) -> Result<SessionId, Box<ProtocolViolation>> {
        let slot = self.sessions.next_slot();
        if slot > u32::from(self.peer.channel_max) {
            return Err(ProtocolViolation::connection(
                condition::RESOURCE_LIMIT_EXCEEDED,
                "no channel left to answer on",
            ));
        }
        Ok(self.new_session(SessionState::Active, slot as u16))
    }

    fn new_session(&mut self, state: SessionState, channel: u16) -> SessionId {
        SessionId(self.sessions.insert(Session {
            state,
            channel,
            remote_channel: None,
            next_outgoing_id: self.config.first_outgoing_id,
            remote_incoming_window: 0,
            next_delivery_id: self.config.first_outgoing_id,
            next_incoming_id: 0,
            incoming_window: self.config.incoming_window,
            remote_handle_max: u32::MAX,
            remote_handles: Vec::new(),
            local_handles: Vec::new(),
            sent: Unsettled::default(),
            received: Unsettled::default(),
            backlog: VecDeque::new(),
        }))
    }

    fn set_channel(&mut self, channel: u16, session: SessionId) {
        let index = usize::from(channel);
        if index >= self.channels.len() {
            self.channels.resize(index + 1, None);
        }
        self.channels[index] = Some(session);
    }

    pub(super) fn on_end(&mut self, session: SessionId, channel: u16, end: End) {
        let Some(state) = self.sessions.get(session.0).map(|session| session.state) else { return };
        self.channels[usize::from(channel)] = None;
        match state {
            SessionState::EndSent { report: false } => {}
            SessionState::EndSent { report: true } => {
                self.emit(ConnectionEvent::SessionEnded { session, error: end.error })
            }
            SessionState::BeginSent | SessionState::Active => {
                self.drop_links(session, end.error.as_deref());
                self.write_end(session, None, false);
                self.emit(ConnectionEvent::SessionEnded { session, error: end.error });
            }
        }
        self.sessions.remove(session.0);
    }

    /// Ends an AMQP session because of a protocol violation.
    pub(super) fn abort_session(&mut self, session: SessionId, error: Error) {
        let live =
            self.sessions.get(session.0).is_some_and(|state| !matches!(state.state, SessionState::EndSent { .. }));
        if live {
            self.drop_links(session, Some(&error));
            self.write_end(session, Some(error.clone()), false);
            self.emit(ConnectionEvent::SessionEnded { session, error: Some(Box::new(error)) });
        }
    }

    fn drop_links(&mut self, session: SessionId, error: Option<&Error>) {
        let links: Vec<_> =
            self.links.iter().filter(|(_, link)| link.session == session).map(|(key, _)| LinkId(key)).collect();
        for link in links {
            if self.remove_link(link).is_some_and(|link| link.reports_end()) {
                self.emit(ConnectionEvent::Detached { link, closed: true, error: error.cloned().map(Box::new) });
            }
        }
    }

    fn write_begin(&mut self, session: SessionId, remote_channel: Option<u16>) {
        let Some(state) = self.sessions.get(session.0) else { return };
        let begin = Begin {
            remote_channel,
            next_outgoing_id: state.next_outgoing_id,
            incoming_window: self.config.incoming_window,
            outgoing_window: self.config.outgoing_window,
            handle_max: self.config.handle_max,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        };
        self.output.write_frame(state.channel, |buffer| begin.encode(buffer));
    }

    fn write_end(&mut self, session: SessionId, error: Option<Error>, report: bool) {
        let Some(state) = self.sessions.get_mut(session.0) else { return };
        state.state = SessionState::EndSent { report };
        self.backlog_bytes -= state.backlog.drain(..).map(|transfer| transfer.payload.len()).sum::<usize>();
        let end = End { error: error.map(Box::new) };
        self.output.write_frame(state.channel, |buffer| end.encode(buffer));
    }

    pub(super) fn check_open(&self) -> Result<(), CommandError> {
        if matches!(self.phase, ConnectionPhase::Closed | ConnectionPhase::Closing) {
            Err(CommandError::Closed)
        } else {
            Ok(())
        }
    }
}
