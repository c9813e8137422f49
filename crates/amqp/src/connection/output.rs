//! Output bytes for the peer.
//!
//! Frames that the owner sends before our open are held until it is written. Consecutive dispositions with the same state
//! become one range, so that a thousand accepted sends need one frame.

use bytes::{Bytes, BytesMut};

use super::frame_builder::FrameBuilder;
use crate::frame::write_frame;
use crate::performative::{DeliveryState, Disposition, Role};

#[derive(Debug)]
pub(super) struct OutputQueue {
    ready: BytesMut,
    /// Frames that wait for our open.
    held: Option<BytesMut>,
    disposition: Option<(u16, Disposition)>,
}

impl OutputQueue {
    pub(super) fn new() -> Self {
        Self { ready: BytesMut::new(), held: Some(BytesMut::new()), disposition: None }
    }

    /// For headers, SASL frames and the open itself, which are never held.
    pub(super) fn handshake_buffer(&mut self) -> &mut BytesMut {
        &mut self.ready
    }

    /// Our open has been written: releases the held frames.
    pub(super) fn release_held(&mut self) {
        self.flush_disposition();
        if let Some(held) = self.held.take() {
            self.ready.extend_from_slice(&held);
        }
    }

    /// The buffer for the next frame.
    #[inline]
    pub(super) fn frame_buffer(&mut self) -> &mut BytesMut {
        self.flush_disposition();
        self.held.as_mut().unwrap_or(&mut self.ready)
    }

    pub(super) fn write_frame(&mut self, channel: u16, body: impl FnOnce(&mut BytesMut)) {
        write_frame(self.frame_buffer(), channel, body);
    }

    #[inline]
    pub(super) fn dispose(
        &mut self,
        channel: u16,
        role: Role,
        range: (u32, u32),
        settled: bool,
        state: Option<DeliveryState>,
    ) {
        let (first, last) = range;
        if let Some((waiting_channel, waiting)) = &mut self.disposition {
            let follows = waiting.last.is_some_and(|last| last.wrapping_add(1) == first);
            let same = *waiting_channel == channel && waiting.role == role && waiting.settled == settled;
            if follows && same && waiting.state == state {
                waiting.last = Some(last);
                return;
            }
        }
        self.flush_disposition();
        let disposition = Disposition { role, first, last: Some(last), settled, state, batchable: false };
        self.disposition = Some((channel, disposition));
    }

    #[inline]
    fn flush_disposition(&mut self) {
        if let Some((channel, disposition)) = self.disposition.take() {
            let buffer = self.held.as_mut().unwrap_or(&mut self.ready);
            let Disposition { role, first, last, settled, ref state, .. } = disposition;
            let range = (first, last.unwrap_or(first));
            match FrameBuilder::disposition(channel, role, range, settled, state.as_ref()) {
                Some(mut plain) => buffer.extend_from_slice(plain.finish(0, true)),
                None => write_frame(buffer, channel, |buffer| disposition.encode(buffer)),
            }
        }
    }

    pub(super) fn take(&mut self) -> Bytes {
        self.flush_disposition();
        self.ready.split().freeze()
    }

    pub(super) fn len(&self) -> usize {
        /// Size of a disposition without an error.
        const DISPOSITION: usize = 40;
        self.ready.len()
            + self.held.as_ref().map_or(0, BytesMut::len)
            + self.disposition.as_ref().map_or(0, |_| DISPOSITION)
    }
}
