//! Routing: a message goes to the queue it was sent to, or to every subscription of the topic. Its body is stored once.

use super::Core;
use super::backlog::QueuedMessage;
use super::call_context::CallContext;
use super::dead_letter::{self, DeadLetterReason};
use super::entity::Entity;
use super::expiry_time::ExpiryTime;
use super::id::{EntityId, QueueId, SequenceNumber, Subqueue, Timestamp};
use super::record::{ActivatedRecord, EnqueueTarget, EnqueuedRecord};
use super::send::shorter_ttl;
use crate::journal::JournalLocation;

/// A stored message on its way to the queues that get it.
pub(super) struct TopicMessage<'a> {
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    /// Start of its time to live.
    pub(super) start: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: Option<&'a str>,
    pub(super) location: JournalLocation,
}

impl Core {
    /// The subscriptions that get a message; empty if the entity is a queue.
    ///
    /// `reserved_counters` holds the counters already reserved in this batch, per dead-letter queue.
    pub(super) fn select_targets(
        &self,
        topic: EntityId,
        session: Option<&str>,
        time_to_live: Option<u64>,
        reserved_counters: &mut Vec<(EntityId, u64)>,
    ) -> Vec<EnqueueTarget> {
        let subscriptions = self.entities[&topic].subscriptions.iter().filter_map(|id| self.entities.get(id));
        let target = |subscription: &Entity| {
            let egress = subscription.egress.as_ref()?;
            // The topic accepts the message; only this subscription cannot order it.
            if egress.main.policy.sessions && session.is_none() {
                let counter = reserve_counter(reserved_counters, subscription.id, egress.dead_letter.counter);
                let reason = DeadLetterReason::by_broker(dead_letter::NO_SESSION, dead_letter::NO_SESSION_TEXT);
                let overrides = Some(reason.overrides(None).into());
                let queue = QueueId::dead_letter(subscription.id);
                return Some(EnqueueTarget { queue, counter: Some(counter), time_to_live: None, overrides });
            }
            let own = subscription.description.common().default_message_time_to_live;
            // Stored only if it is shorter, because most subscriptions use the topic's value.
            let own = own.map(|ttl| ttl.as_millis() as u64).filter(|own| time_to_live.is_none_or(|ttl| *own < ttl));
            let queue = QueueId::main(subscription.id);
            Some(EnqueueTarget { queue, counter: None, time_to_live: own, overrides: None })
        };
        subscriptions.filter_map(target).collect()
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
        for target in targets {
            let message = routed.message_for(target);
            if let Ok(mut context) = self.queue_context(call, target.queue) {
                context.enqueue(routed.session, target.counter.unwrap_or(counter), message, target.overrides.clone());
            }
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
        }
    }

    pub(super) fn message(&self, time_to_live: Option<u64>) -> QueuedMessage {
        QueuedMessage::new(self.location, self.sequence.partition() as u8, ExpiryTime::after(self.start, time_to_live))
    }

    /// Messages in a dead-letter queue never expire.
    pub(super) fn message_for(&self, target: &EnqueueTarget) -> QueuedMessage {
        match target.queue.subqueue {
            Subqueue::Main => self.message(shorter_ttl(self.time_to_live, target.time_to_live)),
            Subqueue::DeadLetter => self.message(None),
        }
    }
}

fn reserve_counter(reserved_counters: &mut Vec<(EntityId, u64)>, queue: EntityId, last: u64) -> u64 {
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
