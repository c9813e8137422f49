//! Routing: a message goes to the queue it was sent to, or to the subscriptions of the topic whose rules select it. Its
//! body is stored once; a copy that an action changed is stored as a message of its own.

use amqp::Message;
use bytes::Bytes;

use super::Core;
use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::dead_letter::{self, DeadLetterReason};
use super::description::EntityDefinition;
use super::entity::ReceiveSide;
use super::expiry_time::ExpiryTime;
use super::id::{EntityId, QueueId, SequenceNumber, Subqueue, Timestamp};
use super::record::{ActivatedRecord, EnqueueTarget, EnqueuedRecord, ForwardedRecord};
use super::send::shorter_ttl;
use crate::journal::JournalLocation;
use crate::rules::{MatchedRules, MessageContext};

/// The subscriptions that get a message, and the copies that actions made of it.
pub(super) type MessageRoute = MatchedRules;

/// Counters already used in this batch, per dead-letter queue.
pub(super) type ReservedCounters = Vec<(EntityId, u64)>;

/// A stored message on its way to the queues that get it.
pub(super) struct TopicMessage<'a> {
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    /// Start of its time to live.
    pub(super) start: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: Option<&'a str>,
    pub(super) location: JournalLocation,
    pub(super) hops: u8,
}

impl Core {
    /// Evaluates the rules of a topic for a message. A queue has none.
    ///
    /// `read` returns the message; it is called only if a rule depends on the message.
    pub(super) fn route<E>(
        &mut self,
        entity: EntityId,
        now: Timestamp,
        time_to_live: Option<u64>,
        read: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<MessageRoute, E> {
        if self.entities[&entity].subscriptions.is_empty() {
            return Ok(MessageRoute::default());
        }
        let index = self.rule_index(entity);
        if let Some(subscriptions) = index.fixed_subscriptions() {
            return Ok(MessageRoute { subscriptions: subscriptions.to_vec(), ..MessageRoute::default() });
        }
        // A message without readable properties matches no condition.
        let message = Message::parse(read()?).or_else(|_| Message::parse(Bytes::new())).expect("no sections are valid");
        let mut new_id = || uuid::Builder::from_random_bytes(self.state.next_token().0.to_be_bytes()).into_uuid();
        Ok(index.matches(&MessageContext::new(&message, now, time_to_live), &mut new_id))
    }

    /// The queues that get a message as it was sent.
    pub(super) fn select_targets(
        &self,
        route: &MessageRoute,
        session: Option<&str>,
        time_to_live: Option<u64>,
        reserved_counters: &mut ReservedCounters,
    ) -> Vec<EnqueueTarget> {
        let selected = route.subscriptions.iter();
        let mut targets: Vec<_> =
            selected.filter_map(|id| self.select_target(*id, session, time_to_live, reserved_counters)).collect();
        for (id, text) in &route.failures {
            targets.extend(self.select_dead_letter_target(*id, text, reserved_counters));
        }
        targets
    }

    /// The queue of a subscription that gets a message.
    pub(super) fn select_target(
        &self,
        subscription: EntityId,
        session: Option<&str>,
        time_to_live: Option<u64>,
        reserved_counters: &mut ReservedCounters,
    ) -> Option<EnqueueTarget> {
        let subscription = self.entities.get(&subscription)?;
        let egress = subscription.egress.as_ref()?;
        // The topic accepts the message; only this subscription cannot order it.
        if egress.main.policy.sessions && session.is_none() {
            let reason = DeadLetterReason::by_broker(dead_letter::NO_SESSION, dead_letter::NO_SESSION_TEXT);
            return Some(dead_letter_target(subscription.id, egress, &reason, reserved_counters));
        }
        let own = subscription.description.common().default_message_time_to_live;
        // Stored only if it is shorter, because most subscriptions use the topic's value.
        let own = own.map(|ttl| ttl.as_millis() as u64).filter(|own| time_to_live.is_none_or(|ttl| *own < ttl));
        let queue = QueueId::main(subscription.id);
        Some(EnqueueTarget { queue, counter: None, time_to_live: own, overrides: None })
    }

    /// The dead-letter queue of a subscription whose rule could not be evaluated, unless it drops such messages.
    fn select_dead_letter_target(
        &self,
        subscription: EntityId,
        text: &str,
        reserved_counters: &mut ReservedCounters,
    ) -> Option<EnqueueTarget> {
        let subscription = self.entities.get(&subscription)?;
        let EntityDefinition::Subscription(description) = &subscription.description else { return None };
        let egress = subscription.egress.as_ref()?;
        let reason = DeadLetterReason::by_broker(dead_letter::FILTER_FAILED, text);
        let kept = description.dead_lettering_on_filter_evaluation_exceptions;
        kept.then(|| dead_letter_target(subscription.id, egress, &reason, reserved_counters))
    }

    /// How many queues will refer to the body.
    pub(super) fn count_references(&self, entity: EntityId, targets: &[EnqueueTarget]) -> u32 {
        let is_queue = self.entities.get(&entity).is_some_and(|entity| entity.egress.is_some());
        // A queue has no targets: it holds its own messages.
        if is_queue { 1 } else { targets.len() as u32 }
    }

    pub(super) fn enqueue(&mut self, call: &mut CallContext<'_>, routed: &TopicMessage<'_>, targets: &[EnqueueTarget]) {
        let counter = routed.sequence.counter();
        if self.entities[&routed.entity].egress.is_some() {
            let message = routed.message(routed.time_to_live);
            if let Ok(mut context) = self.queue_context(call, QueueId::main(routed.entity)) {
                context.enqueue(routed.session, counter, message, None);
            }
        }
        self.enqueue_targets(call, routed, targets);
    }

    /// Enqueues a message only in these queues.
    pub(super) fn enqueue_targets(
        &mut self,
        call: &mut CallContext<'_>,
        routed: &TopicMessage<'_>,
        targets: &[EnqueueTarget],
    ) {
        let counter = routed.sequence.counter();
        for target in targets {
            let message = routed.message_for(target);
            if let Ok(mut context) = self.queue_context(call, target.queue) {
                context.enqueue(routed.session, target.counter.unwrap_or(counter), message, target.overrides.clone());
            }
        }
    }
}

impl<'a> From<&ForwardedRecord<'a>> for TopicMessage<'a> {
    fn from(record: &ForwardedRecord<'a>) -> Self {
        Self {
            entity: record.entity.unwrap_or(record.from.entity),
            sequence: record.sequence,
            start: record.at,
            time_to_live: record.time_to_live,
            session: record.session,
            location: record.location,
            hops: record.hops,
        }
    }
}

