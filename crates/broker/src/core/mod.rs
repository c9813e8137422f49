//! The broker's decisions: entities, messages, locks, sessions. No I/O, no clock, no randomness of its own.
//!
//! [`Core`] is called by one thread. Each call takes a [`Turn`] (the moment, the [journal](crate::journal), a list for
//! [`Effect`]s), first attends to whatever has fallen due by then, decides, appends what it decided to the journal, and only
//! then changes its memory: when the journal refuses, nothing has happened. Locks live in memory only; a restart frees
//! every message and session, with counts unchanged.
//!
//! # How a message walks through
//! [`send`](Core::send) (checks, duplicates, partition, number, journal) → `topic` (who takes it) → `desk::arrive` at each
//! of them → `backlog` → `delivery` (credit, lock, [`Effect::Deliver`]) → [`settle`](Core::settle) → gone, back in its
//! place, set aside or in the dead-letter queue.
//!
//! # What it costs
//! 24 bytes for each message in each queue that holds it, about 360 for each session, about 20 for each id in a duplicate
//! history (`tests/core_cost.rs`). Bodies stay in the journal. Nothing on a message's path walks over other messages or sessions.
//!
//! # What it never does
//! Read a message's contents, evaluate filters, forward, or keep transactions: those are to come, and have their places
//! (`record::Target` may carry alterations, a journal group is atomic).

mod administration;
mod alterations;
mod backlog;
mod dead_letter;
mod delivery;
mod description;
mod desk;
mod duplicates;
mod entity;
mod error;
mod evacuate;
mod expires;
mod expiry;
mod id;
mod manage;
mod name;
mod onlookers;
mod outgoing;
mod partition;
mod queue;
mod receivers;
mod record;
mod replay;
mod schedule;
mod send;
mod session_lock;
mod sessions;
mod settle;
mod snapshot;
mod timers;
mod tools;
mod topic;
mod turn;
mod waiting;

use std::collections::BTreeMap;

pub use alterations::Alterations;
pub use description::{
    CommonDescription, Description, InletDescription, Kept, OutletDescription, QueueDescription, Status,
    SubscriptionDescription, TopicDescription,
};
use desk::Desk;
pub use entity::{Counts, EntityView};
use entity::{Entities, Inlet};
pub use error::Error;
pub use evacuate::Evacuation;
pub use id::{ConnectionId, EntityId, LinkId, LockToken, QueueId, SequenceNumber, Subqueue, Timestamp};
pub use manage::{MessageState, Peeked};
use onlookers::Onlookers;
pub use receivers::Mode;
pub use record::{Envelope, Malformed};
pub use send::Incoming;
pub use session_lock::{Attached, SessionFilter};
pub use settle::{Outcome, Properties};
pub use snapshot::Snapshot;
use timers::Alarm;
pub use tools::Limits;
use tools::Tools;
pub use turn::{Delivery, Effect, Turn};

/// The broker's state and its rules.
#[derive(Debug)]
pub struct Core {
    entities: Entities,
    by_path: BTreeMap<Box<str>, EntityId>,
    next_entity: u32,
    onlookers: Onlookers,
    tools: Tools,
}

impl Core {
    /// An empty broker. `seed` is the source of its lock tokens: secret and different at every start.
    pub fn new(limits: Limits, seed: [u8; 32]) -> Self {
        Self {
            entities: Entities::new(),
            by_path: BTreeMap::new(),
            next_entity: 1,
            onlookers: Onlookers::default(),
            tools: Tools::new(limits, seed),
        }
    }

