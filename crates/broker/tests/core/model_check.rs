//! Runs the core and the model through the same steps and compares them after each.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::core::*;
use broker::journal::{Journal, MemoryJournal};

use crate::client_steps::ClientStep;
use crate::fixture::{START, core, count_references, recover};
use crate::model::{BrokerModel, LOCK, MAX_DELIVERIES, ModelLink, ModelLock, ModelMessage, ModelQueue, ModelScheduled};

/// The core and the model, side by side.
pub(crate) struct CoreModelCheck {
    core: Core,
    pub(crate) journal: MemoryJournal,
    pub(crate) model: BrokerModel,
    /// Entities to send to, and entities to receive from.
    ingresses: Vec<EntityId>,
    pub(crate) egresses: Vec<EntityId>,
    /// All deliveries ever made, with their queues. Most are settled.
    deliveries: Vec<(QueueId, LockToken)>,
    snapshot_in_progress: Option<(SnapshotCursor, TakenSnapshot)>,
    latest_snapshot: Option<TakenSnapshot>,
    next_link: u64,
    bodies: u64,
    starts: u8,
    /// The core may still have to retry an append that was refused.
    retry_pending: bool,
    /// What must be recovered from the first n groups at a given time.
    pub(crate) checkpoints: Vec<(usize, u64, BTreeMap<QueueId, Vec<ModelMessage>>)>,
}

/// The records of a snapshot, and the group it started at.
struct TakenSnapshot {
    from: usize,
    records: Vec<Vec<u8>>,
}

impl CoreModelCheck {
    pub(crate) fn new() -> Self {
        let mut check = Self {
            core: core(0),
            journal: MemoryJournal::default(),
            model: BrokerModel { now: START.0, ..BrokerModel::default() },
            ingresses: Vec::new(),
            egresses: Vec::new(),
            deliveries: Vec::new(),
            snapshot_in_progress: None,
            latest_snapshot: None,
            next_link: 1,
            bodies: 0,
            starts: 0,
            retry_pending: false,
            checkpoints: Vec::new(),
        };
        check.journal.groups_per_segment = 16;
        check.create_entities();
        check
    }

    /// A queue, a queue with sessions and duplicate detection, and a partitioned topic with a subscription of each
    /// kind.
    fn create_entities(&mut self) {
        let egress = |requires_session| ReceiveProperties {
            lock_duration: Duration::from_millis(LOCK),
            max_delivery_count: MAX_DELIVERIES,
            dead_lettering_on_message_expiration: requires_session,
            requires_session,
            ..ReceiveProperties::default()
        };
        let plain = EntityDefinition::Queue(QueueDescription { egress: egress(false), ..Default::default() });
        let ingress = SendProperties {
            requires_duplicate_detection: true,
            duplicate_detection_window: Duration::from_secs(20),
            ..Default::default()
        };
        let sessions =
            EntityDefinition::Queue(QueueDescription { egress: egress(true), ingress, ..Default::default() });
        let ingress = SendProperties { enable_partitioning: true, ..Default::default() };
        let topic = EntityDefinition::Topic(TopicDescription { ingress, ..Default::default() });
        let subscription = |requires| {
            EntityDefinition::Subscription(SubscriptionDescription { egress: egress(requires), ..Default::default() })
        };
        let ids: Vec<EntityId> = [
            ("plain", plain),
            ("sessions", sessions),
            ("topic", topic),
            ("topic/Subscriptions/plain", subscription(false)),
            ("topic/Subscriptions/sessions", subscription(true)),
        ]
        .into_iter()
        .map(|(path, description)| self.call(|core, call| core.create(call, path, description)).unwrap())
        .collect();
        let queue = |sessions| ModelQueue { sessions, dead_letters_expired: sessions, ..ModelQueue::default() };
        self.ingresses = vec![ids[0], ids[1], ids[2]];
        self.egresses = vec![ids[0], ids[1], ids[3], ids[4]];
        self.model.targets = [(ids[0], vec![ids[0]]), (ids[1], vec![ids[1]]), (ids[2], vec![ids[3], ids[4]])].into();
        self.model.queues =
            self.egresses.iter().zip([false, true, false, true]).map(|(id, sessions)| (*id, queue(sessions))).collect();
    }

