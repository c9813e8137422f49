//! Builds the frames of the hot path on the stack and copies them out at once.
//!
//! The general writers check the buffer's capacity at every field, and a transfer has eleven. This writes the same bytes in a quarter of
//! the time.

use crate::codec::code;
use crate::performative::{DeliveryState, Role, descriptor};

/// More than the largest head: frame header, descriptor, list head, and eleven fields with a tag of 32 bytes.
const CAPACITY: usize = 96;
const FRAME_HEADER: usize = 8;
const LIST_SIZE: usize = FRAME_HEADER + 4;

/// The beginning of a frame, up to the payload.
#[derive(Debug)]
pub(super) struct FrameBuilder {
    bytes: [u8; CAPACITY],
    length: usize,
    more: usize,
}

/// The fields of a delivery's first frame, besides the handle.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeliveryHead<'a> {
    pub(super) id: u32,
    /// At most 32 bytes, checked by the caller.
    pub(super) tag: &'a [u8],
    pub(super) message_format: u32,
    pub(super) settled: bool,
}

impl FrameBuilder {
    /// A transfer with all eleven fields, because older Python clients read the payload as the twelfth.
    #[inline]
    pub(super) fn transfer(channel: u16, handle: u32, head: Option<DeliveryHead<'_>>) -> Self {
        let mut start = Self::new(channel, descriptor::TRANSFER as u8, 11);
        start.uint(handle);
        match head {
            Some(head) => {
                start.uint(head.id);
                start.tag(head.tag);
                start.uint(head.message_format);
                start.boolean(head.settled);
            }
            None => start.push([code::NULL; 4]),
        }
        start.more = start.length;
        start.push([code::TRUE, code::NULL, code::NULL, code::NULL, code::NULL, code::FALSE]);
        start
    }

    /// A disposition, if its state has no fields.
    #[inline]
    pub(super) fn disposition(
        channel: u16,
        role: Role,
        range: (u32, u32),
        settled: bool,
        state: Option<&DeliveryState>,
    ) -> Option<Self> {
        let state = match state {
            None => None,
            Some(DeliveryState::Accepted) => Some(descriptor::ACCEPTED as u8),
            Some(DeliveryState::Released) => Some(descriptor::RELEASED as u8),
            Some(_) => return None,
        };
        let mut start = Self::new(channel, descriptor::DISPOSITION as u8, 6);
        start.boolean(role == Role::Receiver);
        start.uint(range.0);
        start.uint(range.1);
        start.boolean(settled);
        match state {
            Some(outcome) => start.push([code::DESCRIBED, code::SMALL_ULONG, outcome, code::LIST0]),
            None => start.push([code::NULL]),
        }
        start.push([code::NULL]);
        Some(start)
    }

    /// Bytes before the payload.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The finished bytes, for a given payload length; `last` marks the delivery's last frame.
    #[inline]
    pub(super) fn finish(&mut self, payload: usize, last: bool) -> &[u8] {
        let size = (self.length + payload) as u32;
        self.bytes[..4].copy_from_slice(&size.to_be_bytes());
        self.bytes[LIST_SIZE] = (self.length - LIST_SIZE - 1) as u8;
        if last && self.more > 0 {
            self.bytes[self.more] = code::FALSE;
        }
        &self.bytes[..self.length]
    }

    #[inline]
    fn new(channel: u16, descriptor: u8, fields: u8) -> Self {
        let mut start = Self { bytes: [0; CAPACITY], length: 0, more: 0 };
        let [high, low] = channel.to_be_bytes();
        start.push([0, 0, 0, 0, 2, 0, high, low]);
        start.push([code::DESCRIBED, code::SMALL_ULONG, descriptor, code::LIST8, 0, fields]);
        start
    }

    #[inline]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.length..self.length + N].copy_from_slice(&bytes);
        self.length += N;
    }

    #[inline]
    fn boolean(&mut self, value: bool) {
        self.push([if value { code::TRUE } else { code::FALSE }]);
    }

    #[inline]
    fn uint(&mut self, value: u32) {
        let [a, b, c, d] = value.to_be_bytes();
        match value {
            0 => self.push([code::UINT0]),
            1..=0xff => self.push([code::SMALL_UINT, d]),
            _ => self.push([code::UINT, a, b, c, d]),
        }
    }

    #[inline]
    fn tag(&mut self, tag: &[u8]) {
        self.push([code::BINARY8, tag.len() as u8]);
        self.bytes[self.length..self.length + tag.len()].copy_from_slice(tag);
        self.length += tag.len();
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    use super::*;
    use crate::frame::write_frame;
    use crate::performative::{Disposition, Transfer};

    proptest! {
        #[test]
        fn a_transfer_is_what_the_general_writer_makes(
            channel: u16, handle: u32, id: u32, message_format: u32, settled: bool, last: bool,
            tag in prop::collection::vec(any::<u8>(), 0..=32),
        ) {
            let head = DeliveryHead { id, tag: &tag, message_format, settled };
            let mut start = FrameBuilder::transfer(channel, handle, Some(head));
            let transfer = Transfer {
                handle,
                delivery_id: Some(id),
                delivery_tag: Some(Bytes::copy_from_slice(&tag)),
                message_format: Some(message_format),
                settled: Some(settled),
                more: !last,
                ..Transfer::default()
            };
            let read = frame(start.finish(0, last));
            prop_assert_eq!(read, (channel, crate::performative::Performative::Transfer(transfer)));
        }

        #[test]
        fn a_disposition_is_what_the_general_writer_makes(channel: u16, first: u32, last: u32, settled: bool, kind in 0..3) {
            let state = [None, Some(DeliveryState::Accepted), Some(DeliveryState::Released)][kind as usize].clone();
            let mut start = FrameBuilder::disposition(channel, Role::Receiver, (first, last), settled, state.as_ref()).unwrap();
            let general = Disposition { role: Role::Receiver, first, last: Some(last), settled, state, batchable: false };
            let mut buffer = BytesMut::new();
            write_frame(&mut buffer, channel, |buffer| general.encode(buffer));
            let read = frame(start.finish(0, true));
            prop_assert_eq!(read, frame(&buffer));
        }
    }

    fn frame(bytes: &[u8]) -> (u16, crate::performative::Performative) {
        let mut bytes = Bytes::copy_from_slice(bytes);
        match crate::frame::read_frame(&mut bytes, u32::MAX).unwrap().unwrap() {
            crate::frame::Frame::Amqp { channel, performative, payload } => {
                assert!(payload.is_empty() && bytes.is_empty());
                (channel, performative)
            }
            other => panic!("{other:?}"),
        }
    }
}
