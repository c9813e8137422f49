//! Attaches, accepts, refuses and detaches links.

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::receive::PartialDelivery;
use super::{CommandError, Connection, ConnectionEvent, LinkId, SessionId};
use crate::condition;
use crate::performative::{Attach, Detach, Error, Role};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) session: SessionId,
    pub(super) name: String,
    /// Our role.
    pub(super) role: Role,
    pub(super) state: LinkState,
    pub(super) local_handle: Option<u32>,
    pub(super) remote_handle: Option<u32>,
    pub(super) delivery_count: u32,
    pub(super) credit: u32,
    /// The receiver wants the credit used up or returned.
    pub(super) drain: bool,
    /// The highest delivery-count for which the receiver granted credit. A delivery below it is legal, even if the
    /// credit was lowered since: it may have been in flight.
    pub(super) granted_until: u32,
    /// As receiver: target for the sum of credit and unsettled deliveries; 0 leaves credit to the owner.
    pub(super) credit_target: u32,
    pub(super) unsettled: u32,
    /// The receiver's limit; 0 means none.
    pub(super) max_message_size: u64,
    /// As receiver: a delivery above the limit detaches the link instead of being rejected.
    pub(super) detaches_oversize: bool,
    pub(super) partial: Option<Box<PartialDelivery>>,
}

#[derive(Debug)]
pub(super) enum LinkState {
    /// The peer's attach waits for the owner's reply. The fields that a refusal echoes are kept, and counted as `size` bytes
    /// against the connection's limit.
    Requested {
        request: Box<Attach>,
        size: usize,
    },
    /// Our attach waits for the peer's reply.
    AttachSent,
    /// The peer replied with a null terminus; its detach with the error follows.
    Refused,
    Attached,
    /// Our detach is sent. Frames that the peer sent before it saw the detach are ignored, and its own detach gets no reply: a second
    /// detach silently stops the JavaScript SDK. `report` if the owner waits for the event.
    DetachSent {
        report: bool,
    },
}

impl Link {
    fn new(session: SessionId, name: String, role: Role, state: LinkState) -> Self {
        Self {
            session,
            name,
            role,
            state,
            local_handle: None,
            remote_handle: None,
            delivery_count: 0,
            credit: 0,
            drain: false,
            granted_until: 0,
            credit_target: 0,
            unsettled: 0,
            max_message_size: 0,
            detaches_oversize: false,
            partial: None,
        }
    }

    pub(super) fn raise_granted_until(&mut self, until: u32) {
        if (until.wrapping_sub(self.granted_until) as i32) > 0 {
            self.granted_until = until;
        }
    }

    /// True if credit was granted for one more delivery, even if it was withdrawn since.
    pub(super) fn was_granted_more(&self) -> bool {
        (self.granted_until.wrapping_sub(self.delivery_count) as i32) > 0
    }

    /// True if no event has yet reported to the owner that this link is closed.
    pub(super) fn reports_end(&self) -> bool {
        !matches!(self.state, LinkState::DetachSent { report: false })
    }
}

impl Connection {
    /// Requests a link. [`ConnectionEvent::Attached`] or [`ConnectionEvent::Detached`] follows.
    pub fn attach(&mut self, session: SessionId, mut attach: Attach) -> Result<LinkId, CommandError> {
        self.check_open()?;
        let live = self.sessions.get(session.0).is_some_and(|state| {
            matches!(state.state, super::session::SessionState::BeginSent | super::session::SessionState::Active)
        });
        if !live {
            return Err(CommandError::SessionGone);
        }
        let mut link = Link::new(session, attach.name.clone(), attach.role, LinkState::AttachSent);
        match attach.role {
            Role::Sender => {
                link.delivery_count = *attach.initial_delivery_count.get_or_insert(0);
                link.granted_until = link.delivery_count;
            }
            Role::Receiver => {
                link.max_message_size = *attach.max_message_size.get_or_insert(self.config.max_message_size);
            }
        }
        let id = LinkId(self.links.insert(link));
        let state = self.sessions.get_mut(session.0).expect("checked above");
        let Some(handle) = state.allocate_handle(id) else {
            self.links.remove(id.0);
            return Err(CommandError::TooManyLinks);
        };
        attach.handle = handle;
        self.links.get_mut(id.0).expect("just inserted").local_handle = Some(handle);
        self.output.write_frame(state.channel, |buffer| attach.encode(buffer));
        Ok(id)
    }

    /// Accepts a link that the peer requested. Create `reply` with [`Attach::reply`] and change what differs.
    pub fn accept_attach(&mut self, link: LinkId, mut reply: Attach) -> Result<(), CommandError> {
        self.check_open()?;
        let max_message_size = self.config.max_message_size;
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        let LinkState::Requested { request, .. } = &state.state else { return Err(CommandError::WrongState) };
        let initial_delivery_count = request.initial_delivery_count;
        reply.role = state.role;
        reply.name.clone_from(&state.name);
        match state.role {
            Role::Sender => {
                reply.initial_delivery_count = Some(state.delivery_count);
                state.max_message_size = request.max_message_size.unwrap_or(0);
            }
            Role::Receiver => {
                state.delivery_count = initial_delivery_count.unwrap_or(0);
                state.granted_until = state.delivery_count;
                state.max_message_size = *reply.max_message_size.get_or_insert(max_message_size);
            }
        }
        self.write_attach(link, &mut reply)?;
        self.set_state(link, LinkState::Attached);
        let state = self.links.get(link.0).ok_or(CommandError::LinkGone)?;
        // A receiver may send its flow before our reply.
        if state.role == Role::Sender && (state.credit > 0 || state.drain) {
            let (credit, drain) = (state.credit, state.drain);
            self.emit(ConnectionEvent::Credit { link, credit, drain });
        }
        Ok(())
    }