    /// When [`tick`](Self::tick) is next to be called, if nothing else happens before. May lie in the past: then there is
    /// work left, done in pieces so that others get their turn.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.tools.timers.next()
    }

    /// Attends to what has fallen due: locks, attaches, times to live, scheduled messages.
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        // Taken first: an alarm that sets itself again for now waits for the next call.
        let due: Vec<Alarm> = std::iter::from_fn(|| self.tools.timers.ring(turn.now)).collect();
        for alarm in due {
            self.attend(turn, alarm);
        }
    }

    /// A receiver attaches. An answer of [`Attached::Waiting`] is followed by an effect.
    pub fn attach(
        &mut self,
        turn: &mut Turn<'_>,
        link: LinkId,
        queue: QueueId,
        mode: Mode,
        filter: SessionFilter,
    ) -> Result<Attached, Error> {
        self.begin(turn);
        let path = self.entities.get(&queue.entity).map(|entity| entity.path.clone());
        let mut desk = self.desk(turn, queue)?;
        if !desk.queue.policy.receives {
            return Err(Error::EntityDisabled { path: path.unwrap_or_default() });
        }
        desk.attach(link, mode, filter)
    }

    /// A receiver grants credit: AMQP's flow, with its delivery-count (0 if it sent none) and link-credit as they came.
    /// A drain is answered by [`Effect::Drained`] after what there was to deliver.
    pub fn flow(&mut self, turn: &mut Turn<'_>, link: LinkId, delivery_count: u32, link_credit: u32, drain: bool) {
        self.begin(turn);
        if let Some(mut desk) = self.desk_of(turn, link) {
            desk.flow(link, delivery_count, link_credit, drain);
        }
    }

    /// A receiver or an onlooker is gone: detached, or its connection lost. Unknown links are ignored.
    pub fn detach(&mut self, turn: &mut Turn<'_>, link: LinkId) {
        self.begin(turn);
        if let Some(mut desk) = self.desk_of(turn, link) {
            return desk.detach(link);
        }
        self.onlookers.leave(link);
    }

    /// Settles deliveries by their tokens, from the link that has them or from elsewhere. `Ok` lists the tokens whose lock
    /// was lost, to be answered with [`lock_lost`](Self::lock_lost); all others are settled. After an error none is.
    pub fn settle(
        &mut self,
        turn: &mut Turn<'_>,
        queue: QueueId,
        tokens: &[LockToken],
        outcome: &Outcome,
    ) -> Result<Vec<LockToken>, Error> {
        self.begin(turn);
        self.desk(turn, queue)?.settle(tokens, outcome)
    }

    /// What a lost lock is called in this queue.
    pub fn lock_lost(&self, queue: QueueId) -> Error {
        let sessions = self.queue(queue).is_ok_and(|queue| queue.policy.sessions);
        if sessions { Error::SessionLockLost } else { Error::MessageLockLost }
    }

    /// Renews message locks, all or none; returns when each ends now.
    pub fn renew(
        &mut self,
        turn: &mut Turn<'_>,
        queue: QueueId,
        tokens: &[LockToken],
    ) -> Result<Vec<Timestamp>, Error> {
        self.begin(turn);
        self.desk(turn, queue)?.renew(tokens)
    }

    /// Renews a session's lock; returns when it ends now.
    pub fn renew_session(&mut self, turn: &mut Turn<'_>, queue: QueueId, session: &str) -> Result<Timestamp, Error> {
        self.begin(turn);
        self.desk(turn, queue)?.renew_session(session)
    }

    /// Takes a session from its holder as if its time were over: a fault for tests.
    pub fn lose_session(&mut self, turn: &mut Turn<'_>, queue: QueueId, session: &str) -> Result<(), Error> {
        self.begin(turn);
        let mut desk = self.desk(turn, queue)?;
        let slot = desk.held_session(session)?;
        desk.lose(slot);
        desk.grant_sessions();
        Ok(())
    }

    /// Takes its session from a receiver, if it holds one: a fault for tests.
    pub fn lose_session_of(&mut self, turn: &mut Turn<'_>, link: LinkId) {
        self.begin(turn);
        if let Some(mut desk) = self.desk_of(turn, link)
            && let Some(slot) = desk.queue.receivers.get(link).and_then(|receiver| receiver.slot)
        {
            desk.lose(slot);
            desk.grant_sessions();
        }
    }

    /// Where a receiver is attached or waits.
    pub fn queue_of(&self, link: LinkId) -> Option<QueueId> {
        self.tools.links.get(&link).copied()
    }

    /// Every call begins by attending to what has fallen due, so that none sees a state older than its moment.
    fn begin(&mut self, turn: &mut Turn<'_>) {
        if self.next_deadline().is_some_and(|due| due <= turn.now) {
            self.tick(turn);
        }
    }

    fn attend(&mut self, turn: &mut Turn<'_>, alarm: Alarm) {
        match alarm {
            Alarm::MessageLock(queue) => self.with_desk(turn, queue, |desk| desk.end_message_locks()),
            Alarm::SessionLock(queue) => self.with_desk(turn, queue, |desk| desk.end_session_locks()),
            Alarm::Attach(queue) => self.with_desk(turn, queue, |desk| desk.refuse_late_attaches()),
            Alarm::Expiry(queue) => self.with_desk(turn, queue, |desk| desk.expire()),
            Alarm::Retry(queue) => self.with_desk(turn, queue, |desk| desk.retry()),
            Alarm::Schedule(entity) => self.activate_due(turn, entity),
            Alarm::History(entity) => self.sweep_history(turn, entity),
        }
    }

    fn sweep_history(&mut self, turn: &Turn<'_>, entity: EntityId) {
        if let Ok(Inlet { history: Some(history), .. }) = self.inlet_mut(entity) {
            history.sweep(turn.now);
            self.arm_history(entity, turn.now);
        }
    }

    fn with_desk(&mut self, turn: &mut Turn<'_>, queue: QueueId, act: impl FnOnce(&mut Desk<'_, '_>)) {
        // An entity deleted since leaves its alarms behind.
        if let Ok(mut desk) = self.desk(turn, queue) {
            act(&mut desk);
        }
    }

    fn desk_of<'a, 't>(&'a mut self, turn: &'a mut Turn<'t>, link: LinkId) -> Option<Desk<'a, 't>> {
        let queue = *self.tools.links.get(&link)?;
        self.desk(turn, queue).ok()
    }

    fn desk<'a, 't>(&'a mut self, turn: &'a mut Turn<'t>, queue: QueueId) -> Result<Desk<'a, 't>, Error> {
        let outlet = self.entities.get_mut(&queue.entity).and_then(|entity| entity.outlet.as_mut());
        let outlet = outlet.ok_or_else(gone)?;
        let (queue, dead_letters) = match queue.subqueue {
            Subqueue::Main => (&mut outlet.main, Some(&mut outlet.dead_letter)),
            Subqueue::DeadLetter => (&mut outlet.dead_letter, None),
        };
        Ok(Desk { queue, dead_letters, tools: &mut self.tools, turn })
    }

    fn queue(&self, queue: QueueId) -> Result<&queue::Queue, Error> {
        let outlet = self.entities.get(&queue.entity).and_then(|entity| entity.outlet.as_ref());
        outlet.map(|outlet| outlet.queue(queue.subqueue)).ok_or_else(gone)
    }

    fn inlet_mut(&mut self, entity: EntityId) -> Result<&mut Inlet, Error> {
        self.entities.get_mut(&entity).and_then(|entity| entity.inlet.as_mut()).ok_or_else(gone)
    }
}

/// For an id that was resolved before its entity was deleted.
fn gone() -> Error {
    Error::EntityNotFound { path: "deleted".into() }
}
