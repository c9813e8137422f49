//! The broker's rules: entities, messages, locks, sessions. No I/O, no clock, no randomness of its own.
//!
//! One thread calls [`Core`]. Every call takes a [`CallContext`]: the current time, the [journal](crate::journal) and a
//! list for [`LinkEffect`]s. A call first handles timers that are due, then decides, appends its decision to the journal,
//! and only then changes the state in memory. If the journal refuses the append, nothing has changed. Locks exist only
//! in memory: a restart unlocks every message and session and keeps the delivery counts.
//!
//! # Reading order
//! 1. `id`, `description`, `entity`: what exists. `queue` → `sessions` → `backlog`: how an entity holds its messages.
//! 2. `call_context`, `shared_state`, `queue_context`: what every operation works with.
//! 3. The path of a message: `send` (checks, duplicates, partition, sequence number, journal) → `topic` (which
//!    subscriptions get it, by their rules) → `queue_context` (`enqueue`) → `delivery` (credit, lock, [`LinkEffect::Deliver`]) → `settle`
//!    (completed, unlocked, deferred or dead-lettered). `transactions`: several of these at once.
//! 4. What happens later: `timers`, `session_lock`, `undeliverable_messages`, `dead_letter`, `scheduled_messages`,
//!    `forwarding`, `idle_deletion`.
//! 5. Administration: `administration`, `rules`, `name`, `management`, `management_links`. For a
//!    person: `browse`, `operator_changes`.
//! 6. Restart and disk space: `record` (the journal's records) → `replay`, `snapshot`, `compaction`.
//!
//! # Memory
//! 24 bytes per message in each queue that holds it, about 360 per session, about 20 per id in a duplicate history
//! (`tests/core_cost.rs`). Bodies stay in the journal. No operation on one message scans other messages or sessions.
//!
//! # Reads of messages
//! The core reads messages only for topics with [rules](crate::rules) and to forward them.

mod administration;
mod backlog;
mod browse;
mod call_context;
mod compaction;
mod dead_letter;
mod delivery;
mod description;
mod duplicate_history;
mod entity;
mod error;
mod expiry_time;
mod forwarding;
mod id;
mod idle_deletion;
mod management;
mod management_links;
mod name;
mod operator_changes;
mod outgoing_byte_budget;
mod partition_choice;
mod property_overrides;
mod queue;
mod queue_context;
mod receivers;
mod record;
mod replay;
mod rules;
mod scheduled_messages;
mod send;
mod session_lock;
mod sessions;
mod settle;
mod shared_state;
mod snapshot;
mod timers;
mod topic;
mod transactions;
mod undeliverable_messages;
mod waiting_attaches;

use std::collections::BTreeMap;

pub use browse::{MessageFilter, SessionStateView, SessionView};
pub use call_context::{CallContext, LinkEffect, MessageDelivery};
pub use compaction::Compaction;
pub use description::{
    AdministrationData, CommonEntityProperties, EntityDefinition, EntityStatus, QueueDescription, ReceiveProperties,
    SendProperties, SubscriptionDescription, TopicDescription,
};
use entity::{Entities, SendSide};
pub use entity::{EntityCounts, EntityView};
pub use error::Error;
pub use id::{ConnectionId, CoreLinkId, EntityId, LockToken, QueueId, SequenceNumber, Subqueue, Timestamp};
pub use management::{MessageState, PeekedMessage};
use management_links::ManagementLinks;
pub use operator_changes::MessageSelector;
pub use property_overrides::PropertyOverrides;
use queue_context::QueueContext;
pub use receivers::ReceiveMode;
pub use record::{MalformedRecord, StoredEnvelope};
pub use send::IncomingMessage;
pub use session_lock::{AttachResult, SessionFilter};
pub use settle::{PropertyUpdates, SettlementOutcome};
pub use shared_state::BrokerLimits;
use shared_state::SharedState;
pub use snapshot::SnapshotCursor;
use timers::Timer;
use transactions::Transactions;
pub use transactions::{TransactionId, TransactionScope};

/// The broker's state and rules.
#[derive(Debug)]
pub struct Core {
    entities: Entities,
    by_path: BTreeMap<Box<str>, EntityId>,
    next_entity: u32,
    management_links: ManagementLinks,
    transactions: Transactions,
    state: SharedState,
}

impl Core {
    /// An empty broker. `seed` generates the lock tokens: it must be secret and different at every start.
    pub fn new(limits: BrokerLimits, seed: [u8; 32]) -> Self {
        Self {
            entities: Entities::new(),
            by_path: BTreeMap::new(),
            next_entity: 1,
            management_links: ManagementLinks::default(),
            transactions: Transactions::default(),
            state: SharedState::new(limits, seed),
        }
    }

