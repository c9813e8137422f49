//! The task that owns the socket and the protocol state.
//!
//! It reads, writes and takes commands concurrently. So a peer that does not read cannot stop us from reading, and two peers that both write
//! cannot deadlock.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use amqp::{ClientSasl, ConnectionEvent, Delivery, DeliveryState, LinkId, OutgoingDelivery};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::ConnectionTimeouts;
use super::command::{AttachRequest, Command, InboundEvent, LinkKey, OutgoingTransfer, SettleRequest};
use super::links::{DriverLink, DriverLinks, LinkPhase, UnsettledTransfer};
use super::session_pool::SessionPool;
use super::settlements::PendingSettlements;
use crate::error::{ClientOperation, DisconnectReason, Error, ServiceError};

const SMALL_READ: usize = 4 << 10;
const LARGE_READ: usize = 64 << 10;
/// Bytes that may wait for the socket before the driver stops taking commands.
const MAX_PENDING_OUTPUT: usize = 1 << 20;
/// Commands taken at once. Their frames are written together.
const MAX_COMMAND_BATCH: usize = 512;

pub(super) struct Driver<S> {
    reader: ReadHalf<S>,
    protocol: ProtocolState,
    output: SocketWriter<S>,
    commands: mpsc::UnboundedReceiver<Command>,
    timeouts: ConnectionTimeouts,
}

/// The AMQP state machine and the table of links; no I/O.
struct ProtocolState {
    amqp: amqp::Connection,
    links: DriverLinks,
    sessions: SessionPool,
    host: Arc<str>,
    end: Arc<OnceLock<DisconnectReason>>,
    opened: Option<oneshot::Sender<()>>,
    /// Deadline for the peer's close, and the callers that wait for it.
    closing: Option<Instant>,
    closers: Vec<oneshot::Sender<()>>,
    reply_timeout: std::time::Duration,
}

/// Bytes that wait to be written to the socket.
struct SocketWriter<S> {
    writer: WriteHalf<S>,
    bytes: Bytes,
    unflushed: bool,
    /// When the peer last accepted bytes, while bytes are waiting.
    last_progress: Option<Instant>,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Driver<S> {
    pub(super) fn new(
        stream: S,
        config: amqp::Config,
        commands: mpsc::UnboundedReceiver<Command>,
        opened: oneshot::Sender<()>,
        end: Arc<OnceLock<DisconnectReason>>,
        host: Arc<str>,
        timeouts: ConnectionTimeouts,
    ) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let protocol = ProtocolState {
            amqp: amqp::Connection::client(config, ClientSasl::Anonymous, Instant::now()),
            links: DriverLinks::default(),
            sessions: SessionPool::default(),
            host,
            end,
            opened: Some(opened),
            closing: None,
            closers: Vec::new(),
            reply_timeout: timeouts.reply,
        };
        let output = SocketWriter { writer, bytes: Bytes::new(), unflushed: false, last_progress: None };
        Self { reader, protocol, output, commands, timeouts }
    }

    pub(super) async fn run(mut self) {
        let lost = self.run_until_closed().await;
        debug!(host = %self.protocol.host, reason = %lost, "service bus connection closed");
        // Order matters: a released caller looks up the reason at once.
        let _ = self.protocol.end.set(lost);
        self.protocol.finish();
    }

