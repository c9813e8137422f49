//! The links of one connection, and the callers that wait on each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use amqp::{Attach, DeliveryState, LinkId, SessionId, condition};
use tokio::sync::OwnedSemaphorePermit;

use super::command::{InboundEvent, LinkKey, OutcomeSender, OutgoingTransfer, Reply, WriteGuard};
use super::settlements::{PendingSettlements, unexpected_outcome};
use crate::error::{ClientOperation, Error, ServiceError};

#[derive(Default)]
pub(super) struct DriverLinks {
    by_key: HashMap<LinkKey, DriverLink>,
    by_id: HashMap<LinkId, LinkKey>,
}

pub(super) struct DriverLink {
    pub(super) id: LinkId,
    pub(super) session: SessionId,
    pub(super) address: Arc<str>,
    pub(super) end: Arc<OnceLock<Error>>,
    pub(super) phase: LinkPhase,
    pub(super) credit: u32,
    /// Only for links that receive.
    pub(super) inbound: Option<InboundEvent>,
    pub(super) settlements: PendingSettlements,
    pub(super) draining: Option<Reply<()>>,
    /// Only for links that send: transfers without credit yet, and transfers without an outcome yet.
    pub(super) queue: VecDeque<OutgoingTransfer>,
    pub(super) sent: HashMap<u64, UnsettledTransfer>,
    pub(super) guard: Option<WriteGuard>,
}

/// A transfer that waits for its outcome.
pub(super) struct UnsettledTransfer {
    pub(super) caller: OutcomeSender,
    pub(super) _permit: Option<OwnedSemaphorePermit>,
}

pub(super) enum LinkPhase {
    /// Our attach is sent.
    Attaching(Reply<Box<Attach>>),
    /// The peer has attached.
    Attached,
    /// Our detach is sent.
    Detaching(Option<Reply<()>>),
}

impl DriverLinks {
    pub(super) fn insert(&mut self, key: LinkKey, link: DriverLink) {
        self.by_id.insert(link.id, key);
        self.by_key.insert(key, link);
    }

    pub(super) fn get(&mut self, key: LinkKey) -> Option<&mut DriverLink> {
        self.by_key.get_mut(&key)
    }

    pub(super) fn by_id(&mut self, id: LinkId) -> Option<&mut DriverLink> {
        self.by_key.get_mut(self.by_id.get(&id)?)
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<DriverLink> {
        self.by_key.remove(&self.by_id.remove(&id)?)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = DriverLink> {
        self.by_id.clear();
        self.by_key.drain().map(|(_, link)| link)
    }
}

impl DriverLink {
    pub(super) fn refused(&self, operation: ClientOperation, refusal: ServiceError) -> Error {
        Error::Refused { operation, address: Arc::clone(&self.address), source: Box::new(refusal) }
    }

    pub(super) fn detached(&self, operation: ClientOperation, reason: ServiceError) -> Error {
        Error::LinkDetached { operation, address: Arc::clone(&self.address), source: Box::new(reason) }
    }

    /// Reports the peer's outcome of a delivery that we sent.
    pub(super) fn record_outcome(&mut self, token: u64, state: Option<&DeliveryState>) {
        let Some(sent) = self.sent.remove(&token) else { return };
        let result = match state {
            Some(DeliveryState::Accepted) => Ok(()),
            Some(other) => Err(self.refused(ClientOperation::Send, unexpected_outcome(other))),
            None => {
                let what = "settled without an outcome";
                Err(Error::InvalidReply { operation: ClientOperation::Send, address: Arc::clone(&self.address), what })
            }
        };
        sent.caller.send(result);
    }

    /// Closes the link: stores the reason, then releases all waiting callers.
    pub(super) fn finish(mut self, why: Error) {
        let _ = self.end.set(why.clone());
        match self.phase {
            LinkPhase::Attaching(reply) => drop(reply.send(Err(why.clone()))),
            LinkPhase::Attached | LinkPhase::Detaching(None) => {}
            // The caller asked for a detached link, so this is success.
            LinkPhase::Detaching(Some(reply)) => drop(reply.send(Ok(()))),
        }
        if let Some(InboundEvent::Responses(responses)) = &self.inbound {
            responses.fail(&why);
        }
        self.settlements.fail(&why);
        if let Some(reply) = self.draining.take() {
            let _ = reply.send(Err(why.clone()));
        }
        // The reason cannot be about them: they were never written.
        let unsent = match &why {
            Error::LinkDetached { operation, address, .. } => Error::LinkDetached {
                operation: *operation,
                address: Arc::clone(address),
                source: Box::new(ServiceError {
                    condition: condition::DETACH_FORCED,
                    description: "detached before the message was sent".into(),
                }),
            },
            why => why.clone(),
        };
        for transfer in self.queue {
            transfer.caller.send(Err(unsent.clone()));
        }
        for (_, sent) in self.sent {
            sent.caller.send(Err(why.clone()));
        }
    }
}