    /// When to call [`tick`](Self::tick) if no other call comes first. May be in the past: timers work in limited steps
    /// so that other calls are not delayed.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.state.timers.next_deadline()
    }

    /// Handles due timers: lock expiry, attach timeouts, message expiry, scheduled messages.
    pub fn tick(&mut self, call: &mut CallContext<'_>) {
        // Collected first: a timer that sets itself again for the same time waits for the next call.
        let due: Vec<Timer> = std::iter::from_fn(|| self.state.timers.pop_due(call.now)).collect();
        for timer in due {
            self.handle_timer(call, timer);
        }
    }

    /// Attaches a receiver. After [`AttachResult::Waiting`] an effect follows.
    pub fn attach(
        &mut self,
        call: &mut CallContext<'_>,
        link: CoreLinkId,
        queue: QueueId,
        mode: ReceiveMode,
        filter: SessionFilter,
    ) -> Result<AttachResult, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let path = self.entities.get_mut(&queue.entity).map(|entity| {
            entity.attached_at = Some(call.now);
            entity.path.clone()
        });
        let mut context = self.queue_context(call, queue)?;
        // Checked here and not per delivery: an update detaches the links.
        if !context.queue.policy.receives {
            return Err(Error::EntityDisabled { path: path.unwrap_or_default() });
        }
        if context.queue.policy.forward_to.is_some() {
            return Err(Error::NotAllowed(forwarding::NO_RECEIVER));
        }
        context.attach(link, mode, filter)
    }

    /// Handles an AMQP flow of a receiver, with the delivery-count (0 if absent) and link-credit as received.
    /// [`LinkEffect::Drained`] replies to a drain after all available messages are delivered.
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

    /// Removes a receiver, management or coordinator link that detached or lost its connection. Ignores unknown links.
    pub fn detach(&mut self, call: &mut CallContext<'_>, link: CoreLinkId) {
        self.handle_due_timers(call);
        if let Some(queue) = self.queue_of(link) {
            self.record_use(queue.entity, call.now);
        }
        if let Some(mut context) = self.queue_context_of_link(call, link) {
            return context.detach(link);
        }
        self.management_links.remove(link);
        self.transactions.remove_link(link);
    }

    /// Settles deliveries by lock token, from the receiving link or any other. `Ok` lists the tokens whose lock is lost
    /// (reply with [`lock_lost_error`](Self::lock_lost_error)); all others are settled. After an error none is settled.
    pub fn settle(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        tokens: &[LockToken],
        outcome: &SettlementOutcome,
    ) -> Result<Vec<LockToken>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        self.queue_context(call, queue)?.settle(tokens, outcome)
    }

    /// The error for a lost lock in this queue.
    pub fn lock_lost_error(&self, queue: QueueId) -> Error {
        let sessions = self.queue(queue).is_ok_and(|queue| queue.policy.sessions);
        if sessions { Error::SessionLockLost } else { Error::MessageLockLost }
    }

    /// Renews message locks, all or none; returns their new expiry times.
    pub fn renew(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        tokens: &[LockToken],
    ) -> Result<Vec<Timestamp>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        self.queue_context(call, queue)?.renew(tokens)
    }

    /// Renews a session's lock; returns its new expiry time.
    pub fn renew_session(
        &mut self,
        call: &mut CallContext<'_>,
        queue: QueueId,
        session: &str,
    ) -> Result<Timestamp, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        self.queue_context(call, queue)?.renew_session(session)
    }

    /// Expires a session's lock at once: fault injection for tests.
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

    /// Expires the session lock that a receiver holds, if any: fault injection for tests.
    pub fn expire_session_lock_of_link(&mut self, call: &mut CallContext<'_>, link: CoreLinkId) {
        self.handle_due_timers(call);
        if let Some(mut context) = self.queue_context_of_link(call, link)
            && let Some(slot) = context.queue.receivers.get(link).and_then(|receiver| receiver.slot)
        {
            context.expire_session(slot);
            context.assign_ready_sessions();
        }
    }

    /// The queue a receiver is attached to or waits for.
    pub fn queue_of(&self, link: CoreLinkId) -> Option<QueueId> {
        self.state.links.get(&link).copied()
    }

    /// Every call starts here, so that no call sees state older than its own time.
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
            Timer::Forward(queue) => self.forward_messages(call, queue),
            Timer::ScheduledMessages(entity) => {
                self.record_use(entity, call.now);
                self.activate_due_messages(call, entity);
            }
            Timer::Transactions => self.expire_transactions(call),
            Timer::History(entity) => self.sweep_history(call, entity),
            Timer::Idle(entity) => self.delete_if_idle(call, entity),
        }
    }

    fn sweep_history(&mut self, call: &CallContext<'_>, entity: EntityId) {
        if let Ok(SendSide { history: Some(history), .. }) = self.ingress_mut(entity) {
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
        // Timers of a deleted entity stay in the queue; they have no effect.
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
            // The second value stays `None`: dead letters cannot be dead-lettered.
            Subqueue::DeadLetter => (&mut egress.dead_letter, None),
            Subqueue::TransferDeadLetter => (&mut egress.transfer_dead_letter, None),
        };
        Ok(QueueContext { queue, dead_letter_queue, state: &mut self.state, call })
    }

    fn queue(&self, queue: QueueId) -> Result<&queue::MessageQueue, Error> {
        let egress = self.entities.get(&queue.entity).and_then(|entity| entity.egress.as_ref());
        egress.map(|egress| egress.queue(queue.subqueue)).ok_or_else(deleted_error)
    }

    fn ingress_mut(&mut self, entity: EntityId) -> Result<&mut SendSide, Error> {
        self.entities.get_mut(&entity).and_then(|entity| entity.ingress.as_mut()).ok_or_else(deleted_error)
    }
}

/// The error for an id whose entity was deleted after the id was resolved.
fn deleted_error() -> Error {
    Error::EntityNotFound { path: "deleted".into() }
}