    async fn run_until_closed(&mut self) -> DisconnectReason {
        let mut input = BytesMut::new();
        let mut read_size = SMALL_READ;
        let mut batch = Vec::new();
        loop {
            if self.output.bytes.is_empty() && self.protocol.amqp.output_len() > 0 {
                // Other tasks were woken by the same event and may have commands too: yield once, then write all frames together.
                tokio::task::yield_now().await;
                while self.takes_commands()
                    && let Ok(command) = self.commands.try_recv()
                {
                    if let Err(lost) = self.protocol.execute(command) {
                        return lost;
                    }
                }
            }
            self.output.fill(&mut self.protocol.amqp);
            let deadline = self.next_deadline();
            let taking = self.takes_commands();
            input.reserve(read_size);
            tokio::select! {
                // cancel-safe: a dropped read has read nothing
                read = self.reader.read_buf(&mut input) => match read {
                    Ok(0) => return if self.protocol.closing.is_some() { DisconnectReason::Closed } else { DisconnectReason::UnexpectedEof },
                    Ok(read) => {
                        read_size = if read >= read_size { LARGE_READ } else { read.next_power_of_two().clamp(SMALL_READ, LARGE_READ) };
                        self.protocol.amqp.feed(&mut input, Instant::now());
                    }
                    Err(error) => return DisconnectReason::Socket(Arc::new(error)),
                },
                // cancel-safe: each step either counts what it wrote or has written nothing
                written = self.output.write(), if self.output.has_output() => if let Err(error) = written {
                    return DisconnectReason::Socket(Arc::new(error));
                },
                // cancel-safe: commands stay in their channel
                taken = self.commands.recv_many(&mut batch, MAX_COMMAND_BATCH), if taking => {
                    if taken == 0 {
                        self.protocol.close(None);
                    }
                    for command in batch.drain(..) {
                        if let Err(lost) = self.protocol.execute(command) {
                            return lost;
                        }
                    }
                }
                // cancel-safe: a timer holds no data
                () = tokio::time::sleep_until(deadline.into()) => {
                    let now = Instant::now();
                    if self.protocol.closing.is_some_and(|until| now >= until) {
                        return DisconnectReason::NoReply(ClientOperation::Close);
                    }
                    if self.output.is_stalled(now, &self.timeouts) {
                        return DisconnectReason::WriteStalled;
                    }
                    self.protocol.amqp.on_tick(now);
                }
            }
            if let Some(lost) = self.protocol.take_events() {
                self.flush_and_shutdown().await;
                return lost;
            }
        }
    }

    fn takes_commands(&self) -> bool {
        self.protocol.closing.is_none() && self.protocol.amqp.output_len() < MAX_PENDING_OUTPUT
    }

    fn next_deadline(&self) -> Instant {
        let protocol = self.protocol.amqp.next_deadline();
        let stalled = self.output.last_progress.map(|last_progress| last_progress + self.timeouts.reply);
        let soonest = [protocol, stalled, self.protocol.closing].into_iter().flatten().min();
        soonest.unwrap_or_else(|| Instant::now() + std::time::Duration::from_secs(3_600))
    }

    /// Writes the last frames, which carry the reason for the close, for at most half a second.
    async fn flush_and_shutdown(&mut self) {
        self.output.fill(&mut self.protocol.amqp);
        let timeouts = self.timeouts.reply.min(std::time::Duration::from_millis(500));
        let _ = tokio::time::timeout(timeouts, async {
            while self.output.has_output() {
                self.output.write().await?;
                self.output.fill(&mut self.protocol.amqp);
            }
            self.output.writer.shutdown().await
        })
        .await;
    }
}

impl<S: AsyncRead + AsyncWrite> SocketWriter<S> {
    fn fill(&mut self, amqp: &mut amqp::Connection) {
        if self.bytes.is_empty() {
            self.bytes = amqp.take_output();
            self.unflushed |= !self.bytes.is_empty();
        }
        if !self.has_output() {
            self.last_progress = None;
        } else if self.last_progress.is_none() {
            self.last_progress = Some(Instant::now());
        }
    }

    fn has_output(&self) -> bool {
        self.unflushed
    }

    fn is_stalled(&self, now: Instant, timeouts: &ConnectionTimeouts) -> bool {
        self.last_progress.is_some_and(|last_progress| now >= last_progress + timeouts.reply)
    }

    /// Writes some bytes. TLS buffers records until it is flushed.
    async fn write(&mut self) -> std::io::Result<()> {
        if self.bytes.has_remaining() {
            if self.writer.write_buf(&mut self.bytes).await? == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            self.last_progress = Some(Instant::now());
        }
        if !self.bytes.has_remaining() {
            self.writer.flush().await?;
            self.unflushed = false;
        }
        Ok(())
    }
}

