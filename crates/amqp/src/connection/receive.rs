//! Receives deliveries: credit, windows, and messages of several frames.

use bytes::{Bytes, BytesMut};

use super::dispatch::{HandlerResult, ProtocolViolation};
use super::link::{Link, LinkState};
use super::unsettled::UnsettledDelivery;
use super::{Connection, ConnectionEvent, Delivery, LinkId, SessionId};
use crate::codec::Decoder;
use crate::performative::{DeliveryState, Error, Role, Transfer};
use crate::{Symbol, condition};

const MAX_TAG: usize = 32;

/// A delivery whose last frame has not arrived.
#[derive(Debug)]
pub(super) struct PartialDelivery {
    id: u32,
    tag: Bytes,
    message_format: u32,
    settled: bool,
    state: Option<DeliveryState>,
    payload: BytesMut,
    /// Why the delivery will be rejected when it is complete. Its bytes are dropped.
    refused: Option<Symbol>,
}

impl PartialDelivery {
    /// Bytes counted against the connection's bound.
    pub(super) fn held_bytes(&self) -> usize {
        self.payload.len()
    }
}

impl Connection {
    #[inline]
    pub(super) fn on_transfer(
        &mut self,
        session_id: SessionId,
        transfer: Transfer,
        payload: Decoder<'_>,
    ) -> HandlerResult {
        let half = self.config.incoming_window / 2;
        let Some(session) = self.sessions.get_mut(session_id.0) else { return Ok(()) };
        if session.incoming_window == 0 {
            let text = "transfer beyond the session window";
            return Err(ProtocolViolation::session(session_id, condition::WINDOW_VIOLATION, text));
        }
        session.incoming_window -= 1;
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        if session.incoming_window <= half {
            self.write_session_flow(session_id);
        }
        let link = self.link_by_handle(session_id, transfer.handle)?;
        let Some(state) = self.links.get_mut(link.0) else { return Ok(()) };
        match state.state {
            LinkState::Attached => {}
            // The peer sent it before it saw our detach.
            LinkState::DetachSent { .. } => return Ok(()),
            LinkState::Requested { .. } | LinkState::AttachSent | LinkState::Refused => {
                let text = "transfer before any credit";
                return Err(ProtocolViolation::link(link, condition::TRANSFER_LIMIT_EXCEEDED, text));
            }
        }
        if state.role != Role::Receiver {
            return Err(ProtocolViolation::session(
                session_id,
                condition::NOT_ALLOWED,
                "transfer on a link we send on",
            ));
        }
        if state.partial.is_some() {
            return self.on_continuation(link, transfer, payload);
        }
        self.on_first_frame(session_id, link, transfer, payload)
    }

    #[inline]
    fn on_first_frame(
        &mut self,
        session: SessionId,
        link: LinkId,
        transfer: Transfer,
        payload: Decoder<'_>,
    ) -> HandlerResult {
        let (Some(id), Some(tag)) = (transfer.delivery_id, transfer.delivery_tag) else {
            let text = "first transfer of a delivery without delivery-id and delivery-tag";
            return Err(ProtocolViolation::session(session, condition::INVALID_FIELD, text));
        };
        if tag.len() > MAX_TAG {
            return Err(ProtocolViolation::session(
                session,
                condition::INVALID_FIELD,
                "delivery-tag is longer than 32 bytes",
            ));
        }
        let state = self.links.get_mut(link.0).expect("found by on_transfer");
        let Some(credit) = take_credit(state) else {
            return Err(ProtocolViolation::link(
                link,
                condition::TRANSFER_LIMIT_EXCEEDED,
                "transfer beyond the link credit",
            ));
        };
        state.credit = credit;
        state.delivery_count = state.delivery_count.wrapping_add(1);
        if transfer.aborted {
            self.emit_if_drained(link);
            self.replenish(link);
            return Ok(());
        }
        let settled = transfer.settled.unwrap_or(false);
        let message_format = transfer.message_format.unwrap_or(0);
        if transfer.more {
            state.partial = Some(Box::new(PartialDelivery {
                id,
                tag,
                message_format,
                settled,
                state: transfer.state,
                payload: BytesMut::new(),
                refused: None,
            }));
            self.append(link, payload.rest());
            return Ok(());
        }
        if exceeds(state.max_message_size, payload.rest().len()) {
            return self.refuse_delivery(link, id, settled, condition::MESSAGE_SIZE_EXCEEDED);
        }
        let delivery =
            Delivery { link, id, tag, message_format, settled, state: transfer.state, payload: payload.rest_bytes() };
        self.deliver(delivery)
    }