impl<'a> From<&ActivatedRecord<'a>> for TopicMessage<'a> {
    fn from(record: &ActivatedRecord<'a>) -> Self {
        Self {
            entity: record.entity,
            sequence: record.sequence,
            start: record.at,
            time_to_live: record.time_to_live,
            session: record.session,
            location: record.location,
            hops: 0,
        }
    }
}

impl<'a> TopicMessage<'a> {
    pub(super) fn of(record: &EnqueuedRecord<'a>, location: JournalLocation) -> Self {
        Self {
            entity: record.entity,
            sequence: record.sequence,
            start: record.enqueued_at,
            time_to_live: record.time_to_live,
            session: record.session,
            location,
            hops: record.hops,
        }
    }

    pub(super) fn message(&self, time_to_live: Option<u64>) -> QueuedMessage {
        let expires = ExpiryTime::after(self.start, time_to_live);
        QueuedMessage::new(self.location, self.sequence.partition() as u8, expires).with_hops(self.hops)
    }

    /// Messages in a dead-letter queue never expire.
    pub(super) fn message_for(&self, target: &EnqueueTarget) -> QueuedMessage {
        match target.queue.subqueue {
            Subqueue::Main => self.message(shorter_ttl(self.time_to_live, target.time_to_live)),
            Subqueue::DeadLetter | Subqueue::TransferDeadLetter => self.message(None),
        }
    }
}

fn dead_letter_target(
    subscription: EntityId,
    egress: &ReceiveSide,
    reason: &DeadLetterReason<'_>,
    reserved_counters: &mut ReservedCounters,
) -> EnqueueTarget {
    let counter = reserve_counter(reserved_counters, subscription, egress.dead_letter.counter);
    let overrides = Some(reason.overrides(None).into());
    EnqueueTarget { queue: QueueId::dead_letter(subscription), counter: Some(counter), time_to_live: None, overrides }
}

pub(super) fn reserve_counter(reserved_counters: &mut ReservedCounters, queue: EntityId, last: u64) -> u64 {
    match reserved_counters.iter_mut().find(|(promised, _)| *promised == queue) {
        Some((_, counter)) => {
            *counter += 1;
            *counter
        }
        None => {
            reserved_counters.push((queue, last + 1));
            last + 1
        }
    }
}
