//! Frames: protocol headers, frame headers, and splitting a byte stream into frames.
//!
//! An incomplete frame stays in the buffer; no memory is reserved for the rest of it.

use bytes::{Buf, Bytes, BytesMut};

use crate::codec::{DecodeError, Decoder};
use crate::performative::Performative;
use crate::sasl::SaslFrame;

/// Every peer must accept frames of this size. Until the open has arrived, none may be larger.
pub const MIN_MAX_FRAME_SIZE: u32 = 512;

const FRAME_HEADER: usize = 8;
const TYPE_AMQP: u8 = 0;
const TYPE_SASL: u8 = 1;

/// The eight bytes that begin a protocol layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolHeader {
    Amqp,
    Tls,
    Sasl,
}

impl ProtocolHeader {
    pub const LENGTH: usize = 8;

    pub fn bytes(self) -> [u8; Self::LENGTH] {
        let id = match self {
            Self::Amqp => 0,
            Self::Tls => 2,
            Self::Sasl => 3,
        };
        [b'A', b'M', b'Q', b'P', id, 1, 0, 0]
    }

    /// `None` for bytes that are no header of AMQP 1.0.
    pub fn parse(bytes: [u8; Self::LENGTH]) -> Option<Self> {
        [Self::Amqp, Self::Tls, Self::Sasl].into_iter().find(|header| header.bytes() == bytes)
    }
}

/// Why a byte stream cannot be split into frames. The connection cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {size} bytes exceeds the maximum of {max}")]
    TooLarge { size: u32, max: u32 },
    #[error("frame size {0} is smaller than a frame header")]
    TooSmall(u32),
    #[error("data offset {0} is outside the frame")]
    DataOffset(u8),
    #[error("frame type {0:#04x} is unknown")]
    UnknownType(u8),
}

/// The head of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    pub size: usize,
    /// Where the body begins: after the header and the extended header.
    pub body: usize,
    pub sasl: bool,
    pub channel: u16,
}

impl FrameHeader {
    /// Reads the head of the frame that begins `bytes`; `None` until its eight bytes are there.
    #[inline]
    pub fn parse(bytes: &[u8], max_frame_size: u32) -> Result<Option<Self>, FrameError> {
        let Some(head) = bytes.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
        let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        if size > max_frame_size {
            return Err(FrameError::TooLarge { size, max: max_frame_size });
        }
        if (size as usize) < FRAME_HEADER {
            return Err(FrameError::TooSmall(size));
        }
        let body = usize::from(head[4]) * 4;
        if body < FRAME_HEADER || body > size as usize {
            return Err(FrameError::DataOffset(head[4]));
        }
        if head[5] > TYPE_SASL {
            return Err(FrameError::UnknownType(head[5]));
        }
        let sasl = head[5] == TYPE_SASL;
        Ok(Some(Self { size: size as usize, body, sasl, channel: u16::from_be_bytes([head[6], head[7]]) }))
    }
}

