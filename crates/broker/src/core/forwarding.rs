//! Forwarding: moves the messages of a queue to another queue or topic (`ForwardTo`), and dead letters likewise
//! (`ForwardDeadLetteredMessagesTo`).
//!
//! A message is first stored in the queue it was sent to. A timer that is due at once then moves it with one journal
//! record, which removes it from its queue and adds it to all that get it. So a crash neither loses nor doubles it: the
//! next start finds it on one side and goes on. Checks, rules and duplicate detection of the destination apply as for a
//! send. A message that the destination refuses, or that was forwarded too often, moves to the transfer dead-letter
//! queue. A loop through other entities is refused when it is created. Any other one ends by itself: of an entity that
//! forwards to itself, through filters, or stored from before.

use std::collections::HashSet;
use std::sync::Arc;

use amqp::Message;
use bytes::Bytes;

use super::Core;
use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::dead_letter::DeadLetterReason;
use super::description::EntityDefinition;
use super::error::Error;
use super::id::{EntityId, QueueId, SequenceNumber, Subqueue};
use super::name;
use super::property_overrides::PropertyOverrides;
use super::queue::MessageQueue;
use super::queue_context::{QueueContext, RETRY};
use super::record::{EnqueueTarget, ForwardedRecord, JournalRecord, StoredEnvelope};
use super::send::{IncomingMessage, PlannedMessage};
use super::sessions::{QueueSessions, TableSlot};
use super::settle::MAX_PER_TIMER;
use super::timers::Timer;
use super::topic::{MessageRoute, ReservedCounters, TopicMessage};
use crate::journal::ReadJournalEntry;

/// As in the service.
const MAX_HOPS: u8 = 4;
const TOO_MANY_HOPS: &str = "MaxTransferHopCountExceeded";
const TOO_MANY_HOPS_TEXT: &str =
    "The maximum number of allowed hops when forwarding between queues has been exceeded. This value is set to 4.";
pub(super) const NO_RECEIVER: &str = "Can not create a message receiver on an entity with auto-forwarding enabled.";

impl Core {
    /// Checks that the entities to forward to exist, and that no message comes back through others by forwarding alone.
    /// `path` is that of the entity that forwards.
    pub(super) fn check_forwarding(&self, path: &str, description: &EntityDefinition) -> Result<(), Error> {
        let is_missing = |path: &&str| self.resolve_send_address(path).is_err();
        if let Some(path) = description.forward_paths().find(is_missing) {
            return Err(Error::ForwardTargetNotFound { path: path.into() });
        }
        // A subscription gets what is sent to its topic.
        let receives = name::split_subscription(path).map_or(path, |(topic, _)| topic);
        let [messages, _] = description.forwarding();
        let own = name::normalize(receives);
        // The service accepts an entity that forwards to itself.
        match messages.filter(|to| name::normalize(to) != own && self.leads_to(to, &own)) {
            Some(to) => Err(Error::ForwardLoop { path: receives.into(), to: to.into() }),
            None => Ok(()),
        }
    }

    /// Whether every message of `from` arrives at `target`, a normalized path. A subscription with filters can keep a
    /// message from going round: then the number of hops ends it.
    fn leads_to(&self, from: &str, target: &str) -> bool {
        let mut open = vec![name::normalize(from)];
        let mut seen = HashSet::new();
        while let Some(path) = open.pop() {
            if *path == *target {
                return true;
            }
            // An entity to forward to can be deleted.
            let Some(entity) = self.find_entity(&path).ok().filter(|_| seen.insert(path)) else { continue };
            let entity = &self.entities[&entity];
            let subscriptions = entity.subscriptions.iter().map(|id| &self.entities[id]);
            let forwarding = std::iter::once(entity).chain(subscriptions.filter(|own| own.rules.accepts_all()));
            let next = forwarding.filter_map(|entity| entity.description.forwarding()[0]);
            open.extend(next.map(name::normalize));
        }
        false
    }

