//! Accepts messages: checks them, drops duplicates, assigns sequence numbers, appends them to the journal, and enqueues
//! them.
//!
//! A batch is one journal group: either all of its messages are stored or none.

use std::collections::HashSet;

use bytes::Bytes;

use super::Core;
use super::call_context::CallContext;
use super::duplicate_history::Fingerprint;
use super::entity::{Entity, SendSide};
use super::error::Error;
use super::id::{EntityId, SequenceNumber, Timestamp};
use super::partition_choice;
use super::queue::STORED_OVERHEAD;
use super::record::EnqueuedRecord;
use super::scheduled_messages::ScheduledMessage;
use super::shared_state::RecordGroup;
use super::timers::Timer;
use super::topic::{MessageRoute, ReservedCounters, TopicMessage};
use crate::failpoints::Failpoint;
use crate::journal::JournalLocation;
use crate::rules::RuleCopy;

/// Maximum characters of message ids, session ids and partition keys.
const MAX_ID: usize = 128;
const MEGABYTE: u64 = 1 << 20;

/// A message as received: its bytes and the properties the broker needs.
#[derive(Debug, Clone, Default)]
pub struct IncomingMessage {
    /// Stored and delivered unchanged.
    pub body: Bytes,
    pub message_id: Option<Box<str>>,
    pub session_id: Option<Box<str>>,
    pub partition_key: Option<Box<str>>,
    /// In milliseconds.
    pub time_to_live: Option<u64>,
    /// A time in the future makes it a scheduled message; a past time is ignored.
    pub scheduled_for: Option<Timestamp>,
}

impl Core {
    /// Stores a batch of messages, all or none. Returns their sequence numbers in order; `None` for an accepted and
    /// dropped duplicate.
    pub fn send(
        &mut self,
        call: &mut CallContext<'_>,
        entity: EntityId,
        messages: &[IncomingMessage],
    ) -> Result<Vec<Option<SequenceNumber>>, Error> {
        self.handle_due_timers(call);
        self.record_use(entity, call.now);
        self.check_send(entity, messages)?;
        let routes = self.route_messages(call.now, entity, messages);
        self.check_copies(entity, &routes)?;
        let planned = self.plan_messages(call.now, entity, messages, &routes, &mut ReservedCounters::new())?;
        let mut group = self.state.begin_group();
        self.push_messages(&mut group, entity, &planned);
        let mut locations = Vec::new();
        self.state.append(call, group, &mut locations)?;
        self.apply_messages(call, entity, &planned, &mut locations.into_iter());
        // The message itself is the first of its records.
        let sequence = |planned: &PlannedMessage<'_>| planned.first().map(|planned| planned.record.sequence);
        Ok(planned.iter().map(|planned| planned.as_ref().and_then(sequence)).collect())
    }

    /// Evaluates the rules of a topic. A scheduled message is routed when it is due.
    pub(super) fn route_messages(
        &mut self,
        now: Timestamp,
        id: EntityId,
        messages: &[IncomingMessage],
    ) -> Vec<MessageRoute> {
        let entity_ttl = self.default_time_to_live(id);
        let route = |message: &IncomingMessage| {
            if message.scheduled_for.is_some_and(|due| due > now) {
                return MessageRoute::default();
            }
            let time_to_live = shorter_ttl(message.time_to_live, entity_ttl);
            let read = || Ok::<_, std::convert::Infallible>(message.body.clone());
            self.route(id, now, time_to_live, read).unwrap_or_else(|never| match never {})
        };
        messages.iter().map(route).collect()
    }

    fn default_time_to_live(&self, id: EntityId) -> Option<u64> {
        self.entities[&id].description.common().default_message_time_to_live.map(|ttl| ttl.as_millis() as u64)
    }

    /// The copies that actions make count against the quota of the topic.
    pub(super) fn check_copies(&self, topic: EntityId, routes: &[MessageRoute]) -> Result<(), Error> {
        let copies = routes.iter().flat_map(|route| &route.copies);
        match copies.map(|copy| copy.message.body.len() as u64 + STORED_OVERHEAD).sum() {
            0 => Ok(()),
            more => self.check_room(&self.entities[&topic], more),
        }
    }

    /// Checks everything that can be wrong with a send before any state changes.
    pub(super) fn check_send(&self, id: EntityId, messages: &[IncomingMessage]) -> Result<(), Error> {
        let entity = self.entities.get(&id).ok_or_else(super::deleted_error)?;
        let Some(ingress) = entity.description.ingress() else {
            return Err(Error::NotAllowed("messages are sent to a queue or a topic, not to a subscription"));
        };
        if !entity.description.common().status.can_send() {
            return Err(Error::EntityDisabled { path: entity.path.clone() });
        }
        let own_limit = ingress.max_message_size_in_kilobytes.map(|size| size as usize * 1024);
        let limit = own_limit.unwrap_or(self.state.limits.max_message_size);
        let needs_session = entity.description.egress().is_some_and(|egress| egress.requires_session);
        for message in messages {
            check_message(message, limit, needs_session)?;
        }
        if ingress.enable_partitioning && !partition_choice::is_uniform(messages) {
            return Err(Error::NotAllowed("a batch to a partitioned entity has one session id and one partition key"));
        }
        self.check_quota(entity, messages)
    }

