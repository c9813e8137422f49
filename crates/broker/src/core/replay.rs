//! Recovery: rebuilds the state from records.
//!
//! State may already contain a record (see [`crate::journal`]): a message is added only above the highest counter of
//! its session, and a message that is missing was removed later. Replay writes nothing to the journal, delivers nothing
//! and needs no clock.

use super::Core;
use super::backlog::QueuedMessage;
use super::description::EntityDefinition;
use super::entity::Entity;
use super::expiry_time::ExpiryTime;
use super::id::{EntityId, QueueId, Timestamp};
use super::queue::{MessageQueue, MessageUpdate, quota_size};
use super::record::*;
use super::scheduled_messages::ScheduledMessage;
use super::sessions::{StoredState, TableSlot};
use super::topic::TopicMessage;
use crate::journal::JournalLocation;

impl Core {
    /// Replays one record, with the location of its body if it has one.
    pub fn replay(&mut self, meta: &[u8], body: Option<JournalLocation>) -> Result<(), MalformedRecord> {
        match JournalRecord::decode(meta)? {
            JournalRecord::Entity(record) => self.replay_entity(&record)?,
            JournalRecord::EntityDeleted { id } => {
                // Ids are never reused, not even those of deleted entities.
                self.next_entity = self.next_entity.max(id.0 + 1);
                self.remove_entity(id);
            }
            JournalRecord::EnqueuedRecord(record) => self.replay_enqueued(&record, body),
            JournalRecord::ActivatedRecord(record) => self.replay_activated(&record),
            JournalRecord::Cancelled { entity, counters } => {
                if let Ok(ingress) = self.ingress_mut(entity) {
                    counters.iter().for_each(|counter| drop(ingress.schedule.remove(*counter)));
                }
            }
            JournalRecord::Settled { queue, session, counters } => {
                if let Some(queue) = self.queue_mut(queue) {
                    queue.restore_settled(session, &counters);
                }
            }
            JournalRecord::DeadLettered(record) => self.replay_dead_lettered(record),
            JournalRecord::Forwarded(record) => self.replay_forwarded(&record),
            JournalRecord::MessageUpdated(record) => {
                if let Some(queue) = self.queue_mut(record.queue) {
                    queue.restore_update(record);
                }
            }
            JournalRecord::SessionStateRecord(record) => self.replay_state(&record, body),
            JournalRecord::BodyMoved(record) => self.replay_moved(&record, body),
            JournalRecord::Rule(record) => self.replay_rule(&record)?,
            JournalRecord::RuleRemoved { subscription, name } => drop(self.take_rule(subscription, name)),
            JournalRecord::Backlog(part) => self.replay_backlog(&part),
            JournalRecord::Scheduled(record) => self.replay_scheduled(&record),
            JournalRecord::DuplicateIds { entity, ids } => {
                if let Some(history) = self.ingress_mut(entity).ok().and_then(|ingress| ingress.history.as_mut()) {
                    ids.into_iter().for_each(|(id, at)| history.insert(id, at));
                }
            }
        }
        Ok(())
    }

    /// Ends recovery: sets timers and lists the sessions that can be accepted.
    pub fn finish_recovery(&mut self, now: Timestamp) {
        let ids: Vec<EntityId> = self.entities.keys().copied().collect();
        for id in ids {
            let entity = self.entities.get_mut(&id).expect("listed above");
            if let Some(history) = entity.ingress.as_mut().and_then(|ingress| ingress.history.as_mut()) {
                // The process may have been down for longer than the window.
                history.catch_up(now);
            }
            if let Some(egress) = &mut entity.egress {
                for queue in egress.queues_mut() {
                    queue.update_all_ready();
                    if queue.policy.forward_to.is_some() && queue.messages > 0 {
                        self.state.timers.set(super::timers::Timer::Forward(queue.id), now);
                    }
                    if let Some((first, ..)) = queue.expiry_index.first() {
                        self.state.timers.set(super::timers::Timer::Expiry(queue.id), first.timestamp());
                    }
                }
            }
            self.set_schedule_timer(id, None);
            self.set_history_timer(id, now);
            // Uses before the stop are not stored.
            self.record_use(id, now);
            self.set_idle_timer(id);
        }
    }

