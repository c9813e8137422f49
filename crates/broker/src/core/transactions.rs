//! Transactions: sends and settlements that take effect together or not at all.
//!
//! Until its commit a transaction exists only in memory: its messages are in no queue, and the messages it settles stay
//! locked. A commit checks everything again, appends one journal group, and then changes the state. So a crash leaves
//! all of it or nothing. A transaction ends with its coordinator link, and after [`MAX_DURATION`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::Core;
use super::call_context::CallContext;
use super::error::Error;
use super::id::{ConnectionId, CoreLinkId, EntityId, LockToken, QueueId, Timestamp};
use super::send::{IncomingMessage, PlannedMessage};
use super::settle::{PlannedSettlement, SettlementOutcome};
use super::timers::Timer;
use super::topic::{MessageRoute, ReservedCounters};

/// As in the service.
const MAX_DURATION: Duration = Duration::from_secs(120);
const MAX_MESSAGES: usize = 100;
/// Bounds the memory that clients can use without a commit.
const MAX_BYTES: usize = 256 << 20;
const MAX_OPEN: usize = 10_000;
const MAX_OPEN_PER_CONNECTION: usize = 1_000;
/// Of connections that have no token yet. They take nothing from the others.
const MAX_OPEN_UNAUTHORIZED: usize = 500;
const MAX_OPEN_PER_UNAUTHORIZED: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u128);

/// Where an operation comes from. A transaction is about one queue, or one topic with its subscriptions, unless all its
/// links share one AMQP session.
#[derive(Debug, Clone, Copy)]
pub struct TransactionScope {
    pub connection: ConnectionId,
    /// The number of the AMQP session within its connection.
    pub session: u64,
    /// The entity of the link. If messages are sent via an entity, that entity.
    pub entity: EntityId,
}

#[derive(Debug)]
struct Transaction {
    /// The link that declared it.
    link: CoreLinkId,
    /// The connection had a token, or needs none.
    is_authorized: bool,
    deadline: Timestamp,
    first: Option<TransactionScope>,
    sends: Vec<(EntityId, Vec<IncomingMessage>)>,
    settlements: Vec<(QueueId, Vec<LockToken>, SettlementOutcome)>,
    messages: usize,
    bytes: usize,
    /// Why an operation failed. Then it can only be rolled back.
    failure: Option<Error>,
}

#[derive(Debug, Default)]
pub(super) struct Transactions {
    open: HashMap<TransactionId, Transaction>,
    deadlines: BTreeSet<(Timestamp, TransactionId)>,
    by_connection: HashMap<ConnectionId, usize>,
    /// Those whose connection had no token.
    unauthorized: usize,
    bytes: usize,
}

impl Transactions {
    fn remove(&mut self, id: TransactionId) -> Option<Transaction> {
        let transaction = self.open.remove(&id)?;
        self.deadlines.remove(&(transaction.deadline, id));
        self.bytes -= transaction.bytes;
        self.unauthorized -= usize::from(!transaction.is_authorized);
        if let Entry::Occupied(mut count) = self.by_connection.entry(transaction.link.connection()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(transaction)
    }

    fn insert(&mut self, id: TransactionId, transaction: Transaction) {
        self.deadlines.insert((transaction.deadline, id));
        self.unauthorized += usize::from(!transaction.is_authorized);
        *self.by_connection.entry(transaction.link.connection()).or_default() += 1;
        self.open.insert(id, transaction);
    }

    /// Checks that a connection may declare another one.
    fn check_room(&self, connection: ConnectionId, is_authorized: bool) -> Result<(), Error> {
        let own = self.by_connection.get(&connection).copied().unwrap_or_default();
        let limit = if is_authorized { MAX_OPEN_PER_CONNECTION } else { MAX_OPEN_PER_UNAUTHORIZED };
        if own >= limit {
            return Err(Error::TooManyTransactions { limit, is_authorized });
        }
        let is_full = if is_authorized {
            self.open.len() - self.unauthorized >= MAX_OPEN
        } else {
            self.unauthorized >= MAX_OPEN_UNAUTHORIZED
        };
        if is_full { Err(Error::ServerBusy) } else { Ok(()) }
    }

    /// Drops the transactions of a link that is gone.
    pub(super) fn remove_link(&mut self, link: CoreLinkId) {
        if !self.by_connection.contains_key(&link.connection()) {
            return;
        }
        let ended = self.open.iter().filter(|(_, transaction)| transaction.link == link);
        let ended: Vec<_> = ended.map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| drop(self.remove(id)));
    }