    /// As receiver: a delivery that is too large detaches the link instead of being rejected. For peers that wait for a
    /// response and not for an outcome.
    pub fn detach_on_oversize(&mut self, link: LinkId) -> Result<(), CommandError> {
        self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?.detaches_oversize = true;
        Ok(())
    }

    /// Refuses a link that the peer requested: an attach with a null terminus, then a detach with the error.
    pub fn refuse_attach(&mut self, link: LinkId, error: Error) -> Result<(), CommandError> {
        self.check_open()?;
        self.refuse(link, true, Some(error))
    }

    /// Detaches a link, with an optional error. Its unsettled deliveries are dropped.
    pub fn detach(&mut self, link: LinkId, error: Option<Error>) -> Result<(), CommandError> {
        self.check_open()?;
        match self.links.get(link.0).ok_or(CommandError::LinkGone)?.state {
            LinkState::Requested { .. } => self.refuse(link, true, error),
            LinkState::DetachSent { .. } => Err(CommandError::WrongState),
            LinkState::AttachSent | LinkState::Refused | LinkState::Attached => {
                self.forget_deliveries(link);
                self.write_detach(link, true, error);
                self.set_state(link, LinkState::DetachSent { report: true });
                Ok(())
            }
        }
    }

    pub(super) fn on_attach(&mut self, session: SessionId, attach: Box<Attach>, size: usize) -> HandlerResult {
        if attach.handle > self.config.handle_max {
            return Err(ProtocolViolation::connection(condition::FRAMING_ERROR, "handle is above handle-max"));
        }
        let Some(state) = self.sessions.get_mut(session.0) else { return Ok(()) };
        if state.remote_handle(attach.handle).is_some() {
            return Err(ProtocolViolation::session(session, condition::HANDLE_IN_USE, "attach with a handle in use"));
        }
        let links = &self.links;
        let asked = state.local_handles.iter().flatten().copied().find(|id| {
            links.get(id.0).is_some_and(|link| {
                link.remote_handle.is_none() && link.role != attach.role && link.name == attach.name
            })
        });
        if let Some(link) = asked {
            state.set_remote_handle(attach.handle, link);
            self.on_attach_reply(link, attach);
            return Ok(());
        }
        if self.links.len() >= self.config.max_links {
            return Err(ProtocolViolation::session(session, condition::RESOURCE_LIMIT_EXCEEDED, "too many links"));
        }
        if self.incomplete_bytes + size > self.config.max_incomplete_bytes {
            return Err(ProtocolViolation::session(
                session,
                condition::RESOURCE_LIMIT_EXCEEDED,
                "too many attaches wait",
            ));
        }
        self.incomplete_bytes += size;
        let requested = LinkState::Requested { request: Box::new(attach.echoed()), size };
        let mut link = Link::new(session, attach.name.clone(), attach.role.opposite(), requested);
        link.remote_handle = Some(attach.handle);
        let link = LinkId(self.links.insert(link));
        state.set_remote_handle(attach.handle, link);
        self.emit(ConnectionEvent::AttachRequested { session, link, attach });
        Ok(())
    }

    fn on_attach_reply(&mut self, link: LinkId, attach: Box<Attach>) {
        let Some(state) = self.links.get_mut(link.0) else { return };
        state.remote_handle = Some(attach.handle);
        if !matches!(state.state, LinkState::AttachSent) {
            return;
        }
        let refused = match state.role {
            Role::Sender => {
                state.max_message_size = attach.max_message_size.unwrap_or(0);
                attach.target.is_none()
            }
            Role::Receiver => {
                state.delivery_count = attach.initial_delivery_count.unwrap_or(0);
                state.granted_until = state.delivery_count.wrapping_add(state.credit);
                attach.source.is_none()
            }
        };
        if refused {
            state.state = LinkState::Refused;
        } else {
            state.state = LinkState::Attached;
            self.emit(ConnectionEvent::Attached { link, attach });
        }
    }

