//! Who gets a message: the queue it was sent to, or every subscription of the topic that takes it. Stored once for all.

use super::Core;
use super::backlog::Message;
use super::dead_letter::{self, Burial};
use super::entity::Entity;
use super::expires::Expires;
use super::id::{EntityId, QueueId, SequenceNumber, Subqueue, Timestamp};
use super::record::{Activated, Enqueued, Target};
use super::send::lesser;
use super::turn::Turn;
use crate::journal::Location;

/// A stored message on its way to the queues that take it.
pub(super) struct Arrival<'a> {
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    /// When its time to live began.
    pub(super) start: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: Option<&'a str>,
    pub(super) location: Location,
}

impl Core {
    /// Which queues take a message. Empty for a queue, which takes its own.
    ///
    /// `dead_letters` holds numbers already promised within a batch, by dead-letter queue.
    pub(super) fn targets(
        &self,
        topic: EntityId,
        session: Option<&str>,
        time_to_live: Option<u64>,
        dead_letters: &mut Vec<(EntityId, u64)>,
    ) -> Vec<Target> {
        let subscriptions = self.entities[&topic].subscriptions.iter().filter_map(|id| self.entities.get(id));
        let target = |subscription: &Entity| {
            let outlet = subscription.outlet.as_ref()?;
            if outlet.main.policy.sessions && session.is_none() {
                let counter = promise(dead_letters, subscription.id, outlet.dead_letter.counter);
                let burial = Burial::by_broker(dead_letter::NO_SESSION, dead_letter::NO_SESSION_TEXT);
                let alterations = Some(burial.alterations(None).into());
                let queue = QueueId::dead_letter(subscription.id);
                return Some(Target { queue, counter: Some(counter), time_to_live: None, alterations });
            }
            let own = subscription.description.common().default_message_time_to_live;
            let own = own.map(|ttl| ttl.as_millis() as u64).filter(|own| time_to_live.is_none_or(|ttl| *own < ttl));
            let queue = QueueId::main(subscription.id);
            Some(Target { queue, counter: None, time_to_live: own, alterations: None })
        };
        subscriptions.filter_map(target).collect()
    }

    /// How many queues will refer to the body.
    pub(super) fn holders(&self, entity: EntityId, targets: &[Target]) -> u32 {
        let is_queue = self.entities.get(&entity).is_some_and(|entity| entity.outlet.is_some());
        if is_queue { 1 } else { targets.len() as u32 }
    }

    pub(super) fn arrive(&mut self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, targets: &[Target]) {
        let counter = arrival.sequence.counter();
        if self.entities[&arrival.entity].outlet.is_some() {
            let message = arrival.message(arrival.time_to_live);
            if let Ok(mut desk) = self.desk(turn, QueueId::main(arrival.entity)) {
                desk.arrive(arrival.session, counter, message, None);
            }
        }
        for target in targets {
            let message = arrival.message_for(target);
            if let Ok(mut desk) = self.desk(turn, target.queue) {
                desk.arrive(arrival.session, target.counter.unwrap_or(counter), message, target.alterations.clone());
            }
        }
    }
}

impl<'a> From<&Activated<'a>> for Arrival<'a> {
    fn from(record: &Activated<'a>) -> Self {
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

impl<'a> Arrival<'a> {
    pub(super) fn of(record: &Enqueued<'a>, location: Location) -> Self {
        Self {
            entity: record.entity,
            sequence: record.sequence,
            start: record.enqueued_at,
            time_to_live: record.time_to_live,
            session: record.session,
            location,
        }
    }

    pub(super) fn message(&self, time_to_live: Option<u64>) -> Message {
        Message::new(self.location, self.sequence.partition() as u8, Expires::after(self.start, time_to_live))
    }

    /// In a dead-letter queue nothing expires.
    pub(super) fn message_for(&self, target: &Target) -> Message {
        match target.queue.subqueue {
            Subqueue::Main => self.message(lesser(self.time_to_live, target.time_to_live)),
            Subqueue::DeadLetter => self.message(None),
        }
    }
}

fn promise(dead_letters: &mut Vec<(EntityId, u64)>, queue: EntityId, last: u64) -> u64 {
    match dead_letters.iter_mut().find(|(promised, _)| *promised == queue) {
        Some((_, counter)) => {
            *counter += 1;
            *counter
        }
        None => {
            dead_letters.push((queue, last + 1));
            last + 1
        }
    }
}
