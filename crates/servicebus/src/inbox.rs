//! Deliveries of one receiving link, on their way to the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use amqp::Delivery;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::client::Connected;
use crate::connection::{Attaching, Inbound, Link};
use crate::error::{Error, Step};
use crate::message::ReceivedMessage;

/// Tells the links of this process apart, over all connections.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Inbox {
    pub(crate) link: Arc<Link>,
    pub(crate) number: u64,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
}

impl Inbox {
    pub(crate) async fn open(
        connected: &Connected,
        attach: amqp::Attach,
        address: Arc<str>,
        credit: u32,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let (messages, deliveries) = mpsc::unbounded_channel();
        let inbound = Some(Inbound::Messages(messages));
        let attaching = Attaching { attach, address, inbound, own_session: true, credit, guard: None };
        let link = Arc::new(connected.attach(attaching, deadline).await?);
        Ok(Self { link, number: NUMBERS.fetch_add(1, Relaxed), deliveries })
    }

    /// Up to `most` messages: those that are there, or the first to come within `wait`. Nothing if none came.
    ///
    /// When the link is over, what had arrived is not handed out: nothing of it could be settled.
    pub(crate) async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<ReceivedMessage>, Error> {
        if let Some(error) = self.link.ended() {
            return Err(error);
        }
        let mut deliveries = Vec::new();
        let arrival = self.deliveries.recv_many(&mut deliveries, most);
        // A timer has no time shorter than a millisecond.
        let arrived = if wait.is_zero() { arrival.now_or_never() } else { timeout(wait, arrival).await.ok() };
        match arrived {
            Some(0) if most > 0 => Err(self.link.error()),
            Some(_) => deliveries.into_iter().map(|delivery| self.read(delivery)).collect(),
            None => Ok(Vec::new()),
        }
    }

    /// What has arrived and was not asked for.
    pub(crate) fn leftovers(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.deliveries.try_recv().ok()).map(|delivery| delivery.id).collect()
    }

    fn read(&self, delivery: Delivery) -> Result<ReceivedMessage, Error> {
        ReceivedMessage::read(delivery, self.number).map_err(|_| Error::Malformed {
            step: Step::Receive,
            address: Arc::clone(self.link.address()),
            what: "a message cannot be read",
        })
    }
}
