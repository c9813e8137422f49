//! The links of one connection, and who waits on each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use amqp::{Attach, DeliveryState, LinkId, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::command::{Caller, Guard, Inbound, LinkKey, Reply, Transfer};
use super::settling::{Settling, another};
use crate::error::{Error, Refusal, Step};

#[derive(Default)]
pub(super) struct Links {
    by_key: HashMap<LinkKey, Link>,
    by_id: HashMap<LinkId, LinkKey>,
}

pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) session: SessionId,
    pub(super) address: Arc<str>,
    pub(super) end: Arc<OnceLock<Error>>,
    pub(super) phase: Phase,
    pub(super) credit: u32,
    /// Of a link that receives.
    pub(super) inbound: Option<Inbound>,
    pub(super) settling: Settling,
    pub(super) draining: Option<Reply<()>>,
    /// Of a link that sends: what waits for credit, and what waits for the peer's outcome.
    pub(super) queue: VecDeque<Transfer>,
    pub(super) sent: HashMap<u64, Sent>,
    pub(super) guard: Option<Guard>,
}

/// A delivery under way.
pub(super) struct Sent {
    pub(super) caller: Caller,
    pub(super) _permit: Option<OwnedSemaphorePermit>,
}

pub(super) enum Phase {
    /// Set when our attach is out.
    Attaching(Reply<Box<Attach>>),
    /// Set when the peer has agreed.
    Attached,
    /// Set when our detach is out.
    Detaching(Option<Reply<()>>),
}

impl Links {
    pub(super) fn insert(&mut self, key: LinkKey, link: Link) {
        self.by_id.insert(link.id, key);
        self.by_key.insert(key, link);
    }

    pub(super) fn get(&mut self, key: LinkKey) -> Option<&mut Link> {
        self.by_key.get_mut(&key)
    }

    pub(super) fn by_id(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_key.get_mut(self.by_id.get(&id)?)
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        self.by_key.remove(&self.by_id.remove(&id)?)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Link> {
        self.by_id.clear();
        self.by_key.drain().map(|(_, link)| link)
    }
}

impl Link {
    pub(super) fn refused(&self, step: Step, refusal: Refusal) -> Error {
        Error::Refused { step, address: Arc::clone(&self.address), source: Box::new(refusal) }
    }

    /// The peer's outcome of a delivery we sent.
    pub(super) fn outcome(&mut self, token: u64, state: Option<&DeliveryState>) {
        let Some(sent) = self.sent.remove(&token) else { return };
        let result = match state {
            Some(DeliveryState::Accepted) => Ok(()),
            Some(other) => Err(self.refused(Step::Send, another(other))),
            None => {
                let what = "settled without an outcome";
                Err(Error::Malformed { step: Step::Send, address: Arc::clone(&self.address), what })
            }
        };
        sent.caller.tell(result);
    }

    /// The link is over: stores why, then lets everyone go who waits on it.
    pub(super) fn finish(mut self, why: Error) {
        let _ = self.end.set(why.clone());
        match self.phase {
            Phase::Attaching(reply) => drop(reply.send(Err(why.clone()))),
            Phase::Attached | Phase::Detaching(None) => {}
            // That it is over is what was asked for.
            Phase::Detaching(Some(reply)) => drop(reply.send(Ok(()))),
        }
        if let Some(Inbound::Answers(answers)) = &self.inbound {
            answers.fail(&why);
        }
        self.settling.fail(&why);
        if let Some(reply) = self.draining.take() {
            let _ = reply.send(Err(why.clone()));
        }
        for transfer in self.queue {
            transfer.caller.tell(Err(why.clone()));
        }
        for (_, sent) in self.sent {
            sent.caller.tell(Err(why.clone()));
        }
    }
}