    /// Calls the core. `update` tells the model about the call before the model sees the effects.
    fn call_and_update<T>(
        &mut self,
        act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T,
        update: impl FnOnce(&mut BrokerModel, &T),
    ) -> T {
        let mut effects = Vec::new();
        let now = Timestamp(self.model.now);
        let result = act(&mut self.core, &mut CallContext { now, journal: &mut self.journal, effects: &mut effects });
        update(&mut self.model, &result);
        for effect in &effects {
            self.model.observe(effect, |delivery| body(&self.journal, delivery));
            if let LinkEffect::Deliver { link, delivery } = effect {
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

    fn call<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        self.call_and_update(act, |_, _| {})
    }

    fn advance(&mut self, millis: u64) {
        let end = self.model.now + millis;
        while let Some(due) = self.core.next_deadline().filter(|due| due.0 <= end) {
            self.model.advance(due.0.max(self.model.now));
            self.call(Core::tick);
            let all_done = self.core.next_deadline().is_none_or(|due| due.0 > self.model.now);
            if all_done && !self.retry_pending {
                self.model.assert_nothing_deliverable();
            }
        }
        self.model.advance(end);
    }

    fn apply_step(&mut self, step: ClientStep) {
        match step {
            ClientStep::Send { .. } => self.send(step),
            ClientStep::Attach { queue, dead, deleting } => {
                let entity = self.egresses[queue];
                let queue = if dead { QueueId::dead_letter(entity) } else { QueueId::main(entity) };
                let filter = match self.model.queues[&entity].sessions && !dead {
                    true => SessionFilter::Next { timeout: Duration::from_secs(3) },
                    false => SessionFilter::None,
                };
                self.attach(
                    queue,
                    filter,
                    if deleting { ReceiveMode::ReceiveAndDelete } else { ReceiveMode::PeekLock },
                );
            }
            ClientStep::AttachNamed { queue, session } => {
                let queue = QueueId::main(self.egresses[queue]);
                self.attach(queue, SessionFilter::Named(session_id(session).into()), ReceiveMode::PeekLock);
            }
            ClientStep::Credit { link, credit, drain } => {
                let Some((id, delivered)) = self.pick_link(link, |link| link.waits.is_none()) else { return };
                let grant = |model: &mut BrokerModel, _: &()| model.links.get_mut(&id).unwrap().credit = credit;
                self.call_and_update(|core, call| core.flow(call, id, delivered, credit, drain), grant);
            }
            ClientStep::Detach { link } => {
                let Some((id, _)) = self.pick_link(link, |_| true) else { return };
                self.call_and_update(|core, call| core.detach(call, id), |model, ()| model.detach(id));
            }
            ClientStep::Settle { delivery, count, outcome } => self.settle(delivery, count, &outcome),
            ClientStep::Renew { delivery } => self.renew(delivery),
            ClientStep::RenewSession { link } => self.renew_session(link),
            ClientStep::Fetch { message } => self.receive_deferred(message),
            ClientStep::Pass { millis } => self.advance(millis),
            ClientStep::Full => unreachable!("handled by run()"),
            ClientStep::Snapshot { budget } => self.snapshot(budget),
            ClientStep::Restart { snapshot } => self.restart(snapshot),
            ClientStep::Compact { back } => self.compact(back),
        }
    }

    fn send(&mut self, step: ClientStep) {
        let ClientStep::Send { to, session, count, id, ttl, delay } = step else { return };
        let (entity, now) = (self.ingresses[to], self.model.now);
        let due = delay.map(|delay| now + delay);
        let session = session_id(session);
        let messages: Vec<IncomingMessage> = (0..count)
            .map(|n| {
                self.bodies += 1;
                IncomingMessage {
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
        let accept = |model: &mut BrokerModel, result: &Result<Vec<Option<SequenceNumber>>, Error>| {
            let Ok(numbers) = result else { return };
            for (message, number) in messages.iter().zip(numbers) {
                let key = (entity, message.message_id.as_deref().unwrap_or_default().to_owned());
                let age =
                    model.seen.get(&key).filter(|_| detects && message.message_id.is_some()).map(|seen| now - seen);
                match (age, number) {
                    (Some(..=20_000), number) => assert!(number.is_none(), "a duplicate was stored"),
                    // Ids may be remembered slightly too long.
                    (Some(20_001..=20_200), None) => {}
                    (_, number) => assert!(number.is_some(), "a message was taken for a duplicate"),
                }
                let Some(number) = number else { continue };
                assert_eq!(number.counter(), model.next_counter(entity));
                model.seen.insert(key, now);
                let start = due.unwrap_or(now);
                let new = ModelMessage {
                    counter: number.counter(),
                    body: text(&message.body),
                    session: Some(session.clone()),
                    count: 0,
                    deferred: false,
                    expires: ttl.map(|ttl| (start + ttl).div_ceil(250) * 250),
                    lock: None,
                };
                match due {
                    Some(due) => {
                        model.scheduled.push(ModelScheduled { entity, counter: new.counter, due, message: new })
                    }
                    None => model.enqueue(entity, &new),
                }
            }
        };
        let full = self.journal.full;
        let result = self.call_and_update(|core, call| core.send(call, entity, &messages), accept);
        match result {
            Ok(numbers) => assert!(!full || numbers.iter().all(Option::is_none), "stored in a full journal"),
            Err(error) => assert!(full && matches!(error, Error::StorageFull), "{error}"),
        }
    }

    fn attach(&mut self, queue: QueueId, filter: SessionFilter, mode: ReceiveMode) {
        let id = CoreLinkId(self.next_link);
        self.next_link += 1;
        let sessions = self.model.queues[&queue.entity].sessions && queue.subqueue == Subqueue::Main;
        let named = if let SessionFilter::Named(id) = &filter { Some(id.to_string()) } else { None };
        let held = named.as_ref().is_some_and(|id| self.model.queues[&queue.entity].held.contains_key(id));
        let waits = self.model.now + 3_000;
        let attached = |model: &mut BrokerModel, result: &Result<AttachResult, Error>| {
            let Ok(attached) = result else { return };
            let link = ModelLink { queue, mode, credit: 0, delivered: 0, session: None, waits: None };
            let next = if sessions { model.next_session(queue.entity) } else { None };
            model.links.insert(id, link);
            match attached {
                AttachResult::Plain => assert!(!sessions),
                AttachResult::Session { id: session, locked_until } => {
                    assert_eq!(named.clone().or(next).as_deref(), Some(&**session));
                    model.lock_session(id, session, *locked_until);
                }
                AttachResult::Waiting => {
                    assert!(named.is_none() && next.is_none());
                    model.links.get_mut(&id).unwrap().waits = Some(waits);
                }
            }
        };
        let named_some = named.is_some();
        let result = self.call_and_update(|core, call| core.attach(call, id, queue, mode, filter), attached);
        let expected = if named_some && !sessions { false } else { !held };
        assert_eq!(result.is_ok(), expected, "{result:?}");
    }

    fn settle(&mut self, pick: usize, count: usize, outcome: &SettlementOutcome) {
        let Some((queue, _)) = pick_from(&self.deliveries, pick) else { return };
        let candidates = self.deliveries.iter().filter(|(other, _)| *other == queue).map(|(_, token)| *token);
        let candidates: Vec<_> = candidates.collect();
        // Mostly recent tokens, because those are still locked.
        let recent = candidates.len().saturating_sub(8);
        let tokens: Vec<_> =
            candidates[recent..].iter().copied().cycle().skip(pick % 8).take(count.min(candidates.len())).collect();
        let lost: Vec<_> = tokens.iter().copied().filter(|token| !self.model.holds(queue, *token)).collect();
        let full = self.journal.full;
        let settled = |model: &mut BrokerModel, result: &Result<Vec<LockToken>, Error>| {
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
        let result = self.call_and_update(|core, call| core.settle(call, queue, &tokens, outcome), settled);
        let writes = *outcome != SettlementOutcome::Release && lost.len() < tokens.len();
        let refused = matches!(outcome, SettlementOutcome::DeadLetter { .. }) && queue.subqueue == Subqueue::DeadLetter;
        assert_eq!(result.is_err(), refused || full && writes, "{result:?}");
    }

    fn renew(&mut self, pick: usize) {
        let Some((queue, token)) = pick_from(&self.deliveries, pick) else { return };
        let sessions = self.model.queues[&queue.entity].sessions && queue.subqueue == Subqueue::Main;
        let good = !sessions && self.model.holds(queue, token);
        let renewed = |model: &mut BrokerModel, result: &Result<Vec<Timestamp>, Error>| {
            assert_eq!(result.is_ok(), good);
            let until = model.now + LOCK;
            for message in model.list(queue) {
                if let Some(lock) = message.lock.as_mut().filter(|lock| good && lock.token == token) {
                    lock.until = until;
                }
            }
        };
        let _ = self.call_and_update(|core, call| core.renew(call, queue, &[token]), renewed);
    }

    fn renew_session(&mut self, pick: usize) {
        let Some((id, _)) = self.pick_link(pick, |link| link.session.is_some()) else { return };
        let link = self.model.links[&id].clone();
        let session = link.session.unwrap();
        let until = self.call(|core, call| core.renew_session(call, link.queue, &session)).unwrap();
        assert_eq!(until.0, self.model.now + LOCK);
        self.model.queues.get_mut(&link.queue.entity).unwrap().held.get_mut(&session).unwrap().1 = until.0;
    }

    /// Receives a deferred message by sequence number, if there is one.
    fn receive_deferred(&mut self, pick: usize) {
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
        let result =
            self.call(|core, call| core.receive_deferred(call, queue, session, &[number], ReceiveMode::PeekLock));
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        if let Some(delivery) = result.ok().and_then(|mut deliveries| deliveries.pop()) {
            let until = self.model.now + LOCK;
            let list = self.model.list(queue);
            let entry = list.iter_mut().find(|entry| entry.counter == message.counter).unwrap();
            entry.lock = Some(ModelLock { token: delivery.token, until });
            self.deliveries.push((queue, delivery.token));
        }
    }

    fn peek(&mut self, queue: QueueId) -> Vec<PeekedMessage> {
        self.call(|core, call| core.peek(call, queue, None, SequenceNumber(0), 100_000)).unwrap()
    }

    /// One step of a snapshot. Replay of everything appended since its start corrects later changes.
    fn snapshot(&mut self, budget: usize) {
        let now = Timestamp(self.model.now);
        let (cursor, begun) = self.snapshot_in_progress.get_or_insert_with(|| {
            (SnapshotCursor::new(now), TakenSnapshot { from: self.journal.groups().len(), records: Vec::new() })
        });
        let more = self.core.write_snapshot(cursor, budget, |record| begun.records.push(record.to_vec()));
        if !more {
            self.latest_snapshot = self.snapshot_in_progress.take().map(|(_, latest_snapshot)| latest_snapshot);
        }
    }

    fn restart(&mut self, snapshot: bool) {
        let latest_snapshot = self.latest_snapshot.as_ref().filter(|_| snapshot);
        let (records, from) = latest_snapshot
            .map_or((&[][..], 0), |latest_snapshot| (&latest_snapshot.records[..], latest_snapshot.from));
        self.starts += 1;
        self.core = recover(self.starts, records, &self.journal.groups()[from..], Timestamp(self.model.now));
        self.snapshot_in_progress = None;
        self.model.restart();
        self.advance(0);
    }

    fn compact(&mut self, back: u32) {
        let newest = self.journal.groups().len() as u32 / 16;
        let mut compaction =
            Compaction::of([newest.saturating_sub(back + 1)].into_iter().filter(|segment| *segment < newest));
        if self.journal.full {
            return;
        }
        while self.call(|core, call| core.compact(call, &mut compaction, 5)).unwrap() {}
    }

    fn pick_link(&self, pick: usize, wanted: impl Fn(&ModelLink) -> bool) -> Option<(CoreLinkId, u32)> {
        let links: Vec<_> = self.model.links.iter().filter(|(_, link)| wanted(link)).collect();
        let (id, link) = links.get(pick.checked_rem(links.len())?)?;
        Some((**id, link.delivered))
    }

    /// After every step the core holds exactly what the model holds.
    fn compare(&mut self) {
        self.model.assert_nothing_deliverable();
        for (queue, expected) in self.model.recoverable() {
            let found: Vec<_> = held(&mut self.core, &mut self.journal, queue, self.model.now);
            assert_eq!(found, summary(&expected), "{queue:?}");
        }
        let counted = count_references(&self.core, &self.journal);
        assert!(self.journal.references().eq(counted), "the journal's references are not the core's");
        let mut after_a_crash = self.model.clone();
        after_a_crash.restart();
        self.checkpoints.push((self.journal.groups().len(), self.model.now, after_a_crash.recoverable()));
    }

    pub(crate) fn run(&mut self, steps: Vec<ClientStep>) {
        let mut full = false;
        for step in steps {
            if matches!(step, ClientStep::Full) {
                full = true;
                continue;
            }
            // Time passes only while the journal accepts appends: otherwise a delivery count would exist in memory
            // only.
            let may_refuse =
                matches!(step, ClientStep::Send { .. } | ClientStep::Settle { .. }) && std::mem::take(&mut full);
            self.journal.full = may_refuse;
            self.apply_step(step);
            self.journal.full = false;
            if may_refuse {
                // The core retries refused appends within a second.
                self.retry_pending = true;
                self.advance(1_000);
                self.retry_pending = false;
            }
            self.compare();
        }
    }
}

/// (counter, body, delivery count, deferred) per message. In a dead-letter queue the model does not predict the
/// counter.
pub(crate) fn summary(messages: &[ModelMessage]) -> Vec<(u64, String, u16, bool)> {
    let mut summary: Vec<_> = messages
        .iter()
        .map(|message| (message.counter, message.body.clone(), message.count, message.deferred))
        .collect();
    summary.sort();
    summary
}

pub(crate) fn held(
    core: &mut Core,
    journal: &mut MemoryJournal,
    queue: QueueId,
    now: u64,
) -> Vec<(u64, String, u16, bool)> {
    let mut call = CallContext { now: Timestamp(now), journal, effects: &mut Vec::new() };
    let peeked = core.peek(&mut call, queue, None, SequenceNumber(0), 100_000).unwrap();
    let peeked = peeked.iter().filter(|message| message.state != MessageState::Scheduled);
    let mut held: Vec<_> = peeked
        .map(|message| {
            let counter = if queue.subqueue == Subqueue::Main { message.sequence.counter() } else { 0 };
            let body = text(&call.journal.read(message.location).unwrap().body);
            (counter, body, message.delivery_count, message.state == MessageState::Deferred)
        })
        .collect();
    held.sort();
    held
}

fn body(journal: &MemoryJournal, delivery: &MessageDelivery) -> String {
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