impl ProtocolState {
    fn execute(&mut self, command: Command) -> Result<(), DisconnectReason> {
        match command {
            Command::Attach(request) => self.attach(*request),
            Command::Transfer(transfer) => self.transfer(transfer),
            Command::Transfers(transfers) => self.transfers(transfers),
            Command::OverdueTransfer { link, token } => {
                if self.links.get(link).is_some_and(|link| link.sent.contains_key(&token)) {
                    return Err(DisconnectReason::NoReply(ClientOperation::Send));
                }
            }
            Command::Settle(settle) => self.settle(settle),
            Command::KeepCredit { link, credit } => self.keep_credit(link, credit),
            Command::Drain { link, reply } => self.drain(link, reply),
            Command::Detach { link, reply } => self.detach(link, reply),
            Command::Abort(operation) => return Err(DisconnectReason::NoReply(operation)),
            Command::Close(closer) => self.close(Some(closer)),
        }
        Ok(())
    }

    fn close(&mut self, closer: Option<oneshot::Sender<()>>) {
        self.closers.extend(closer);
        if self.closing.is_none() {
            let _ = self.amqp.close(None);
            self.closing = Some(Instant::now() + self.reply_timeout);
        }
    }

    /// Releases all waiting callers. The reason must already be stored.
    fn finish(mut self) {
        let source = self.end.get().cloned().unwrap_or(DisconnectReason::UnexpectedEof);
        for link in self.links.drain() {
            link.finish(Error::ConnectionLost { host: Arc::clone(&self.host), source: source.clone() });
        }
    }

    fn attach(&mut self, request: AttachRequest) {
        let AttachRequest { key, attach, address, inbound, own_session, credit, guard, end, reply } = request;
        let asked = self.sessions.acquire(&mut self.amqp, own_session).and_then(|session| {
            let attached = self.amqp.attach(session, attach);
            if attached.is_err() {
                self.sessions.release(session);
            }
            attached.map(|id| (session, id))
        });
        match asked {
            Ok((session, id)) => {
                let link = DriverLink {
                    id,
                    session,
                    address,
                    end,
                    phase: LinkPhase::Attaching(reply),
                    credit,
                    inbound,
                    settlements: PendingSettlements::default(),
                    draining: None,
                    queue: VecDeque::new(),
                    sent: Default::default(),
                    guard,
                };
                self.links.insert(key, link);
            }
            Err(source) => {
                let error = Error::InvalidState { operation: ClientOperation::Attach, address, source };
                let _ = end.set(error.clone());
                let _ = reply.send(Err(error));
            }
        }
    }

    fn transfer(&mut self, transfer: OutgoingTransfer) {
        // The link is closed. The caller sees its reply dropped and asks the link for the reason.
        let Some(link) = self.links.get(transfer.link) else { return };
        link.queue.push_back(transfer);
        let id = link.id;
        self.send_queued(id);
    }

    /// All transfers belong to one link.
    fn transfers(&mut self, transfers: Vec<OutgoingTransfer>) {
        let Some(key) = transfers.first().map(|transfer| transfer.link) else { return };
        // The link is closed: dropping the transfers sends `ConnectionLost` to their callers.
        let Some(link) = self.links.get(key) else { return };
        link.queue.extend(transfers);
        let id = link.id;
        self.send_queued(id);
    }

