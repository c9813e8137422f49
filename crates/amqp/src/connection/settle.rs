//! Dispositions: settles deliveries in ranges.

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::link::LinkState;
use super::{CommandError, Connection, ConnectionEvent, DeliveryRef, DispositionEvent, LinkId, SessionId};
use crate::condition;
use crate::performative::{self, DeliveryState, Role};

impl Connection {
    /// Sets the state of deliveries `first..=last`: as receiver, of received ones; as sender, of sent ones.
    /// With `settled` they are no longer tracked. Consecutive calls with the same state become one frame.
    #[inline]
    pub fn dispose(
        &mut self,
        link: LinkId,
        first: u32,
        last: u32,
        settled: bool,
        state: Option<DeliveryState>,
    ) -> Result<(), CommandError> {
        self.check_open()?;
        let of = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        if !matches!(of.state, LinkState::Attached) {
            return Err(CommandError::WrongState);
        }
        let session = self.sessions.get_mut(of.session.0).ok_or(CommandError::SessionGone)?;
        self.output.dispose(session.channel, of.role, (first, last), settled, state);
        if !settled {
            return Ok(());
        }
        let (role, mut own, mut others) = (of.role, 0, Vec::new());
        let unsettled = match role {
            Role::Sender => &mut session.sent,
            Role::Receiver => &mut session.received,
        };
        unsettled.visit(
            first,
            last,
            true,
            |_, entry| {
                if entry.link == link { own += 1 } else { others.push(entry.link) }
            },
        );
        of.unsettled = of.unsettled.saturating_sub(own);
        for other in others {
            self.record_settled(other, 1);
        }
        if role == Role::Receiver {
            self.replenish(link);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn on_disposition(&mut self, id: SessionId, disposition: performative::Disposition) -> HandlerResult {
        let Some(session) = self.sessions.get_mut(id.0) else { return Ok(()) };
        let unsettled = match disposition.role {
            Role::Receiver => &mut session.sent,
            Role::Sender => &mut session.received,
        };
        let first = disposition.first;
        let last = disposition.last.unwrap_or(first);
        let mut groups: Vec<(LinkId, Vec<DeliveryRef>)> = Vec::new();
        let forwards = unsettled.visit(first, last, disposition.settled, |id, entry| {
            let delivery = DeliveryRef { id, token: entry.token };
            match groups.iter_mut().find(|(link, _)| *link == entry.link) {
                Some((_, deliveries)) => deliveries.push(delivery),
                None => groups.push((entry.link, vec![delivery])),
            }
        });
        if !forwards {
            return Err(ProtocolViolation::session(id, condition::INVALID_FIELD, "disposition range runs backwards"));
        }
        let mut state = disposition.state;
        let count = groups.len();
        for (index, (link, deliveries)) in groups.into_iter().enumerate() {
            if disposition.settled {
                self.record_settled(link, deliveries.len() as u32);
            }
            let state = if index + 1 == count { state.take() } else { state.clone() };
            self.emit(ConnectionEvent::Disposition(DispositionEvent {
                link,
                deliveries,
                settled: disposition.settled,
                state,
            }));
        }
        Ok(())
    }

    fn record_settled(&mut self, link: LinkId, count: u32) {
        let Some(state) = self.links.get_mut(link.0) else { return };
        state.unsettled = state.unsettled.saturating_sub(count);
        if state.role == Role::Receiver {
            self.replenish(link);
        }
    }
}
