//! The links of one connection, with their ids in AMQP and in the core.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use amqp::{Attach, SessionId, Target};
use bytes::Bytes;

use super::address::LinkAddress;
use super::credit::{CoreCredit, LinkBudget};
use crate::core::{ConnectionId, CoreLinkId, EntityId, LockToken, QueueId};

#[derive(Debug)]
pub(super) enum BrokerLink {
    /// The engine is resolving its entity. A receiver may stay in this state for a minute, until a session is available.
    Pending(Box<PendingLink>),
    /// The engine is checking that the entity of its node exists.
    PendingNode(Box<PendingNodeLink>),
    /// A client sends to a queue or topic. `scope` is the entity for transactions: itself, or the one it sends via.
    Sender { entity: EntityId, scope: EntityId, session: SessionId, core_id: CoreLinkId },
    /// A client declares and discharges transactions.
    Coordinator { core_id: CoreLinkId },
    /// A client receives.
    Receiver(Box<ReceiverLink>),
    /// A client sends requests to a node.
    Requests { session: SessionId, node: LinkAddress, core_id: Option<CoreLinkId> },
    /// A client receives responses from a node.
    Responses(Box<ResponseLink>),
}

#[derive(Debug)]
pub(super) struct PendingLink {
    pub(super) session: SessionId,
    pub(super) attach: Box<Attach>,
    /// Its id in the core.
    pub(super) core_id: CoreLinkId,
    /// Set when the core lets it wait for a session.
    pub(super) source: Option<ReceiverSource>,
}

/// A link to a node that is not attached yet.
#[derive(Debug)]
pub(super) struct PendingNodeLink {
    pub(super) becomes: BrokerLink,
    pub(super) reply: Attach,
}

/// What a receiver receives from.
#[derive(Debug, Clone)]
pub(crate) struct ReceiverSource {
    pub(crate) queue: QueueId,
    /// The entity's path, if this is its dead-letter queue.
    pub(crate) dead_letters_of: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct ReceiverLink {
    pub(super) session: SessionId,
    pub(super) core_id: CoreLinkId,
    pub(super) source: ReceiverSource,
    pub(super) credit: CoreCredit,
    pub(super) lock_tokens: LockTokens,
}

/// Lock tokens of unsettled deliveries, by number: the AMQP layer carries the number, not the token.
#[derive(Debug, Default)]
pub(super) struct LockTokens {
    tokens: HashMap<u64, LockToken>,
    next: u64,
}

impl LockTokens {
    pub(super) fn add(&mut self, token: LockToken) -> u64 {
        self.next += 1;
        self.tokens.insert(self.next, token);
        self.next
    }

    pub(super) fn get(&self, number: u64) -> Option<LockToken> {
        self.tokens.get(&number).copied()
    }

    pub(super) fn take(&mut self, number: u64) -> Option<LockToken> {
        self.tokens.remove(&number)
    }
}

#[derive(Debug)]
pub(super) struct ResponseLink {
    pub(super) session: SessionId,
    pub(super) node: LinkAddress,
    pub(super) core_id: Option<CoreLinkId>,
    pub(super) name: String,
    pub(super) target: Option<String>,
    /// Responses that wait for credit.
    unsent: VecDeque<Bytes>,
    sent: u64,
}

impl ResponseLink {
    pub(super) fn new(session: SessionId, node: LinkAddress, core_id: Option<CoreLinkId>, attach: &Attach) -> Self {
        let target = attach.target.as_ref().and_then(Target::address).map(str::to_owned);
        Self { session, node, core_id, name: attach.name.clone(), target, unsent: VecDeque::new(), sent: 0 }
    }
}

#[derive(Debug)]
pub(super) struct LinkTable {
    connection: ConnectionId,
    next: u32,
    links: HashMap<amqp::LinkId, BrokerLink>,
    by_core_id: HashMap<CoreLinkId, amqp::LinkId>,
    /// Bytes of all responses that wait for credit.
    unsent_response_bytes: usize,
    budget: LinkBudget,
}

/// Cost of a waiting response besides its bytes.
const RESPONSE_OVERHEAD: usize = 128;

impl LinkTable {
    pub(super) fn new(connection: ConnectionId, budget: LinkBudget) -> Self {
        Self {
            connection,
            next: 0,
            links: HashMap::new(),
            by_core_id: HashMap::new(),
            unsent_response_bytes: 0,
            budget,
        }
    }

    /// True if the broker may accept another link.
    pub(super) fn has_room(&self) -> bool {
        self.budget.has_room()
    }