    fn find(&mut self, id: TransactionId, connection: ConnectionId) -> Result<&mut Transaction, Error> {
        let found = self.open.get_mut(&id).filter(|transaction| transaction.link.connection() == connection);
        found.ok_or(Error::UnknownTransaction)
    }

    /// Counts messages and bytes of an operation.
    fn reserve(
        &mut self,
        id: TransactionId,
        connection: ConnectionId,
        messages: usize,
        bytes: usize,
    ) -> Result<&mut Transaction, Error> {
        let within_memory = self.bytes + bytes <= MAX_BYTES;
        let transaction = self.find(id, connection)?;
        if transaction.messages + messages > MAX_MESSAGES || !within_memory {
            return Err(Error::TransactionTooLarge { limit: MAX_MESSAGES });
        }
        transaction.messages += messages;
        transaction.bytes += bytes;
        self.bytes += bytes;
        self.find(id, connection)
    }
}

impl Core {
    /// Begins a transaction. `link` is the coordinator link. A connection without a right has fewer.
    pub fn declare_transaction(
        &mut self,
        call: &mut CallContext<'_>,
        link: CoreLinkId,
        is_authorized: bool,
    ) -> Result<TransactionId, Error> {
        self.handle_due_timers(call);
        self.transactions.check_room(link.connection(), is_authorized)?;
        let id = TransactionId(self.state.next_token().0);
        let deadline = call.now.after(MAX_DURATION);
        let transaction = Transaction {
            link,
            is_authorized,
            deadline,
            first: None,
            sends: Vec::new(),
            settlements: Vec::new(),
            messages: 0,
            bytes: 0,
            failure: None,
        };
        self.transactions.insert(id, transaction);
        self.state.timers.set(Timer::Transactions, deadline);
        Ok(id)
    }

    /// Adds a send to a transaction. The messages are checked now, and again at the commit.
    pub fn send_in_transaction(
        &mut self,
        call: &mut CallContext<'_>,
        id: TransactionId,
        scope: TransactionScope,
        entity: EntityId,
        messages: Vec<IncomingMessage>,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        self.record_use(entity, call.now);
        let result = self.add_send(id, scope, entity, messages);
        self.record_failure(id, scope.connection, result.as_ref().err());
        result
    }

    fn add_send(
        &mut self,
        id: TransactionId,
        scope: TransactionScope,
        entity: EntityId,
        messages: Vec<IncomingMessage>,
    ) -> Result<(), Error> {
        self.check_scope(id, scope)?;
        self.check_send(entity, &messages)?;
        let bytes = messages.iter().map(|message| message.body.len()).sum();
        let transaction = self.transactions.reserve(id, scope.connection, messages.len(), bytes)?;
        transaction.sends.push((entity, messages));
        Ok(())
    }

    /// Adds settlements to a transaction; returns the tokens whose lock is lost.
    pub fn settle_in_transaction(
        &mut self,
        call: &mut CallContext<'_>,
        id: TransactionId,
        scope: TransactionScope,
        queue: QueueId,
        tokens: &[LockToken],
        outcome: SettlementOutcome,
    ) -> Result<Vec<LockToken>, Error> {
        self.handle_due_timers(call);
        self.record_use(queue.entity, call.now);
        let result = self.add_settlement(call, id, scope, queue, tokens, outcome);
        let lost = matches!(&result, Ok(lost) if !lost.is_empty()).then(|| self.lock_lost_error(queue));
        self.record_failure(id, scope.connection, result.as_ref().err().or(lost.as_ref()));
        result
    }

