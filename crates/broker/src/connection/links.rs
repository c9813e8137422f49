//! The links of one connection: what each is for, and the two names it has.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use amqp::{Attach, SessionId, Target};
use bytes::Bytes;

use super::address::Address;
use super::pace::{Pace, Places};
use crate::core::{ConnectionId, CoreLinkId, EntityId, LockToken, QueueId};

#[derive(Debug)]
pub(super) enum Link {
    /// The engine was asked about it. A receiver may stay so for a minute, until there is a session for it.
    Asked(Box<Asked>),
    /// The engine was asked whether the node it leads to is there.
    Coming(Box<Coming>),
    /// A client sends to a queue or topic.
    Sender { entity: EntityId, core: CoreLinkId },
    /// A client receives.
    Receiver(Box<Receiver>),
    /// A client puts requests to a node.
    Requests { session: SessionId, node: Address, core: Option<CoreLinkId> },
    /// A client waits for responses of a node.
    Responses(Box<Responses>),
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) attach: Box<Attach>,
    /// Its name in the core.
    pub(super) core: CoreLinkId,
    /// Known when the core lets it wait for a session.
    pub(super) place: Option<Place>,
}

/// A link to a node, before it is attached.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) becomes: Link,
    pub(super) reply: Attach,
}

/// Where a receiver receives from.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) queue: QueueId,
    /// The entity's path, if this is its dead-letter queue.
    pub(crate) dead_letters_of: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) core: CoreLinkId,
    pub(super) place: Place,
    pub(super) pace: Pace,
    pub(super) tokens: Tokens,
}

/// Lock tokens of deliveries under way, by a number of their own: AMQP's layer carries the number, not the token.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    tokens: HashMap<u64, LockToken>,
    next: u64,
}

impl Tokens {
    pub(super) fn add(&mut self, token: LockToken) -> u64 {
        self.next += 1;
        self.tokens.insert(self.next, token);
        self.next
    }

    pub(super) fn take(&mut self, number: u64) -> Option<LockToken> {
        self.tokens.remove(&number)
    }
}

#[derive(Debug)]
pub(super) struct Responses {
    pub(super) session: SessionId,
    pub(super) node: Address,
    pub(super) core: Option<CoreLinkId>,
    pub(super) name: String,
    pub(super) target: Option<String>,
    /// Waiting for credit.
    waiting: VecDeque<Bytes>,
    sent: u64,
}

impl Responses {
    pub(super) fn new(session: SessionId, node: Address, core: Option<CoreLinkId>, attach: &Attach) -> Self {
        let target = attach.target.as_ref().and_then(Target::address).map(str::to_owned);
        Self { session, node, core, name: attach.name.clone(), target, waiting: VecDeque::new(), sent: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Links {
    connection: ConnectionId,
    next: u32,
    links: HashMap<amqp::LinkId, Link>,
    by_core: HashMap<CoreLinkId, amqp::LinkId>,
    /// Bytes of all responses that wait for credit.
    waiting: usize,
    places: Places,
}

/// What a response takes while it waits, beside its bytes.
const RESPONSE: usize = 128;

impl Links {
    pub(super) fn new(connection: ConnectionId, places: Places) -> Self {
        Self { connection, next: 0, links: HashMap::new(), by_core: HashMap::new(), waiting: 0, places }
    }

    /// Whether the broker takes another link.
    pub(super) fn have_room(&self) -> bool {
        self.places.are_free()
    }

    /// A name for a link in the core.
    pub(super) fn name(&mut self, link: amqp::LinkId) -> CoreLinkId {
        self.next += 1;
        let core = self.connection.link(self.next);
        self.by_core.insert(core, link);
        core
    }

    pub(super) fn insert(&mut self, id: amqp::LinkId, link: Link) {
        self.links.insert(id, link);
        self.places.hold(self.links.len());
    }

    pub(super) fn get(&self, id: amqp::LinkId) -> Option<&Link> {
        self.links.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: amqp::LinkId) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    pub(super) fn receiver(&mut self, id: amqp::LinkId) -> Option<&mut Receiver> {
        match self.links.get_mut(&id) {
            Some(Link::Receiver(receiver)) => Some(receiver),
            _ => None,
        }
    }

    /// A link to a node becomes what it was to be; returns the answer to its attach.
    pub(super) fn arrive(&mut self, id: amqp::LinkId) -> Option<Attach> {
        match self.links.remove(&id)? {
            Link::Coming(coming) => {
                self.links.insert(id, coming.becomes);
                Some(coming.reply)
            }
            other => {
                self.links.insert(id, other);
                None
            }
        }
    }

    /// AMQP's name of a link the core speaks of.
    pub(super) fn of_core(&self, core: CoreLinkId) -> Option<amqp::LinkId> {
        self.by_core.get(&core).copied()
    }

    pub(super) fn remove(&mut self, id: amqp::LinkId) -> Option<Link> {
        let link = self.links.remove(&id)?;
        self.places.hold(self.links.len());
        if let Some(core) = link.core() {
            self.by_core.remove(&core);
        }
        if let Link::Responses(responses) = &link {
            self.waiting -= responses.waiting.iter().map(|response| response.len() + RESPONSE).sum::<usize>();
        }
        Some(link)
    }

    /// Bytes of the responses that wait for credit, on all links.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// A response waits for credit; false if nobody is there for it.
    pub(super) fn queue_response(&mut self, id: amqp::LinkId, response: Bytes) -> bool {
        let Some(Link::Responses(responses)) = self.links.get_mut(&id) else { return false };
        self.waiting += response.len() + RESPONSE;
        responses.waiting.push_back(response);
        true
    }

    /// The response whose turn it is, and its number.
    pub(super) fn next_response(&mut self, id: amqp::LinkId) -> Option<(u64, Bytes)> {
        let Some(Link::Responses(responses)) = self.links.get_mut(&id) else { return None };
        let response = responses.waiting.pop_front()?;
        self.waiting -= response.len() + RESPONSE;
        responses.sent += 1;
        Some((responses.sent, response))
    }

    /// The core's names of all links it knows, waiting ones too.
    pub(super) fn in_core(&self) -> impl Iterator<Item = CoreLinkId> + '_ {
        self.by_core.keys().copied()
    }

    /// The link on which a node's response to a request is awaited: named by its target, by its own name or, when the request
    /// says nothing, the only one there is.
    pub(super) fn awaiting(&self, session: SessionId, node: &Address, reply_to: Option<&str>) -> Option<amqp::LinkId> {
        let of_node = || {
            self.links.iter().filter_map(move |(id, link)| match link {
                Link::Responses(responses) if responses.node == *node => Some((*id, responses)),
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

impl Link {
    pub(super) fn core(&self) -> Option<CoreLinkId> {
        match self {
            Self::Asked(asked) => Some(asked.core),
            Self::Coming(coming) => coming.becomes.core(),
            Self::Receiver(receiver) => Some(receiver.core),
            Self::Requests { core, .. } => *core,
            Self::Responses(responses) => responses.core,
            Self::Sender { core, .. } => Some(*core),
        }
    }
}
