//! The task that owns socket and protocol state.
//!
//! It reads, writes and takes commands side by side, so that a peer that does not read cannot keep us from hearing it, and
//! two peers that both write cannot wait for each other.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use amqp::{ClientSasl, ConnectionEvent, Delivery, DeliveryState, LinkId, OutgoingDelivery};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::Patience;
use super::command::{AttachRequest, Command, Inbound, LinkKey, Settle, Transfer};
use super::links::{Link, Links, Phase, Sent};
use super::sessions::Sessions;
use super::settling::Settling;
use crate::error::{Error, Lost, Refusal, Step};

const SMALL_READ: usize = 4 << 10;
const LARGE_READ: usize = 64 << 10;
/// How many bytes may wait to be written before no more commands are taken.
const MUCH_OUTPUT: usize = 1 << 20;
/// Commands taken at once: what they cause is written together.
const MANY_COMMANDS: usize = 512;

pub(super) struct Driver<S> {
    reader: ReadHalf<S>,
    protocol: Protocol,
    output: Output<S>,
    commands: mpsc::UnboundedReceiver<Command>,
    patience: Patience,
}

/// The state machine and its books; no I/O.
struct Protocol {
    amqp: amqp::Connection,
    links: Links,
    sessions: Sessions,
    host: Arc<str>,
    end: Arc<OnceLock<Lost>>,
    opened: Option<oneshot::Sender<()>>,
    /// Who waits for the end, and until when the peer may take to agree.
    closing: Option<Instant>,
    closers: Vec<oneshot::Sender<()>>,
    answer_patience: std::time::Duration,
}

/// Bytes on their way out.
struct Output<S> {
    writer: WriteHalf<S>,
    bytes: Bytes,
    unflushed: bool,
    /// When the peer last took something, while there is something to take.
    moved: Option<Instant>,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Driver<S> {
    pub(super) fn new(
        stream: S,
        config: amqp::Config,
        commands: mpsc::UnboundedReceiver<Command>,
        opened: oneshot::Sender<()>,
        end: Arc<OnceLock<Lost>>,
        host: Arc<str>,
        patience: Patience,
    ) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let protocol = Protocol {
            amqp: amqp::Connection::client(config, ClientSasl::Anonymous, Instant::now()),
            links: Links::default(),
            sessions: Sessions::default(),
            host,
            end,
            opened: Some(opened),
            closing: None,
            closers: Vec::new(),
            answer_patience: patience.answer,
        };
        let output = Output { writer, bytes: Bytes::new(), unflushed: false, moved: None };
        Self { reader, protocol, output, commands, patience }
    }

    pub(super) async fn run(mut self) {
        let lost = self.talk().await;
        debug!(host = %self.protocol.host, reason = %lost, "connection over");
        // In this order: the reason is there before anyone is let go to look for it.
        let _ = self.protocol.end.set(lost);
        self.protocol.finish();
    }

    async fn talk(&mut self) -> Lost {
        let mut input = BytesMut::new();
        let mut room = SMALL_READ;
        let mut batch = Vec::new();
        loop {
            if self.output.bytes.is_empty() && self.protocol.amqp.output_len() > 0 {
                // Others were woken by what woke us, and have something to say too: one write for all of it.
                tokio::task::yield_now().await;
                while self.takes_commands()
                    && let Ok(command) = self.commands.try_recv()
                {
                    if let Err(lost) = self.protocol.obey(command) {
                        return lost;
                    }
                }
            }
            self.output.fill(&mut self.protocol.amqp);
            let deadline = self.next_deadline();
            let taking = self.takes_commands();
            input.reserve(room);
            tokio::select! {
                // cancel-safe: a read that was dropped has read nothing
                read = self.reader.read_buf(&mut input) => match read {
                    Ok(0) => return if self.protocol.closing.is_some() { Lost::Closed } else { Lost::HungUp },
                    Ok(read) => {
                        room = if read >= room { LARGE_READ } else { read.next_power_of_two().clamp(SMALL_READ, LARGE_READ) };
                        self.protocol.amqp.feed(&mut input, Instant::now());
                    }
                    Err(error) => return Lost::Socket(Arc::new(error)),
                },
                // cancel-safe: every step either counts what was written or has written nothing
                written = self.output.write(), if self.output.waits() => if let Err(error) = written {
                    return Lost::Socket(Arc::new(error));
                },
                // cancel-safe: commands stay in their channel
                taken = self.commands.recv_many(&mut batch, MANY_COMMANDS), if taking => {
                    if taken == 0 {
                        self.protocol.close(None);
                    }
                    for command in batch.drain(..) {
                        if let Err(lost) = self.protocol.obey(command) {
                            return lost;
                        }
                    }
                }
                // cancel-safe: a moment is nothing to lose
                () = tokio::time::sleep_until(deadline.into()) => {
                    let now = Instant::now();
                    if self.protocol.closing.is_some_and(|until| now >= until) {
                        return Lost::NoAnswer(Step::Close);
                    }
                    if self.output.stalled(now, &self.patience) {
                        return Lost::Stalled;
                    }
                    self.protocol.amqp.on_tick(now);
                }
            }
            if let Some(lost) = self.protocol.take_events() {
                self.say_goodbye().await;
                return lost;
            }
        }
    }

