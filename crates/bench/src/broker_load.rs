//! What is done to a broker while it is measured: sending, receiving one session, and accepting one session after the other.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amqp::message::BatchBuilder;
use amqp::{ConnectionEvent, DeliveryState, LinkId, OutgoingDelivery};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::peer::{Peer, message};

/// What a batch holds at most: under the service's 256 KB.
const BATCH_BYTES: usize = 200 << 10;
/// Bytes written at once: as many as the broker reads at once, a few times over.
const WRITE_BYTES: usize = 256 << 10;

/// Messages of one size, each with an id of its own, dealt out to a number of sessions in turn.
pub fn messages(ids: std::ops::Range<u64>, sessions: u64, body: usize) -> impl Iterator<Item = Bytes> + Send {
    let body = vec![b'x'; body];
    ids.map(move |n| message(&format!("{n:032}"), Some(&format!("session-{}", n % sessions)), &body))
}

/// The same in Service Bus's batch format.
pub fn batches(messages: impl Iterator<Item = Bytes> + Send) -> impl Iterator<Item = Bytes> + Send {
    let mut messages = messages.peekable();
    std::iter::from_fn(move || {
        messages.peek()?;
        let mut batch = BatchBuilder::new(BATCH_BYTES);
        while let Some(next) = messages.peek()
            && batch.add(next).is_ok()
        {
            messages.next();
        }
        Some(batch.finish())
    })
}