    /// Starts or stops forwarding after an update.
    pub(super) fn apply_forwarding(&mut self, call: &mut CallContext<'_>, entity: EntityId) {
        for queue in [QueueId::main(entity), QueueId::dead_letter(entity)] {
            let Ok(mut context) = self.queue_context(call, queue) else { continue };
            if context.queue.policy.forward_to.is_some() {
                context.detach_all(&Error::NotAllowed(NO_RECEIVER));
                context.set_forward_timer();
            }
        }
    }

    /// Forwards messages of a queue, a limited number per call.
    pub(super) fn forward_messages(&mut self, call: &mut CallContext<'_>, from: QueueId) {
        let Ok(queue) = self.queue(from) else { return };
        let Some(path) = queue.policy.forward_to.clone() else { return };
        for _ in 0..MAX_PER_TIMER {
            let Some((counter, slot)) = self.find_forwardable(call, from) else { return };
            if self.forward(call, from, &path, slot, counter).is_err() {
                // The journal refuses appends: the others would fail too.
                return self.state.timers.set(Timer::Forward(from), call.now.after(RETRY));
            }
        }
        self.state.timers.set(Timer::Forward(from), call.now);
    }

    fn find_forwardable(&mut self, call: &mut CallContext<'_>, from: QueueId) -> Option<(u64, TableSlot)> {
        self.queue_context(call, from).ok()?.queue.find_forwardable()
    }

    /// Forwards one message. Fails only if the journal does.
    fn forward(
        &mut self,
        call: &mut CallContext<'_>,
        from: QueueId,
        path: &str,
        slot: TableSlot,
        counter: u64,
    ) -> Result<(), Error> {
        let context = &mut self.queue_context(call, from)?;
        if context.is_undeliverable(slot, counter) {
            context.remove_undeliverable(slot, counter)?;
            context.queue.release_session(slot);
            return Ok(());
        }
        let Some(source) = self.find_source(from, slot, counter) else { return Ok(()) };
        let stored = call.journal.read(source.message.location)?;
        let incoming = to_incoming(from, &stored);
        match self.plan_forward(call, &source, path, &incoming) {
            Err(reason) => self.transfer_dead_letter(call, &source, incoming.session_id.as_deref(), &reason),
            Ok((destination, routes)) => {
                let planned = self.plan_forwarded(call, destination, &incoming, &routes)?;
                self.move_message(call, &source, &incoming, destination, planned.into_iter().flatten().next())
            }
        }
    }

    fn find_source(&self, from: QueueId, slot: TableSlot, counter: u64) -> Option<ForwardSource> {
        let queue = self.queue(from).ok()?;
        let message = queue.sessions.get(slot).backlog.get(counter)?;
        let mut overrides = queue.overrides(counter, message);
        if from.subqueue == Subqueue::DeadLetter {
            let path = self.entities.get(&from.entity)?.path.clone();
            let earlier = overrides.as_deref().cloned().unwrap_or_default();
            overrides = Some(Arc::new(PropertyOverrides { dead_letter_source: Some(path), ..earlier }));
        }
        Some(ForwardSource { queue: from, slot, counter, message, overrides })
    }