    fn takes_commands(&self) -> bool {
        self.protocol.closing.is_none() && self.protocol.amqp.output_len() < MUCH_OUTPUT
    }

    fn next_deadline(&self) -> Instant {
        let protocol = self.protocol.amqp.next_deadline();
        let stalled = self.output.moved.map(|moved| moved + self.patience.answer);
        let soonest = [protocol, stalled, self.protocol.closing].into_iter().flatten().min();
        soonest.unwrap_or_else(|| Instant::now() + std::time::Duration::from_secs(3_600))
    }

    /// The last frame says why; it is not worth more than a moment.
    async fn say_goodbye(&mut self) {
        self.output.fill(&mut self.protocol.amqp);
        let patience = self.patience.answer.min(std::time::Duration::from_millis(500));
        let _ = tokio::time::timeout(patience, async {
            while self.output.waits() {
                self.output.write().await?;
                self.output.fill(&mut self.protocol.amqp);
            }
            self.output.writer.shutdown().await
        })
        .await;
    }
}

impl<S: AsyncRead + AsyncWrite> Output<S> {
    fn fill(&mut self, amqp: &mut amqp::Connection) {
        if self.bytes.is_empty() {
            self.bytes = amqp.take_output();
            self.unflushed |= !self.bytes.is_empty();
        }
        if !self.waits() {
            self.moved = None;
        } else if self.moved.is_none() {
            self.moved = Some(Instant::now());
        }
    }

    fn waits(&self) -> bool {
        self.unflushed
    }

    fn stalled(&self, now: Instant, patience: &Patience) -> bool {
        self.moved.is_some_and(|moved| now >= moved + patience.answer)
    }

    /// Writes some. TLS keeps records back until it is told to flush.
    async fn write(&mut self) -> std::io::Result<()> {
        if self.bytes.has_remaining() {
            if self.writer.write_buf(&mut self.bytes).await? == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            self.moved = Some(Instant::now());
        }
        if !self.bytes.has_remaining() {
            self.writer.flush().await?;
            self.unflushed = false;
        }
        Ok(())
    }
}

impl Protocol {
    fn obey(&mut self, command: Command) -> Result<(), Lost> {
        match command {
            Command::Attach(request) => self.attach(*request),
            Command::Transfer(transfer) => self.transfer(transfer),
            Command::Transfers(transfers) => self.transfers(transfers),
            Command::OverdueTransfer { link, token } => {
                if self.links.get(link).is_some_and(|link| link.sent.contains_key(&token)) {
                    return Err(Lost::NoAnswer(Step::Send));
                }
            }
            Command::Settle(settle) => self.settle(settle),
            Command::KeepCredit { link, credit } => self.keep_credit(link, credit),
            Command::Drain { link, reply } => self.drain(link, reply),
            Command::Detach { link, reply } => self.detach(link, reply),
            Command::Suspect(step) => return Err(Lost::NoAnswer(step)),
            Command::Close(closer) => self.close(Some(closer)),
        }
        Ok(())
    }