/// Sends as fast as credit allows and waits until every transfer is accepted.
pub async fn send(
    address: SocketAddr,
    queue: &str,
    payloads: impl Iterator<Item = Bytes>,
    message_format: u32,
) -> io::Result<()> {
    let mut peer = Peer::connect(address).await?;
    let link = peer.sender(queue);
    let mut payloads = payloads.peekable();
    let (mut sent, mut accepted) = (0_u32, 0);
    while payloads.peek().is_some() || accepted < sent as usize {
        while peer.amqp.credit(link) > 0
            && peer.amqp.output_len() < WRITE_BYTES
            && let Some(payload) = payloads.next()
        {
            let tag = sent.to_be_bytes();
            let outgoing = OutgoingDelivery { tag: &tag, message_format, ..OutgoingDelivery::default() };
            peer.amqp.transfer(link, outgoing, &[&payload]).map_err(io::Error::other)?;
            sent += 1;
        }
        for event in peer.exchange().await? {
            match event {
                ConnectionEvent::Disposition(disposition) if disposition.state == Some(DeliveryState::Accepted) => {
                    accepted += disposition.deliveries.len();
                }
                ConnectionEvent::Disposition(_) | ConnectionEvent::Detached { .. } | ConnectionEvent::Closed { .. } => {
                    return Err(io::Error::other(format!("refused: {event:?}")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// A receiver that holds one session.
pub struct SessionReceiver {
    peer: Peer,
    link: LinkId,
}

impl SessionReceiver {
    pub async fn accept(address: SocketAddr, queue: &str, session: &str) -> io::Result<Self> {
        let mut peer = Peer::connect(address).await?;
        let link = peer.receiver("receive".into(), queue, Some(Some(session)));
        peer.until(|event| matches!(event, ConnectionEvent::Attached { .. })).await?;
        Ok(Self { peer, link })
    }

    /// Receives so many messages, settles them in ranges and waits for the answers.
    pub async fn receive(mut self, count: usize) -> io::Result<()> {
        self.peer.amqp.keep_credit(self.link, 2_000).map_err(io::Error::other)?;
        let mut settled = 0;
        while settled < count {
            let mut runs = Runs::default();
            for event in self.peer.exchange().await? {
                match event {
                    ConnectionEvent::Delivery(delivery) => runs.add(self.link, delivery.id),
                    ConnectionEvent::Disposition(disposition) if disposition.settled => {
                        settled += disposition.deliveries.len()
                    }
                    ConnectionEvent::Detached { .. } | ConnectionEvent::Closed { .. } => {
                        return Err(io::Error::other(format!("ended: {event:?}")));
                    }
                    _ => {}
                }
            }
            runs.complete(&mut self.peer)?;
        }
        Ok(())
    }
}

/// How a consumer takes sessions: so many connections, so many sessions at once on each, so many messages at most of one hold.
#[derive(Debug, Clone, Copy)]
pub struct Acceptors {
    pub connections: usize,
    pub sessions: usize,
    pub credit: u32,
}

impl Acceptors {
    /// Accepts whatever session is next, receives, completes, lets it go, and begins again, until so many messages are completed.
    pub async fn take(self, address: SocketAddr, queue: &str, messages: u64) -> io::Result<()> {
        let goal = Arc::new(Goal { left: AtomicU64::new(messages), reached: CancellationToken::new() });
        let workers = (0..self.connections).map(|worker| {
            let (queue, goal) = (queue.to_owned(), Arc::clone(&goal));
            tokio::spawn(async move {
                let mut acceptor = Acceptor::connect(address, worker, queue, self.credit).await?;
                // cancel-safe enough: what is half read is of no interest once the goal is reached
                tokio::select! {
                    ended = acceptor.run(self.sessions, &goal) => ended,
                    () = goal.reached.cancelled() => Ok(()),
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await??;
        }
        Ok(())
    }
}

struct Goal {
    left: AtomicU64,
    reached: CancellationToken,
}

impl Goal {
    fn count(&self, completed: u64) {
        let before =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(completed)));
        if before.is_ok_and(|before| before <= completed) {
            self.reached.cancel();
        }
    }
}

/// One connection that holds several sessions at a time.
struct Acceptor {
    peer: Peer,
    worker: usize,
    queue: String,
    credit: u32,
    /// Sessions held or asked for, and how many deliveries of each are not settled yet.
    holds: HashMap<LinkId, usize>,
    accepted: u64,
}

impl Acceptor {
    async fn connect(address: SocketAddr, worker: usize, queue: String, credit: u32) -> io::Result<Self> {
        let peer = Peer::connect(address).await?;
        Ok(Self { peer, worker, queue, credit, holds: HashMap::new(), accepted: 0 })
    }

    async fn run(&mut self, sessions: usize, goal: &Goal) -> io::Result<()> {
        for _ in 0..sessions {
            self.accept()?;
        }
        loop {
            let mut runs = Runs::default();
            for event in self.peer.exchange().await? {
                match event {
                    // What still came for a session that was let go has gone back to it.
                    ConnectionEvent::Delivery(delivery) => {
                        if let Some(unsettled) = self.holds.get_mut(&delivery.link) {
                            *unsettled += 1;
                            runs.add(delivery.link, delivery.id);
                        }
                    }
                    ConnectionEvent::Disposition(disposition) => {
                        goal.count(disposition.deliveries.len() as u64);
                        self.settled(disposition.link, disposition.deliveries.len())?;
                    }
                    ConnectionEvent::Detached { error: None, .. } => self.accept()?,
                    ConnectionEvent::Detached { error: Some(error), .. } => return Err(io::Error::other(error)),
                    ConnectionEvent::Closed { .. } => return Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => {}
                }
            }
            runs.complete(&mut self.peer)?;
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        self.accepted += 1;
        let name = format!("accept-{}-{}", self.worker, self.accepted);
        let link = self.peer.receiver(name, &self.queue, Some(None));
        self.holds.insert(link, 0);
        self.peer.amqp.set_credit(link, self.credit).map_err(io::Error::other)
    }

    fn settled(&mut self, link: LinkId, count: usize) -> io::Result<()> {
        let Some(unsettled) = self.holds.get_mut(&link) else { return Ok(()) };
        *unsettled -= count;
        if *unsettled == 0 {
            self.holds.remove(&link);
            self.peer.amqp.detach(link, None).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Deliveries to complete, neighbours of one link as one range.
#[derive(Default)]
struct Runs(Vec<(LinkId, u32, u32)>);

impl Runs {
    fn add(&mut self, link: LinkId, id: u32) {
        match self.0.last_mut() {
            Some((of, _, last)) if *of == link && last.wrapping_add(1) == id => *last = id,
            _ => self.0.push((link, id, id)),
        }
    }

    fn complete(self, peer: &mut Peer) -> io::Result<()> {
        for (link, first, last) in self.0 {
            peer.amqp.dispose(link, first, last, false, Some(DeliveryState::Accepted)).map_err(io::Error::other)?;
        }
        Ok(())
    }
}