    fn add_settlement(
        &mut self,
        call: &mut CallContext<'_>,
        id: TransactionId,
        scope: TransactionScope,
        queue: QueueId,
        tokens: &[LockToken],
        outcome: SettlementOutcome,
    ) -> Result<Vec<LockToken>, Error> {
        self.check_scope(id, scope)?;
        let context = self.queue_context(call, queue)?;
        context.check_outcome(&outcome)?;
        let (valid, lost): (Vec<_>, Vec<_>) = tokens.iter().partition(|token| context.is_lock_valid(**token));
        let transaction = self.transactions.reserve(id, scope.connection, valid.len(), 0)?;
        transaction.settlements.push((queue, valid, outcome));
        Ok(lost)
    }

    /// A client may not wait for the outcome of an operation: a commit without it would be half of what it meant.
    fn record_failure(&mut self, id: TransactionId, connection: ConnectionId, error: Option<&Error>) {
        if let (Some(error), Ok(transaction)) = (error, self.transactions.find(id, connection)) {
            transaction.failure.get_or_insert_with(|| error.clone());
        }
    }

    /// Ends a transaction: commits it, or rolls it back if `fail`. After an error it is rolled back.
    pub fn discharge_transaction(
        &mut self,
        call: &mut CallContext<'_>,
        id: TransactionId,
        connection: ConnectionId,
        fail: bool,
    ) -> Result<(), Error> {
        self.handle_due_timers(call);
        self.transactions.find(id, connection)?;
        let transaction = self.transactions.remove(id).ok_or(Error::UnknownTransaction)?;
        if fail {
            return Ok(());
        }
        self.commit(call, transaction)
            .map_err(|error| Error::TransactionRolledBack { reason: error.to_string().into() })
    }

    /// Rolls back transactions that took too long.
    pub(super) fn expire_transactions(&mut self, call: &CallContext<'_>) {
        while let Some((deadline, id)) = self.transactions.deadlines.first().copied() {
            if deadline > call.now {
                return self.state.timers.set(Timer::Transactions, deadline);
            }
            self.transactions.remove(id);
        }
    }

    fn check_scope(&mut self, id: TransactionId, scope: TransactionScope) -> Result<(), Error> {
        let entity = self.entities.get(&scope.entity).ok_or_else(super::deleted_error)?;
        let scope = TransactionScope { entity: entity.topic.unwrap_or(entity.id), ..scope };
        let transaction = self.transactions.find(id, scope.connection)?;
        let first = transaction.first.get_or_insert(scope);
        if first.entity != scope.entity && first.session != scope.session {
            return Err(Error::NotAllowed(
                "a transaction is about one entity: send via that entity, or use one AMQP session for all links",
            ));
        }
        Ok(())
    }

    fn commit(&mut self, call: &mut CallContext<'_>, transaction: Transaction) -> Result<(), Error> {
        if let Some(error) = transaction.failure {
            return Err(error);
        }
        self.check_locks(call, &transaction)?;
        let sends = merge_by_entity(transaction.sends);
        let routes = self.route_sends(call, &sends)?;
        let mut reserved_counters = ReservedCounters::new();
        let mut planned_sends = Vec::with_capacity(sends.len());
        for ((entity, messages), routes) in sends.iter().zip(&routes) {
            let planned = self.plan_messages(call.now, *entity, messages, routes, &mut reserved_counters)?;
            planned_sends.push((*entity, planned));
        }
        let settlements = self.plan_settlements(call, transaction.settlements, &mut reserved_counters)?;
        let mut locations = Vec::new();
        let mut group = self.state.begin_group();
        for (entity, planned) in &planned_sends {
            self.push_messages(&mut group, *entity, planned);
        }
        for (queue, planned) in &settlements {
            for record in self.queue(*queue)?.settlement_records(planned) {
                group.push(|page| record.encode(page), None, 0);
            }
        }
        self.state.append(call, group, &mut locations)?;
        self.apply_commit(call, &planned_sends, settlements, locations);
        Ok(())
    }