    pub(super) fn check_quota(&self, entity: &Entity, messages: &[IncomingMessage]) -> Result<(), Error> {
        let more = messages.iter().map(|message| message.body.len() as u64 + STORED_OVERHEAD).sum();
        self.check_room(entity, more)
    }

    /// Checks that an entity may hold this many bytes more. A subscription shares the quota of its topic.
    pub(super) fn check_room(&self, entity: &Entity, more: u64) -> Result<(), Error> {
        let entity = entity.topic.and_then(|topic| self.entities.get(&topic)).unwrap_or(entity);
        let Some(ingress) = entity.description.ingress() else { return Ok(()) };
        let limit = ingress.total_size_in_megabytes() * MEGABYTE;
        let subscriptions = entity.subscriptions.iter().filter_map(|id| self.entities.get(id));
        // A topic's quota covers the copies in its subscriptions.
        let used = entity.counts().bytes + subscriptions.map(|subscription| subscription.counts().bytes).sum::<u64>();
        match used + more > limit {
            true => Err(Error::QuotaExceeded { path: entity.path.clone(), size: used, limit }),
            false => Ok(()),
        }
    }

    /// The records of each message, `None` for a duplicate.
    pub(super) fn plan_messages<'a>(
        &self,
        now: Timestamp,
        id: EntityId,
        messages: &'a [IncomingMessage],
        routes: &'a [MessageRoute],
        reserved_counters: &mut ReservedCounters,
    ) -> Result<Vec<Option<PlannedMessage<'a>>>, Error> {
        let entity = &self.entities[&id];
        let (ingress, description) = match (&entity.ingress, entity.description.ingress()) {
            (Some(ingress), Some(description)) => (ingress, description),
            _ => return Err(Error::NotAllowed("messages are sent to a queue or a topic")),
        };
        let mut batch =
            BatchPlan { counter: ingress.counter, partition: ingress.next_partition, ..BatchPlan::default() };
        let entity_ttl = self.default_time_to_live(id);
        let plan = |(message, route): (&'a IncomingMessage, &'a MessageRoute)| {
            let fingerprint = fingerprint(ingress, description.enable_partitioning, message);
            let is_duplicate = fingerprint.is_some_and(|id| is_known(ingress, &mut batch.seen, id, now));
            if is_duplicate && !Failpoint::NoDuplicateDetection.is_enabled() {
                return None;
            }
            batch.counter += 1;
            let partition = match description.enable_partitioning {
                true => partition_choice::choose(message, ingress.history.is_some(), &mut batch.partition),
                false => 0,
            };
            // A past time means "now", as in Azure Service Bus.
            let due_at = message.scheduled_for.filter(|due| *due > now);
            let time_to_live = shorter_ttl(message.time_to_live, entity_ttl);
            let session = message.session_id.as_deref();
            let targets = self.select_targets(route, session, time_to_live, reserved_counters);
            let sequence = SequenceNumber::new(partition, batch.counter);
            let record = EnqueuedRecord {
                entity: id,
                sequence,
                enqueued_at: now,
                time_to_live,
                due_at,
                fingerprint,
                session,
                targets,
                hops: 0,
            };
            let mut planned = vec![PlannedRecord { record, body: &message.body }];
            let copies = self.plan_copies(now, id, route, sequence, reserved_counters);
            batch.counter += copies.len() as u64;
            planned.extend(copies);
            Some(planned)
        };
        Ok(messages.iter().zip(routes).map(plan).collect())
    }

    /// One record for each copy that an action made, with the sequence numbers that follow the message's own.
    pub(super) fn plan_copies<'a>(
        &self,
        now: Timestamp,
        topic: EntityId,
        route: &'a MessageRoute,
        original: SequenceNumber,
        reserved_counters: &mut ReservedCounters,
    ) -> Vec<PlannedRecord<'a>> {
        let plan = |(copy, counter): (&'a RuleCopy, u64)| {
            let session = copy.message.session_id.as_deref();
            let time_to_live = shorter_ttl(copy.message.time_to_live, self.default_time_to_live(topic));
            let target = self.select_target(copy.subscription, session, time_to_live, reserved_counters);
            let record = EnqueuedRecord {
                entity: topic,
                sequence: SequenceNumber::new(original.partition() as u8, counter),
                enqueued_at: now,
                time_to_live,
                due_at: None,
                fingerprint: None,
                session,
                targets: target.into_iter().collect(),
                hops: 0,
            };
            PlannedRecord { record, body: &copy.message.body }
        };
        route.copies.iter().zip(original.counter() + 1..).map(plan).collect()
    }

    /// Adds the records of messages to a journal group.
    pub(super) fn push_messages<'a>(
        &self,
        group: &mut RecordGroup<'a>,
        entity: EntityId,
        planned: &[Option<PlannedMessage<'a>>],
    ) {
        for PlannedRecord { record, body } in planned.iter().flatten().flatten() {
            // A scheduled message holds one reference until it is due and its targets are known.
            let references = if record.due_at.is_some() { 1 } else { self.count_references(entity, &record.targets) };
            // Nobody would read the body of a message without references.
            let body = (references > 0).then_some(&***body);
            group.push(|page| record.encode(page), body, references);
        }
    }

    /// Enqueues or schedules messages that are in the journal at these locations.
    pub(super) fn apply_messages(
        &mut self,
        call: &mut CallContext<'_>,
        entity: EntityId,
        planned: &[Option<PlannedMessage<'_>>],
        locations: &mut impl Iterator<Item = JournalLocation>,
    ) {
        for PlannedRecord { record, .. } in planned.iter().flatten().flatten() {
            self.record_as_seen(record);
            // A message that no subscription takes has no body, and so no location.
            let stored = record.due_at.is_some() || self.count_references(entity, &record.targets) > 0;
            if let Some(location) = stored.then(|| locations.next()).flatten() {
                self.enqueue_or_schedule(call, record, location);
            }
        }
    }

    /// Records the sequence number and the message id as used, whether or not the message is stored.
    pub(super) fn record_as_seen(&mut self, record: &EnqueuedRecord<'_>) {
        self.record_sequence(record.entity, record.sequence, record.fingerprint, record.enqueued_at);
    }

    pub(super) fn record_sequence(
        &mut self,
        entity: EntityId,
        sequence: SequenceNumber,
        fingerprint: Option<Fingerprint>,
        at: Timestamp,
    ) {
        let Ok(ingress) = self.ingress_mut(entity) else { return };
        ingress.counter = ingress.counter.max(sequence.counter());
        ingress.sent_at = ingress.sent_at.max(Some(at));
        // Replay only sees the chosen partition; continuing after it keeps the round robin even.
        ingress.next_partition = (sequence.partition() as u8).wrapping_add(1) % partition_choice::COUNT;
        if let (Some(history), Some(id)) = (&mut ingress.history, fingerprint) {
            history.insert(id, at);
        }
    }

    pub(super) fn enqueue_or_schedule(
        &mut self,
        call: &mut CallContext<'_>,
        record: &EnqueuedRecord<'_>,
        location: JournalLocation,
    ) {
        let Some(due_at) = record.due_at else {
            return self.enqueue(call, &TopicMessage::of(record, location), &record.targets);
        };
        self.schedule(record, due_at, location);
        self.state.timers.set(Timer::ScheduledMessages(record.entity), due_at);
    }

    pub(super) fn schedule(&mut self, record: &EnqueuedRecord<'_>, due_at: Timestamp, location: JournalLocation) {
        let message = ScheduledMessage {
            sequence: record.sequence,
            due_at,
            time_to_live: record.time_to_live,
            session: record.session.map(Into::into),
            location,
        };
        if let Ok(ingress) = self.ingress_mut(record.entity) {
            ingress.schedule.insert(message);
        }
    }
}