    fn queue_mut(&mut self, queue: QueueId) -> Option<&mut MessageQueue> {
        let egress = self.entities.get_mut(&queue.entity)?.egress.as_mut()?;
        Some(egress.queue_mut(queue.subqueue))
    }

    fn replay_entity(&mut self, record: &EntityRecord<'_>) -> Result<(), MalformedRecord> {
        let description: EntityDefinition =
            serde_json::from_slice(record.description).map_err(|_| MalformedRecord("an entity's description"))?;
        let Some(entity) = self.entities.get_mut(&record.id) else {
            self.insert_entity(Entity::new(record, description));
            return Ok(());
        };
        // A snapshot may be newer than the record: going back to an older window would forget ids.
        if record.updated_at >= entity.updated_at {
            entity.apply_description(description, record.updated_at);
        }
        if let Some(ingress) = &mut entity.ingress {
            ingress.counter = ingress.counter.max(record.counter);
        }
        if let Some(egress) = &mut entity.egress {
            egress.dead_letter.counter = egress.dead_letter.counter.max(record.dead_letter_counter);
            let transfer = &mut egress.transfer_dead_letter;
            transfer.counter = transfer.counter.max(record.transfer_dead_letter_counter);
        }
        Ok(())
    }

    fn replay_enqueued(&mut self, record: &EnqueuedRecord<'_>, body: Option<JournalLocation>) {
        self.record_as_seen(record);
        match (record.due_at, body) {
            (Some(due_at), Some(location)) => self.schedule(record, due_at, location),
            (None, Some(location)) => self.restore_routed(&TopicMessage::of(record, location), &record.targets),
            (_, None) => {}
        }
    }

    fn replay_activated(&mut self, record: &ActivatedRecord<'_>) {
        let Ok(ingress) = self.ingress_mut(record.entity) else { return };
        ingress.schedule.remove(record.scheduled_counter);
        ingress.counter = ingress.counter.max(record.sequence.counter());
        self.restore_routed(&TopicMessage::from(record), &record.targets);
    }

    fn restore_routed(&mut self, routed: &TopicMessage<'_>, targets: &[EnqueueTarget]) {
        let counter = routed.sequence.counter();
        if let Some(egress) = self.entities.get_mut(&routed.entity).and_then(|entity| entity.egress.as_mut()) {
            egress.main.restore(routed.session, counter, routed.message(routed.time_to_live));
        }
        self.restore_targets(routed, targets);
    }

    fn restore_targets(&mut self, routed: &TopicMessage<'_>, targets: &[EnqueueTarget]) {
        let counter = routed.sequence.counter();
        for target in targets {
            let Some(queue) = self.queue_mut(target.queue) else { continue };
            let counter = target.counter.unwrap_or(counter);
            if queue.restore(routed.session, counter, routed.message_for(target)) {
                queue.restore_overrides(routed.session, counter, target.overrides.as_ref());
            }
        }
    }

    fn replay_forwarded(&mut self, record: &ForwardedRecord<'_>) {
        if let Some(queue) = self.queue_mut(record.from) {
            queue.restore_settled(record.session, &[record.counter]);
        }
        if let Some(entity) = record.entity {
            self.record_sequence(entity, record.sequence, record.fingerprint, record.at);
        }
        self.restore_targets(&TopicMessage::from(record), &record.targets);
    }

    fn replay_dead_lettered(&mut self, record: DeadLetteredRecord<'_>) {
        let Some(egress) = self.entities.get_mut(&record.queue.entity).and_then(|entity| entity.egress.as_mut()) else {
            return;
        };
        egress.main.restore_settled(record.session, &[record.sequence.counter()]);
        let mut message = QueuedMessage::new(record.location, record.sequence.partition() as u8, ExpiryTime::NEVER);
        message.delivery_count = record.delivery_count;
        let queue = &mut egress.dead_letter;
        if queue.restore(None, record.counter, message) {
            queue.restore_overrides(None, record.counter, Some(&record.overrides));
        }
    }