    fn check_locks(&mut self, call: &mut CallContext<'_>, transaction: &Transaction) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for (queue, tokens, _) in &transaction.settlements {
            let context = self.queue_context(call, *queue)?;
            // A message that is settled twice has lost its lock the second time.
            let all_held = tokens.iter().all(|token| context.is_lock_valid(*token) && seen.insert(*token));
            if !all_held {
                return Err(self.lock_lost_error(*queue));
            }
        }
        Ok(())
    }

    fn route_sends(
        &mut self,
        call: &CallContext<'_>,
        sends: &[(EntityId, Vec<IncomingMessage>)],
    ) -> Result<Vec<Vec<MessageRoute>>, Error> {
        let mut all = Vec::with_capacity(sends.len());
        for (entity, messages) in sends {
            // One by one: the rules for a batch hold for each send, not for all of them together.
            for message in messages {
                self.check_send(*entity, std::slice::from_ref(message))?;
            }
            self.check_quota(&self.entities[entity], messages)?;
            let routes = self.route_messages(call.now, *entity, messages);
            self.check_copies(*entity, &routes)?;
            all.push(routes);
        }
        Ok(all)
    }

    /// Dead letters come first: their counters are reserved after those of the sends, and applied in the same order.
    fn plan_settlements(
        &mut self,
        call: &mut CallContext<'_>,
        mut settlements: Vec<(QueueId, Vec<LockToken>, SettlementOutcome)>,
        reserved_counters: &mut ReservedCounters,
    ) -> Result<Vec<(QueueId, PlannedSettlement)>, Error> {
        settlements.sort_by_key(|(_, _, outcome)| !matches!(outcome, SettlementOutcome::DeadLetter { .. }));
        let mut planned = Vec::with_capacity(settlements.len());
        for (queue, tokens, outcome) in settlements {
            let context = self.queue_context(call, queue)?;
            planned.push((queue, context.plan_settlement(tokens, &outcome, reserved_counters)?));
        }
        Ok(planned)
    }

    /// Receivers are served after everything is applied: nobody sees half of it, and nothing takes a reserved counter.
    fn apply_commit(
        &mut self,
        call: &mut CallContext<'_>,
        sends: &[(EntityId, Vec<Option<PlannedMessage<'_>>>)],
        settlements: Vec<(QueueId, PlannedSettlement)>,
        locations: Vec<crate::journal::JournalLocation>,
    ) {
        self.state.postponed = Some(BTreeSet::new());
        let mut locations = locations.into_iter();
        for (entity, planned) in sends {
            self.apply_messages(call, *entity, planned, &mut locations);
        }
        for (queue, planned) in settlements {
            if let Ok(mut context) = self.queue_context(call, queue) {
                context.apply_settlement(planned);
            }
        }
        self.serve_postponed(call);
    }

    /// Serves the sessions that changed since `postponed` was set.
    pub(super) fn serve_postponed(&mut self, call: &mut CallContext<'_>) {
        for (queue, slot) in self.state.postponed.take().unwrap_or_default() {
            self.with_queue_context(call, queue, |context| context.serve(slot));
        }
    }
}

/// One batch per entity, in the order of the sends.
fn merge_by_entity(sends: Vec<(EntityId, Vec<IncomingMessage>)>) -> Vec<(EntityId, Vec<IncomingMessage>)> {
    let mut merged: Vec<(EntityId, Vec<IncomingMessage>)> = Vec::new();
    for (entity, messages) in sends {
        match merged.iter_mut().find(|(known, _)| *known == entity) {
            Some((_, all)) => all.extend(messages),
            None => merged.push((entity, messages)),
        }
    }
    merged
}
