//! Settles received messages. A message counts as settled only after Service Bus has confirmed its delivery.

use std::sync::Arc;
use std::time::Duration;

use amqp::performative::Modified;
use amqp::{DeliveryState, Map, Value, condition};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connection::{ClientLink, Command, SettleRequest};
use crate::error::{ClientOperation, Error, ServiceError};
use crate::message::ReceivedMessage;

/// How a message is settled.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// Processed; Service Bus removes the message.
    Complete,
    /// Failed; redelivered with a higher delivery count and these changed properties.
    Abandon { properties: Map },
    /// Moved to the dead-letter queue.
    DeadLetter { reason: String, description: String, properties: Map },
    /// Set aside; received again only by its sequence number.
    Defer { properties: Map },
    /// As if not delivered: the delivery count does not change.
    Release,
}

impl Settlement {
    fn state(self) -> DeliveryState {
        let modified = |undeliverable_here: bool, properties: Map| {
            let message_annotations = (!properties.is_empty()).then_some(properties);
            let delivery_failed = !undeliverable_here;
            DeliveryState::Modified(Box::new(Modified { delivery_failed, undeliverable_here, message_annotations }))
        };
        match self {
            Self::Complete => DeliveryState::Accepted,
            Self::Release => DeliveryState::Released,
            Self::Abandon { properties } => modified(false, properties),
            Self::Defer { properties } => modified(true, properties),
            Self::DeadLetter { reason, description, mut properties } => {
                let mut error = amqp::Error::new(condition::DEAD_LETTER, description.clone());
                properties.insert("DeadLetterReason", Value::String(reason));
                properties.insert("DeadLetterErrorDescription", Value::String(description));
                error.info = properties;
                DeliveryState::rejected(error)
            }
        }
    }
}

/// Settles the messages of one receiver. Cheap to clone; works while a `receive` waits.
#[derive(Clone)]
pub struct Settler {
    link: Arc<ClientLink>,
    link_number: u64,
    operation_timeout: Duration,
}

impl Settler {
    pub(crate) fn new(link: Arc<ClientLink>, link_number: u64, operation_timeout: Duration) -> Self {
        Self { link, link_number, operation_timeout }
    }

    pub async fn complete<'a>(&self, messages: impl IntoIterator<Item = &'a ReceivedMessage>) -> Result<(), Error> {
        self.settle(messages, Settlement::Complete).await
    }

    pub async fn abandon(&self, message: &ReceivedMessage) -> Result<(), Error> {
        self.settle([message], Settlement::Abandon { properties: Map::new() }).await
    }

    pub async fn dead_letter(&self, message: &ReceivedMessage, reason: &str, description: &str) -> Result<(), Error> {
        let (reason, description) = (reason.to_owned(), description.to_owned());
        self.settle([message], Settlement::DeadLetter { reason, description, properties: Map::new() }).await
    }

    pub async fn defer(&self, message: &ReceivedMessage) -> Result<(), Error> {
        self.settle([message], Settlement::Defer { properties: Map::new() }).await
    }

    pub async fn release<'a>(&self, messages: impl IntoIterator<Item = &'a ReceivedMessage>) -> Result<(), Error> {
        self.settle(messages, Settlement::Release).await
    }

    /// Settles all messages in the same way. Consecutive deliveries share one frame. On [`Error::Unsettled`] the other messages are settled.
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ReceivedMessage>,
        how: Settlement,
    ) -> Result<(), Error> {
        let mut failed = Vec::new();
        let mut own = Vec::new();
        for message in messages {
            if message.link == self.link_number {
                own.push((message.delivery_id, message.sequence_number()));
            } else {
                failed.push((message.sequence_number(), wrong_link_error()));
            }
        }
        let requested = own.len() + failed.len();
        if !own.is_empty() {
            let deliveries = own.iter().map(|(id, _)| *id).collect();
            let refused = self.settle_deliveries(deliveries, how).await?;
            let number = |id: u32| own.iter().find(|(own, _)| *own == id).map_or(0, |(_, number)| *number);
            failed.extend(refused.into_iter().map(|(id, refusal)| (number(id), refusal)));
        }
        if failed.is_empty() {
            return Ok(());
        }
        failed.sort_by_key(|(number, _)| *number);
        Err(Error::Unsettled { address: Arc::clone(self.link.address()), requested, failed: failed.into() })
    }

    pub(crate) async fn settle_deliveries(
        &self,
        deliveries: Vec<u32>,
        how: Settlement,
    ) -> Result<Vec<(u32, ServiceError)>, Error> {
        if let Some(error) = self.link.closed_reason() {
            return Err(error);
        }
        let (reply, answer) = oneshot::channel();
        let settle = SettleRequest { link: self.link.key(), deliveries, state: how.state(), reply };
        self.link.connection().command(Command::Settle(settle))?;
        self.link.wait_reply(ClientOperation::Settle, Instant::now() + self.operation_timeout, answer).await
    }
}

fn wrong_link_error() -> ServiceError {
    let description = "the message came over another link".into();
    ServiceError { condition: condition::MESSAGE_LOCK_LOST, description }
}