    fn plan_forwarded<'a>(
        &self,
        call: &CallContext<'_>,
        destination: EntityId,
        incoming: &'a IncomingMessage,
        routes: &'a [MessageRoute],
    ) -> Result<Vec<Option<PlannedMessage<'a>>>, Error> {
        let messages = std::slice::from_ref(incoming);
        self.plan_messages(call.now, destination, messages, routes, &mut ReservedCounters::new())
    }

    /// The destination and the route of a message, or why it cannot be forwarded.
    fn plan_forward(
        &mut self,
        call: &CallContext<'_>,
        source: &ForwardSource,
        path: &str,
        incoming: &IncomingMessage,
    ) -> Result<(EntityId, Vec<MessageRoute>), Refusal> {
        if source.message.hops() >= MAX_HOPS {
            return Err(Refusal { reason: TOO_MANY_HOPS, description: TOO_MANY_HOPS_TEXT.to_owned() });
        }
        let messages = std::slice::from_ref(incoming);
        let destination = self.resolve_send_address(path)?;
        self.check_send(destination, messages)?;
        let routes = self.route_messages(call.now, destination, messages);
        self.check_copies(destination, &routes)?;
        Ok((destination, routes))
    }

    /// Moves a message to its destination. `planned` is `None` for a duplicate, which is dropped.
    fn move_message(
        &mut self,
        call: &mut CallContext<'_>,
        source: &ForwardSource,
        incoming: &IncomingMessage,
        destination: EntityId,
        planned: Option<PlannedMessage<'_>>,
    ) -> Result<(), Error> {
        let hops = source.message.hops() + 1;
        let mut planned = planned.unwrap_or_default().into_iter();
        let first = planned.next().map(|planned| planned.record);
        let mut copies: Vec<_> = planned.collect();
        copies.iter_mut().for_each(|copy| copy.record.hops = hops);
        let targets = first.as_ref().map(|record| self.forward_targets(source, destination, &record.targets));
        let record = ForwardedRecord {
            from: source.queue,
            counter: source.counter,
            entity: first.is_some().then_some(destination),
            sequence: first.as_ref().map_or(SequenceNumber(0), |record| record.sequence),
            at: call.now,
            time_to_live: first.as_ref().and_then(|record| record.time_to_live),
            fingerprint: first.as_ref().and_then(|record| record.fingerprint),
            session: incoming.session_id.as_deref(),
            location: source.message.location,
            hops,
            targets: targets.unwrap_or_default(),
        };
        let mut group = self.state.begin_group();
        group.push(|page| JournalRecord::Forwarded(record.clone()).encode(page), None, 0);
        for copy in &copies {
            group.push(|page| copy.record.encode(page), Some(&copy.body[..]), 1);
        }
        let mut locations = Vec::new();
        self.state.append(call, group, &mut locations)?;
        self.record_use(destination, call.now);
        if let Some(record) = &first {
            self.record_as_seen(record);
        }
        self.complete_forward(call, source, &record);
        for (copy, location) in copies.iter().zip(locations) {
            self.record_as_seen(&copy.record);
            self.enqueue_or_schedule(call, &copy.record, location);
        }
        Ok(())
    }

    /// The queues that get a message: the destination itself, or the subscriptions selected by its rules. Property
    /// changes go with the message.
    fn forward_targets(
        &self,
        source: &ForwardSource,
        destination: EntityId,
        selected: &[EnqueueTarget],
    ) -> Vec<EnqueueTarget> {
        let overrides = source.overrides.clone();
        if self.entities[&destination].egress.is_some() {
            let queue = QueueId::main(destination);
            return vec![EnqueueTarget { queue, counter: None, time_to_live: None, overrides }];
        }
        let carry = |target: &EnqueueTarget| EnqueueTarget {
            overrides: match (&target.overrides, &overrides) {
                (None, carried) => carried.clone(),
                (Some(own), None) => Some(own.clone()),
                (Some(own), Some(carried)) => {
                    let earlier = PropertyOverrides::merge(Some(carried), &own.properties);
                    let (reason, description) = (own.reason.clone(), own.description.clone());
                    Some(Arc::new(PropertyOverrides { reason, description, ..earlier }))
                }
            },
            ..target.clone()
        };
        selected.iter().map(carry).collect()
    }

    /// Moves a message that cannot be forwarded to the transfer dead-letter queue.
    fn transfer_dead_letter(
        &mut self,
        call: &mut CallContext<'_>,
        source: &ForwardSource,
        session: Option<&str>,
        refusal: &Refusal,
    ) -> Result<(), Error> {
        let queue = QueueId::transfer_dead_letter(source.queue.entity);
        let counter = self.queue(queue)?.counter + 1;
        let reason = DeadLetterReason::by_broker(refusal.reason, &refusal.description);
        let mut overrides = reason.overrides(source.overrides.as_ref());
        overrides.enqueued_sequence = Some(MessageQueue::sequence_number(source.counter, source.message));
        let overrides = Some(Arc::new(overrides));
        let record = ForwardedRecord {
            from: source.queue,
            counter: source.counter,
            entity: None,
            sequence: SequenceNumber::new(source.message.partition(), counter),
            at: call.now,
            time_to_live: None,
            fingerprint: None,
            session,
            location: source.message.location,
            hops: source.message.hops(),
            targets: vec![EnqueueTarget { queue, counter: None, time_to_live: None, overrides }],
        };
        self.state.append_record(call, &JournalRecord::Forwarded(record.clone()))?;
        self.complete_forward(call, source, &record);
        Ok(())
    }

    fn complete_forward(&mut self, call: &mut CallContext<'_>, source: &ForwardSource, record: &ForwardedRecord<'_>) {
        if let Ok(context) = self.queue_context(call, source.queue) {
            context.queue.remove_message(source.slot, source.counter);
            context.queue.release_session(source.slot);
        }
        match record.targets.len() as u32 {
            0 => call.journal.release(record.location),
            // The message in its old queue already held one reference.
            references => call.journal.retain(record.location, references - 1),
        }
        self.enqueue_targets(call, &TopicMessage::from(record), &record.targets);
    }
}

