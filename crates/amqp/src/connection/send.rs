//! Sends deliveries: split into the peer's frame size, limited by its session window.

use bytes::{Bytes, BytesMut};

use super::frame_builder::{DeliveryHead, FrameBuilder};
use super::link::LinkState;
use super::session::Session;
use super::unsettled::UnsettledDelivery;
use super::{CommandError, Connection, LinkId, SessionId};
use crate::frame::write_frame;
use crate::performative::{DeliveryState, Flow, Role, Transfer};

/// A delivery to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutgoingDelivery<'a> {
    /// At most 32 bytes.
    pub tag: &'a [u8],
    pub message_format: u32,
    /// Sent settled: no disposition will come. The owner has already given the message away, so it may use credit that
    /// the receiver has withdrawn since.
    pub settled: bool,
    /// Returned in [`super::DispositionEvent`]; not used otherwise.
    pub token: u64,
    /// Set inside transactions.
    pub state: Option<&'a DeliveryState>,
}

/// A delivery, or the rest of one, that waits for the peer's session window.
#[derive(Debug)]
pub(super) struct QueuedTransfer {
    pub(super) link: LinkId,
    handle: u32,
    /// The fields of the first frame; `None` if it has been sent.
    head: Option<TransferHead>,
    pub(super) payload: Bytes,
    /// The delivery-count of a reply to a drain that follows it. The reply must not overtake the transfers it counts.
    pub(super) drained_until: Option<u32>,
}

#[derive(Debug)]
struct TransferHead {
    id: u32,
    tag: Bytes,
    message_format: u32,
    settled: bool,
    state: Option<DeliveryState>,
}

/// The fields of a delivery's first frame.
#[derive(Clone, Copy)]
struct FirstFrame<'a> {
    head: DeliveryHead<'a>,
    state: Option<&'a DeliveryState>,
}

/// The unwritten rest of a payload in parts.
struct PayloadParts<'a> {
    first: &'a [u8],
    rest: &'a [&'a [u8]],
    length: usize,
}

impl Connection {
    /// Sends one delivery, whose payload is the concatenation of `payload` (new head, stored tail). Returns its
    /// delivery-id. Uses one credit. If the session window is closed, the frames are queued.
    #[inline]
    pub fn transfer(
        &mut self,
        link: LinkId,
        delivery: OutgoingDelivery<'_>,
        payload: &[&[u8]],
    ) -> Result<u32, CommandError> {
        self.check_open()?;
        let state = self.links.get_mut(link.0).ok_or(CommandError::LinkGone)?;
        if state.role != Role::Sender {
            return Err(CommandError::WrongRole);
        }
        let (LinkState::Attached, Some(handle)) = (&state.state, state.local_handle) else {
            return Err(CommandError::WrongState);
        };
        if delivery.tag.len() > 32 {
            return Err(CommandError::TagTooLong);
        }
        let mut parts = PayloadParts::new(payload);
        if state.max_message_size != 0 && parts.length as u64 > state.max_message_size {
            return Err(CommandError::MessageTooLarge { size: parts.length, max: state.max_message_size });
        }
        let session = self.sessions.get_mut(state.session.0).ok_or(CommandError::SessionGone)?;
        state.credit = match state.credit.checked_sub(1) {
            Some(left) => left,
            None if delivery.settled && state.was_granted_more() => 0,
            None => return Err(CommandError::NoCredit),
        };
        state.delivery_count = state.delivery_count.wrapping_add(1);
        let id = session.next_delivery_id;
        session.next_delivery_id = id.wrapping_add(1);
        if !delivery.settled {
            state.unsettled += 1;
            session.sent.insert(id, UnsettledDelivery { link, token: delivery.token });
        }
        let OutgoingDelivery { tag, message_format, settled, state, .. } = delivery;
        let mut first = Some(FirstFrame { head: DeliveryHead { id, tag, message_format, settled }, state });
        let max_frame_size = self.peer.max_frame_size as usize;
        // Order is kept: while transfers are queued, the window is 0, because a larger one flushes the queue.
        let done = write_transfers(session, self.output.frame_buffer(), max_frame_size, handle, &mut first, &mut parts);
        if !done {
            let head = first.map(FirstFrame::into_head);
            self.backlog_bytes += parts.length;
            let payload = parts.into_bytes();
            session.backlog.push_back(QueuedTransfer { link, handle, head, payload, drained_until: None });
        }
        Ok(id)
    }

