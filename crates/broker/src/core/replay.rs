//! Recovery: the state again from what was written down.
//!
//! A record may already be reflected (see [`crate::journal`]): a message is only added above the highest its session holds,
//! and what is missing was taken out later. No journal is touched, nothing is delivered and no clock is needed.

use super::Core;
use super::backlog::Message;
use super::description::Description;
use super::entity::Entity;
use super::expires::Expires;
use super::id::{EntityId, QueueId, Timestamp};
use super::queue::{Change, Queue};
use super::record::*;
use super::schedule::Scheduled;
use super::sessions::{Slot, State};
use super::topic::Arrival;
use crate::journal::Location;

impl Core {
    /// Takes up one record, with the location of its body if it has one.
    pub fn replay(&mut self, meta: &[u8], body: Option<Location>) -> Result<(), Malformed> {
        match Record::decode(meta)? {
            Record::Entity(record) => self.replay_entity(&record)?,
            Record::EntityDeleted { id } => {
                self.next_entity = self.next_entity.max(id.0 + 1);
                self.disown(id);
            }
            Record::Enqueued(record) => self.replay_enqueued(&record, body),
            Record::Activated(record) => self.replay_activated(&record),
            Record::Cancelled { entity, counters } => {
                if let Ok(inlet) = self.inlet_mut(entity) {
                    counters.iter().for_each(|counter| drop(inlet.schedule.remove(*counter)));
                }
            }
            Record::Settled { queue, session, counters } => {
                if let Some(queue) = self.queue_mut(queue) {
                    queue.restore_settled(session, &counters);
                }
            }
            Record::DeadLettered(record) => self.replay_dead_lettered(record),
            Record::Altered(record) => {
                if let Some(queue) = self.queue_mut(record.queue) {
                    queue.restore_change(record);
                }
            }
            Record::SessionState(record) => self.replay_state(&record, body),
            Record::Moved(record) => self.replay_moved(&record, body),
            Record::Backlog(part) => self.replay_backlog(&part),
            Record::Scheduled(record) => self.replay_scheduled(&record),
            Record::Remembered { entity, ids } => {
                if let Some(history) = self.inlet_mut(entity).ok().and_then(|inlet| inlet.history.as_mut()) {
                    ids.into_iter().for_each(|(id, at)| history.insert(id, at));
                }
            }
        }
        Ok(())
    }

    /// Ends recovery: sets alarms, and lists the sessions that can be accepted.
    pub fn recovered(&mut self, now: Timestamp) {
        let ids: Vec<EntityId> = self.entities.keys().copied().collect();
        for id in ids {
            let entity = self.entities.get_mut(&id).expect("listed above");
            if let Some(history) = entity.inlet.as_mut().and_then(|inlet| inlet.history.as_mut()) {
                history.catch_up(now);
            }
            if let Some(outlet) = &mut entity.outlet {
                for queue in [&mut outlet.main, &mut outlet.dead_letter] {
                    queue.list_ready();
                    if let Some((first, ..)) = queue.expiring.first() {
                        self.tools.timers.arm(super::timers::Alarm::Expiry(queue.id), first.moment());
                    }
                }
            }
            self.arm_schedule(id, None);
            self.arm_history(id, now);
        }
    }

    fn queue_mut(&mut self, queue: QueueId) -> Option<&mut Queue> {
        let outlet = self.entities.get_mut(&queue.entity)?.outlet.as_mut()?;
        Some(outlet.queue_mut(queue.subqueue))
    }

    fn replay_entity(&mut self, record: &EntityRecord<'_>) -> Result<(), Malformed> {
        let description: Description =
            serde_json::from_slice(record.description).map_err(|_| Malformed("an entity's description"))?;
        let Some(entity) = self.entities.get_mut(&record.id) else {
            self.adopt(Entity::new(record, description));
            return Ok(());
        };
        // A snapshot may be ahead of the records: going back to an older window would forget ids.
        if record.updated_at >= entity.updated_at {
            entity.redescribe(description, record.updated_at);
        }
        if let Some(inlet) = &mut entity.inlet {
            inlet.counter = inlet.counter.max(record.counter);
        }
        if let Some(outlet) = &mut entity.outlet {
            outlet.dead_letter.counter = outlet.dead_letter.counter.max(record.dead_letter_counter);
        }
        Ok(())
    }

    fn replay_enqueued(&mut self, record: &Enqueued<'_>, body: Option<Location>) {
        self.remember(record);
        match (record.due_at, body) {
            (Some(due_at), Some(location)) => self.schedule(record, due_at, location),
            (None, Some(location)) => self.restore_arrival(&Arrival::of(record, location), &record.targets),
            (_, None) => {}
        }
    }

    fn replay_activated(&mut self, record: &Activated<'_>) {
        let Ok(inlet) = self.inlet_mut(record.entity) else { return };
        inlet.schedule.remove(record.was);
        inlet.counter = inlet.counter.max(record.sequence.counter());
        self.restore_arrival(&Arrival::from(record), &record.targets);
    }

