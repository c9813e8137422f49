//! The seam: where messages go. And the one table that says what the bus's answers mean for a publisher.

use std::sync::Arc;

use servicebus::{BusErrorKind, Client, EncodedMessage, PipelinedSender, SendOutcome, Sender};

use super::handle::PauseReason;

/// A topic with the subscription that keeps its messages.
pub trait PublishTopic: Send + Sync + 'static {
    type Link: SenderLink + 'static;

    /// Opens a way to send. Waits as long as the bus asks for between two tries.
    fn open(&self) -> impl Future<Output = Result<Self::Link, servicebus::Error>> + Send;

    fn subscription_exists(&self) -> impl Future<Output = Result<bool, servicebus::Error>> + Send;

    /// Ends when something happened that may have taken the subscription away. May end without a reason.
    fn changed(&self) -> impl Future<Output = ()> + Send;
}

/// An open way to send. Every transfer submitted gets exactly one outcome, also when the way is lost.
pub trait SenderLink: Send {
    fn limits(&self) -> LinkLimits;

    fn submit(&mut self, transfers: Vec<(u64, EncodedMessage)>);

    /// Adds what came of transfers to `into`; waits for the first. Cancel-safe.
    fn outcomes(&mut self, into: &mut Vec<SendOutcome>) -> impl Future<Output = ()> + Send;

    /// It leads nowhere any more.
    fn is_closed(&self) -> bool;

    /// An outcome is overdue: the way is to be given up, and everything under way with it.
    fn abandon(&self);
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    pub message: usize,
    pub batch: usize,
}

/// The smallest tier's, where the bus names none.
const STANDARD_TIER_LIMIT: usize = 256 << 10;
/// Outcomes taken at once.
const OUTCOMES_PER_POLL: usize = 1_024;

/// A topic of Service Bus.
pub struct ServiceBusTopic {
    client: Client,
    sender: Sender,
    subscription: String,
}

impl ServiceBusTopic {
    /// `may_write` is the gate of the term: asked in the task that writes the socket, before each transfer.
    pub fn new(
        client: Client,
        topic: &str,
        subscription: &str,
        may_write: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        let sender = client.sender(topic).with_write_guard(may_write);
        Self { client, sender, subscription: format!("{topic}/Subscriptions/{subscription}") }
    }
}

impl PublishTopic for ServiceBusTopic {
    type Link = PipelinedSender;

    async fn open(&self) -> Result<PipelinedSender, servicebus::Error> {
        self.sender.pipelined().await
    }

    async fn subscription_exists(&self) -> Result<bool, servicebus::Error> {
        self.client.entity_exists(&self.subscription).await
    }

    async fn changed(&self) {
        self.client.management_link_closed(&self.subscription).await;
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

/// What an answer of the bus means for what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendErrorAction {
    /// This one again, after a pause of its own.
    Retry,
    /// The way is lost, and whether it arrived is not known: again on the next.
    Reopen,
    /// Nothing goes for a while.
    Pause(PauseReason),
    /// Never, as it is.
    Refused,
    /// The term's gate is shut: it did not leave, and nothing else will.
    GateClosed,
    /// Not to be mended from here.
    Fatal,
}

impl SendErrorAction {
    /// Weighing both mistakes: a message wrongly tried again holds up its lane, and the state says so; one wrongly refused is parked by
    /// every consumer. So only what the bus says of the message itself is a refusal.
    pub(super) fn for_error(kind: BusErrorKind) -> Self {
        match kind {
            BusErrorKind::Timeout
            | BusErrorKind::Internal
            | BusErrorKind::Cancelled
            | BusErrorKind::Unknown
            | BusErrorKind::Protocol => Self::Retry,
            BusErrorKind::Detached | BusErrorKind::ConnectionLost => Self::Reopen,
            BusErrorKind::Busy | BusErrorKind::QuotaExceeded => Self::Pause(PauseReason::Busy),
            BusErrorKind::NotFound => Self::Pause(PauseReason::TopicMissing),
            BusErrorKind::Unauthorized => Self::Pause(PauseReason::Unauthorized),
            BusErrorKind::Disabled => Self::Pause(PauseReason::Disabled),
            BusErrorKind::NotAllowed
            | BusErrorKind::InvalidArgument
            | BusErrorKind::MessageTooLarge
            | BusErrorKind::NotImplemented => Self::Refused,
            // Of receivers; a sender does not meet them.
            BusErrorKind::MessageLockLost
            | BusErrorKind::SessionLockLost
            | BusErrorKind::SessionHeldElsewhere
            | BusErrorKind::AlreadyExists => Self::Retry,
            BusErrorKind::Fenced => Self::GateClosed,
            BusErrorKind::Closed | BusErrorKind::Configuration => Self::Fatal,
        }
    }
}
