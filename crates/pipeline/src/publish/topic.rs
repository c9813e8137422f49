//! The topic and its sender link, behind traits that tests wrap to inject faults.

use std::sync::Arc;

use servicebus::{Client, EncodedMessage, PipelinedSender, SendOutcome, Sender};

/// A topic with its subscription.
pub trait PublishTopic: Send + Sync + 'static {
    type TopicLink: SenderLink + 'static;

    /// Topic name, for logs.
    fn name(&self) -> &str;

    /// Subscription name, for logs.
    fn subscription(&self) -> &str;

    /// Opens a sender link. Waits for the backoff that Service Bus asks for.
    fn open(&self) -> impl Future<Output = Result<Self::TopicLink, servicebus::Error>> + Send;

    fn subscription_exists(&self) -> impl Future<Output = Result<bool, servicebus::Error>> + Send;

    /// Returns when the subscription may have been deleted. May return without a reason.
    fn changed(&self) -> impl Future<Output = ()> + Send;
}

/// An open sender link. Every submitted transfer gets exactly one outcome, also when the link is lost.
pub trait SenderLink: Send {
    fn limits(&self) -> LinkLimits;

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>);

    /// Appends outcomes to `into`; waits for the first one. Cancel-safe.
    fn outcomes(&mut self, into: &mut Vec<SendOutcome>) -> impl Future<Output = ()> + Send;

    /// Whether the link is closed.
    fn is_closed(&self) -> bool;

    /// Drops the connection and every transfer in flight, because an outcome is overdue.
    fn abandon(&self);
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    pub message: usize,
    pub batch: usize,
}

/// Message size limit of the Standard tier, used if the link has none.
const STANDARD_TIER_LIMIT: usize = 256 << 10;
/// Maximum number of outcomes per poll.
const OUTCOMES_PER_POLL: usize = 1_024;

/// A Service Bus topic.
pub struct ServiceBusTopic {
    client: Client,
    sender: Sender,
    topic: String,
    subscription: String,
    /// Path of the subscription entity.
    subscription_path: String,
}

impl ServiceBusTopic {
    /// `may_write` is the gate of the term. The task that writes the socket checks it before each transfer.
    pub fn new(
        client: Client,
        topic: &str,
        subscription: &str,
        may_write: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        let sender = client.sender(topic).with_write_guard(may_write);
        Self {
            client,
            sender,
            topic: topic.to_owned(),
            subscription: subscription.to_owned(),
            subscription_path: format!("{topic}/Subscriptions/{subscription}"),
        }
    }
}

impl PublishTopic for ServiceBusTopic {
    type TopicLink = PipelinedSender;

    fn name(&self) -> &str {
        &self.topic
    }

    fn subscription(&self) -> &str {
        &self.subscription
    }

    async fn open(&self) -> Result<PipelinedSender, servicebus::Error> {
        self.sender.pipelined().await
    }

    async fn subscription_exists(&self) -> Result<bool, servicebus::Error> {
        self.client.entity_exists(&self.subscription_path).await
    }

    async fn changed(&self) {
        self.client.management_link_closed(&self.subscription_path).await;
    }
}

impl SenderLink for PipelinedSender {
    fn limits(&self) -> LinkLimits {
        LinkLimits { message: self.message_limit().unwrap_or(STANDARD_TIER_LIMIT), batch: self.batch_limit() }
    }

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>) {
        Self::submit(self, transfers);
    }

    async fn outcomes(&mut self, into: &mut Vec<SendOutcome>) {
        Self::receive_outcomes(self, into, OUTCOMES_PER_POLL).await;
    }

    fn is_closed(&self) -> bool {
        self.closed_reason().is_some()
    }

    fn abandon(&self) {
        Self::abort_connection(self);
    }
}
