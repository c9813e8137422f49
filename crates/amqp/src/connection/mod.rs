//! One AMQP connection as a state machine without I/O: bytes in, events out; commands in, bytes out.
//!
//! The owner reads from its socket into a buffer and calls [`Connection::feed`], takes [events](ConnectionEvent), gives commands,
//! and writes the bytes that [`Connection::take_output`] returns: all buffered frames are handled before one write.
//! Time is an argument; [`Connection::next_deadline`] returns when [`Connection::on_tick`] is due.
//!
//! A protocol violation closes the link, the AMQP session or the connection, whichever is the smallest, with the right AMQP
//! error; the owner gets the same error in an event. [`Config`] bounds the memory that a peer can use: channels, links,
//! partly received messages, and credit that the owner gave. The output grows only by what the owner sends and by a few small
//! frames per received frame: an owner that stops feeding while [`Connection::output_len`] is large
//! bounds it too.
//!
//! Never uses sockets, clocks or threads, and never resumes links.

mod close;
mod config;
mod credit;
mod dispatch;
mod event;
mod frame_builder;
mod handshake;
mod link;
mod output;
mod receive;
mod send;
mod session;
mod settle;
mod slab;
mod timers;
mod unsettled;

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

pub use config::{ClientSasl, Config, PlainVerifier, ServerSasl};
pub use event::{CommandError, ConnectionEvent, Delivery, DeliveryRef, DispositionEvent, LinkId, SessionId};
pub use send::OutgoingDelivery;

use crate::frame::MIN_MAX_FRAME_SIZE;
use handshake::ConnectionSide;
use link::Link;
use output::OutputQueue;
use session::Session;
use slab::Slab;
use timers::ConnectionTimers;

/// One side of an AMQP connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    side: ConnectionSide,
    phase: ConnectionPhase,
    peer: PeerLimits,
    sessions: Slab<Session>,
    /// The AMQP session of each channel of the peer.
    channels: Vec<Option<SessionId>>,
    links: Slab<Link>,
    events: VecDeque<ConnectionEvent>,
    output: OutputQueue,
    timers: ConnectionTimers,
    /// Bytes of partly received messages on all links.
    incomplete_bytes: usize,
    /// Bytes of deliveries that wait for the peer's windows.
    backlog_bytes: usize,
}

/// The phase of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Waiting for the peer's first protocol header.
    Header,
    /// A client waits for the mechanisms.
    SaslMechanisms,
    /// A server waits for the choice of a mechanism.
    SaslInit,
    /// A client waits for the SASL outcome.
    SaslOutcome,
    /// SASL is done; waiting for the AMQP header.
    AmqpHeader,
    /// AMQP frames are exchanged.
    Frames,
    /// Our close is sent; everything but the peer's close is ignored.
    Closing,
    Closed,
}

/// Limits from the peer's open.
#[derive(Debug, Clone, Copy)]
struct PeerLimits {
    opened: bool,
    max_frame_size: u32,
    channel_max: u16,
}

impl Connection {
    /// The connecting side. The first bytes are ready to be written at once.
    pub fn client(config: Config, sasl: ClientSasl, now: Instant) -> Self {
        let mut connection = Self::new(config, ConnectionSide::client(sasl), now);
        connection.write_first_bytes();
        connection
    }

    /// Like [`client`](Self::client), but sends header, SASL and open at once instead of waiting for each reply.
    /// Saves two round trips with servers that support it, as ours does.
    pub fn pipelined_client(config: Config, sasl: ClientSasl, now: Instant) -> Self {
        let mut connection = Self::new(config, ConnectionSide::client(sasl), now);
        connection.write_pipelined_handshake();
        connection
    }

    /// The listening side.
    pub fn server(config: Config, sasl: ServerSasl, now: Instant) -> Self {
        Self::new(config, ConnectionSide::Server(sasl), now)
    }

    fn new(mut config: Config, side: ConnectionSide, now: Instant) -> Self {
        config.handle_max = config.handle_max.min(u16::MAX.into());
        config.max_frame_size = config.max_frame_size.max(MIN_MAX_FRAME_SIZE);
        let timers = ConnectionTimers::new(&config, now);
        Self {
            config,
            side,
            phase: ConnectionPhase::Header,
            peer: PeerLimits { opened: false, max_frame_size: MIN_MAX_FRAME_SIZE, channel_max: u16::MAX },
            sessions: Slab::new(),
            channels: Vec::new(),
            links: Slab::new(),
            events: VecDeque::new(),
            output: OutputQueue::new(),
            timers,
            incomplete_bytes: 0,
            backlog_bytes: 0,
        }
    }

    /// Handles all complete input and leaves the rest in `input`. Then take all events.
    pub fn feed(&mut self, input: &mut BytesMut, now: Instant) {
        while self.step(input) {
            self.timers.record_received(now);
        }
    }

    /// One unit of input: a header, a SASL frame, or all complete AMQP frames. `false` when nothing is complete.
    fn step(&mut self, input: &mut BytesMut) -> bool {
        match self.phase {
            ConnectionPhase::Header | ConnectionPhase::AmqpHeader => self.take_header(input),
            ConnectionPhase::SaslMechanisms | ConnectionPhase::SaslInit | ConnectionPhase::SaslOutcome => {
                self.take_sasl_frame(input)
            }
            ConnectionPhase::Frames | ConnectionPhase::Closing => self.process_frames(input),
            ConnectionPhase::Closed => {
                input.clear();
                false
            }
        }
    }

    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// All bytes to write to the peer; may be empty.
    pub fn take_output(&mut self) -> Bytes {
        let output = self.output.take();
        if !output.is_empty() {
            self.timers.record_sent();
        }
        output
    }

    /// Bytes that wait to be taken. An owner stops feeding while a peer does not read.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Bytes of deliveries given to [`transfer`](Self::transfer) that wait for the peer's session windows. An owner
    /// stops sending to a peer that grants credit and closes its windows.
    pub fn backlog_len(&self) -> usize {
        self.backlog_bytes
    }

    /// Bytes of partly received messages and of attaches that wait for a reply.
    pub fn incomplete_len(&self) -> usize {
        self.incomplete_bytes
    }

    /// Changes [`Config::max_incomplete_bytes`], for an owner of many connections that share one limit. Bytes held
    /// already stay.
    pub fn set_max_incomplete_bytes(&mut self, bytes: usize) {
        self.config.max_incomplete_bytes = bytes;
    }

    /// When [`on_tick`](Self::on_tick) has something to do. Changes with every feed and every write.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.phase == ConnectionPhase::Closed { None } else { self.timers.next_deadline() }
    }

    /// Sends heartbeats and checks timeouts. Harmless if nothing is due.
    pub fn on_tick(&mut self, now: Instant) {
        if self.phase != ConnectionPhase::Closed {
            self.tick(now);
        }
    }

    /// True if the connection is closed: nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.phase == ConnectionPhase::Closed
    }

    /// The largest frame the peer takes; 512 until its open has arrived.
    pub fn peer_max_frame_size(&self) -> u32 {
        self.peer.max_frame_size
    }
}
