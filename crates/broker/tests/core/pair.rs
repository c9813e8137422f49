//! The core and the model, walked through the same steps and compared after each.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::core::*;
use broker::journal::{Journal, Memory};

use crate::model::{LOCK, Link, Lock, MAX_DELIVERIES, Message, Model, Queue, Scheduled};
use crate::rig::{START, core};
use crate::steps::Step;

/// The core and the model, side by side.
pub(crate) struct Pair {
    core: Core,
    pub(crate) journal: Memory,
    pub(crate) model: Model,
    /// Entities messages are sent to, and queues they are received from.
    inlets: Vec<EntityId>,
    pub(crate) outlets: Vec<EntityId>,
    /// Deliveries ever made, with their queues: some still held, most not.
    deliveries: Vec<(QueueId, LockToken)>,
    taking: Option<(Snapshot, Taken)>,
    taken: Option<Taken>,
    next_link: u64,
    bodies: u64,
    starts: u8,
    /// Something may wait because the journal was full just now.
    held_up: bool,
    /// What must be recovered from so many groups, at such a moment.
    pub(crate) checkpoints: Vec<(usize, u64, BTreeMap<QueueId, Vec<Message>>)>,
}

/// A snapshot's records, and the group it began at.
struct Taken {
    from: usize,
    records: Vec<Vec<u8>>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let mut pair = Self {
            core: core(0),
            journal: Memory::default(),
            model: Model { now: START.0, ..Model::default() },
            inlets: Vec::new(),
            outlets: Vec::new(),
            deliveries: Vec::new(),
            taking: None,
            taken: None,
            next_link: 1,
            bodies: 0,
            starts: 0,
            held_up: false,
            checkpoints: Vec::new(),
        };
        pair.journal.groups_per_segment = 16;
        pair.furnish();
        pair
    }

    /// A queue, a queue with sessions and duplicate detection, a partitioned topic with a subscription of each kind.
    fn furnish(&mut self) {
        let outlet = |requires_session| OutletDescription {
            lock_duration: Duration::from_millis(LOCK),
            max_delivery_count: MAX_DELIVERIES,
            dead_lettering_on_message_expiration: requires_session,
            requires_session,
            ..OutletDescription::default()
        };
        let plain = Description::Queue(QueueDescription { outlet: outlet(false), ..Default::default() });
        let inlet = InletDescription {
            requires_duplicate_detection: true,
            duplicate_detection_window: Duration::from_secs(20),
            ..Default::default()
        };
        let sessions = Description::Queue(QueueDescription { outlet: outlet(true), inlet, ..Default::default() });
        let inlet = InletDescription { enable_partitioning: true, ..Default::default() };
        let topic = Description::Topic(TopicDescription { inlet, ..Default::default() });
        let subscription = |requires| {
            Description::Subscription(SubscriptionDescription { outlet: outlet(requires), ..Default::default() })
        };
        let ids: Vec<EntityId> = [
            ("plain", plain),
            ("sessions", sessions),
            ("topic", topic),
            ("topic/Subscriptions/plain", subscription(false)),
            ("topic/Subscriptions/sessions", subscription(true)),
        ]
        .into_iter()
        .map(|(path, description)| self.turn(|core, turn| core.create(turn, path, description)).unwrap())
        .collect();
        let queue = |sessions| Queue { sessions, dead_letters_expired: sessions, ..Queue::default() };
        self.inlets = vec![ids[0], ids[1], ids[2]];
        self.outlets = vec![ids[0], ids[1], ids[3], ids[4]];
        self.model.targets = [(ids[0], vec![ids[0]]), (ids[1], vec![ids[1]]), (ids[2], vec![ids[3], ids[4]])].into();
        self.model.queues =
            self.outlets.iter().zip([false, true, false, true]).map(|(id, sessions)| (*id, queue(sessions))).collect();
    }

    /// One call; the model is told of it before the core's effects, by `then`.
    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T, then: impl FnOnce(&mut Model, &T)) -> T {
        let mut effects = Vec::new();
        let now = Timestamp(self.model.now);
        let result = act(&mut self.core, &mut Turn { now, journal: &mut self.journal, effects: &mut effects });
        then(&mut self.model, &result);
        for effect in &effects {
            self.model.observe(effect, |delivery| body(&self.journal, delivery));
            if let Effect::Deliver { link, delivery } = effect {
                if delivery.settled {
                    self.journal.release(delivery.location);
                }
                if let Some(link) = self.model.links.get(link) {
                    self.deliveries.push((link.queue, delivery.token));
                }
            }
        }
        result
    }

    fn turn<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T) -> T {
        self.call(act, |_, _| {})
    }

    fn pass(&mut self, millis: u64) {
        let end = self.model.now + millis;
        while let Some(due) = self.core.next_deadline().filter(|due| due.0 <= end) {
            self.model.advance(due.0.max(self.model.now));
            self.turn(Core::tick);
            let all_done = self.core.next_deadline().is_none_or(|due| due.0 > self.model.now);
            if all_done && !self.held_up {
                self.model.assert_at_rest();
            }
        }
        self.model.advance(end);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send { .. } => self.send(step),
            Step::Attach { queue, dead, deleting } => {
                let entity = self.outlets[queue];
                let queue = if dead { QueueId::dead_letter(entity) } else { QueueId::main(entity) };
                let filter = match self.model.queues[&entity].sessions && !dead {
                    true => SessionFilter::Next { timeout: Duration::from_secs(3) },
                    false => SessionFilter::None,
                };
                self.attach(queue, filter, if deleting { Mode::ReceiveAndDelete } else { Mode::PeekLock });
            }
            Step::AttachNamed { queue, session } => {
                let queue = QueueId::main(self.outlets[queue]);
                self.attach(queue, SessionFilter::Named(session_id(session).into()), Mode::PeekLock);
            }
            Step::Credit { link, credit, drain } => {
                let Some((id, delivered)) = self.pick_link(link, |link| link.waits.is_none()) else { return };
                let grant = |model: &mut Model, _: &()| model.links.get_mut(&id).unwrap().credit = credit;
                self.call(|core, turn| core.flow(turn, id, delivered, credit, drain), grant);
            }
            Step::Detach { link } => {
                let Some((id, _)) = self.pick_link(link, |_| true) else { return };
                self.call(|core, turn| core.detach(turn, id), |model, ()| model.detach(id));
            }
            Step::Settle { delivery, count, outcome } => self.settle(delivery, count, &outcome),
            Step::Renew { delivery } => self.renew(delivery),
            Step::RenewSession { link } => self.renew_session(link),
            Step::Fetch { message } => self.fetch(message),
            Step::Pass { millis } => self.pass(millis),
            Step::Full => unreachable!("handled by run()"),
            Step::Snapshot { budget } => self.snapshot(budget),
            Step::Restart { snapshot } => self.restart(snapshot),
            Step::Evacuate { back } => self.evacuate(back),
        }
    }

    fn send(&mut self, step: Step) {
        let Step::Send { to, session, count, id, ttl, delay } = step else { return };
        let (entity, now) = (self.inlets[to], self.model.now);
        let due = delay.map(|delay| now + delay);
        let session = session_id(session);
        let messages: Vec<Incoming> = (0..count)
            .map(|n| {
                self.bodies += 1;
                Incoming {
                    body: format!("body-{}", self.bodies).into(),
                    message_id: id.map(|id| format!("id-{}", usize::from(id) + n).into()),
                    session_id: Some(session.clone().into()),
                    partition_key: None,
                    time_to_live: ttl,
                    scheduled_for: due.map(Timestamp),
                }
            })
            .collect();
        let detects = to == 1;
        let accept = |model: &mut Model, result: &Result<Vec<Option<SequenceNumber>>, Error>| {
            let Ok(numbers) = result else { return };
            for (message, number) in messages.iter().zip(numbers) {
                let key = (entity, message.message_id.as_deref().unwrap_or_default().to_owned());
                let age =
                    model.seen.get(&key).filter(|_| detects && message.message_id.is_some()).map(|seen| now - seen);
                match (age, number) {
                    (Some(..=20_000), number) => assert!(number.is_none(), "a duplicate was stored"),
                    // A little too long a memory is allowed.
                    (Some(20_001..=20_200), None) => {}
                    (_, number) => assert!(number.is_some(), "a message was taken for a duplicate"),
                }
                let Some(number) = number else { continue };
                assert_eq!(number.counter(), model.number(entity));
                model.seen.insert(key, now);
                let start = due.unwrap_or(now);
                let new = Message {
                    counter: number.counter(),
                    body: text(&message.body),
                    session: Some(session.clone()),
                    count: 0,
                    deferred: false,
                    expires: ttl.map(|ttl| (start + ttl).div_ceil(250) * 250),
                    lock: None,
                };
                match due {
                    Some(due) => model.scheduled.push(Scheduled { entity, counter: new.counter, due, message: new }),
                    None => model.enter(entity, &new),
                }
            }
        };
        let full = self.journal.full;
        let result = self.call(|core, turn| core.send(turn, entity, &messages), accept);
        match result {
            Ok(numbers) => assert!(!full || numbers.iter().all(Option::is_none), "stored in a full journal"),
            Err(error) => assert!(full && matches!(error, Error::StorageFull), "{error}"),
        }
    }

    fn attach(&mut self, queue: QueueId, filter: SessionFilter, mode: Mode) {
        let id = LinkId(self.next_link);
        self.next_link += 1;
        let sessions = self.model.queues[&queue.entity].sessions && queue.subqueue == Subqueue::Main;
        let named = if let SessionFilter::Named(id) = &filter { Some(id.to_string()) } else { None };
        let held = named.as_ref().is_some_and(|id| self.model.queues[&queue.entity].held.contains_key(id));
        let waits = self.model.now + 3_000;
        let attached = |model: &mut Model, result: &Result<Attached, Error>| {
            let Ok(attached) = result else { return };
            let link = Link { queue, mode, credit: 0, delivered: 0, session: None, waits: None };
            let next = if sessions { model.next_session(queue.entity) } else { None };
            model.links.insert(id, link);
            match attached {
                Attached::Plain => assert!(!sessions),
                Attached::Session { id: session, locked_until } => {
                    assert_eq!(named.clone().or(next).as_deref(), Some(&**session));
                    model.hold(id, session, *locked_until);
                }
                Attached::Waiting => {
                    assert!(named.is_none() && next.is_none());
                    model.links.get_mut(&id).unwrap().waits = Some(waits);
                }
            }
        };
        let named_some = named.is_some();
        let result = self.call(|core, turn| core.attach(turn, id, queue, mode, filter), attached);
        let expected = if named_some && !sessions { false } else { !held };
        assert_eq!(result.is_ok(), expected, "{result:?}");
    }

    fn settle(&mut self, pick: usize, count: usize, outcome: &Outcome) {
        let Some((queue, _)) = pick_from(&self.deliveries, pick) else { return };
        let candidates = self.deliveries.iter().filter(|(other, _)| *other == queue).map(|(_, token)| *token);
        let candidates: Vec<_> = candidates.collect();
        // Mostly recent ones: those are still held.
        let recent = candidates.len().saturating_sub(8);
        let tokens: Vec<_> =
            candidates[recent..].iter().copied().cycle().skip(pick % 8).take(count.min(candidates.len())).collect();
        let lost: Vec<_> = tokens.iter().copied().filter(|token| !self.model.holds(queue, *token)).collect();
        let full = self.journal.full;
        let settled = |model: &mut Model, result: &Result<Vec<LockToken>, Error>| {
            let Ok(reported) = result else { return };
            assert_eq!(*reported, lost);
            let mut held: Vec<_> = tokens.iter().filter(|token| !lost.contains(token)).collect();
            held.dedup();
            for token in held {
                if model.holds(queue, *token) {
                    model.settle(queue, *token, outcome);
                }
            }
        };
        let result = self.call(|core, turn| core.settle(turn, queue, &tokens, outcome), settled);
        let writes = *outcome != Outcome::Release && lost.len() < tokens.len();
        assert_eq!(result.is_err(), full && writes, "{result:?}");
    }

    fn renew(&mut self, pick: usize) {
        let Some((queue, token)) = pick_from(&self.deliveries, pick) else { return };
        let sessions = self.model.queues[&queue.entity].sessions && queue.subqueue == Subqueue::Main;
        let good = !sessions && self.model.holds(queue, token);
        let renewed = |model: &mut Model, result: &Result<Vec<Timestamp>, Error>| {
            assert_eq!(result.is_ok(), good);
            let until = model.now + LOCK;
            for message in model.list(queue) {
                if let Some(lock) = message.lock.as_mut().filter(|lock| good && lock.token == token) {
                    lock.until = until;
                }
            }
        };
        let _ = self.call(|core, turn| core.renew(turn, queue, &[token]), renewed);
    }

    fn renew_session(&mut self, pick: usize) {
        let Some((id, _)) = self.pick_link(pick, |link| link.session.is_some()) else { return };
        let link = self.model.links[&id].clone();
        let session = link.session.unwrap();
        let until = self.turn(|core, turn| core.renew_session(turn, link.queue, &session)).unwrap();
        assert_eq!(until.0, self.model.now + LOCK);
        self.model.queues.get_mut(&link.queue.entity).unwrap().held.get_mut(&session).unwrap().1 = until.0;
    }

    /// Receives a deferred message by number, if there is one.
    fn fetch(&mut self, pick: usize) {
        let deferred: Vec<_> = self
            .model
            .queues
            .iter()
            .flat_map(|(id, queue)| queue.messages.iter().map(|message| (*id, message.clone())))
            .filter(|(_, message)| message.deferred)
            .collect();
        let Some((entity, message)) = pick_from(&deferred, pick) else { return };
        let queue = QueueId::main(entity);
        let (peeked, held) = (self.peek(queue), &self.model.queues[&entity].held);
        let number = peeked.iter().find(|peeked| peeked.sequence.counter() == message.counter).unwrap().sequence;
        let allowed = message.lock.is_none() && message.session.as_ref().is_none_or(|id| held.contains_key(id));
        let session = message.session.as_deref();
        let result = self.turn(|core, turn| core.receive_deferred(turn, queue, session, &[number], Mode::PeekLock));
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        if let Some(delivery) = result.ok().and_then(|mut deliveries| deliveries.pop()) {
            let until = self.model.now + LOCK;
            let list = self.model.list(queue);
            let entry = list.iter_mut().find(|entry| entry.counter == message.counter).unwrap();
            entry.lock = Some(Lock { token: delivery.token, until });
            self.deliveries.push((queue, delivery.token));
        }
    }

    fn peek(&mut self, queue: QueueId) -> Vec<Peeked> {
        self.turn(|core, turn| core.peek(turn, queue, None, SequenceNumber(0), 100_000)).unwrap()
    }

    /// One step of a snapshot; whatever happens before the next is mended by what is appended since the first.
    fn snapshot(&mut self, budget: usize) {
        let now = Timestamp(self.model.now);
        let (cursor, begun) = self.taking.get_or_insert_with(|| {
            (Snapshot::begin(now), Taken { from: self.journal.groups().len(), records: Vec::new() })
        });
        let more = self.core.snapshot(cursor, budget, |record| begun.records.push(record.to_vec()));
        if !more {
            self.taken = self.taking.take().map(|(_, taken)| taken);
        }
    }

    fn restart(&mut self, snapshot: bool) {
        let taken = self.taken.as_ref().filter(|_| snapshot);
        let (records, from) = taken.map_or((&[][..], 0), |taken| (&taken.records[..], taken.from));
        self.starts += 1;
        let mut new = core(self.starts);
        records.iter().for_each(|record| new.replay(record, None).unwrap());
        for entry in self.journal.groups()[from..].iter().flatten() {
            new.replay(&entry.meta, entry.body).unwrap();
        }
        new.recovered(Timestamp(self.model.now));
        self.core = new;
        self.taking = None;
        self.model.restart();
        self.pass(0);
    }

    fn evacuate(&mut self, back: u32) {
        let newest = self.journal.groups().len() as u32 / 16;
        let mut evacuation =
            Evacuation::of([newest.saturating_sub(back + 1)].into_iter().filter(|segment| *segment < newest));
        if self.journal.full {
            return;
        }
        while self.turn(|core, turn| core.evacuate(turn, &mut evacuation, 5)).unwrap() {}
    }

    fn pick_link(&self, pick: usize, wanted: impl Fn(&Link) -> bool) -> Option<(LinkId, u32)> {
        let links: Vec<_> = self.model.links.iter().filter(|(_, link)| wanted(link)).collect();
        let (id, link) = links.get(pick.checked_rem(links.len())?)?;
        Some((**id, link.delivered))
    }

    /// After every step: the core holds exactly what the model holds.
    fn compare(&mut self) {
        self.model.assert_at_rest();
        for (queue, expected) in self.model.lasting() {
            let found: Vec<_> = held(&mut self.core, &mut self.journal, queue, self.model.now);
            assert_eq!(found, summary(&expected), "{queue:?}");
        }
        let mut counted = vec![0; self.journal.references().count()];
        self.core.visit_bodies(|location| counted[location.offset as usize] += 1);
        assert!(self.journal.references().eq(counted), "the journal's references are not the core's");
        let mut after_a_crash = self.model.clone();
        after_a_crash.restart();
        self.checkpoints.push((self.journal.groups().len(), self.model.now, after_a_crash.lasting()));
    }

    pub(crate) fn run(&mut self, steps: Vec<Step>) {
        let mut full = false;
        for step in steps {
            if matches!(step, Step::Full) {
                full = true;
                continue;
            }
            // Time may pass only while the journal takes what that entails: else a count is kept in memory alone.
            let may_refuse = matches!(step, Step::Send { .. } | Step::Settle { .. }) && std::mem::take(&mut full);
            self.journal.full = may_refuse;
            self.take(step);
            self.journal.full = false;
            if may_refuse {
                // What was held up by the refusal goes on within a second.
                self.held_up = true;
                self.pass(1_000);
                self.held_up = false;
            }
            self.compare();
        }
    }
}

