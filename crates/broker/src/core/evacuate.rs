//! Giving space back: live bodies of segments that are mostly dead are appended again, so that the segments can go.

use std::collections::BTreeSet;

use super::Core;
use super::entity::Entity;
use super::error::Error;
use super::id::{EntityId, QueueId, Subqueue};
use super::record::{Holder, Moved, Record};
use super::sessions::Slot;
use super::turn::Turn;
use crate::journal::{Entry, Location};

/// Segments being emptied, and how far that has come.
#[derive(Debug, Clone)]
pub struct Evacuation {
    segments: BTreeSet<u32>,
    at: Place,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    entity: EntityId,
    part: Part,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Scheduled(u64),
    Messages(Subqueue, Slot, u64),
}

impl Evacuation {
    pub fn of(segments: impl IntoIterator<Item = u32>) -> Self {
        let at = Place { entity: EntityId(0), part: Part::Scheduled(0) };
        Self { segments: segments.into_iter().collect(), at }
    }
}

/// A thing that refers to a body, and its session if it is in one.
struct Found {
    location: Location,
    session: Option<std::sync::Arc<str>>,
    what: What,
}

enum What {
    Message(QueueId, u64),
    State(QueueId),
    Scheduled(EntityId, u64),
}

impl Core {
    /// Looks at up to `budget` messages and moves those that lie in the segments; false when nothing is left in them. The
    /// next step may come after any number of other calls: nothing new is ever put into these segments.
    pub fn evacuate(&mut self, turn: &mut Turn<'_>, evacuation: &mut Evacuation, budget: usize) -> Result<bool, Error> {
        let mut left = budget;
        while left > 0 {
            let Some((id, entity)) = self.entities.range(evacuation.at.entity..).next() else { return Ok(false) };
            if *id != evacuation.at.entity {
                evacuation.at = Place { entity: *id, part: Part::Scheduled(0) };
            }
            let (found, next, looked_at) = entity.bodies_in(&evacuation.segments, evacuation.at.part, left);
            let next_entity = Place { entity: EntityId(id.0 + 1), part: Part::Scheduled(0) };
            let next = next.map_or(next_entity, |part| Place { entity: *id, part });
            for found in found {
                self.move_body(turn, &found)?;
            }
            evacuation.at = next;
            left = left.saturating_sub(looked_at.max(1));
        }
        Ok(true)
    }

    /// Every reference to a body, once each.
    pub fn visit_bodies(&self, mut visit: impl FnMut(Location)) {
        self.entities.values().for_each(|entity| entity.visit_bodies(&mut visit));
    }

    /// Points a holder to a body's new place; false if it no longer refers to the old one.
    pub(super) fn relocate(&mut self, holder: &Holder<'_>, from: Location, to: Location) -> bool {
        let Some(place) = self.place_of(holder) else { return false };
        let here = *place == from;
        if here {
            *place = to;
        }
        here
    }

    fn move_body(&mut self, turn: &mut Turn<'_>, found: &Found) -> Result<(), Error> {
        if !self.is_held(found) {
            return Ok(());
        }
        let stored = turn.journal.read(found.location)?;
        let original = match Record::decode(&stored.meta) {
            Ok(Record::Moved(moved)) => moved.original,
            _ => &stored.meta,
        };
        let session = message_session(original).or(found.session.as_deref());
        let holders = self.all_holders(found, session);
        let mut meta = Vec::new();
        Record::Moved(Moved { from: found.location, holders: holders.clone(), original }).encode(&mut meta);
        let mut locations = Vec::new();
        let entry = Entry { meta: &meta, body: Some(&stored.body), references: holders.len() as u32 };
        turn.journal.append(&[entry], &mut locations)?;
        let to = locations.pop().expect("one body, one location");
        for holder in &holders {
            if self.relocate(holder, found.location, to) {
                turn.journal.release(found.location);
            }
        }
        Ok(())
    }

    /// Whether a body is still where it was found: a body of several subscriptions is found once for each, and moved once.
    fn is_held(&mut self, found: &Found) -> bool {
        let session = found.session.as_deref();
        let holder = match found.what {
            What::State(queue) => Holder::State { queue, session: session.unwrap_or_default() },
            What::Scheduled(entity, counter) => Holder::Scheduled { entity, counter },
            What::Message(queue, counter) => Holder::Message { queue, session, counter },
        };
        self.place_of(&holder).is_some_and(|place| *place == found.location)
    }

