//! A core on a test bench: time that passes when told to, a journal that can be replayed, receivers that remember.

use std::collections::HashMap;
use std::time::Duration;

use broker::core::*;
use broker::journal::{Journal, Memory};

/// A moment after 2020, before which no message can expire.
pub(crate) const START: Timestamp = Timestamp(1_800_000_000_000);

pub(crate) struct Rig {
    pub(crate) core: Core,
    pub(crate) journal: Memory,
    pub(crate) now: Timestamp,
    starts: u8,
    next_link: u64,
    inbox: HashMap<LinkId, Inbox>,
}

/// What a link was told.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) drained: Option<u32>,
    pub(crate) attached: Option<(String, Timestamp)>,
    pub(crate) refused: Option<Error>,
    pub(crate) detached: Option<Error>,
    delivered: u32,
}

/// A broker's `start`th life; each has other lock tokens.
pub(crate) fn core(start: u8) -> Core {
    Core::new(Limits { max_message_size: 1024, max_unsettled: 100, ..Limits::default() }, [start; 32])
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self { core: core(0), journal: Memory::default(), now: START, starts: 0, next_link: 1, inbox: HashMap::new() }
    }

    /// Calls the core, then hands out what it caused.
    pub(crate) fn turn<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T) -> T {
        let mut effects = Vec::new();
        let mut turn = Turn { now: self.now, journal: &mut self.journal, effects: &mut effects };
        let result = act(&mut self.core, &mut turn);
        for effect in effects {
            self.take(effect);
        }
        result
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver { link, delivery } => {
                if delivery.settled {
                    self.journal.release(delivery.location);
                }
                let inbox = self.inbox.entry(link).or_default();
                inbox.deliveries.push(delivery);
                inbox.delivered += 1;
            }
            Effect::Drained { link, delivery_count, .. } => {
                let inbox = self.inbox.entry(link).or_default();
                inbox.drained = Some(delivery_count);
                inbox.delivered = delivery_count;
            }
            Effect::Attached { link, session, locked_until } => {
                self.inbox.entry(link).or_default().attached = Some((session.to_string(), locked_until));
            }
            Effect::Refused { link, error } => self.inbox.entry(link).or_default().refused = Some(error),
            Effect::Detached { link, error } => self.inbox.entry(link).or_default().detached = Some(error),
        }
    }

    pub(crate) fn inbox(&mut self, link: LinkId) -> &mut Inbox {
        self.inbox.entry(link).or_default()
    }

    /// Lets time pass, and everything that falls due in it happen.
    pub(crate) fn pass(&mut self, millis: u64) {
        let end = self.now.after(Duration::from_millis(millis));
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.turn(Core::tick);
        }
        self.now = end;
    }

    pub(crate) fn queue(&mut self, path: &str, change: impl FnOnce(&mut QueueDescription)) -> QueueId {
        let mut description = QueueDescription::default();
        change(&mut description);
        let id = self.turn(|core, turn| core.create(turn, path, Description::Queue(description))).unwrap();
        QueueId::main(id)
    }

    pub(crate) fn session_queue(&mut self, path: &str) -> QueueId {
        self.queue(path, |queue| queue.outlet.requires_session = true)
    }

    pub(crate) fn topic(&mut self, path: &str, change: impl FnOnce(&mut TopicDescription)) -> EntityId {
        let mut description = TopicDescription::default();
        change(&mut description);
        self.turn(|core, turn| core.create(turn, path, Description::Topic(description))).unwrap()
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
        let id = self.turn(|core, turn| core.create(turn, &path, Description::Subscription(description))).unwrap();
        QueueId::main(id)
    }

    pub(crate) fn try_send(
        &mut self,
        entity: EntityId,
        messages: &[Incoming],
    ) -> Result<Vec<Option<SequenceNumber>>, Error> {
        self.turn(|core, turn| core.send(turn, entity, messages))
    }

    pub(crate) fn send(&mut self, entity: EntityId, message: Incoming) -> SequenceNumber {
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
        mode: Mode,
        filter: SessionFilter,
    ) -> Result<(LinkId, Attached), Error> {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let attached = self.turn(|core, turn| core.attach(turn, link, queue, mode, filter))?;
        if let Attached::Session { id, locked_until } = &attached {
            self.inbox(link).attached = Some((id.to_string(), *locked_until));
        }
        Ok((link, attached))
    }

    pub(crate) fn receiver(&mut self, queue: QueueId, credit: u32) -> LinkId {
        let link = self.try_attach(queue, Mode::PeekLock, SessionFilter::None).unwrap().0;
        self.credit(link, credit);
        link
    }

    pub(crate) fn deleting_receiver(&mut self, queue: QueueId, credit: u32) -> LinkId {
        let link = self.try_attach(queue, Mode::ReceiveAndDelete, SessionFilter::None).unwrap().0;
        self.credit(link, credit);
        link
    }

    /// Attaches to the next session; it may have to wait.
    pub(crate) fn next_session(&mut self, queue: QueueId) -> LinkId {
        let filter = SessionFilter::Next { timeout: Duration::from_secs(20) };
        self.try_attach(queue, Mode::PeekLock, filter).unwrap().0
    }

    pub(crate) fn named_session(&mut self, queue: QueueId, id: &str) -> Result<LinkId, Error> {
        Ok(self.try_attach(queue, Mode::PeekLock, SessionFilter::Named(id.into()))?.0)
    }

    /// Grants credit beyond what was delivered so far.
    pub(crate) fn credit(&mut self, link: LinkId, credit: u32) {
        let delivered = self.inbox(link).delivered;
        self.turn(|core, turn| core.flow(turn, link, delivered, credit, false));
    }

    pub(crate) fn drain(&mut self, link: LinkId, credit: u32) {
        let delivered = self.inbox(link).delivered;
        self.turn(|core, turn| core.flow(turn, link, delivered, credit, true));
    }

    pub(crate) fn detach(&mut self, link: LinkId) {
        self.turn(|core, turn| core.detach(turn, link));
    }

    /// Deliveries since last asked.
    pub(crate) fn received(&mut self, link: LinkId) -> Vec<Delivery> {
        std::mem::take(&mut self.inbox(link).deliveries)
    }

    /// Their bodies.
    pub(crate) fn bodies(&mut self, link: LinkId) -> Vec<String> {
        let received = self.received(link);
        received.iter().map(|delivery| self.body(delivery)).collect()
    }

    /// The only delivery since last asked.
    pub(crate) fn one(&mut self, link: LinkId) -> Delivery {
        let mut received = self.received(link);
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    pub(crate) fn body(&self, delivery: &Delivery) -> String {
        String::from_utf8(self.journal.read(delivery.location).unwrap().body.to_vec()).unwrap()
    }

    pub(crate) fn settle(&mut self, queue: QueueId, delivery: &Delivery, outcome: &Outcome) -> bool {
        let lost = self.turn(|core, turn| core.settle(turn, queue, &[delivery.token], outcome)).unwrap();
        lost.is_empty()
    }

    pub(crate) fn complete(&mut self, queue: QueueId, delivery: &Delivery) {
        assert!(self.settle(queue, delivery, &Outcome::Complete), "the lock was lost");
    }

    pub(crate) fn abandon(&mut self, queue: QueueId, delivery: &Delivery) {
        assert!(self.settle(queue, delivery, &abandon()), "the lock was lost");
    }

    pub(crate) fn counts(&self, path: &str) -> Counts {
        self.core.entity(path).unwrap().counts
    }

    /// A new process over the same journal: links and locks are gone.
    pub(crate) fn restart(&mut self) {
        self.recover(&[], 0);
    }

    /// The same from a snapshot and what was appended from the `from`th group on.
    pub(crate) fn recover(&mut self, snapshot: &[Vec<u8>], from: usize) {
        self.starts += 1;
        self.core = core(self.starts);
        for record in snapshot {
            self.core.replay(record, None).unwrap();
        }
        for entry in self.journal.groups()[from..].iter().flatten() {
            self.core.replay(&entry.meta, entry.body).unwrap();
        }
        self.core.recovered(self.now);
        self.inbox.clear();
    }
}

pub(crate) fn message(body: &str) -> Incoming {
    Incoming { body: body.to_owned().into(), ..Incoming::default() }
}

pub(crate) fn in_session(session: &str, body: &str) -> Incoming {
    Incoming { session_id: Some(session.into()), ..message(body) }
}

pub(crate) fn with_id(id: &str) -> Incoming {
    Incoming { message_id: Some(id.into()), ..message(id) }
}

pub(crate) fn lasting(millis: u64, body: &str) -> Incoming {
    Incoming { time_to_live: Some(millis), ..message(body) }
}

pub(crate) fn abandon() -> Outcome {
    Outcome::Abandon { properties: Vec::new() }
}

pub(crate) fn defer() -> Outcome {
    Outcome::Defer { properties: Vec::new() }
}

pub(crate) fn dead_letter(reason: &str) -> Outcome {
    Outcome::DeadLetter { reason: Some(reason.into()), description: None, properties: Vec::new() }
}

pub(crate) fn dead_letters(queue: QueueId) -> QueueId {
    QueueId::dead_letter(queue.entity)
}