/// (counter, body, count, deferred) of every message; in a dead-letter queue the counter is the core's own affair.
pub(crate) fn summary(messages: &[Message]) -> Vec<(u64, String, u16, bool)> {
    let mut summary: Vec<_> = messages
        .iter()
        .map(|message| (message.counter, message.body.clone(), message.count, message.deferred))
        .collect();
    summary.sort();
    summary
}

pub(crate) fn held(core: &mut Core, journal: &mut Memory, queue: QueueId, now: u64) -> Vec<(u64, String, u16, bool)> {
    let mut turn = Turn { now: Timestamp(now), journal, effects: &mut Vec::new() };
    let peeked = core.peek(&mut turn, queue, None, SequenceNumber(0), 100_000).unwrap();
    let peeked = peeked.iter().filter(|message| message.state != MessageState::Scheduled);
    let mut held: Vec<_> = peeked
        .map(|message| {
            let counter = if queue.subqueue == Subqueue::Main { message.sequence.counter() } else { 0 };
            let body = text(&turn.journal.read(message.location).unwrap().body);
            (counter, body, message.delivery_count, message.state == MessageState::Deferred)
        })
        .collect();
    held.sort();
    held
}

fn body(journal: &Memory, delivery: &Delivery) -> String {
    text(&journal.read(delivery.location).unwrap().body)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn session_id(session: u8) -> String {
    format!("session-{session}")
}

fn pick_from<T: Clone>(items: &[T], pick: usize) -> Option<T> {
    items.get(pick.checked_rem(items.len())?).cloned()
}