/// A message that is about to be stored: its own record, then those of the copies that actions made.
pub(super) type PlannedMessage<'a> = Vec<PlannedRecord<'a>>;

pub(super) struct PlannedRecord<'a> {
    pub(super) record: EnqueuedRecord<'a>,
    pub(super) body: &'a Bytes,
}

/// What the earlier messages of a batch have already used.
#[derive(Default)]
struct BatchPlan {
    counter: u64,
    partition: u8,
    seen: HashSet<u128>,
}

fn check_message(message: &IncomingMessage, limit: usize, needs_session: bool) -> Result<(), Error> {
    if message.body.len() > limit {
        return Err(Error::MessageTooLarge { size: message.body.len(), limit });
    }
    check_length("MessageId", message.message_id.as_deref())?;
    check_length("SessionId", message.session_id.as_deref())?;
    check_length("PartitionKey", message.partition_key.as_deref())?;
    match (&message.session_id, &message.partition_key) {
        // An empty session id is no key.
        (Some(session), Some(key)) if session != key && !session.is_empty() => {
            Err(Error::NotAllowed("the partition key must be the session id where both are set"))
        }
        (None, _) if needs_session => Err(Error::NotAllowed(
            "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session support enabled can only receive messages that have the SessionId set to a valid value.",
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_length(field: &'static str, text: Option<&str>) -> Result<(), Error> {
    match text {
        Some(text) if text.chars().count() > MAX_ID => Err(Error::invalid(field, "must not exceed 128 characters")),
        _ => Ok(()),
    }
}

fn fingerprint(ingress: &SendSide, partitioned: bool, message: &IncomingMessage) -> Option<Fingerprint> {
    ingress.history.as_ref()?;
    let id = message.message_id.as_deref()?;
    let key = message.partition_key.as_deref().or(message.session_id.as_deref());
    Some(Fingerprint::of(id, key.filter(|_| partitioned)))
}

fn is_known(ingress: &SendSide, seen: &mut HashSet<u128>, id: Fingerprint, now: Timestamp) -> bool {
    ingress.history.as_ref().is_some_and(|history| history.contains(id, now)) || !seen.insert(id.0)
}

pub(super) fn shorter_ttl(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