    fn close(&mut self, closer: Option<oneshot::Sender<()>>) {
        self.closers.extend(closer);
        if self.closing.is_none() {
            let _ = self.amqp.close(None);
            self.closing = Some(Instant::now() + self.answer_patience);
        }
    }

    /// The reason has been stored: everyone who waits is let go.
    fn finish(mut self) {
        let source = self.end.get().cloned().unwrap_or(Lost::HungUp);
        for link in self.links.drain() {
            link.finish(Error::ConnectionLost { host: Arc::clone(&self.host), source: source.clone() });
        }
    }

    fn attach(&mut self, request: AttachRequest) {
        let AttachRequest { key, attach, address, inbound, own_session, credit, guard, end, reply } = request;
        let asked = self.sessions.take(&mut self.amqp, own_session).and_then(|session| {
            let attached = self.amqp.attach(session, attach);
            if attached.is_err() {
                self.sessions.give_back(session);
            }
            attached.map(|id| (session, id))
        });
        match asked {
            Ok((session, id)) => {
                let link = Link {
                    id,
                    session,
                    address,
                    end,
                    phase: Phase::Attaching(reply),
                    credit,
                    inbound,
                    settling: Settling::default(),
                    draining: None,
                    queue: VecDeque::new(),
                    sent: Default::default(),
                    guard,
                };
                self.links.insert(key, link);
            }
            Err(source) => {
                let error = Error::Impossible { step: Step::Attach, address, source };
                let _ = end.set(error.clone());
                let _ = reply.send(Err(error));
            }
        }
    }

    fn transfer(&mut self, transfer: Transfer) {
        // A link that is gone: dropping the reply would read as a lost connection, so the caller asks the link itself.
        let Some(link) = self.links.get(transfer.link) else { return };
        link.queue.push_back(transfer);
        let id = link.id;
        self.pump(id);
    }

    /// All are of one link.
    fn transfers(&mut self, transfers: Vec<Transfer>) {
        let Some(key) = transfers.first().map(|transfer| transfer.link) else { return };
        // A link that is gone: the promises are broken as they are dropped.
        let Some(link) = self.links.get(key) else { return };
        link.queue.extend(transfers);
        let id = link.id;
        self.pump(id);
    }

    /// Sends what has credit.
    fn pump(&mut self, id: LinkId) {
        let Some(link) = self.links.by_id(id) else { return };
        while self.amqp.credit(id) > 0 {
            let Some(transfer) = link.queue.pop_front() else { return };
            // Nobody waits for it any more, and it has not gone out: then it never was.
            if transfer.caller.has_left() {
                continue;
            }
            let Transfer { token, payload, message_format, permit, caller, .. } = transfer;
            // Asked here and not where the transfer was handed in: between the two it may have waited long for credit.
            if link.guard.as_ref().is_some_and(|may_write| !may_write()) {
                caller.tell(Err(Error::Withheld { address: Arc::clone(&link.address) }));
                continue;
            }
            let tag = token.to_be_bytes();
            let outgoing = OutgoingDelivery { tag: &tag, message_format, token, ..OutgoingDelivery::default() };
            match self.amqp.transfer(id, outgoing, &[&payload]) {
                Ok(_) => drop(link.sent.insert(token, Sent { caller, _permit: permit })),
                Err(source) => {
                    let address = Arc::clone(&link.address);
                    caller.tell(Err(Error::Impossible { step: Step::Send, address, source }));
                }
            }
        }
    }

    fn settle(&mut self, settle: Settle) {
        let Some(link) = self.links.get(settle.link) else { return };
        let ranges = link.settling.ask(settle.deliveries, settle.state.clone(), settle.reply);
        for (first, last) in ranges {
            // Fails when the link is on its way out; its end answers the call.
            let _ = self.amqp.dispose(link.id, first, last, false, Some(settle.state.clone()));
        }
    }

