//! Flow control: session windows, link credit, drain.

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::link::LinkState;
use super::session::Session;
use super::{CommandError, Config, Connection, ConnectionEvent, LinkId, SessionId};
use crate::condition;
use crate::performative::{Flow, Role};

impl Connection {
    /// As receiver: lets the peer send exactly `credit` more deliveries. May be called before
    /// [`ConnectionEvent::Attached`]. Ends the effect of [`keep_credit`](Self::keep_credit).
    pub fn set_credit(&mut self, link: LinkId, credit: u32) -> Result<(), CommandError> {
        self.receiver(link)?.credit_target = 0;
        self.grant(link, credit)
    }

    /// As receiver: keeps the sum of credit and unsettled deliveries at `total` by granting more as deliveries are settled.
    pub fn keep_credit(&mut self, link: LinkId, total: u32) -> Result<(), CommandError> {
        let state = self.receiver(link)?;
        state.credit_target = total;
        let credit = total.saturating_sub(state.unsettled);
        self.grant(link, credit)
    }

    /// As receiver: asks the peer to use the credit at once or return it. [`ConnectionEvent::Drained`] follows.
    pub fn drain(&mut self, link: LinkId) -> Result<(), CommandError> {
        let state = self.receiver(link)?;
        state.credit_target = 0;
        state.drain = true;
        if state.credit == 0 {
            state.drain = false;
            self.emit(ConnectionEvent::Drained { link });
            return Ok(());
        }
        self.write_flow_for(link, true, false);
        Ok(())
    }

    /// As sender: nothing more to send; returns the credit that the peer wants drained. Does nothing unless a drain
    /// waits for its reply: a second reply would take away credit that the peer has granted since the first.
    pub fn drained(&mut self, link: LinkId) -> Result<(), CommandError> {
        self.check_open()?;
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        if state.role != Role::Sender {
            return Err(CommandError::WrongRole);
        }
        if !matches!(state.state, LinkState::Attached) {
            return Err(CommandError::WrongState);
        }
        if !state.drain {
            return Ok(());
        }
        state.delivery_count = state.delivery_count.wrapping_add(state.credit);
        state.granted_until = state.delivery_count;
        state.credit = 0;
        state.drain = false;
        let (session, delivery_count) = (state.session, state.delivery_count);
        let Some(session) = self.sessions.get_mut(session.0) else { return Err(CommandError::SessionGone) };
        match session.backlog.iter_mut().rfind(|transfer| transfer.link == link) {
            Some(last) => last.drained_until = Some(delivery_count),
            None => self.write_flow_for(link, true, false),
        }
        Ok(())
    }

    /// Deliveries that may be sent on this link now, in the direction it has.
    pub fn credit(&self, link: LinkId) -> u32 {
        self.links.get(link.0).map_or(0, |link| link.credit)
    }

    fn receiver(&mut self, link: LinkId) -> Result<&mut super::Link, CommandError> {
        self.check_open()?;
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        if state.role != Role::Receiver {
            return Err(CommandError::WrongRole);
        }
        if !matches!(state.state, LinkState::Attached | LinkState::AttachSent) {
            return Err(CommandError::WrongState);
        }
        Ok(state)
    }

    fn grant(&mut self, link: LinkId, credit: u32) -> Result<(), CommandError> {
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        state.credit = credit;
        state.drain = false;
        state.raise_granted_until(state.delivery_count.wrapping_add(credit));
        self.write_flow_for(link, false, false);
        Ok(())
    }

    /// Grants more credit where `keep_credit` needs it, half a window at a time.
    #[inline]
    pub(super) fn replenish(&mut self, link: LinkId) {
        let Some(state) = self.links.get(link.0) else { return };
        let target = state.credit_target.saturating_sub(state.unsettled);
        if target <= state.credit || !matches!(state.state, LinkState::Attached) {
            return;
        }
        if state.credit == 0 || target - state.credit >= state.credit_target / 2 {
            // Cannot fail: the link exists.
            let _ = self.grant(link, target);
        }
    }