    /// The holder found and, for a message of a topic, those of its other subscriptions: the body is copied once.
    fn all_holders<'a>(&mut self, found: &Found, session: Option<&'a str>) -> Vec<Holder<'a>> {
        let holders = match found.what {
            What::State(queue) => vec![Holder::State { queue, session: session.unwrap_or_default() }],
            What::Scheduled(entity, counter) => vec![Holder::Scheduled { entity, counter }],
            What::Message(queue, counter) => {
                let siblings = self.siblings(queue);
                siblings.into_iter().map(|queue| Holder::Message { queue, session, counter }).collect()
            }
        };
        let is_here = |holder: &Holder<'_>| self.place_of(holder).is_some_and(|place| *place == found.location);
        holders.into_iter().filter(is_here).collect()
    }

    fn siblings(&self, queue: QueueId) -> Vec<QueueId> {
        let topic = self.entities.get(&queue.entity).and_then(|entity| entity.topic);
        match topic.and_then(|topic| self.entities.get(&topic)) {
            Some(topic) if queue.subqueue == Subqueue::Main => {
                topic.subscriptions.iter().copied().map(QueueId::main).collect()
            }
            _ => vec![queue],
        }
    }

    fn place_of(&mut self, holder: &Holder<'_>) -> Option<&mut Location> {
        match *holder {
            Holder::Scheduled { entity, counter } => {
                let inlet = self.entities.get_mut(&entity)?.inlet.as_mut()?;
                inlet.schedule.get_mut(counter).map(|message| &mut message.location)
            }
            Holder::State { queue, session } => {
                let queue = self.entities.get_mut(&queue.entity)?.outlet.as_mut()?.queue_mut(queue.subqueue);
                let slot = queue.sessions.find(Some(session))?;
                queue.sessions.get_mut(slot).state.as_mut().map(|state| &mut state.location)
            }
            Holder::Message { queue, session, counter } => {
                let queue = self.entities.get_mut(&queue.entity)?.outlet.as_mut()?.queue_mut(queue.subqueue);
                let slot = queue.sessions.find(session)?;
                queue.sessions.get_mut(slot).backlog.location_mut(counter)
            }
        }
    }
}

/// The session a message was sent in, which a subscription without sessions does not know.
fn message_session(meta: &[u8]) -> Option<&str> {
    match Record::decode(meta) {
        Ok(Record::Enqueued(record)) => record.session,
        _ => None,
    }
}

impl Entity {
    pub(super) fn visit_bodies(&self, visit: &mut dyn FnMut(Location)) {
        let scheduled = self.inlet.iter().flat_map(|inlet| inlet.schedule.iter_from(0));
        scheduled.for_each(|(_, message)| visit(message.location));
        for queue in self.outlet.iter().flat_map(|outlet| outlet.queues()) {
            for (_, session) in queue.sessions.iter_from(0) {
                session.state.iter().for_each(|state| visit(state.location));
                session.backlog.iter_from(0).for_each(|(_, message)| visit(message.location));
            }
        }
    }

    /// What refers to the segments, from a part on; where to go on, if anywhere; and how many messages were looked at.
    fn bodies_in(&self, segments: &BTreeSet<u32>, part: Part, budget: usize) -> (Vec<Found>, Option<Part>, usize) {
        match part {
            Part::Scheduled(from) => self.scheduled_in(segments, from, budget),
            Part::Messages(subqueue, slot, from) => self.messages_in(segments, subqueue, slot, from, budget),
        }
    }

    fn scheduled_in(&self, segments: &BTreeSet<u32>, from: u64, budget: usize) -> (Vec<Found>, Option<Part>, usize) {
        let schedule = self.inlet.iter().flat_map(|inlet| inlet.schedule.iter_from(from));
        let looked_at: Vec<_> = schedule.take(budget).map(|(counter, message)| (counter, message.location)).collect();
        let here = looked_at.iter().filter(|(_, location)| segments.contains(&location.segment));
        let found = here
            .map(|(counter, location)| Found {
                location: *location,
                session: None,
                what: What::Scheduled(self.id, *counter),
            })
            .collect();
        let next = match looked_at.last() {
            Some((last, _)) if looked_at.len() == budget => Part::Scheduled(last + 1),
            _ => Part::Messages(Subqueue::Main, 0, 0),
        };
        (found, Some(next), looked_at.len())
    }

    fn messages_in(
        &self,
        segments: &BTreeSet<u32>,
        subqueue: Subqueue,
        slot: Slot,
        from: u64,
        budget: usize,
    ) -> (Vec<Found>, Option<Part>, usize) {
        let Some(outlet) = &self.outlet else { return (Vec::new(), None, 0) };
        let queue = outlet.queue(subqueue);
        let Some((at, session)) = queue.sessions.iter_from(slot).next() else {
            let next = (subqueue == Subqueue::Main).then_some(Part::Messages(Subqueue::DeadLetter, 0, 0));
            return (Vec::new(), next, 0);
        };
        let from = if at == slot { from } else { 0 };
        let mut found = Vec::new();
        let mut add = |location: Location, what: What| {
            if segments.contains(&location.segment) {
                found.push(Found { location, session: session.id.clone(), what });
            }
        };
        if let Some(state) = session.state.as_ref().filter(|_| from == 0) {
            add(state.location, What::State(queue.id));
        }
        let (mut looked_at, mut last) = (0, None);
        for (counter, message) in session.backlog.iter_from(from).take(budget) {
            add(message.location, What::Message(queue.id, counter));
            (looked_at, last) = (looked_at + 1, Some(counter));
        }
        let next = match last {
            Some(last) if looked_at == budget => Part::Messages(subqueue, at, last + 1),
            _ => Part::Messages(subqueue, at + 1, 0),
        };
        (found, Some(next), looked_at)
    }
}
