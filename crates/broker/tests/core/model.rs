//! A broker as a few plain lists: slow, easy to check, and compared with the core after every step.
//!
//! It does not predict which receiver gets a message. It observes what the core does, fails if that was not allowed,
//! and fails if something that must happen did not.

use std::collections::{BTreeMap, HashMap};

use broker::core::*;

/// The limits of every modelled queue.
pub(crate) const LOCK: u64 = 5_000;
pub(crate) const MAX_DELIVERIES: u16 = 3;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelMessage {
    pub(crate) counter: u64,
    pub(crate) body: String,
    pub(crate) session: Option<String>,
    pub(crate) count: u16,
    pub(crate) deferred: bool,
    pub(crate) expires: Option<u64>,
    pub(crate) lock: Option<ModelLock>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelLock {
    pub(crate) token: LockToken,
    /// With sessions, the session's lock decides instead.
    pub(crate) until: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelLink {
    pub(crate) queue: QueueId,
    pub(crate) mode: ReceiveMode,
    pub(crate) credit: u32,
    pub(crate) delivered: u32,
    pub(crate) session: Option<String>,
    /// Deadline of a waiting attach.
    pub(crate) waits: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ModelQueue {
    pub(crate) sessions: bool,
    pub(crate) dead_letters_expired: bool,
    pub(crate) messages: Vec<ModelMessage>,
    pub(crate) dead: Vec<ModelMessage>,
    pub(crate) held: BTreeMap<String, (CoreLinkId, u64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelScheduled {
    pub(crate) entity: EntityId,
    pub(crate) counter: u64,
    pub(crate) due: u64,
    pub(crate) message: ModelMessage,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct BrokerModel {
    pub(crate) now: u64,
    pub(crate) queues: BTreeMap<EntityId, ModelQueue>,
    /// The queues that get the messages of an entity.
    pub(crate) targets: BTreeMap<EntityId, Vec<EntityId>>,
    pub(crate) counters: BTreeMap<EntityId, u64>,
    pub(crate) links: BTreeMap<CoreLinkId, ModelLink>,
    pub(crate) scheduled: Vec<ModelScheduled>,
    /// When each id was last accepted as new, by entity.
    pub(crate) seen: HashMap<(EntityId, String), u64>,
    /// Completed or otherwise removed: must never be delivered again.
    pub(crate) gone: Vec<(QueueId, String)>,
}

impl BrokerModel {
    pub(crate) fn next_counter(&mut self, entity: EntityId) -> u64 {
        let counter = self.counters.entry(entity).or_default();
        *counter += 1;
        *counter
    }

    /// Adds a message to every queue that gets it.
    pub(crate) fn enqueue(&mut self, entity: EntityId, message: &ModelMessage) {
        for target in self.targets[&entity].clone() {
            let queue = self.queues.get_mut(&target).unwrap();
            let session = message.session.clone().filter(|_| queue.sessions);
            queue.messages.push(ModelMessage { session, ..message.clone() });
        }
    }

    /// What happens by the passing of time alone.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        let (mut due, later): (Vec<_>, Vec<_>) = self.scheduled.drain(..).partition(|scheduled| scheduled.due <= now);
        self.scheduled = later;
        due.sort_by_key(|scheduled| (scheduled.due, scheduled.counter));
        for scheduled in due {
            let counter = self.next_counter(scheduled.entity);
            self.enqueue(scheduled.entity, &ModelMessage { counter, ..scheduled.message });
        }
        for queue in self.queues.values_mut() {
            for (link, until) in queue.held.values_mut().filter(|(_, until)| *until <= now) {
                if self.links.get(link).is_some_and(|link| link.mode == ReceiveMode::ReceiveAndDelete) {
                    *until = now + LOCK;
                }
            }
            let lost: Vec<String> =
                queue.held.iter().filter(|(_, (_, until))| *until <= now).map(|(id, _)| id.clone()).collect();
            for session in lost {
                queue.held.remove(&session);
                let theirs = queue.messages.iter_mut().filter(|message| message.session.as_ref() == Some(&session));
                theirs.for_each(ModelMessage::fail);
            }
            let (sessions, late) =
                (queue.sessions, |message: &ModelMessage| message.lock.as_ref().is_some_and(|lock| lock.until <= now));
            queue.messages.iter_mut().filter(|message| !sessions && late(message)).for_each(ModelMessage::fail);
            // Deliveries from a dead-letter queue are not counted.
            queue.dead.iter_mut().filter(|message| late(message)).for_each(|message| message.lock = None);
        }
        self.remove_undeliverable();
    }

    /// A restart: links and locks are gone, and messages whose expiry they delayed expire.
    pub(crate) fn restart(&mut self) {
        self.links.clear();
        for queue in self.queues.values_mut() {
            queue.held.clear();
            queue.messages.iter_mut().chain(&mut queue.dead).for_each(|message| message.lock = None);
        }
        self.remove_undeliverable();
    }

    /// Drops or dead-letters unlocked messages that have expired or have no deliveries left.
    pub(crate) fn remove_undeliverable(&mut self) {
        let now = self.now;
        for (id, queue) in &mut self.queues {
            let (leave, stay): (Vec<_>, Vec<_>) = queue.messages.drain(..).partition(|message| {
                message.lock.is_none() && (message.is_expired(now) || message.has_exhausted_deliveries())
            });
            queue.messages = stay;
            for message in leave {
                if message.is_expired(now) && !queue.dead_letters_expired {
                    self.gone.push((QueueId::main(*id), message.body));
                } else {
                    queue.dead.push(ModelMessage { session: None, deferred: false, expires: None, ..message });
                }
            }
        }
    }

    pub(crate) fn list(&mut self, queue: QueueId) -> &mut Vec<ModelMessage> {
        let lists = self.queues.get_mut(&queue.entity).unwrap();
        if queue.subqueue == Subqueue::Main { &mut lists.messages } else { &mut lists.dead }
    }

    /// Whether a lock token is valid now.
    pub(crate) fn holds(&mut self, queue: QueueId, token: LockToken) -> bool {
        self.list(queue).iter().any(|message| message.is_locked_by(token))
    }

    pub(crate) fn settle(&mut self, queue: QueueId, token: LockToken, outcome: &SettlementOutcome) {
        let now_gone = {
            let list = self.list(queue);
            let index = list.iter().position(|message| message.is_locked_by(token)).expect("held: asked before");
            let message = &mut list[index];
            let count = message.count;
            match outcome {
                SettlementOutcome::Abandon { .. } => message.fail(),
                SettlementOutcome::Release => message.lock = None,
                SettlementOutcome::Defer { .. } => {
                    message.deferred = true;
                    message.fail();
                }
                SettlementOutcome::Complete | SettlementOutcome::DeadLetter { .. } => message.lock = None,
            }
            if queue.subqueue == Subqueue::DeadLetter {
                message.count = count;
            }
            let leaves = matches!(outcome, SettlementOutcome::Complete | SettlementOutcome::DeadLetter { .. });
            leaves.then(|| list.remove(index))
        };
        match (now_gone, outcome) {
            (Some(message), SettlementOutcome::Complete) => self.gone.push((queue, message.body)),
            (Some(message), _) => {
                let dead = ModelMessage { session: None, deferred: false, expires: None, ..message };
                self.queues.get_mut(&queue.entity).unwrap().dead.push(dead);
            }
            (None, _) => {}
        }
        self.remove_undeliverable();
    }

    pub(crate) fn detach(&mut self, link: CoreLinkId) {
        let Some(link) = self.links.remove(&link) else { return };
        if let Some(session) = link.session {
            let queue = self.queues.get_mut(&link.queue.entity).unwrap();
            queue.held.remove(&session);
            let theirs = queue.messages.iter_mut().filter(|message| message.session.as_ref() == Some(&session));
            theirs.for_each(|message| message.lock = None);
            self.remove_undeliverable();
        }
    }

    pub(crate) fn lock_session(&mut self, link: CoreLinkId, session: &str, until: Timestamp) {
        assert_eq!(until.0, self.now + LOCK);
        let entry = self.links.get_mut(&link).expect("an attach that is known");
        entry.waits = None;
        entry.session = Some(session.to_owned());
        let queue = self.queues.get_mut(&entry.queue.entity).unwrap();
        let other = queue.held.insert(session.to_owned(), (link, until.0));
        assert!(other.is_none(), "session {session} has two holders: {other:?} and {link:?}");
    }

    /// The session with the oldest available message: the next attach must get it.
    pub(crate) fn next_session(&self, entity: EntityId) -> Option<String> {
        let queue = &self.queues[&entity];
        let waiting = queue.messages.iter().filter(|message| message.is_available());
        let free = waiting.filter(|message| !queue.held.contains_key(message.session.as_deref().unwrap_or_default()));
        free.min_by_key(|message| message.counter)?.session.clone()
    }

    pub(crate) fn observe(&mut self, effect: &LinkEffect, body: impl Fn(&MessageDelivery) -> String) {
        match effect {
            LinkEffect::Deliver { link, delivery } => self.deliver(*link, delivery, &body(delivery)),
            LinkEffect::Drained { link, delivery_count, .. } => {
                let link = self.links.get_mut(link).expect("a link that is known");
                assert_eq!(*delivery_count, link.delivered + link.credit);
                (link.delivered, link.credit) = (*delivery_count, 0);
            }
            LinkEffect::Attached { link, session, locked_until } => {
                let entry = &self.links[link];
                assert!(entry.waits.is_some(), "only who waits is answered late");
                let earlier =
                    self.links.iter().filter(|(_, other)| other.queue == entry.queue && other.waits.is_some());
                assert_eq!(earlier.map(|(id, _)| *id).min(), Some(*link), "first come, first served");
                assert_eq!(self.next_session(entry.queue.entity).as_deref(), Some(&**session));
                self.lock_session(*link, session, *locked_until);
            }
            LinkEffect::Refused { link, error } => {
                let link = self.links.remove(link).expect("an attach that is known");
                assert!(matches!(error, Error::Timeout) && link.waits.is_some_and(|until| until <= self.now));
            }
            LinkEffect::Detached { link, error } => {
                let entry = self.links.remove(link).expect("a link that is known");
                assert!(matches!(error, Error::SessionLockLost));
                let holder = self.queues[&entry.queue.entity].held.get(entry.session.as_deref().unwrap());
                assert_ne!(holder.map(|(holder, _)| *holder), Some(*link), "its lock still stands");
            }
        }
    }

    fn deliver(&mut self, link: CoreLinkId, delivery: &MessageDelivery, body: &str) {
        let entry = self.links.get_mut(&link).expect("a link that is known");
        assert!(entry.credit > 0, "{link:?} has no credit");
        entry.credit -= 1;
        entry.delivered += 1;
        let (queue, session, mode) = (entry.queue, entry.session.clone(), entry.mode);
        let sessions = self.queues[&queue.entity].sessions && queue.subqueue == Subqueue::Main;
        assert_eq!(sessions, session.is_some());
        if let Some(session) = &session {
            let holder = self.queues[&queue.entity].held.get(session);
            assert_eq!(holder.map(|(holder, _)| *holder), Some(link), "the session has another holder");
        }
        let until = self.now + LOCK;
        let now = self.now;
        assert!(!self.gone.contains(&(queue, body.to_owned())), "{body} is gone, and delivered again from {queue:?}");
        let list = self.list(queue);
        let (mut first, mut index) = (None, None);
        for (at, message) in list.iter().enumerate() {
            if message.is_available()
                && (!sessions || message.session == session)
                && first.is_none_or(|first| message.counter < first)
            {
                first = Some(message.counter);
            }
            if message.body == body {
                index = Some(at);
            }
        }
        let message = &mut list[index.unwrap_or_else(|| panic!("{body} is not in {queue:?}"))];
        assert!(message.is_available() && !message.is_expired(now), "{message:?} may not be delivered");
        assert_eq!(message.count, delivery.delivery_count, "{body}");
        if queue.subqueue == Subqueue::Main {
            assert_eq!(first, Some(message.counter), "{body} is not the first in its order");
            assert_eq!(delivery.sequence.counter(), message.counter);
        }
        match mode {
            ReceiveMode::PeekLock => message.lock = Some(ModelLock { token: delivery.token, until }),
            ReceiveMode::ReceiveAndDelete => {
                assert!(delivery.settled);
                let gone = list.remove(index.unwrap());
                self.gone.push((queue, gone.body));
            }
        }
    }

    /// No message waits that could be delivered.
    pub(crate) fn assert_nothing_deliverable(&self) {
        for (id, link) in &self.links {
            let queue = &self.queues[&link.queue.entity];
            if let Some(until) = link.waits {
                assert!(until > self.now, "{id:?} waits too long");
                assert_eq!(self.next_session(link.queue.entity), None, "{id:?} waits for a session that is there");
                continue;
            }
            let list = if link.queue.subqueue == Subqueue::Main { &queue.messages } else { &queue.dead };
            let idle = list
                .iter()
                .find(|message| message.is_available() && (link.session.is_none() || message.session == link.session));
            assert!(link.credit == 0 || idle.is_none(), "{id:?} has credit and {idle:?} waits");
        }
    }

    /// What a restart must recover: all messages, without locks.
    pub(crate) fn recoverable(&self) -> BTreeMap<QueueId, Vec<ModelMessage>> {
        let clear = |message: &ModelMessage, counter| ModelMessage { counter, lock: None, ..message.clone() };
        let mut lasting = BTreeMap::new();
        for (id, queue) in &self.queues {
            lasting.insert(
                QueueId::main(*id),
                queue.messages.iter().map(|message| clear(message, message.counter)).collect(),
            );
            let mut dead: Vec<_> = queue.dead.iter().map(|message| clear(message, 0)).collect();
            dead.sort();
            lasting.insert(QueueId::dead_letter(*id), dead);
        }
        lasting
    }
}

impl ModelMessage {
    pub(crate) fn is_available(&self) -> bool {
        self.lock.is_none() && !self.deferred
    }

    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn has_exhausted_deliveries(&self) -> bool {
        self.count >= MAX_DELIVERIES + u16::from(self.deferred)
    }

    fn is_locked_by(&self, token: LockToken) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.token == token)
    }

    fn fail(&mut self) {
        if self.lock.take().is_some() {
            self.count += 1;
        }
    }
}