    fn on_continuation(&mut self, link: LinkId, transfer: Transfer, payload: Decoder<'_>) -> HandlerResult {
        let state = self.links.get_mut(link.0).expect("found by on_transfer");
        let session = state.session;
        let partial = state.partial.as_mut().expect("checked by on_transfer");
        if transfer.delivery_id.is_some_and(|id| id != partial.id) {
            let text = "new delivery before the last one was complete";
            return Err(ProtocolViolation::session(session, condition::NOT_ALLOWED, text));
        }
        partial.settled |= transfer.settled.unwrap_or(false);
        if transfer.state.is_some() {
            partial.state = transfer.state;
        }
        if !transfer.aborted {
            self.append(link, payload.rest());
            if transfer.more {
                return Ok(());
            }
        }
        let state = self.links.get_mut(link.0).expect("found by on_transfer");
        let partial = state.partial.take().expect("checked by on_transfer");
        self.incomplete_bytes -= partial.held_bytes();
        if transfer.aborted {
            self.emit_if_drained(link);
            self.replenish(link);
            return Ok(());
        }
        let PartialDelivery { id, tag, message_format, settled, state, payload, refused } = *partial;
        match refused {
            Some(condition) => self.refuse_delivery(link, id, settled, condition),
            None => self.deliver(Delivery { link, id, tag, message_format, settled, state, payload: payload.freeze() }),
        }
    }

    /// Appends to a partly received message. Once the message is too large, its bytes are dropped.
    fn append(&mut self, link: LinkId, payload: &[u8]) {
        let room = self.config.max_incomplete_bytes.saturating_sub(self.incomplete_bytes);
        let state = self.links.get_mut(link.0).expect("found by on_transfer");
        let partial = state.partial.as_mut().expect("made by the first frame");
        if partial.refused.is_some() {
            return;
        }
        partial.refused = if exceeds(state.max_message_size, partial.payload.len() + payload.len()) {
            Some(condition::MESSAGE_SIZE_EXCEEDED)
        } else if payload.len() > room {
            Some(condition::RESOURCE_LIMIT_EXCEEDED)
        } else {
            None
        };
        if partial.refused.is_some() {
            self.incomplete_bytes -= partial.held_bytes();
            partial.payload = BytesMut::new();
        } else {
            partial.payload.extend_from_slice(payload);
            self.incomplete_bytes += payload.len();
        }
    }

    #[inline]
    fn deliver(&mut self, delivery: Delivery) -> HandlerResult {
        let link = delivery.link;
        let state = self.links.get_mut(link.0).expect("found by on_transfer");
        if !delivery.settled {
            let session = self.sessions.get_mut(state.session.0).expect("a link's session outlives it");
            // The Python SDK repeats an id when threads send at the same time, and Service Bus tolerates it. One
            // disposition settles both, so only one is counted.
            if session.received.insert(delivery.id, UnsettledDelivery { link, token: 0 }) {
                state.unsettled += 1;
            }
        }
        self.emit(ConnectionEvent::Delivery(delivery));
        self.emit_if_drained(link);
        self.replenish(link);
        Ok(())
    }

    /// Rejects a delivery. If the sender has already settled it, or does not react to a rejection, the link is detached
    /// instead.
    fn refuse_delivery(&mut self, link: LinkId, id: u32, settled: bool, condition: Symbol) -> HandlerResult {
        let error = Error::new(condition, "message exceeds the size this link takes");
        let state = self.links.get(link.0).expect("found by on_transfer");
        if settled || state.detaches_oversize {
            return Err(Box::new(ProtocolViolation::Link(link, error)));
        }
        if let Some(session) = self.sessions.get(state.session.0) {
            self.output.dispose(session.channel, Role::Receiver, (id, id), true, Some(DeliveryState::rejected(error)));
        }
        self.emit_if_drained(link);
        self.replenish(link);
        Ok(())
    }
}

/// The credit left after one more delivery; `None` if no credit was ever granted for it.
#[inline]
fn take_credit(link: &Link) -> Option<u32> {
    link.was_granted_more().then(|| link.credit.saturating_sub(1))
}

fn exceeds(max: u64, size: usize) -> bool {
    max != 0 && size as u64 > max
}