    fn drain(&mut self, key: LinkKey, reply: super::command::Reply<()>) {
        let Some(link) = self.links.get(key) else { return };
        match self.amqp.drain(link.id) {
            Ok(()) => link.draining = Some(reply),
            Err(source) => {
                let address = Arc::clone(&link.address);
                let _ = reply.send(Err(Error::Impossible { step: Step::Detach, address, source }));
            }
        }
    }

    fn detach(&mut self, key: LinkKey, reply: Option<super::command::Reply<()>>) {
        let Some(link) = self.links.get(key) else {
            drop(reply.map(|reply| reply.send(Ok(()))));
            return;
        };
        match &mut link.phase {
            Phase::Detaching(waiting) => {
                if reply.is_some() {
                    *waiting = reply;
                }
            }
            Phase::Attaching(_) | Phase::Attached => {
                let _ = self.amqp.detach(link.id, None);
                link.phase = Phase::Detaching(reply);
            }
        }
    }

    /// Handles every event; the reason when the connection is over.
    fn take_events(&mut self) -> Option<Lost> {
        while let Some(event) = self.amqp.poll_event() {
            match event {
                ConnectionEvent::Opened(_) => drop(self.opened.take().map(|opened| opened.send(()))),
                ConnectionEvent::Attached { link, attach } => self.on_attached(link, attach),
                ConnectionEvent::Credit { link, drain, .. } => {
                    self.pump(link);
                    if drain {
                        let _ = self.amqp.drained(link);
                    }
                }
                ConnectionEvent::Drained { link } => self.on_drained(link),
                ConnectionEvent::Delivery(delivery) => self.on_delivery(delivery),
                ConnectionEvent::Disposition(disposition) => self.on_disposition(disposition),
                ConnectionEvent::Detached { link, error, .. } => self.on_detached(link, error.map(|error| *error)),
                ConnectionEvent::SessionEnded { session, .. } => self.sessions.ended(session),
                // We never offered anything to attach to.
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

    fn on_closed(&self, error: Option<amqp::Error>, by_peer: bool) -> Lost {
        match error {
            Some(error) => Lost::Amqp(Box::new(Refusal::new(error))),
            None if by_peer => Lost::ByPeer,
            None => Lost::Closed,
        }
    }

    fn on_attached(&mut self, id: LinkId, attach: Box<amqp::Attach>) {
        let Some(link) = self.links.by_id(id) else { return };
        let credit = link.credit;
        match std::mem::replace(&mut link.phase, Phase::Attached) {
            Phase::Attaching(reply) => {
                // Credit only to someone who is there to use it.
                if reply.send(Ok(attach)).is_ok() && credit > 0 {
                    let _ = self.amqp.keep_credit(id, credit);
                }
            }
            phase @ (Phase::Attached | Phase::Detaching(_)) => link.phase = phase,
        }
    }

    fn keep_credit(&mut self, key: LinkKey, credit: u32) {
        let Some(link) = self.links.get(key) else { return };
        link.credit = credit;
        if matches!(link.phase, Phase::Attached) {
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
            Some(Inbound::Messages(messages)) => {
                if !settled {
                    link.settling.received(number);
                }
                // The receiver is being dropped: nobody will settle this.
                messages.send(delivery).is_err().then_some(DeliveryState::Released)
            }
            Some(Inbound::Answers(answers)) => {
                answers.arrived(delivery.payload);
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
                link.settling.answered(delivery.id, state.as_ref());
            } else {
                link.outcome(delivery.token, state.as_ref());
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
        self.sessions.give_back(link.session);
        let step = match link.phase {
            Phase::Attaching(_) => Step::Attach,
            Phase::Attached | Phase::Detaching(_) if link.inbound.is_some() => Step::Receive,
            Phase::Attached | Phase::Detaching(_) => Step::Send,
        };
        let why = match (error, &link.phase) {
            (Some(error), _) => link.refused(step, Refusal::new(error)),
            (None, Phase::Detaching(_)) => Error::Closed { address: Arc::clone(&link.address) },
            (None, Phase::Attaching(_) | Phase::Attached) => {
                let error = amqp::Error::new(amqp::condition::DETACH_FORCED, "detached by the peer without a reason");
                link.refused(step, Refusal::new(error))
            }
        };
        link.finish(why);
    }
}
