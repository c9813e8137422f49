//! Sends many transfers: one command carries many, and all outcomes come back on one channel.
//!
//! [`Sender::enqueue`](crate::Sender::enqueue) costs a permit, a oneshot, a timer and a command per message, which is most of the cost of a small
//! message. Here the caller keeps the window, the order and the deadlines. Every submitted transfer gets exactly one outcome, even if the
//! link or the connection is closed first.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::connection::{ClientLink, Command, OutcomeSender, OutgoingTransfer, SendOutcome, SharedOutcomeSender};
use crate::error::{ClientOperation, Error};
use crate::message::EncodedMessage;

/// A sender on one open link. It does not reopen the link: after an outcome that says the link is closed, get a new one from the sender.
pub struct PipelinedSender {
    link: Arc<ClientLink>,
    batch_limit: usize,
    host: Arc<str>,
    outcome_sender: mpsc::UnboundedSender<SendOutcome>,
    outcomes: mpsc::UnboundedReceiver<SendOutcome>,
}

impl PipelinedSender {
    pub(crate) fn new(link: Arc<ClientLink>, batch_limit: usize) -> Self {
        let (outcome_sender, outcomes) = mpsc::unbounded_channel();
        Self { host: link.connection().host(), link, batch_limit, outcome_sender, outcomes }
    }

    /// Maximum message size in bytes; `None` if Service Bus names no limit.
    pub fn message_limit(&self) -> Option<usize> {
        let limit = self.link.attach.max_message_size.filter(|limit| *limit > 0)?;
        Some(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Maximum batch size in bytes.
    pub fn batch_limit(&self) -> usize {
        self.batch_limit
    }

    /// Submits transfers in this order. Each has a token below 2^63 that is never reused on one link.
    pub fn submit(&self, transfers: impl IntoIterator<Item = (u64, EncodedMessage)>) {
        let link = self.link.key();
        let transfer = |(token, message): (u64, EncodedMessage)| {
            let shared = SharedOutcomeSender {
                token,
                outcomes: self.outcome_sender.clone(),
                host: Arc::clone(&self.host),
                sent: false,
            };
            OutgoingTransfer {
                link,
                token,
                payload: message.bytes,
                message_format: message.format,
                permit: None,
                caller: OutcomeSender::Many(shared),
            }
        };
        let transfers = transfers.into_iter().map(transfer).collect();
        // On a closed connection the transfers are dropped, and dropping them sends their outcomes.
        let _ = self.link.connection().command(Command::Transfers(transfers));
    }

    /// Appends outcomes to `into`: those that have arrived, or else the first to arrive. Cancel-safe: outcomes not appended stay queued.
    pub async fn receive_outcomes(&mut self, into: &mut Vec<SendOutcome>, most: usize) -> usize {
        self.outcomes.recv_many(into, most).await
    }

    /// Why the link is closed; `None` while it is open.
    pub fn closed_reason(&self) -> Option<Error> {
        self.link.closed_reason()
    }

    /// Closes the connection because an outcome is overdue. All waiting callers get an error.
    pub fn abort_connection(&self) {
        self.link.connection().abort(ClientOperation::Send);
    }
}
