//! Received deliveries of one link that the caller has not taken yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use amqp::Delivery;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::client::ActiveConnection;
use crate::connection::{ClientLink, InboundEvent, LinkOptions};
use crate::error::{ClientOperation, Error};
use crate::message::ReceivedMessage;

/// Numbers the links of this process, across all connections.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct DeliveryQueue {
    pub(crate) link: Arc<ClientLink>,
    pub(crate) number: u64,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
}

impl DeliveryQueue {
    pub(crate) async fn open(
        connected: &ActiveConnection,
        attach: amqp::Attach,
        address: Arc<str>,
        credit: u32,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let (messages, deliveries) = mpsc::unbounded_channel();
        let inbound = Some(InboundEvent::Messages(messages));
        let attaching = LinkOptions { attach, address, inbound, own_session: true, credit, guard: None };
        let link = Arc::new(connected.attach(attaching, deadline).await?);
        Ok(Self { link, number: NUMBERS.fetch_add(1, Relaxed), deliveries })
    }

    /// Up to `most` messages: those that have arrived, or else the first to arrive within `wait`. Empty if none arrives.
    ///
    /// After the link is closed, arrived messages are not returned, because they can no longer be settled.
    pub(crate) async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        if let Some(error) = self.link.closed_reason() {
            return Err(error);
        }
        let mut deliveries = Vec::new();
        let arrival = self.deliveries.recv_many(&mut deliveries, most);
        // A timer waits at least a millisecond, so zero must not use one.
        let arrived = if wait.is_zero() { arrival.now_or_never() } else { timeout(wait, arrival).await.ok() };
        match arrived {
            Some(0) if most > 0 => Err(self.link.close_error()),
            Some(_) => deliveries.into_iter().map(|delivery| self.read(delivery)).collect(),
            None => Ok(Vec::new()),
        }
    }

    /// The ids of the deliveries that arrived and were not taken.
    pub(crate) fn drain_ids(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.deliveries.try_recv().ok()).map(|delivery| delivery.id).collect()
    }

    fn read(&self, delivery: Delivery) -> Result<ReceivedMessage, Error> {
        ReceivedMessage::read(delivery, self.number).map_err(|_| Error::InvalidReply {
            operation: ClientOperation::Receive,
            address: Arc::clone(self.link.address()),
            what: "a message cannot be decoded",
        })
    }
}
