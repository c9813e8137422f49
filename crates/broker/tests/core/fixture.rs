//! Test fixture for the core: a clock that tests advance, a journal that can be replayed, and the effects per link.

use std::collections::HashMap;
use std::time::Duration;

use broker::core::*;
use broker::journal::{Journal, MemoryEntry, MemoryJournal};

/// After 2020, the earliest time at which a message can expire.
pub(crate) const START: Timestamp = Timestamp(1_800_000_000_000);

pub(crate) struct CoreFixture {
    pub(crate) core: Core,
    pub(crate) journal: MemoryJournal,
    pub(crate) now: Timestamp,
    starts: u8,
    next_link: u64,
    events: HashMap<CoreLinkId, LinkEvents>,
}

/// The effects on one link.
#[derive(Debug, Default)]
pub(crate) struct LinkEvents {
    pub(crate) deliveries: Vec<MessageDelivery>,
    pub(crate) drained: Option<u32>,
    pub(crate) attached: Option<(String, Timestamp)>,
    pub(crate) refused: Option<Error>,
    pub(crate) detached: Option<Error>,
    delivered: u32,
}

/// A core as after the `start`th restart; each has other lock tokens.
pub(crate) fn core(start: u8) -> Core {
    let limits = BrokerLimits {
        max_message_size: 1024,
        max_unsettled: 100,
        max_entities: 50,
        max_subscriptions: 40,
        max_partitioned: 20,
        ..BrokerLimits::default()
    };
    Core::new(limits, [start; 32])
}

/// A core recovered from the records of a snapshot and the groups appended since it began.
pub(crate) fn recover(start: u8, snapshot: &[Vec<u8>], groups: &[Vec<MemoryEntry>], now: Timestamp) -> Core {
    let mut core = core(start);
    for record in snapshot {
        core.replay(record, None).unwrap();
    }
    for entry in groups.iter().flatten() {
        core.replay(&entry.meta, entry.body).unwrap();
    }
    core.finish_recovery(now);
    core
}

/// References to each body, counted by the core.
pub(crate) fn count_references(core: &Core, journal: &MemoryJournal) -> Vec<i64> {
    let mut counted = vec![0; journal.references().count()];
    core.visit_bodies(|location| counted[location.offset as usize] += 1);
    counted
}

impl CoreFixture {
    pub(crate) fn new() -> Self {
        Self {
            core: core(0),
            journal: MemoryJournal::default(),
            now: START,
            starts: 0,
            next_link: 1,
            events: HashMap::new(),
        }
    }

    /// A fixture with the queue `q`.
    pub(crate) fn with_queue(change: impl FnOnce(&mut QueueDescription)) -> (Self, QueueId) {
        let mut fixture = Self::new();
        let queue = fixture.queue("q", change);
        (fixture, queue)
    }

    /// A fixture with the queue `q`, which requires sessions.
    pub(crate) fn with_session_queue() -> (Self, QueueId) {
        Self::with_queue(|queue| queue.egress.requires_session = true)
    }