/// A message that is about to be forwarded.
struct ForwardSource {
    queue: QueueId,
    slot: TableSlot,
    counter: u64,
    message: QueuedMessage,
    overrides: Option<Arc<PropertyOverrides>>,
}

/// Why a message cannot be forwarded.
struct Refusal {
    reason: &'static str,
    description: String,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { reason: error.condition(), description: error.to_string() }
    }
}

impl MessageQueue {
    /// The first message that can be forwarded, with its session. Locked and deferred ones stay. Takes the same time
    /// however many messages and sessions there are.
    fn find_forwardable(&mut self) -> Option<(u64, TableSlot)> {
        if self.policy.sessions {
            return self.ready.first_key_value().map(|(counter, slot)| (*counter, *slot));
        }
        let only = QueueSessions::ONLY;
        self.sessions.get_mut(only).backlog.first_available().map(|counter| (counter, only))
    }

    /// Updates the session of a message that was removed or added.
    fn release_session(&mut self, slot: TableSlot) {
        if self.policy.sessions {
            self.update_ready(slot);
            self.sessions.remove_if_idle(slot);
        }
    }
}

impl QueueContext<'_, '_> {
    /// Forwards at the end of this round, not now: the message may just be arriving.
    pub(super) fn forward_later(&mut self, slot: TableSlot) {
        self.queue.release_session(slot);
        self.set_forward_timer();
    }

    pub(super) fn set_forward_timer(&mut self) {
        if self.queue.messages > 0 {
            self.state.timers.set(Timer::Forward(self.queue.id), self.call.now);
        }
    }
}

/// The message as a new one for its destination. A dead letter takes no time to live along: it would expire again.
fn to_incoming(from: QueueId, stored: &ReadJournalEntry) -> IncomingMessage {
    let envelope = StoredEnvelope::decode(&stored.meta).ok();
    // A message without readable properties has none.
    let message = Message::parse(stored.body.clone()).or_else(|_| Message::parse(Bytes::new()));
    let message = message.expect("no sections are valid");
    let message_id = message.properties().ok().and_then(|properties| properties.message_id.map(|id| id.to_string()));
    let time_to_live = envelope.as_ref().and_then(|envelope| envelope.time_to_live);
    IncomingMessage {
        body: stored.body.clone(),
        message_id: message_id.map(Into::into),
        partition_key: message.partition_key().map(Into::into),
        session_id: envelope.and_then(|envelope| envelope.session),
        time_to_live: time_to_live.filter(|_| from.subqueue == Subqueue::Main),
        scheduled_for: None,
    }
}
