//! Sending very many: transfers are handed over together, and their outcomes come back together.
//!
//! A [`Sender::enqueue`](crate::Sender::enqueue) costs a permit, a oneshot, a timer and a command for each message, which is most of what a small
//! message costs. Here the caller keeps the window, the order and the deadlines; one command carries many transfers, one channel all
//! outcomes. Every transfer handed over gets exactly one outcome, also when the link or the connection ends first.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::connection::{Caller, Command, Link, Outcome, Promise, Transfer};
use crate::error::{Error, Step};
use crate::message::Encoded;

/// One link, open when it was made. It is not opened again: after an outcome that says it is over, ask the sender for another.
pub struct Bulk {
    link: Arc<Link>,
    batch_limit: usize,
    host: Arc<str>,
    promises: mpsc::UnboundedSender<Outcome>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
}

impl Bulk {
    pub(crate) fn new(link: Arc<Link>, batch_limit: usize) -> Self {
        let (promises, outcomes) = mpsc::unbounded_channel();
        Self { host: link.connection().host(), link, batch_limit, promises, outcomes }
    }

    /// Bytes one message may have; `None`: the bus names no limit.
    pub fn message_limit(&self) -> Option<usize> {
        let limit = self.link.attach.max_message_size.filter(|limit| *limit > 0)?;
        Some(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Bytes a batch may have.
    pub fn batch_limit(&self) -> usize {
        self.batch_limit
    }

    /// Puts transfers on their way, in this order. Each has a token below 2^63 that is not used twice on one link.
    pub fn submit(&self, transfers: impl IntoIterator<Item = (u64, Encoded)>) {
        let link = self.link.key();
        let transfer = |(token, message): (u64, Encoded)| {
            let promise = Promise { token, outcomes: self.promises.clone(), host: Arc::clone(&self.host), told: false };
            Transfer {
                link,
                token,
                payload: message.bytes,
                message_format: message.format,
                permit: None,
                caller: Caller::Many(promise),
            }
        };
        let transfers = transfers.into_iter().map(transfer).collect();
        // Refused, they are dropped, and their promises tell it.
        let _ = self.link.connection().command(Command::Transfers(transfers));
    }

    /// Adds outcomes to `into`: those that are there, or the first to come. Cancel-safe: what is not added is not lost.
    pub async fn outcomes(&mut self, into: &mut Vec<Outcome>, most: usize) -> usize {
        self.outcomes.recv_many(into, most).await
    }

    /// Why the link is over; `None` while it is not.
    pub fn ended(&self) -> Option<Error> {
        self.link.ended()
    }

    /// An outcome is overdue: the connection is not to be trusted and ends, and with it everyone's wait.
    pub fn suspect(&self) {
        self.link.connection().suspect(Step::Send);
    }
}
