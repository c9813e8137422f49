//! Load on a broker under measurement: sends, one session, and many short sessions.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amqp::message::BatchBuilder;
use amqp::{ConnectionEvent, DeliveryState, LinkId, OutgoingDelivery};
use bytes::Bytes;
use local_cluster::BrokerEndpoint;
use tokio_util::sync::CancellationToken;

use crate::amqp_client::{RawAmqpClient, message};

/// The largest batch: below the service's limit of 256 KB.
const BATCH_BYTES: usize = 200 << 10;
/// Bytes per write: a few times what the broker reads at once.
const WRITE_BYTES: usize = 256 << 10;

/// Messages of one size with unique ids, spread over the sessions in turn.
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
    broker: &BrokerEndpoint,
    queue: &str,
    payloads: impl Iterator<Item = Bytes>,
    message_format: u32,
) -> io::Result<()> {
    let mut client = RawAmqpClient::connect(broker).await?;
    let link = client.sender(queue);
    let mut payloads = payloads.peekable();
    let (mut sent, mut accepted) = (0_u32, 0);
    while payloads.peek().is_some() || accepted < sent as usize {
        while client.amqp.credit(link) > 0
            && client.amqp.output_len() < WRITE_BYTES
            && let Some(payload) = payloads.next()
        {
            let tag = sent.to_be_bytes();
            let outgoing = OutgoingDelivery { tag: &tag, message_format, ..OutgoingDelivery::default() };
            client.amqp.transfer(link, outgoing, &[&payload]).map_err(io::Error::other)?;
            sent += 1;
        }
        for event in client.exchange().await? {
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

/// A receiver of one session.
pub struct SingleSessionReceiver {
    client: RawAmqpClient,
    link: LinkId,
}

impl SingleSessionReceiver {
    pub async fn accept(broker: &BrokerEndpoint, queue: &str, session: &str) -> io::Result<Self> {
        let mut client = RawAmqpClient::connect(broker).await?;
        let link = client.receiver("receive".into(), queue, Some(Some(session)));
        client.until(|event| matches!(event, ConnectionEvent::Attached { .. })).await?;
        Ok(Self { client, link })
    }

    /// Receives `count` messages, settles them in ranges and waits for the acknowledgements.
    pub async fn receive(mut self, count: usize) -> io::Result<()> {
        self.client.amqp.keep_credit(self.link, 2_000).map_err(io::Error::other)?;
        let mut settled = 0;
        while settled < count {
            let mut runs = DispositionRanges::default();
            for event in self.client.exchange().await? {
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
            runs.complete(&mut self.client)?;
        }
        Ok(())
    }
}

/// How a consumer accepts sessions: connections, parallel sessions on each, and messages per session lock.
#[derive(Debug, Clone, Copy)]
pub struct AcceptLoad {
    pub connections: usize,
    pub sessions: usize,
    pub credit: u32,
}

impl AcceptLoad {
    /// Accepts the next session, receives, completes, releases it, and repeats until this many messages are completed.
    pub async fn complete_messages(self, broker: &BrokerEndpoint, queue: &str, messages: u64) -> io::Result<()> {
        let goal = Arc::new(CompletionGoal { left: AtomicU64::new(messages), reached: CancellationToken::new() });
        let workers = (0..self.connections).map(|worker| {
            let (queue, goal, broker) = (queue.to_owned(), Arc::clone(&goal), broker.clone());
            tokio::spawn(async move {
                let mut worker = AcceptWorker::connect(&broker, worker, queue, self.credit).await?;
                // not cancel-safe, but nothing is read after the goal is reached
                tokio::select! {
                    ended = worker.run(self.sessions, &goal) => ended,
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

struct CompletionGoal {
    left: AtomicU64,
    reached: CancellationToken,
}

impl CompletionGoal {
    fn count(&self, completed: u64) {
        let before =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(completed)));
        if before.is_ok_and(|before| before <= completed) {
            self.reached.cancel();
        }
    }
}

/// One connection with several parallel sessions.
struct AcceptWorker {
    client: RawAmqpClient,
    worker: usize,
    queue: String,
    credit: u32,
    /// Sessions that are accepted or requested, with their number of unsettled deliveries.
    unsettled_by_link: HashMap<LinkId, usize>,
    accepted: u64,
}

impl AcceptWorker {
    async fn connect(broker: &BrokerEndpoint, worker: usize, queue: String, credit: u32) -> io::Result<Self> {
        let client = RawAmqpClient::connect(broker).await?;
        Ok(Self { client, worker, queue, credit, unsettled_by_link: HashMap::new(), accepted: 0 })
    }

    async fn run(&mut self, sessions: usize, goal: &CompletionGoal) -> io::Result<()> {
        for _ in 0..sessions {
            self.accept()?;
        }
        loop {
            let mut runs = DispositionRanges::default();
            for event in self.client.exchange().await? {
                match event {
                    // A delivery for a released session has returned to the queue.
                    ConnectionEvent::Delivery(delivery) => {
                        if let Some(unsettled) = self.unsettled_by_link.get_mut(&delivery.link) {
                            *unsettled += 1;
                            runs.add(delivery.link, delivery.id);
                        }
                    }
                    ConnectionEvent::Disposition(disposition) => {
                        goal.count(disposition.deliveries.len() as u64);
                        self.record_settled(disposition.link, disposition.deliveries.len())?;
                    }
                    ConnectionEvent::Detached { error: None, .. } => self.accept()?,
                    ConnectionEvent::Detached { error: Some(error), .. } => return Err(io::Error::other(error)),
                    ConnectionEvent::Closed { .. } => return Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => {}
                }
            }
            runs.complete(&mut self.client)?;
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        self.accepted += 1;
        let name = format!("accept-{}-{}", self.worker, self.accepted);
        let link = self.client.receiver(name, &self.queue, Some(None));
        self.unsettled_by_link.insert(link, 0);
        self.client.amqp.set_credit(link, self.credit).map_err(io::Error::other)
    }

    fn record_settled(&mut self, link: LinkId, count: usize) -> io::Result<()> {
        let Some(unsettled) = self.unsettled_by_link.get_mut(&link) else { return Ok(()) };
        *unsettled -= count;
        if *unsettled == 0 {
            self.unsettled_by_link.remove(&link);
            self.client.amqp.detach(link, None).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Deliveries to complete; consecutive ones of a link form one range.
#[derive(Default)]
struct DispositionRanges(Vec<(LinkId, u32, u32)>);

impl DispositionRanges {
    fn add(&mut self, link: LinkId, id: u32) {
        match self.0.last_mut() {
            Some((of, _, last)) if *of == link && last.wrapping_add(1) == id => *last = id,
            _ => self.0.push((link, id, id)),
        }
    }

    fn complete(self, client: &mut RawAmqpClient) -> io::Result<()> {
        for (link, first, last) in self.0 {
            client.amqp.dispose(link, first, last, false, Some(DeliveryState::Accepted)).map_err(io::Error::other)?;
        }
        Ok(())
    }
}
