//! The broker's decisions: entities, messages, locks, sessions. No I/O, no clock, no randomness of its own.
//!
//! [`Core`] is called by one thread. Each call takes a [`CallContext`] (the moment, the [journal](crate::journal), a list for
//! [`Effect`]s), first attends to whatever has fallen due by then, decides, appends what it decided to the journal, and only
//! then changes its memory: when the journal refuses, nothing has happened. Locks live in memory only; a restart frees
//! every message and session, with counts unchanged.
//!
//! # How a message walks through
//! [`send`](Core::send) (checks, duplicates, partition, number, journal) → `topic` (who takes it) → `queue_context::arrive` at each
//! of them → `backlog` → `delivery` (credit, lock, [`Effect::Deliver`]) → [`settle`](Core::settle) → gone, back in its
//! place, set aside or in the dead-letter queue.
//!
//! # What it costs
//! 24 bytes for each message in each queue that holds it, about 360 for each session, about 20 for each id in a duplicate
//! history (`tests/core_cost.rs`). Bodies stay in the journal. Nothing on a message's path walks over other messages or sessions.
//!
//! # What it never does
//! Read a message's contents, evaluate filters, forward, or keep transactions: those are to come, and have their places
//! (`record::EnqueueTarget` may carry alterations, a journal group is atomic).

mod administration;
mod backlog;
mod call_context;
mod compaction;
mod core_state;
mod dead_letter;
mod delivery;
mod description;
mod duplicate_history;
mod entity;
mod error;
mod expiry;
mod expiry_time;
mod id;
mod management;
mod management_links;
mod message_overrides;
mod name;
mod outgoing_budget;
mod partition;
mod queue;
mod queue_context;
mod receivers;
mod record;
mod replay;
mod scheduled_messages;
mod send;
mod session_lock;
mod sessions;
mod settle;
mod snapshot;
mod timers;
mod topic;
mod waiting_attaches;

use std::collections::BTreeMap;

pub use call_context::{CallContext, Effect, MessageDelivery};
pub use compaction::Compaction;
pub use core_state::BrokerLimits;
use core_state::CoreState;
pub use description::{
    AdministrationData, CommonProperties, EgressProperties, EntityDescription, EntityStatus, IngressProperties,
    QueueDescription, SubscriptionDescription, TopicDescription,
};
use entity::{Entities, Ingress};
pub use entity::{EntityCounts, EntityView};
pub use error::Error;
pub use id::{ConnectionId, CoreLinkId, EntityId, LockToken, QueueId, SequenceNumber, Subqueue, Timestamp};
pub use management::{MessageState, PeekedMessage};
use management_links::ManagementLinks;
pub use message_overrides::MessageOverrides;
use queue_context::QueueContext;
pub use receivers::ReceiveMode;
pub use record::{MalformedRecord, StoredEnvelope};
pub use send::IncomingMessage;
pub use session_lock::{AttachResult, SessionFilter};
pub use settle::{PropertyUpdates, SettlementOutcome};
pub use snapshot::SnapshotCursor;
use timers::Timer;

/// The broker's state and its rules.
#[derive(Debug)]
pub struct Core {
    entities: Entities,
    by_path: BTreeMap<Box<str>, EntityId>,
    next_entity: u32,
    management_links: ManagementLinks,
    state: CoreState,
}

impl Core {
    /// An empty broker. `seed` is the source of its lock tokens: secret and different at every start.
    pub fn new(limits: BrokerLimits, seed: [u8; 32]) -> Self {
        Self {
            entities: Entities::new(),
            by_path: BTreeMap::new(),
            next_entity: 1,
            management_links: ManagementLinks::default(),
            state: CoreState::new(limits, seed),
        }
    }

