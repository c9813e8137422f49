//! A peer that writes arbitrary frames.

use std::net::SocketAddr;
use std::time::Duration;

use amqp::frame::{Frame, ProtocolHeader, read_frame, write_frame};
use amqp::performative::{Begin, Flow, Open, Performative, Transfer};
use amqp::{Attach, Source, Target};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::SOON;

pub(crate) struct RawPeer {
    pub(crate) stream: TcpStream,
    input: BytesMut,
    header_seen: bool,
}

/// The frame and condition that closed something; `None`: the socket was closed without one.
pub(crate) type CloseError = Option<(&'static str, String)>;

impl RawPeer {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the broker listens");
        Self { stream, input: BytesMut::new(), header_seen: false }
    }

    /// Header and open are written; nothing is awaited.
    pub(crate) async fn opened(address: SocketAddr) -> Self {
        let mut peer = Self::connect(address).await;
        peer.write(&ProtocolHeader::Amqp.bytes()).await;
        peer.frame(0, &open()).await;
        peer
    }

    /// An AMQP session on channel 0.
    pub(crate) async fn begun(address: SocketAddr) -> Self {
        let mut peer = Self::opened(address).await;
        peer.frame(0, &begin(u32::MAX / 4)).await;
        peer
    }

    /// An AMQP session on channel 0 of a connection that was opened with a key (SASL PLAIN).
    pub(crate) async fn authenticated(address: SocketAddr, user: &str, password: &str) -> Self {
        let mut peer = Self::connect(address).await;
        let response = [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat();
        let mechanism = [&[0xa3, 5][..], b"PLAIN"].concat();
        let fields = [&mechanism[..], &[0xa0, response.len() as u8], &response].concat();
        let list = [&[0x00, 0x53, 0x41, 0xc0, fields.len() as u8 + 1, 2][..], &fields].concat();
        let init = [&(list.len() as u32 + 8).to_be_bytes()[..], &[2, 1, 0, 0], &list].concat();
        peer.write(&[&ProtocolHeader::Sasl.bytes()[..], &init].concat()).await;
        // The header, the mechanisms, and the outcome.
        let mut header = [0; ProtocolHeader::LENGTH];
        peer.stream.read_exact(&mut header).await.expect("a header");
        let mut last = Vec::new();
        for _ in 0..2 {
            let size = peer.stream.read_u32().await.expect("a frame");
            last = vec![0; size as usize - 4];
            peer.stream.read_exact(&mut last).await.expect("a frame");
        }
        assert_eq!(last[4..7], [0x00, 0x53, 0x44], "an outcome: {last:?}");
        peer.write(&ProtocolHeader::Amqp.bytes()).await;
        peer.frame(0, &open()).await;
        peer.frame(0, &begin(u32::MAX / 4)).await;
        peer
    }

    /// A sender to `entity` with handle 0, attached and with credit.
    pub(crate) async fn sending(address: SocketAddr, entity: &str) -> Self {
        let mut peer = Self::begun(address).await;
        peer.frame(0, &attach(Attach::sender("s", Source::at("me"), Target::at(entity)))).await;
        peer.until(|frame| matches!(frame, Performative::Flow(flow) if flow.link_credit > Some(0))).await;
        peer
    }

    /// A receiver from `entity` with handle 0, attached and without credit.
    pub(crate) async fn receiving(address: SocketAddr, entity: &str) -> Self {
        let mut peer = Self::begun(address).await;
        peer.frame(0, &attach(Attach::receiver("r", Source::at(entity), Target::at("me")))).await;
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        peer
    }

    /// A write to a closed connection is ignored.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = timeout(SOON, self.stream.write_all(bytes)).await.expect("the broker reads");
    }

    pub(crate) async fn frame(&mut self, channel: u16, performative: &Performative) {
        self.frame_with(channel, performative, b"").await;
    }

    pub(crate) async fn frame_with(&mut self, channel: u16, performative: &Performative, payload: &[u8]) {
        let mut buffer = BytesMut::new();
        write_performative(&mut buffer, channel, performative, payload);
        self.write(&buffer).await;
    }

    /// The next non-empty frame; `None` when the connection is closed.
    pub(crate) async fn next(&mut self) -> Option<Performative> {
        self.next_within(SOON).await
    }

    /// The next frame and its payload, if one arrives in time.
    pub(crate) async fn poll_frame(&mut self, wait: Duration) -> Option<(Performative, Bytes)> {
        loop {
            if let Some(frame) = self.buffered() {
                return Some(frame);
            }
            match timeout(wait, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(1..)) => {}
                _ => return None,
            }
        }
    }

    pub(crate) async fn next_within(&mut self, timeout_after: Duration) -> Option<Performative> {
        loop {
            if let Some((performative, _)) = self.buffered() {
                return Some(performative);
            }
            match timeout(timeout_after, self.stream.read_buf(&mut self.input))
                .await
                .expect("the broker answers or hangs up")
            {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
    }

    fn buffered(&mut self) -> Option<(Performative, Bytes)> {
        if !self.header_seen && self.input.len() >= ProtocolHeader::LENGTH {
            self.input.advance(ProtocolHeader::LENGTH);
            self.header_seen = true;
        }
        while self.header_seen {
            let mut bytes = Bytes::copy_from_slice(&self.input);
            let before = bytes.len();
            let frame = read_frame(&mut bytes, 1 << 20).expect("the broker writes good frames")?;
            self.input.advance(before - bytes.len());
            if let Frame::Amqp { performative, payload, .. } = frame {
                return Some((performative, payload));
            }
        }
        None
    }

    pub(crate) async fn until(&mut self, wanted: impl Fn(&Performative) -> bool) -> Performative {
        loop {
            let frame = self.next().await.expect("the broker goes on");
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// Reads until a frame with an error, or until the connection is closed.
    pub(crate) async fn close_error(&mut self) -> CloseError {
        loop {
            let frame = self.next().await?;
            let error = match &frame {
                Performative::Close(close) => &close.error,
                Performative::End(end) => &end.error,
                Performative::Detach(detach) => &detach.error,
                _ => continue,
            };
            if let Some(error) = error {
                return Some((frame.name(), error.condition.as_str().to_owned()));
            }
        }
    }

    /// Waits until the broker closes the connection.
    pub(crate) async fn wait_closed(&mut self) {
        let mut sink = [0; 4096];
        while !matches!(
            timeout(SOON, self.stream.read(&mut sink)).await.expect("the connection is closed in time"),
            Ok(0) | Err(_)
        ) {}
    }
}

pub(crate) fn write_performative(buffer: &mut BytesMut, channel: u16, performative: &Performative, payload: &[u8]) {
    write_frame(buffer, channel, |buffer| {
        performative.encode(buffer);
        buffer.extend_from_slice(payload);
    });
}

pub(crate) fn open() -> Performative {
    Performative::Open(Box::new(Open {
        container_id: "peer".into(),
        hostname: None,
        max_frame_size: 65_536,
        channel_max: u16::MAX,
        idle_time_out: None,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }))
}

pub(crate) fn begin(incoming_window: u32) -> Performative {
    Performative::Begin(Box::new(Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window,
        outgoing_window: 1_000,
        handle_max: u32::MAX,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }))
}

pub(crate) fn attach(attach: Attach) -> Performative {
    Performative::Attach(Box::new(attach))
}

pub(crate) fn transfer(handle: u32, id: u32, more: bool) -> Performative {
    Performative::Transfer(Transfer {
        handle,
        delivery_id: Some(id),
        delivery_tag: Some(Bytes::copy_from_slice(&id.to_be_bytes())),
        message_format: Some(0),
        more,
        ..Transfer::default()
    })
}

pub(crate) fn credit(handle: u32, credit: u32, incoming_window: u32) -> Performative {
    Performative::Flow(Flow {
        next_incoming_id: Some(0),
        incoming_window,
        next_outgoing_id: 0,
        outgoing_window: 1_000,
        handle: Some(handle),
        delivery_count: Some(0),
        link_credit: Some(credit),
        ..Flow::default()
    })
}

/// An encoded message with a body of this size.
pub(crate) fn message(bytes: usize) -> Bytes {
    let mut buffer = BytesMut::new();
    amqp::message::MessageWriter::new(&mut buffer).data(&vec![7; bytes]);
    buffer.freeze()
}