    /// Sends queued transfers as far as credit allows.
    fn send_queued(&mut self, id: LinkId) {
        let Some(link) = self.links.by_id(id) else { return };
        while self.amqp.credit(id) > 0 {
            let Some(transfer) = link.queue.pop_front() else { return };
            // The caller has stopped waiting and the transfer was not written, so it is dropped.
            if transfer.caller.is_closed() {
                continue;
            }
            let OutgoingTransfer { token, payload, message_format, permit, caller, .. } = transfer;
            // Checked here and not at submission: the transfer may have waited for credit in between.
            if link.guard.as_ref().is_some_and(|may_write| !may_write()) {
                caller.send(Err(Error::Fenced { address: Arc::clone(&link.address) }));
                continue;
            }
            let tag = token.to_be_bytes();
            let outgoing = OutgoingDelivery { tag: &tag, message_format, token, ..OutgoingDelivery::default() };
            match self.amqp.transfer(id, outgoing, &[&payload]) {
                Ok(_) => drop(link.sent.insert(token, UnsettledTransfer { caller, _permit: permit })),
                Err(source) => {
                    let address = Arc::clone(&link.address);
                    caller.send(Err(Error::InvalidState { operation: ClientOperation::Send, address, source }));
                }
            }
        }
    }

    fn settle(&mut self, settle: SettleRequest) {
        let Some(link) = self.links.get(settle.link) else { return };
        let ranges = link.settlements.register(settle.deliveries, settle.state.clone(), settle.reply);
        for (first, last) in ranges {
            // Fails if the link is being detached; then `finish` replies to the caller.
            let _ = self.amqp.dispose(link.id, first, last, false, Some(settle.state.clone()));
        }
    }

    fn drain(&mut self, key: LinkKey, reply: super::command::Reply<()>) {
        let Some(link) = self.links.get(key) else { return };
        match self.amqp.drain(link.id) {
            Ok(()) => link.draining = Some(reply),
            Err(source) => {
                let address = Arc::clone(&link.address);
                let _ = reply.send(Err(Error::InvalidState { operation: ClientOperation::Detach, address, source }));
            }
        }
    }

    fn detach(&mut self, key: LinkKey, reply: Option<super::command::Reply<()>>) {
        let Some(link) = self.links.get(key) else {
            drop(reply.map(|reply| reply.send(Ok(()))));
            return;
        };
        match &mut link.phase {
            LinkPhase::Detaching(waiting) => {
                if reply.is_some() {
                    *waiting = reply;
                }
            }
            LinkPhase::Attaching(_) | LinkPhase::Attached => {
                let _ = self.amqp.detach(link.id, None);
                link.phase = LinkPhase::Detaching(reply);
            }
        }
    }

    /// Handles all events. Returns the reason when the connection is closed.
    fn take_events(&mut self) -> Option<DisconnectReason> {
        while let Some(event) = self.amqp.poll_event() {
            match event {
                ConnectionEvent::Opened(_) => drop(self.opened.take().map(|opened| opened.send(()))),
                ConnectionEvent::Attached { link, attach } => self.on_attached(link, attach),
                ConnectionEvent::Credit { link, drain, .. } => {
                    self.send_queued(link);
                    if drain {
                        let _ = self.amqp.drained(link);
                    }
                }
                ConnectionEvent::Drained { link } => self.on_drained(link),
                ConnectionEvent::Delivery(delivery) => self.on_delivery(delivery),
                ConnectionEvent::Disposition(disposition) => self.on_disposition(disposition),
                ConnectionEvent::Detached { link, error, .. } => self.on_detached(link, error.map(|error| *error)),
                ConnectionEvent::SessionEnded { session, .. } => self.sessions.remove(session),
                // A client offers nothing to attach to.
                ConnectionEvent::AttachRequested { link, .. } => {
                    let error = amqp::Error::new(amqp::condition::NOT_ALLOWED, "this is a client");
                    let _ = self.amqp.refuse_attach(link, error);
                }
                ConnectionEvent::SessionBegun { .. } => {}
                ConnectionEvent::Closed { error, by_peer } => {
                    return Some(self.on_closed(error.map(|error| *error), by_peer));
                }
            }
        }
        None
    }

    fn on_closed(&self, error: Option<amqp::Error>, by_peer: bool) -> DisconnectReason {
        match error {
            Some(error) => DisconnectReason::AmqpError(Box::new(ServiceError::new(error))),
            None if by_peer => DisconnectReason::ClosedByPeer,
            None => DisconnectReason::Closed,
        }
    }