    /// When [`tick`](Self::tick) is next to be called, if nothing else happens before. May lie in the past: then there is
    /// work left, done in pieces so that others get their turn.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.state.timers.next_deadline()
    }

    /// Attends to what has fallen due: locks, attaches, times to live, scheduled messages.
    pub fn tick(&mut self, call: &mut CallContext<'_>) {
        // Taken first: an alarm that sets itself again for now waits for the next call.
        let due: Vec<Timer> = std::iter::from_fn(|| self.state.timers.pop_due(call.now)).collect();
        for timer in due {
            self.handle_timer(call, timer);
        }
    }

    /// A receiver attaches. An answer of [`AttachResult::Waiting`] is followed by an effect.
    pub fn attach(
        &mut self,
        call: &mut CallContext<'_>,
        link: CoreLinkId,
        queue: QueueId,
        mode: ReceiveMode,
        filter: SessionFilter,
    ) -> Result<AttachResult, Error> {
        self.handle_due_timers(call);
        let path = self.entities.get(&queue.entity).map(|entity| entity.path.clone());
        let mut context = self.queue_context(call, queue)?;
        if !context.queue.policy.receives {
            return Err(Error::EntityDisabled { path: path.unwrap_or_default() });
        }
        context.attach(link, mode, filter)
    }

    /// A receiver grants credit: AMQP's flow, with its delivery-count (0 if it sent none) and link-credit as they came.
    /// A drain is answered by [`Effect::Drained`] after what there was to deliver.
    pub fn flow(
        &mut self,
        call: &mut CallContext<'_>,
        link: CoreLinkId,
        delivery_count: u32,
        link_credit: u32,
        drain: bool,
    ) {
        self.handle_due_timers(call);
        if let Some(mut context) = self.queue_context_of_link(call, link) {
            context.flow(link, delivery_count, link_credit, drain);
        }
    }

    /// A receiver or an onlooker is gone: detached, or its connection lost. Unknown links are ignored.
    pub fn detach(&mut self, call: &mut CallContext<'_>, link: CoreLinkId) {
        self.handle_due_timers(call);
        if let Some(mut context) = self.queue_context_of_link(call, link) {
            return context.detach(link);
        }
        self.management_links.remove(link);
    }

    /// Settles deliveries by their tokens, from the link that has them or from elsewhere. `Ok` lists the tokens whose lock
    /// was lost, to be answered with [`lock_lost`](Self::lock_lost); all others are settled. After an error none is.
    pub fn settle(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        tokens: &[LockToken],
        outcome: &SettlementOutcome,
    ) -> Result<Vec<LockToken>, Error> {
        self.handle_due_timers(call);
        self.queue_context(call, queue)?.settle(tokens, outcome)
    }

    /// What a lost lock is called in this queue.
    pub fn lock_lost(&self, queue: QueueId) -> Error {
        let sessions = self.queue(queue).is_ok_and(|queue| queue.policy.sessions);
        if sessions { Error::SessionLockLost } else { Error::MessageLockLost }
    }

    /// Renews message locks, all or none; returns when each ends now.
    pub fn renew(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        tokens: &[LockToken],
    ) -> Result<Vec<Timestamp>, Error> {
        self.handle_due_timers(call);
        self.queue_context(call, queue)?.renew(tokens)
    }

    /// Renews a session's lock; returns when it ends now.
    pub fn renew_session(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
    ) -> Result<Timestamp, Error> {
        self.handle_due_timers(call);
        self.queue_context(call, queue)?.renew_session(session)
    }

    /// Takes a session from its holder as if its time were over: a fault for tests.
    pub fn expire_session_lock(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        let mut context = self.queue_context(call, queue)?;
        let slot = context.locked_session(session)?;
        context.expire_session(slot);
        context.assign_ready_sessions();
        Ok(())
    }

    /// Takes its session from a receiver, if it holds one: a fault for tests.
    pub fn expire_session_lock_of_link(&mut self, call: &mut CallContext<'_>, link: CoreLinkId) {
        self.handle_due_timers(call);
        if let Some(mut context) = self.queue_context_of_link(call, link)
            && let Some(slot) = context.queue.receivers.get(link).and_then(|receiver| receiver.slot)
        {
            context.expire_session(slot);
            context.assign_ready_sessions();
        }
    }

    /// Where a receiver is attached or waits.
    pub fn queue_of(&self, link: CoreLinkId) -> Option<QueueId> {
        self.state.links.get(&link).copied()
    }

    /// Every call begins by attending to what has fallen due, so that none sees a state older than its moment.
    fn handle_due_timers(&mut self, call: &mut CallContext<'_>) {
        if self.next_deadline().is_some_and(|due| due <= call.now) {
            self.tick(call);
        }
    }

    fn handle_timer(&mut self, call: &mut CallContext<'_>, timer: Timer) {
        match timer {
            Timer::MessageLock(queue) => self.with_queue_context(call, queue, |context| context.expire_message_locks()),
            Timer::SessionLock(queue) => self.with_queue_context(call, queue, |context| context.expire_session_locks()),
            Timer::Attach(queue) => self.with_queue_context(call, queue, |context| context.refuse_timed_out_attaches()),
            Timer::Expiry(queue) => self.with_queue_context(call, queue, |context| context.expire_messages()),
            Timer::Retry(queue) => self.with_queue_context(call, queue, |context| context.retry()),
            Timer::ScheduledMessages(entity) => self.activate_due_messages(call, entity),
            Timer::History(entity) => self.sweep_history(call, entity),
        }
    }

    fn sweep_history(&mut self, call: &CallContext<'_>, entity: EntityId) {
        if let Ok(Ingress { history: Some(history), .. }) = self.ingress_mut(entity) {
            history.sweep(call.now);
            self.set_history_timer(entity, call.now);
        }
    }

    fn with_queue_context(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        act: impl FnOnce(&mut QueueContext<'_, '_>),
    ) {
        // An entity deleted since leaves its alarms behind.
        if let Ok(mut context) = self.queue_context(call, queue) {
            act(&mut context);
        }
    }

    fn queue_context_of_link<'a, 't>(
        &'a mut self,
        call: &'a mut CallContext<'t>,
        link: CoreLinkId,
    ) -> Option<QueueContext<'a, 't>> {
        let queue = *self.state.links.get(&link)?;
        self.queue_context(call, queue).ok()
    }

    fn queue_context<'a, 't>(
        &'a mut self,
        call: &'a mut CallContext<'t>,
        queue: QueueId,
    ) -> Result<QueueContext<'a, 't>, Error> {
        let egress = self.entities.get_mut(&queue.entity).and_then(|entity| entity.egress.as_mut());
        let egress = egress.ok_or_else(deleted_error)?;
        let (queue, dead_letter_queue) = match queue.subqueue {
            Subqueue::Main => (&mut egress.main, Some(&mut egress.dead_letter)),
            Subqueue::DeadLetter => (&mut egress.dead_letter, None),
        };
        Ok(QueueContext { queue, dead_letter_queue, state: &mut self.state, call })
    }

    fn queue(&self, queue: QueueId) -> Result<&queue::MessageQueue, Error> {
        let egress = self.entities.get(&queue.entity).and_then(|entity| entity.egress.as_ref());
        egress.map(|egress| egress.queue(queue.subqueue)).ok_or_else(deleted_error)
    }

    fn ingress_mut(&mut self, entity: EntityId) -> Result<&mut Ingress, Error> {
        self.entities.get_mut(&entity).and_then(|entity| entity.ingress.as_mut()).ok_or_else(deleted_error)
    }
}

/// For an id that was resolved before its entity was deleted.
fn deleted_error() -> Error {
    Error::EntityNotFound { path: "deleted".into() }
}