    pub(super) fn on_flow(&mut self, session: SessionId, flow: &Flow) -> HandlerResult {
        let initial = self.config.first_outgoing_id;
        let Some(state) = self.sessions.get_mut(session.0) else { return Ok(()) };
        state.next_incoming_id = flow.next_outgoing_id;
        let until = flow.next_incoming_id.unwrap_or(initial).wrapping_add(flow.incoming_window);
        state.remote_incoming_window = serial_distance(state.next_outgoing_id, until);
        if flow.incoming_window > i32::MAX as u32 {
            // A window beyond serial arithmetic counts as unlimited (.NET announces the largest).
            state.remote_incoming_window = i32::MAX as u32;
        }
        self.flush_backlog(session);
        let Some(handle) = flow.handle else {
            if flow.echo {
                self.write_session_flow(session);
            }
            return Ok(());
        };
        let link = self.link_by_handle(session, handle)?;
        self.on_link_flow(link, flow)
    }

    fn on_link_flow(&mut self, link: LinkId, flow: &Flow) -> HandlerResult {
        let Some(state) = self.links.get_mut(link.0) else { return Ok(()) };
        let requested = matches!(state.state, LinkState::Requested { .. });
        if !requested && !matches!(state.state, LinkState::Attached) {
            return Ok(());
        }
        match state.role {
            Role::Sender => {
                let Some(granted) = flow.link_credit else {
                    return Err(ProtocolViolation::link(link, condition::INVALID_FIELD, "flow without link-credit"));
                };
                let until = flow.delivery_count.unwrap_or(0).wrapping_add(granted);
                let credit = serial_distance(state.delivery_count, until);
                state.credit = credit;
                state.drain = flow.drain;
                state.raise_granted_until(until);
                if requested {
                    return Ok(());
                }
                self.emit(ConnectionEvent::Credit { link, credit, drain: flow.drain });
                // The owner replies to a drain, also to one without credit.
                if flow.echo && !flow.drain {
                    self.write_flow_for(link, false, false);
                }
            }
            Role::Receiver => {
                if requested {
                    return Ok(());
                }
                if let Some(count) = flow.delivery_count {
                    // A sender may only use up credit this way, never create it.
                    let advance = count.wrapping_sub(state.delivery_count);
                    if advance <= state.credit {
                        state.delivery_count = count;
                        state.credit -= advance;
                    }
                }
                self.emit_if_drained(link);
                if flow.echo {
                    self.write_flow_for(link, false, false);
                }
            }
        }
        Ok(())
    }

    /// Reports a completed drain: the credit was used by deliveries or returned by the sender.
    pub(super) fn emit_if_drained(&mut self, link: LinkId) {
        if let Some(state) = self.links.get_mut(link.0)
            && state.drain
            && state.credit == 0
        {
            state.drain = false;
            self.emit(ConnectionEvent::Drained { link });
        }
    }

    /// Writes a flow for the AMQP session only, which renews the peer's window.
    pub(super) fn write_session_flow(&mut self, session: SessionId) {
        self.write_flow(session, Flow::default());
    }

    fn write_flow_for(&mut self, link: LinkId, drain: bool, echo: bool) {
        let Some(state) = self.links.get(link.0) else { return };
        let count_known = state.role == Role::Sender || !matches!(state.state, LinkState::AttachSent);
        let flow = Flow {
            handle: state.local_handle,
            delivery_count: count_known.then_some(state.delivery_count),
            link_credit: Some(state.credit),
            available: (state.role == Role::Sender).then_some(0),
            drain,
            echo,
            ..Flow::default()
        };
        let session = state.session;
        self.write_flow(session, flow);
    }

    fn write_flow(&mut self, session: SessionId, flow: Flow) {
        let Some(state) = self.sessions.get_mut(session.0) else { return };
        let flow = state.complete_flow(&self.config, flow);
        self.output.write_frame(state.channel, |buffer| flow.encode(buffer));
    }
}

impl Session {
    /// Adds the windows of the AMQP session, and renews the peer's.
    pub(super) fn complete_flow(&mut self, config: &Config, flow: Flow) -> Flow {
        self.incoming_window = config.incoming_window;
        Flow {
            next_incoming_id: self.has_begun().then_some(self.next_incoming_id),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: config.outgoing_window,
            ..flow
        }
    }
}

/// The distance from `from` to `until` in serial arithmetic; 0 if `until` is behind (RFC 1982).
fn serial_distance(from: u32, until: u32) -> u32 {
    let distance = until.wrapping_sub(from);
    if distance > i32::MAX as u32 { 0 } else { distance }
}
