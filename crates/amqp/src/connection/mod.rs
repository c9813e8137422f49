//! One AMQP connection as a state machine without I/O: bytes in, events out; commands in, bytes out.
//!
//! The owner reads from its socket into a buffer and calls [`Connection::feed`], takes [events](ConnectionEvent), gives commands,
//! and writes what [`Connection::take_output`] returns: all frames that were buffered are handled before one write.
//! Time comes in as an argument; [`Connection::next_deadline`] says when [`Connection::on_tick`] is due.
//!
//! A peer that breaks the protocol is told the right AMQP error and loses the link, the AMQP session or the connection,
//! whichever is the least that must go; the owner sees the same error in an event. Memory that a peer can make us hold
//! is bounded by [`Config`]: channels, links, half-received messages, and credit the owner gave. The output grows only by
//! what the owner sends and by at most a few small frames per frame received: an owner that stops feeding while
//! [`Connection::output_len`] is large bounds it too.
//!
//! Never here: sockets, clocks, threads, resumption of links.

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

pub use config::{ClientSasl, Config, ServerSasl};
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
    /// Which AMQP session the peer's channel belongs to.
    channels: Vec<Option<SessionId>>,
    links: Slab<Link>,
    events: VecDeque<ConnectionEvent>,
    output: OutputQueue,
    timers: ConnectionTimers,
    /// Bytes held in half-received messages of all links.
    incomplete_bytes: usize,
    /// Bytes of deliveries that wait for the peer's windows.
    backlog_bytes: usize,
}

/// How far the connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Waiting for the peer's first protocol header.
    Header,
    /// A client waits for the mechanisms.
    SaslMechanisms,
    /// A server waits for the choice of a mechanism.
    SaslInit,
    /// A client waits for the verdict.
    SaslOutcome,
    /// SASL is done; waiting for the AMQP header.
    AmqpHeader,
    /// Frames flow.
    Frames,
    /// We have closed and wait for the peer's close; anything else is ignored.
    Closing,
    Closed,
}

/// What the peer's open said.
#[derive(Debug, Clone, Copy)]
struct PeerLimits {
    opened: bool,
    max_frame_size: u32,
    channel_max: u16,
}

impl Connection {
    /// The side that dials. With SASL, or not; the first bytes are ready to be written at once.
    pub fn client(config: Config, sasl: ClientSasl, now: Instant) -> Self {
        let mut connection = Self::new(config, ConnectionSide::client(sasl), now);
        connection.write_first_bytes();
        connection
    }

    /// Like [`client`](Self::client), but sends header, SASL and open in one go instead of waiting for each answer.
    /// Saves two round trips with servers that take it, as ours does.
    pub fn pipelined_client(config: Config, sasl: ClientSasl, now: Instant) -> Self {
        let mut connection = Self::new(config, ConnectionSide::client(sasl), now);
        connection.write_pipelined_handshake();
        connection
    }

    /// The side that listens.
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

    /// Handles everything complete in `input` and leaves the rest there. Then take the events, all of them.
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

    /// Everything to be written to the peer so far. Empty when there is nothing.
    pub fn take_output(&mut self) -> Bytes {
        let output = self.output.take();
        if !output.is_empty() {
            self.timers.record_sent();
        }
        output
    }

    /// How much waits to be taken: an owner stops feeding a peer that does not read.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Bytes of deliveries given to [`transfer`](Self::transfer) that the peer's session windows do not let out: an owner
    /// sends nothing more to a peer that grants credit and closes its windows.
    pub fn backlog_len(&self) -> usize {
        self.backlog_bytes
    }

    /// Bytes held in half-received messages and in attaches that wait for an answer.
    pub fn incomplete_len(&self) -> usize {
        self.incomplete_bytes
    }

    /// Sets [`Config::max_incomplete_bytes`] anew, for an owner of many connections that share one bound. What is held
    /// already stays.
    pub fn set_max_incomplete_bytes(&mut self, bytes: usize) {
        self.config.max_incomplete_bytes = bytes;
    }

    /// When [`on_tick`](Self::on_tick) has something to do. Changes with every feed and every write.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.phase == ConnectionPhase::Closed { None } else { self.timers.next_deadline() }
    }

    /// Heartbeats and time-outs. Harmless when nothing is due.
    pub fn on_tick(&mut self, now: Instant) {
        if self.phase != ConnectionPhase::Closed {
            self.tick(now);
        }
    }

    /// The owner saw [`ConnectionEvent::Closed`], or will: nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.phase == ConnectionPhase::Closed
    }

    /// The largest frame the peer takes; 512 until its open has arrived.
    pub fn peer_max_frame_size(&self) -> u32 {
        self.peer.max_frame_size
    }
}