    fn on_attached(&mut self, id: LinkId, attach: Box<amqp::Attach>) {
        let Some(link) = self.links.by_id(id) else { return };
        let credit = link.credit;
        match std::mem::replace(&mut link.phase, LinkPhase::Attached) {
            LinkPhase::Attaching(reply) => {
                // Grant credit only if the caller still waits for the link.
                if reply.send(Ok(attach)).is_ok() && credit > 0 {
                    let _ = self.amqp.keep_credit(id, credit);
                }
            }
            phase @ (LinkPhase::Attached | LinkPhase::Detaching(_)) => link.phase = phase,
        }
    }

    fn keep_credit(&mut self, key: LinkKey, credit: u32) {
        let Some(link) = self.links.get(key) else { return };
        link.credit = credit;
        if matches!(link.phase, LinkPhase::Attached) {
            let id = link.id;
            let _ = self.amqp.keep_credit(id, credit);
        }
    }

    fn on_drained(&mut self, id: LinkId) {
        let waiting = self.links.by_id(id).and_then(|link| link.draining.take());
        drop(waiting.map(|reply| reply.send(Ok(()))));
    }

    fn on_delivery(&mut self, delivery: Delivery) {
        let Some(link) = self.links.by_id(delivery.link) else { return };
        let (id, number, settled) = (delivery.link, delivery.id, delivery.settled);
        let refused = match &link.inbound {
            Some(InboundEvent::Messages(messages)) => {
                if !settled {
                    link.settlements.add(number);
                }
                // The receiver was dropped, so nobody will settle this delivery.
                messages.send(delivery).is_err().then_some(DeliveryState::Released)
            }
            Some(InboundEvent::Responses(responses)) => {
                responses.complete(delivery.payload);
                Some(DeliveryState::Accepted)
            }
            None => Some(DeliveryState::Released),
        };
        if let Some(state) = refused
            && !settled
        {
            let _ = self.amqp.dispose(id, number, number, true, Some(state));
        }
    }

    fn on_disposition(&mut self, disposition: amqp::DispositionEvent) {
        let amqp::DispositionEvent { link: id, deliveries, settled, state } = disposition;
        let Some(link) = self.links.by_id(id) else { return };
        for delivery in &deliveries {
            if link.inbound.is_some() {
                link.settlements.record_reply(delivery.id, state.as_ref());
            } else {
                link.record_outcome(delivery.token, state.as_ref());
            }
        }
        if !settled {
            for delivery in deliveries {
                let _ = self.amqp.dispose(id, delivery.id, delivery.id, true, state.clone());
            }
        }
    }

    fn on_detached(&mut self, id: LinkId, error: Option<amqp::Error>) {
        let Some(link) = self.links.remove(id) else { return };
        self.sessions.release(link.session);
        let operation = match link.phase {
            LinkPhase::Attaching(_) => ClientOperation::Attach,
            LinkPhase::Attached | LinkPhase::Detaching(_) if link.inbound.is_some() => ClientOperation::Receive,
            LinkPhase::Attached | LinkPhase::Detaching(_) => ClientOperation::Send,
        };
        let why = match (error, &link.phase) {
            (Some(error), LinkPhase::Attaching(_)) => link.refused(operation, ServiceError::new(error)),
            (Some(error), LinkPhase::Attached | LinkPhase::Detaching(_)) => {
                link.detached(operation, ServiceError::new(error))
            }
            (None, LinkPhase::Detaching(_)) => Error::Closed { address: Arc::clone(&link.address) },
            (None, LinkPhase::Attaching(_) | LinkPhase::Attached) => {
                let error = amqp::Error::new(amqp::condition::DETACH_FORCED, "detached by the peer without an error");
                link.detached(operation, ServiceError::new(error))
            }
        };
        link.finish(why);
    }
}