/// Takes all complete frames from the front of `buffer`, as one slice to be iterated with
/// [`FrameHeader::parse`]. One split for many frames, so that their payloads share one reference count.
///
/// A malformed header ends the slice; it is found again after the frames before it are handled.
pub fn take_frames(buffer: &mut BytesMut, max_frame_size: u32) -> Result<Bytes, FrameError> {
    let mut complete = 0;
    loop {
        match FrameHeader::parse(&buffer[complete..], max_frame_size) {
            Ok(Some(head)) if buffer.len() - complete >= head.size => complete += head.size,
            Ok(_) => break,
            Err(error) if complete == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(buffer.split_to(complete).freeze())
}

/// One decoded frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// A frame without a body: a heartbeat.
    Empty,
    Amqp {
        channel: u16,
        performative: Performative,
        payload: Bytes,
    },
    Sasl(SaslFrame),
}

/// Why a frame could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadFrameError {
    #[error("invalid frame header")]
    Frame(#[from] FrameError),
    #[error("invalid frame body")]
    Body(#[from] DecodeError),
}

/// Reads one frame from the front of `bytes`; `None` while it is incomplete. For probes and tests: connections walk runs
/// of frames themselves.
pub fn read_frame(bytes: &mut Bytes, max_frame_size: u32) -> Result<Option<Frame>, ReadFrameError> {
    let Some(head) = FrameHeader::parse(bytes, max_frame_size)? else { return Ok(None) };
    if bytes.len() < head.size {
        return Ok(None);
    }
    let mut body = bytes.split_to(head.size);
    body.advance(head.body);
    decode_body(head, &body).map(Some).map_err(ReadFrameError::Body)
}

fn decode_body(head: FrameHeader, body: &Bytes) -> Result<Frame, DecodeError> {
    if body.is_empty() {
        return Ok(Frame::Empty);
    }
    let mut reader = Decoder::new(body);
    if head.sasl {
        return SaslFrame::decode(&mut reader).map(Frame::Sasl);
    }
    let performative = Performative::decode(&mut reader)?;
    Ok(Frame::Amqp { channel: head.channel, performative, payload: reader.rest_bytes() })
}

/// Writes an AMQP frame around the output of `body`.
#[inline]
pub fn write_frame(buffer: &mut BytesMut, channel: u16, body: impl FnOnce(&mut BytesMut)) {
    write(buffer, TYPE_AMQP, channel, body);
}

pub fn write_sasl_frame(buffer: &mut BytesMut, frame: &SaslFrame) {
    write(buffer, TYPE_SASL, 0, |buffer| frame.encode(buffer));
}

/// An empty frame: a heartbeat.
pub fn write_empty_frame(buffer: &mut BytesMut) {
    write(buffer, TYPE_AMQP, 0, |_| {});
}

#[inline]
fn write(buffer: &mut BytesMut, kind: u8, channel: u16, body: impl FnOnce(&mut BytesMut)) {
    let start = buffer.len();
    let [high, low] = channel.to_be_bytes();
    buffer.extend_from_slice(&[0, 0, 0, 0, 2, kind, high, low]);
    body(buffer);
    let size = u32::try_from(buffer.len() - start).expect("a frame is shorter than 4 GiB");
    buffer[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::performative::Close;

    fn close_frame() -> BytesMut {
        let mut buffer = BytesMut::new();
        write_frame(&mut buffer, 3, |buffer| Close::default().encode(buffer));
        buffer
    }

    #[test]
    fn whole_frames_are_taken_and_a_partial_one_is_left() {
        let mut buffer = close_frame();
        let one = buffer.len();
        buffer.extend_from_slice(&close_frame()[..]);
        buffer.extend_from_slice(&close_frame()[..one - 1]);
        assert_eq!(take_frames(&mut buffer, 512).unwrap().len(), 2 * one);
        assert_eq!(buffer.len(), one - 1);
    }

    #[test]
    fn an_oversized_frame_is_refused_once_its_header_is_there() {
        let mut buffer = BytesMut::from(&[0, 0, 2, 1, 2, 0, 0, 0][..]);
        assert_eq!(take_frames(&mut buffer, 512), Err(FrameError::TooLarge { size: 513, max: 512 }));
    }

    #[test]
    fn good_frames_before_a_bad_head_are_not_lost() {
        let mut buffer = close_frame();
        let one = buffer.len();
        buffer.extend_from_slice(&[0, 0, 0, 7, 2, 0, 0, 0]);
        assert_eq!(take_frames(&mut buffer, 512).unwrap().len(), one);
        assert_eq!(take_frames(&mut buffer, 512), Err(FrameError::TooSmall(7)));
    }

    #[test]
    fn an_extended_header_is_skipped() {
        let frame = close_frame();
        let mut bytes = frame.to_vec();
        bytes.splice(8..8, [9, 9, 9, 9]);
        bytes[3] += 4;
        bytes[4] = 3;
        let mut bytes = Bytes::from(bytes);
        let expected =
            Frame::Amqp { channel: 3, performative: Performative::Close(Close::default()), payload: Bytes::new() };
        assert_eq!(read_frame(&mut bytes, 512).unwrap(), Some(expected));
    }
}