    fn restore_arrival(&mut self, arrival: &Arrival<'_>, targets: &[Target]) {
        let counter = arrival.sequence.counter();
        if let Some(outlet) = self.entities.get_mut(&arrival.entity).and_then(|entity| entity.outlet.as_mut()) {
            outlet.main.restore(arrival.session, counter, arrival.message(arrival.time_to_live));
        }
        for target in targets {
            let Some(queue) = self.queue_mut(target.queue) else { continue };
            let counter = target.counter.unwrap_or(counter);
            if queue.restore(arrival.session, counter, arrival.message_for(target)) {
                queue.restore_alterations(arrival.session, counter, target.alterations.as_ref());
            }
        }
    }

    fn replay_dead_lettered(&mut self, record: DeadLettered<'_>) {
        let Some(outlet) = self.entities.get_mut(&record.queue.entity).and_then(|entity| entity.outlet.as_mut()) else {
            return;
        };
        outlet.main.restore_settled(record.session, &[record.sequence.counter()]);
        let mut message = Message::new(record.location, record.sequence.partition() as u8, Expires::NEVER);
        message.delivery_count = record.delivery_count;
        let queue = &mut outlet.dead_letter;
        if queue.restore(None, record.counter, message) {
            queue.restore_alterations(None, record.counter, Some(&record.alterations));
        }
    }

    fn replay_state(&mut self, record: &SessionState<'_>, body: Option<Location>) {
        let Some(queue) = self.queue_mut(record.queue) else { return };
        let location = match record.state {
            StatePlace::Cleared => None,
            StatePlace::Body => body,
            StatePlace::At(location) => Some(location),
        };
        let slot = queue.sessions.find_or_create(Some(record.session));
        queue.set_state(slot, location.map(|location| State { location, updated_at: record.at }));
        queue.sessions.forget_if_idle(slot);
    }

    fn replay_moved(&mut self, record: &Moved<'_>, body: Option<Location>) {
        let Some(to) = body else { return };
        for holder in &record.holders {
            self.relocate(holder, record.from, to);
        }
    }

    fn replay_backlog(&mut self, part: &BacklogPart<'_>) {
        let Some(queue) = self.queue_mut(part.queue) else { return };
        for entry in &part.messages {
            let mut message = Message::new(entry.location, 0, Expires(entry.expires)).with_lasting_flags(entry.flags);
            message.delivery_count = entry.delivery_count;
            queue.restore(part.session, entry.counter, message);
        }
    }

    fn replay_scheduled(&mut self, record: &ScheduledRecord<'_>) {
        if let Ok(inlet) = self.inlet_mut(record.entity) {
            inlet.schedule.insert(Scheduled {
                sequence: record.sequence,
                due_at: record.due_at,
                time_to_live: record.time_to_live,
                session: record.session.map(Into::into),
                location: record.location,
            });
        }
    }
}

impl Queue {
    /// Adds a message unless it is already reflected; says whether it was added.
    fn restore(&mut self, session: Option<&str>, counter: u64, message: Message) -> bool {
        self.counter = self.counter.max(counter);
        let slot = self.sessions.find_or_create(session);
        let session = self.sessions.get_mut(slot);
        if session.backlog.last().is_some_and(|last| last >= counter) {
            return false;
        }
        session.backlog.append(counter, message, slot, &mut self.expiring);
        self.messages += 1;
        self.bytes += u64::from(message.location.len);
        true
    }

    fn restore_settled(&mut self, session: Option<&str>, counters: &[u64]) {
        let Some(slot) = self.sessions.find(session) else { return };
        for counter in counters {
            self.take_out(slot, *counter);
        }
        self.sessions.forget_if_idle(slot);
    }

    fn restore_change(&mut self, record: Altered<'_>) {
        let Some(slot) = self.restored(record.session, record.counter) else { return };
        let Altered { delivery_count, deferred, alterations, .. } = record;
        self.alter(slot, record.counter, Change { delivery_count, deferred, alterations });
    }

    fn restore_alterations(
        &mut self,
        session: Option<&str>,
        counter: u64,
        alterations: Option<&std::sync::Arc<super::Alterations>>,
    ) {
        if let (Some(slot), Some(alterations)) = (self.restored(session, counter), alterations) {
            self.sessions.get_mut(slot).backlog.alter(counter, |message| message.set_altered(true));
            self.altered.insert(counter, alterations.clone());
        }
    }

    fn restored(&self, session: Option<&str>, counter: u64) -> Option<Slot> {
        let slot = self.sessions.find(session)?;
        self.sessions.get(slot).backlog.get(counter).map(|_| slot)
    }

    fn list_ready(&mut self) {
        if self.policy.sessions {
            let slots: Vec<Slot> = self.sessions.iter_from(0).map(|(slot, _)| slot).collect();
            slots.into_iter().for_each(|slot| self.refresh_ready(slot));
        }
    }
}