    fn replay_state(&mut self, record: &SessionStateRecord<'_>, body: Option<JournalLocation>) {
        let Some(queue) = self.queue_mut(record.queue) else { return };
        let location = match record.state {
            SessionStateLocation::Cleared => None,
            SessionStateLocation::Body => body,
            SessionStateLocation::At(location) => Some(location),
        };
        let slot = queue.sessions.find_or_create(Some(record.session));
        queue.set_state(slot, location.map(|location| StoredState { location, updated_at: record.at }));
        queue.sessions.remove_if_idle(slot);
    }

    fn replay_moved(&mut self, record: &BodyMovedRecord<'_>, body: Option<JournalLocation>) {
        let Some(to) = body else { return };
        for owner in &record.owners {
            self.relocate(owner, record.from, to);
        }
    }

    fn replay_backlog(&mut self, part: &BacklogRecord<'_>) {
        let Some(queue) = self.queue_mut(part.queue) else { return };
        for entry in &part.messages {
            let mut message =
                QueuedMessage::new(entry.location, 0, ExpiryTime(entry.expires)).with_persistent_flags(entry.flags);
            message.delivery_count = entry.delivery_count;
            queue.restore(part.session, entry.counter, message);
        }
    }

    fn replay_scheduled(&mut self, record: &ScheduledRecord<'_>) {
        if let Ok(ingress) = self.ingress_mut(record.entity) {
            ingress.schedule.insert(ScheduledMessage {
                sequence: record.sequence,
                due_at: record.due_at,
                time_to_live: record.time_to_live,
                session: record.session.map(Into::into),
                location: record.location,
            });
        }
    }
}

impl MessageQueue {
    /// Adds a message unless the state already contains it; returns whether it was added.
    fn restore(&mut self, session: Option<&str>, counter: u64, message: QueuedMessage) -> bool {
        self.counter = self.counter.max(counter);
        let slot = self.sessions.find_or_create(session);
        let session = self.sessions.get_mut(slot);
        // The snapshot already has the message, or it was removed before the snapshot reached it.
        if session.backlog.last().is_some_and(|last| last >= counter) {
            return false;
        }
        session.backlog.append(counter, message, slot, &mut self.expiry_index);
        self.messages += 1;
        self.bytes += quota_size(message.location);
        true
    }

    fn restore_settled(&mut self, session: Option<&str>, counters: &[u64]) {
        let Some(slot) = self.sessions.find(session) else { return };
        for counter in counters {
            self.remove_message(slot, *counter);
        }
        self.sessions.remove_if_idle(slot);
    }

    fn restore_update(&mut self, record: MessageUpdatedRecord<'_>) {
        let Some(slot) = self.find_restored(record.session, record.counter) else { return };
        let MessageUpdatedRecord { delivery_count, deferred, overrides, .. } = record;
        self.update(slot, record.counter, MessageUpdate { delivery_count, deferred, overrides });
    }

    fn restore_overrides(
        &mut self,
        session: Option<&str>,
        counter: u64,
        overrides: Option<&std::sync::Arc<super::PropertyOverrides>>,
    ) {
        if let (Some(slot), Some(overrides)) = (self.find_restored(session, counter), overrides) {
            self.sessions.get_mut(slot).backlog.update(counter, |message| message.set_has_overrides(true));
            self.overridden.insert(counter, overrides.clone());
        }
    }

    fn find_restored(&self, session: Option<&str>, counter: u64) -> Option<TableSlot> {
        let slot = self.sessions.find(session)?;
        self.sessions.get(slot).backlog.get(counter).map(|_| slot)
    }

    fn update_all_ready(&mut self) {
        if self.policy.sessions {
            let slots: Vec<TableSlot> = self.sessions.iter_from(0).map(|(slot, _)| slot).collect();
            slots.into_iter().for_each(|slot| self.update_ready(slot));
        }
    }
}