    /// Allocates an id for a link in the core.
    pub(super) fn allocate_core_id(&mut self, link: amqp::LinkId) -> CoreLinkId {
        self.next += 1;
        let core = self.connection.link(self.next);
        self.by_core_id.insert(core, link);
        core
    }

    pub(super) fn insert(&mut self, id: amqp::LinkId, link: BrokerLink) {
        self.links.insert(id, link);
        self.budget.set(self.links.len());
    }

    pub(super) fn get(&self, id: amqp::LinkId) -> Option<&BrokerLink> {
        self.links.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: amqp::LinkId) -> Option<&mut BrokerLink> {
        self.links.get_mut(&id)
    }

    pub(super) fn receiver(&mut self, id: amqp::LinkId) -> Option<&mut ReceiverLink> {
        match self.links.get_mut(&id) {
            Some(BrokerLink::Receiver(receiver)) => Some(receiver),
            _ => None,
        }
    }

    /// Completes the attach of a link to a node; returns the reply to its attach.
    pub(super) fn complete_node_attach(&mut self, id: amqp::LinkId) -> Option<Attach> {
        match self.links.remove(&id)? {
            BrokerLink::PendingNode(pending) => {
                self.links.insert(id, pending.becomes);
                Some(pending.reply)
            }
            other => {
                self.links.insert(id, other);
                None
            }
        }
    }

    /// The AMQP id of a link, by its core id.
    pub(super) fn by_core_id(&self, core_id: CoreLinkId) -> Option<amqp::LinkId> {
        self.by_core_id.get(&core_id).copied()
    }

    pub(super) fn remove(&mut self, id: amqp::LinkId) -> Option<BrokerLink> {
        let link = self.links.remove(&id)?;
        self.budget.set(self.links.len());
        if let Some(core) = link.core_id() {
            self.by_core_id.remove(&core);
        }
        if let BrokerLink::Responses(responses) = &link {
            self.unsent_response_bytes -=
                responses.unsent.iter().map(|response| response.len() + RESPONSE_OVERHEAD).sum::<usize>();
        }
        Some(link)
    }

    /// Bytes of the responses that wait for credit, on all links.
    pub(super) fn unsent_response_bytes(&self) -> usize {
        self.unsent_response_bytes
    }

    /// Queues a response until there is credit; false if its link is closed.
    pub(super) fn queue_response(&mut self, id: amqp::LinkId, response: Bytes) -> bool {
        let Some(BrokerLink::Responses(responses)) = self.links.get_mut(&id) else { return false };
        self.unsent_response_bytes += response.len() + RESPONSE_OVERHEAD;
        responses.unsent.push_back(response);
        true
    }

    /// The next response to send, and its number.
    pub(super) fn next_response(&mut self, id: amqp::LinkId) -> Option<(u64, Bytes)> {
        let Some(BrokerLink::Responses(responses)) = self.links.get_mut(&id) else { return None };
        let response = responses.unsent.pop_front()?;
        self.unsent_response_bytes -= response.len() + RESPONSE_OVERHEAD;
        responses.sent += 1;
        Some((responses.sent, response))
    }

    /// The core ids of all links, waiting ones included.
    pub(super) fn core_ids(&self) -> impl Iterator<Item = CoreLinkId> + '_ {
        self.by_core_id.keys().copied()
    }

    /// Finds the link for the response to a request: by its target, by its name or, if the request
    /// names none, the only one of this node.
    pub(super) fn find_response_link(
        &self,
        session: SessionId,
        node: &LinkAddress,
        reply_to: Option<&str>,
    ) -> Option<amqp::LinkId> {
        let of_node = || {
            self.links.iter().filter_map(move |(id, link)| match link {
                BrokerLink::Responses(responses) if responses.node == *node => Some((*id, responses)),
                _ => None,
            })
        };
        let found = match reply_to {
            Some(name) => of_node()
                .find(|(_, responses)| responses.target.as_deref() == Some(name))
                .or_else(|| of_node().find(|(_, responses)| responses.name == name)),
            None => None,
        };
        let same_session = || of_node().find(|(_, responses)| responses.session == session);
        found.or_else(same_session).or_else(|| of_node().next()).map(|(id, _)| id)
    }
}

impl BrokerLink {
    pub(super) fn core_id(&self) -> Option<CoreLinkId> {
        match self {
            Self::Pending(pending) => Some(pending.core_id),
            Self::PendingNode(pending) => pending.becomes.core_id(),
            Self::Receiver(receiver) => Some(receiver.core_id),
            Self::Requests { core_id, .. } => *core_id,
            Self::Responses(responses) => responses.core_id,
            Self::Sender { core_id, .. } | Self::Coordinator { core_id } => Some(*core_id),
        }
    }
}