    /// Sends queued transfers as far as the peer's window allows.
    pub(super) fn flush_backlog(&mut self, session: SessionId) {
        let Some(session) = self.sessions.get_mut(session.0) else { return };
        while session.remote_incoming_window > 0 {
            let Some(mut waiting) = session.backlog.pop_front() else { return };
            let mut first = waiting.head.as_ref().map(TransferHead::first_frame);
            let payload: &[&[u8]] = &[&waiting.payload];
            let mut parts = PayloadParts::new(payload);
            let max_frame_size = self.peer.max_frame_size as usize;
            let handle = waiting.handle;
            self.backlog_bytes -= parts.length;
            if !write_transfers(session, self.output.frame_buffer(), max_frame_size, handle, &mut first, &mut parts) {
                let sent = first.is_none();
                self.backlog_bytes += parts.length;
                waiting.payload = waiting.payload.slice(waiting.payload.len() - parts.length..);
                if sent {
                    waiting.head = None;
                }
                session.backlog.push_front(waiting);
            } else if let Some(delivery_count) = waiting.drained_until {
                let flow = session.complete_flow(&self.config, Flow::drained(handle, delivery_count));
                self.output.write_frame(session.channel, |buffer| flow.encode(buffer));
            }
        }
    }
}

/// Writes frames until the delivery is complete (`true`) or the window is used up.
#[inline]
fn write_transfers(
    session: &mut Session,
    buffer: &mut BytesMut,
    max_frame_size: usize,
    handle: u32,
    first: &mut Option<FirstFrame<'_>>,
    parts: &mut PayloadParts<'_>,
) -> bool {
    loop {
        if session.remote_incoming_window == 0 {
            return false;
        }
        session.remote_incoming_window -= 1;
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        let complete = match first.take() {
            Some(FirstFrame { head, state: Some(state) }) => {
                write_first_with_state(buffer, session.channel, handle, head, state, max_frame_size, parts)
            }
            first => {
                let mut start = FrameBuilder::transfer(session.channel, handle, first.map(|first| first.head));
                let room = max_frame_size.saturating_sub(start.len());
                let complete = parts.length <= room;
                let payload = parts.length.min(room);
                buffer.reserve(start.len() + payload);
                buffer.extend_from_slice(start.finish(payload, complete));
                parts.write(buffer, payload);
                complete
            }
        };
        if complete {
            return true;
        }
    }
}

/// The rare first frame with a delivery state, as in transactions.
fn write_first_with_state(
    buffer: &mut BytesMut,
    channel: u16,
    handle: u32,
    head: DeliveryHead<'_>,
    state: &DeliveryState,
    max_frame_size: usize,
    parts: &mut PayloadParts<'_>,
) -> bool {
    let mut transfer = Transfer {
        handle,
        delivery_id: Some(head.id),
        delivery_tag: Some(Bytes::copy_from_slice(head.tag)),
        message_format: Some(head.message_format),
        settled: Some(head.settled),
        more: true,
        state: Some(state.clone()),
        ..Transfer::default()
    };
    let start = buffer.len();
    let mut complete = false;
    write_frame(buffer, channel, |buffer| {
        let performative = buffer.len();
        transfer.encode(buffer);
        let room = max_frame_size.saturating_sub(buffer.len() - start);
        complete = parts.length <= room;
        if complete {
            // The length does not change: either boolean takes one byte, or none.
            buffer.truncate(performative);
            transfer.more = false;
            transfer.encode(buffer);
        }
        parts.write(buffer, room);
    });
    complete
}

impl FirstFrame<'_> {
    fn into_head(self) -> TransferHead {
        let DeliveryHead { id, tag, message_format, settled } = self.head;
        TransferHead { id, tag: Bytes::copy_from_slice(tag), message_format, settled, state: self.state.cloned() }
    }
}

impl TransferHead {
    fn first_frame(&self) -> FirstFrame<'_> {
        let head =
            DeliveryHead { id: self.id, tag: &self.tag, message_format: self.message_format, settled: self.settled };
        FirstFrame { head, state: self.state.as_ref() }
    }
}

impl<'a> PayloadParts<'a> {
    #[inline]
    fn new(parts: &'a [&'a [u8]]) -> Self {
        let length = parts.iter().map(|part| part.len()).sum();
        let (first, rest) = parts.split_first().map_or((&[][..], parts), |(first, rest)| (*first, rest));
        Self { first, rest, length }
    }

    /// Writes at most `room` bytes.
    #[inline]
    fn write(&mut self, buffer: &mut BytesMut, mut room: usize) {
        while room > 0 && self.length > 0 {
            let length = self.first.len().min(room);
            let (now, later) = self.first.split_at(length);
            buffer.extend_from_slice(now);
            self.first = later;
            self.length -= length;
            room -= length;
            if self.first.is_empty()
                && let Some((next, rest)) = self.rest.split_first()
            {
                (self.first, self.rest) = (next, rest);
            }
        }
    }

    fn into_bytes(mut self) -> Bytes {
        let mut buffer = BytesMut::with_capacity(self.length);
        self.write(&mut buffer, usize::MAX);
        buffer.freeze()
    }
}