    pub(super) fn on_detach(&mut self, session: SessionId, detach: Detach) -> HandlerResult {
        let Detach { handle, closed, error } = detach;
        let link = self.link_by_handle(session, handle)?;
        let Some(state) = self.links.get(link.0) else { return Ok(()) };
        match state.state {
            LinkState::DetachSent { report } => {
                self.remove_link(link);
                if report {
                    self.emit(ConnectionEvent::Detached { link, closed, error });
                }
            }
            LinkState::Requested { .. } => {
                // The peer has stopped waiting. Its detach needs a reply on a handle that it must learn first. Without a free
                // handle, the whole AMQP session has just ended.
                if self.refuse(link, closed, None).is_ok() {
                    self.remove_link(link);
                    self.emit(ConnectionEvent::Detached { link, closed, error });
                }
            }
            LinkState::AttachSent | LinkState::Refused | LinkState::Attached => {
                self.write_detach(link, closed, None);
                self.remove_link(link);
                self.emit(ConnectionEvent::Detached { link, closed, error });
            }
        }
        Ok(())
    }

    /// Detaches a link because of a protocol violation.
    pub(super) fn abort_link(&mut self, link: LinkId, error: Error) {
        let Some(state) = self.links.get(link.0) else { return };
        let event = ConnectionEvent::Detached { link, closed: true, error: Some(Box::new(error.clone())) };
        match state.state {
            LinkState::DetachSent { .. } => return,
            LinkState::Requested { .. } => {
                if self.refuse(link, true, Some(error)).is_err() {
                    // The refusal could not be sent: the AMQP session has ended, and an event reported that to the owner.
                    return;
                }
            }
            LinkState::AttachSent | LinkState::Refused | LinkState::Attached => {
                self.forget_deliveries(link);
                self.write_detach(link, true, Some(error));
                self.set_state(link, LinkState::DetachSent { report: false });
            }
        }
        self.emit(event);
    }

    /// The link of a peer's handle.
    pub(super) fn link_by_handle(&self, session: SessionId, handle: u32) -> Result<LinkId, Box<ProtocolViolation>> {
        self.sessions.get(session.0).and_then(|state| state.remote_handle(handle)).ok_or_else(|| {
            ProtocolViolation::session(
                session,
                condition::UNATTACHED_HANDLE,
                format!("handle {handle} is not attached"),
            )
        })
    }

    fn refuse(&mut self, link: LinkId, closed: bool, error: Option<Error>) -> Result<(), CommandError> {
        let state = self.links.get(link.0).ok_or(CommandError::LinkGone)?;
        let LinkState::Requested { request, .. } = &state.state else { return Err(CommandError::WrongState) };
        let mut refusal = request.refusal();
        self.write_attach(link, &mut refusal)?;
        self.write_detach(link, closed, error);
        self.set_state(link, LinkState::DetachSent { report: false });
        Ok(())
    }

    /// Sends our half of an attach that the peer began. Without a free handle, the AMQP session is ended.
    fn write_attach(&mut self, link: LinkId, attach: &mut Attach) -> Result<(), CommandError> {
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        let session_id = state.session;
        let session = self.sessions.get_mut(session_id.0).ok_or(CommandError::SessionGone)?;
        let Some(handle) = session.allocate_handle(link) else {
            self.abort_session(
                session_id,
                Error::new(condition::RESOURCE_LIMIT_EXCEEDED, "no handle left to answer on"),
            );
            return Err(CommandError::TooManyLinks);
        };
        state.local_handle = Some(handle);
        attach.handle = handle;
        self.output.write_frame(session.channel, |buffer| attach.encode(buffer));
        Ok(())
    }

    fn write_detach(&mut self, link: LinkId, closed: bool, error: Option<Error>) {
        let Some(state) = self.links.get(link.0) else { return };
        let (Some(handle), Some(session)) = (state.local_handle, self.sessions.get(state.session.0)) else { return };
        let detach = Detach { handle, closed, error: error.map(Box::new) };
        self.output.write_frame(session.channel, |buffer| detach.encode(buffer));
    }

    fn set_state(&mut self, link: LinkId, state: LinkState) {
        if let Some(link) = self.links.get_mut(link.0)
            && let LinkState::Requested { size, .. } = std::mem::replace(&mut link.state, state)
        {
            self.incomplete_bytes -= size;
        }
    }

    /// Drops the unsettled, queued and partly received deliveries of a link that is being detached.
    fn forget_deliveries(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id.0) else { return };
        if let Some(partial) = link.partial.take() {
            self.incomplete_bytes -= partial.held_bytes();
        }
        let Some(session) = self.sessions.get_mut(link.session.0) else { return };
        session.backlog.retain(|transfer| {
            let stays = transfer.link != id;
            if !stays {
                self.backlog_bytes -= transfer.payload.len();
            }
            stays
        });
        if link.unsettled > 0 {
            link.unsettled = 0;
            match link.role {
                Role::Sender => session.sent.remove_link(id),
                Role::Receiver => session.received.remove_link(id),
            }
        }
    }

    /// Removes a link and frees its handles.
    pub(super) fn remove_link(&mut self, id: LinkId) -> Option<Link> {
        self.forget_deliveries(id);
        let link = self.links.remove(id.0)?;
        if let LinkState::Requested { size, .. } = link.state {
            self.incomplete_bytes -= size;
        }
        if let Some(session) = self.sessions.get_mut(link.session.0) {
            if let Some(handle) = link.local_handle {
                session.local_handles[handle as usize] = None;
            }
            if let Some(handle) = link.remote_handle {
                session.remote_handles[handle as usize] = None;
            }
        }
        Some(link)
    }
}