    /// Calls the core, then records the effects.
    pub(crate) fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        let mut effects = Vec::new();
        let mut call = CallContext { now: self.now, journal: &mut self.journal, effects: &mut effects };
        let result = act(&mut self.core, &mut call);
        for effect in effects {
            self.record_effect(effect);
        }
        result
    }

    fn record_effect(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Deliver { link, delivery } => {
                if delivery.settled {
                    self.journal.release(delivery.location);
                }
                let events = self.events.entry(link).or_default();
                events.deliveries.push(delivery);
                events.delivered += 1;
            }
            LinkEffect::Drained { link, delivery_count, .. } => {
                let events = self.events.entry(link).or_default();
                events.drained = Some(delivery_count);
                events.delivered = delivery_count;
            }
            LinkEffect::Attached { link, session, locked_until } => {
                self.events.entry(link).or_default().attached = Some((session.to_string(), locked_until));
            }
            LinkEffect::Refused { link, error } => self.events.entry(link).or_default().refused = Some(error),
            LinkEffect::Detached { link, error } => self.events.entry(link).or_default().detached = Some(error),
        }
    }

    pub(crate) fn events(&mut self, link: CoreLinkId) -> &mut LinkEvents {
        self.events.entry(link).or_default()
    }

    /// Advances the clock and handles every timer on the way.
    pub(crate) fn advance(&mut self, millis: u64) {
        let end = self.now.after(Duration::from_millis(millis));
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.call(Core::tick);
        }
        self.now = end;
    }

    pub(crate) fn queue(&mut self, path: &str, change: impl FnOnce(&mut QueueDescription)) -> QueueId {
        let mut description = QueueDescription::default();
        change(&mut description);
        let id = self.call(|core, call| core.create(call, path, EntityDefinition::Queue(description))).unwrap();
        QueueId::main(id)
    }

    pub(crate) fn session_queue(&mut self, path: &str) -> QueueId {
        self.queue(path, |queue| queue.egress.requires_session = true)
    }

    pub(crate) fn topic(&mut self, path: &str, change: impl FnOnce(&mut TopicDescription)) -> EntityId {
        let mut description = TopicDescription::default();
        change(&mut description);
        self.call(|core, call| core.create(call, path, EntityDefinition::Topic(description))).unwrap()
    }

    pub(crate) fn subscription(
        &mut self,
        topic: &str,
        name: &str,
        change: impl FnOnce(&mut SubscriptionDescription),
    ) -> QueueId {
        let mut description = SubscriptionDescription::default();
        change(&mut description);
        let path = format!("{topic}/Subscriptions/{name}");
        let id = self.call(|core, call| core.create(call, &path, EntityDefinition::Subscription(description))).unwrap();
        QueueId::main(id)
    }

    pub(crate) fn try_send(
        &mut self,
        entity: EntityId,
        messages: &[IncomingMessage],
    ) -> Result<Vec<Option<SequenceNumber>>, Error> {
        self.call(|core, call| core.send(call, entity, messages))
    }

    pub(crate) fn send(&mut self, entity: EntityId, message: IncomingMessage) -> SequenceNumber {
        self.try_send(entity, &[message]).unwrap()[0].expect("not a duplicate")
    }

    /// Sends plain messages with these bodies.
    pub(crate) fn send_all(&mut self, entity: EntityId, bodies: &[&str]) {
        for body in bodies {
            self.send(entity, message(body));
        }
    }

    pub(crate) fn try_attach(
        &mut self,
        queue: QueueId,
        mode: ReceiveMode,
        filter: SessionFilter,
    ) -> Result<(CoreLinkId, AttachResult), Error> {
        let link = CoreLinkId(self.next_link);
        self.next_link += 1;
        let attached = self.call(|core, call| core.attach(call, link, queue, mode, filter))?;
        if let AttachResult::Session { id, locked_until } = &attached {
            self.events(link).attached = Some((id.to_string(), *locked_until));
        }
        Ok((link, attached))
    }

    pub(crate) fn receiver(&mut self, queue: QueueId, credit: u32) -> CoreLinkId {
        let link = self.try_attach(queue, ReceiveMode::PeekLock, SessionFilter::None).unwrap().0;
        self.credit(link, credit);
        link
    }

    pub(crate) fn receive_and_delete_link(&mut self, queue: QueueId, credit: u32) -> CoreLinkId {
        let link = self.try_attach(queue, ReceiveMode::ReceiveAndDelete, SessionFilter::None).unwrap().0;
        self.credit(link, credit);
        link
    }

    /// Attaches to the next session; the attach may have to wait.
    pub(crate) fn next_session(&mut self, queue: QueueId) -> CoreLinkId {
        let filter = SessionFilter::Next { timeout: Duration::from_secs(20) };
        self.try_attach(queue, ReceiveMode::PeekLock, filter).unwrap().0
    }

    pub(crate) fn named_session(&mut self, queue: QueueId, id: &str) -> Result<CoreLinkId, Error> {
        Ok(self.try_attach(queue, ReceiveMode::PeekLock, SessionFilter::Named(id.into()))?.0)
    }

    /// Grants credit beyond the deliveries so far.
    pub(crate) fn credit(&mut self, link: CoreLinkId, credit: u32) {
        let delivered = self.events(link).delivered;
        self.call(|core, call| core.flow(call, link, delivered, credit, false));
    }

    pub(crate) fn drain(&mut self, link: CoreLinkId, credit: u32) {
        let delivered = self.events(link).delivered;
        self.call(|core, call| core.flow(call, link, delivered, credit, true));
    }

    pub(crate) fn detach(&mut self, link: CoreLinkId) {
        self.call(|core, call| core.detach(call, link));
    }

    /// Deliveries since the last call.
    pub(crate) fn take_deliveries(&mut self, link: CoreLinkId) -> Vec<MessageDelivery> {
        std::mem::take(&mut self.events(link).deliveries)
    }

    /// The bodies of the deliveries since the last call.
    pub(crate) fn take_bodies(&mut self, link: CoreLinkId) -> Vec<String> {
        let received = self.take_deliveries(link);
        received.iter().map(|delivery| self.body(delivery)).collect()
    }

    /// The only delivery since the last call.
    pub(crate) fn receive_one(&mut self, link: CoreLinkId) -> MessageDelivery {
        let mut received = self.take_deliveries(link);
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    pub(crate) fn body(&self, delivery: &MessageDelivery) -> String {
        String::from_utf8(self.journal.read(delivery.location).unwrap().body.to_vec()).unwrap()
    }

    pub(crate) fn settle(&mut self, queue: QueueId, delivery: &MessageDelivery, outcome: &SettlementOutcome) -> bool {
        let lost = self.call(|core, call| core.settle(call, queue, &[delivery.token], outcome)).unwrap();
        lost.is_empty()
    }

    pub(crate) fn complete(&mut self, queue: QueueId, delivery: &MessageDelivery) {
        assert!(self.settle(queue, delivery, &SettlementOutcome::Complete), "the lock was lost");
    }

    pub(crate) fn abandon(&mut self, queue: QueueId, delivery: &MessageDelivery) {
        assert!(self.settle(queue, delivery, &abandon()), "the lock was lost");
    }

    pub(crate) fn counts(&self, path: &str) -> EntityCounts {
        self.core.entity(path).unwrap().counts
    }

    /// Restarts with the same journal: links and locks are gone.
    pub(crate) fn restart(&mut self) {
        self.recover(&[], 0);
    }

    /// Restarts from a snapshot and the groups from `from` on.
    pub(crate) fn recover(&mut self, snapshot: &[Vec<u8>], from: usize) {
        self.starts += 1;
        self.core = recover(self.starts, snapshot, &self.journal.groups()[from..], self.now);
        self.events.clear();
    }
}

pub(crate) fn message(body: &str) -> IncomingMessage {
    IncomingMessage { body: body.to_owned().into(), ..IncomingMessage::default() }
}

pub(crate) fn in_session(session: &str, body: &str) -> IncomingMessage {
    IncomingMessage { session_id: Some(session.into()), ..message(body) }
}

pub(crate) fn with_id(id: &str) -> IncomingMessage {
    IncomingMessage { message_id: Some(id.into()), ..message(id) }
}

pub(crate) fn with_time_to_live(millis: u64, body: &str) -> IncomingMessage {
    IncomingMessage { time_to_live: Some(millis), ..message(body) }
}

pub(crate) fn abandon() -> SettlementOutcome {
    SettlementOutcome::Abandon { properties: Vec::new() }
}

pub(crate) fn defer() -> SettlementOutcome {
    SettlementOutcome::Defer { properties: Vec::new() }
}

pub(crate) fn dead_letter(reason: &str) -> SettlementOutcome {
    SettlementOutcome::DeadLetter { reason: Some(reason.into()), description: None, properties: Vec::new() }
}

pub(crate) fn dead_letters(queue: QueueId) -> QueueId {
    QueueId::dead_letter(queue.entity)
}
