//! A client and a server connected by two byte buffers, and a raw peer that writes any frames.

use std::time::{Duration, Instant};

use amqp::frame::{Frame, ProtocolHeader, read_frame, write_frame};
use amqp::performative::{Begin, Open, Performative};
use amqp::{Attach, ClientSasl, Config, Connection, ConnectionEvent, LinkId, ServerSasl, SessionId, Source, Target};
use bytes::{Buf, Bytes, BytesMut};

/// Both sides, the bytes between them, and their events.
pub(crate) struct ConnectionPair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    pub(crate) to_server: BytesMut,
    pub(crate) to_client: BytesMut,
    server_input: BytesMut,
    client_input: BytesMut,
    pub(crate) client_events: Vec<ConnectionEvent>,
    pub(crate) server_events: Vec<ConnectionEvent>,
    pub(crate) now: Instant,
}

impl ConnectionPair {
    pub(crate) fn new() -> Self {
        Self::with(Config::default(), Config::default())
    }

    pub(crate) fn with(client: Config, server: Config) -> Self {
        let now = Instant::now();
        Self {
            client: Connection::client(client, ClientSasl::Anonymous, now),
            server: Connection::server(server, ServerSasl::default(), now),
            to_server: BytesMut::new(),
            to_client: BytesMut::new(),
            server_input: BytesMut::new(),
            client_input: BytesMut::new(),
            client_events: Vec::new(),
            server_events: Vec::new(),
            now,
        }
    }

    /// Transfers bytes until both sides are idle.
    pub(crate) fn run(&mut self) {
        while self.step(usize::MAX, usize::MAX) {}
    }

    /// Transfers at most this many bytes each way. `false` if there were none.
    pub(crate) fn step(&mut self, to_server: usize, to_client: usize) -> bool {
        self.to_server.extend_from_slice(&self.client.take_output());
        self.to_client.extend_from_slice(&self.server.take_output());
        let moved = !self.to_server.is_empty() || !self.to_client.is_empty();
        carry(&mut self.to_server, &mut self.server_input, to_server);
        carry(&mut self.to_client, &mut self.client_input, to_client);
        self.server.feed(&mut self.server_input, self.now);
        self.client.feed(&mut self.client_input, self.now);
        self.server_events.extend(std::iter::from_fn(|| self.server.poll_event()));
        self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
        moved
    }

    pub(crate) fn take_client_events(&mut self) -> Vec<ConnectionEvent> {
        std::mem::take(&mut self.client_events)
    }

    pub(crate) fn take_server_events(&mut self) -> Vec<ConnectionEvent> {
        std::mem::take(&mut self.server_events)
    }

    /// Begins an AMQP session and drops the handshake's events.
    pub(crate) fn session(&mut self) -> SessionId {
        let session = self.client.begin_session().unwrap();
        self.run();
        assert!(self.client_events.contains(&ConnectionEvent::SessionBegun { session, by_peer: false }));
        self.client_events.clear();
        self.server_events.clear();
        session
    }

    /// A link on which the client sends and the server has given no credit: (client's id, server's id).
    pub(crate) fn sender(&mut self) -> (LinkId, LinkId) {
        self.link(Attach::sender("s", Source::at("me"), Target::at("orders")))
    }

    /// A link on which the client receives: (client's id, server's id).
    pub(crate) fn receiver(&mut self) -> (LinkId, LinkId) {
        self.link(Attach::receiver("r", Source::at("orders"), Target::at("me")))
    }

    pub(crate) fn link(&mut self, attach: Attach) -> (LinkId, LinkId) {
        let session = self.session();
        self.link_in(session, attach)
    }

    pub(crate) fn link_in(&mut self, session: SessionId, attach: Attach) -> (LinkId, LinkId) {
        let ours = self.client.attach(session, attach).unwrap();
        self.run();
        let (theirs, request) = requested(&self.take_server_events()).expect("attach requested");
        self.server.accept_attach(theirs, request.reply()).unwrap();
        self.run();
        assert!(
            self.take_client_events()
                .iter()
                .any(|event| matches!(event, ConnectionEvent::Attached { link, .. } if *link == ours))
        );
        (ours, theirs)
    }

    /// Advances both clocks and transfers bytes.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.on_tick(self.now);
        self.server.on_tick(self.now);
        self.run();
    }
}

fn carry(wire: &mut BytesMut, input: &mut BytesMut, at_most: usize) {
    let length = wire.len().min(at_most);
    input.extend_from_slice(&wire.split_to(length));
}

pub(crate) fn requested(events: &[ConnectionEvent]) -> Option<(LinkId, Attach)> {
    events.iter().find_map(|event| match event {
        ConnectionEvent::AttachRequested { link, attach, .. } => Some((*link, (**attach).clone())),
        _ => None,
    })
}

/// A server with a raw peer: frames are written by hand, replies are read frame by frame.
pub(crate) struct RawFramePeer {
    pub(crate) server: Connection,
    pub(crate) now: Instant,
    input: BytesMut,
}

impl RawFramePeer {
    pub(crate) fn new(config: Config) -> Self {
        let now = Instant::now();
        Self { server: Connection::server(config, ServerSasl::default(), now), now, input: BytesMut::new() }
    }

    /// Past header, open and, on channel 0, begin.
    pub(crate) fn begun(config: Config) -> Self {
        let mut raw = Self::new(config);
        raw.write(&ProtocolHeader::Amqp.bytes());
        raw.frame(0, &open());
        raw.frame(0, &begin());
        raw.frames();
        raw.events();
        raw
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.server.feed(&mut self.input, self.now);
    }

    pub(crate) fn frame(&mut self, channel: u16, performative: &Performative) {
        self.frame_with(channel, performative, &[]);
    }

    pub(crate) fn frame_with(&mut self, channel: u16, performative: &Performative, payload: &[u8]) {
        let mut buffer = BytesMut::new();
        write_frame(&mut buffer, channel, |buffer| {
            performative.encode(buffer);
            buffer.extend_from_slice(payload);
        });
        self.write(&buffer);
    }

    /// The server's frames since the last call, without headers.
    pub(crate) fn frames(&mut self) -> Vec<(u16, Performative, Bytes)> {
        frames_of(self.server.take_output())
    }

    pub(crate) fn performatives(&mut self) -> Vec<Performative> {
        self.frames().into_iter().map(|(_, performative, _)| performative).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<ConnectionEvent> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }
}

pub(crate) fn frames_of(mut bytes: Bytes) -> Vec<(u16, Performative, Bytes)> {
    let mut frames = Vec::new();
    loop {
        if bytes.starts_with(b"AMQP") {
            bytes.advance(8);
        }
        match read_frame(&mut bytes, u32::MAX).unwrap() {
            Some(Frame::Amqp { channel, performative, payload }) => frames.push((channel, performative, payload)),
            Some(_) => {}
            None => return frames,
        }
    }
}

pub(crate) fn open() -> Performative {
    Performative::Open(Box::new(Open {
        container_id: "raw".into(),
        hostname: None,
        max_frame_size: 65_536,
        channel_max: 100,
        idle_time_out: None,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }))
}

pub(crate) fn begin() -> Performative {
    Performative::Begin(Box::new(Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 1000,
        outgoing_window: 1000,
        handle_max: 100,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }))
}
