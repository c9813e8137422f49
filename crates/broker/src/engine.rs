//! The engine: one thread that owns the [core](crate::core) and its journal, and the handles by which connections reach
//! it.
//!
//! It works in rounds. A round takes all messages from the inbox, calls the core, collects replies, and wakes the
//! store's writer. The next round runs while the disk syncs. Replies wait until the journal is durable up to its
//! position when they were made, and then leave in order: a crash never contradicts a reply that was sent.
//!
//! Replies that depend on nothing unsynced leave at once (see [`pending_replies`]): an accepted session, because locks
//! end with the process anyway, and the delivery of a message that is already durable. So accepting a session never
//! waits for the sync of another client's message.
//!
//! The engine never touches a socket and never waits for the disk. It reads bodies in the round that delivers them,
//! because a later compaction may move them.

mod clock;
mod faults;
mod inbox;
mod pending_replies;
mod reply;
mod request;
mod storage;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, info, warn};

pub(crate) use clock::BrokerClock;
pub(crate) use faults::FaultInjector;
pub(crate) use inbox::{EngineConnection, EngineHandle, EngineStopped, channel};
pub(crate) use reply::EngineReply;
pub(crate) use request::EngineRequest;
pub(crate) use storage::EngineStorage;
pub use storage::{Error as StorageError, StorageLocation};

use crate::core::{CallContext, ConnectionId, Core, CoreLinkId, Error, LinkEffect};
use crate::failpoints::Failpoint;
use crate::http::{FaultOccasion, FaultTiming};
use crate::journal::Lsn;
use faults::{EndScope, EndedByFault, InjectedFault};
use inbox::{EngineInbox, EngineMessage};
use pending_replies::{ConnectionReplySender, PendingReplies, ReplyTiming};

/// Output that waits until the journal is durable up to a position.
struct DurabilityWaiter {
    until: Lsn,
    output: DeferredOutput,
}

enum DeferredOutput {
    Replies(ConnectionId, Vec<EngineReply>),
    CallResult(Box<dyn FnOnce() + Send>),
}

/// Messages per round: enough to make a sync worthwhile, few enough that the first message does not wait for the last.
const MAX_ROUND: usize = 256;

/// How long a stopping engine waits for the last sync.
const LAST_SYNC_TIMEOUT: Duration = Duration::from_secs(10);

struct Engine {
    core: Core,
    storage: EngineStorage,
    clock: Arc<BrokerClock>,
    faults: Arc<FaultInjector>,
    inbox: EngineInbox,
    outboxes: HashMap<ConnectionId, ConnectionReplySender>,
    waiting_for_sync: VecDeque<DurabilityWaiter>,
    /// Output that waited for a position up to this one has been sent.
    durable: Lsn,
    /// The writer has been woken for everything up to this position.
    flushed: Lsn,
    /// Replies of this round, per connection.
    pending: Vec<PendingReplies>,
    call_results: Vec<Box<dyn FnOnce() + Send>>,
    effects: Vec<LinkEffect>,
    ended_by_fault: EndedByFault,
}

/// Starts the engine thread. It ends on a stop request, after all pending output is sent.
pub(crate) fn start(
    core: Core,
    storage: EngineStorage,
    clock: Arc<BrokerClock>,
    faults: Arc<FaultInjector>,
    inbox: EngineInbox,
) -> std::io::Result<JoinHandle<()>> {
    let engine = Engine {
        core,
        storage,
        clock,
        faults,
        inbox,
        outboxes: HashMap::new(),
        waiting_for_sync: VecDeque::new(),
        durable: Lsn::default(),
        flushed: Lsn::default(),
        pending: Vec::new(),
        call_results: Vec::new(),
        effects: Vec::new(),
        ended_by_fault: EndedByFault::default(),
    };
    std::thread::Builder::new().name("broker-engine".into()).spawn(move || {
        // The panic goes on: the owner of the join handle decides what it means.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| engine.run())) {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            error!("broker engine failed: {}", text.unwrap_or("panic without a message"));
            resume_unwind(panic);
        }
    })
}

impl Engine {
    fn run(mut self) {
        let mut stopping = false;
        while !stopping {
            let wait_limit = self.wait_limit();
            // While the disk is behind, accept no new messages: wait for the store only.
            if self.storage.is_congested() {
                self.inbox.wait_for_wake(wait_limit);
            } else {
                stopping = self.run_round(wait_limit);
            }
            self.storage.run_maintenance(&mut self.core, self.clock.now());
            self.send_durable(self.storage.synced());
        }
        self.storage.flush();
        let durable = self.storage.wait_synced(LAST_SYNC_TIMEOUT);
        self.send_durable(self.storage.synced());
        if !durable {
            warn!("last sync timed out: unacknowledged messages may be lost");
        }
        self.storage.close(LAST_SYNC_TIMEOUT);
        info!("broker engine stopped");
    }

    /// Handles the waiting messages, at most one round; returns true on a stop request.
    fn run_round(&mut self, wait_limit: Duration) -> bool {
        let mut stopping = false;
        let mut message = self.inbox.wait_next(wait_limit);
        let mut taken = 0;
        while let Some(next) = message {
            stopping |= self.handle(next);
            taken += 1;
            // The next round must start before the first reply of this one gets old.
            message = if taken < MAX_ROUND { self.inbox.try_next() } else { None };
        }
        self.call_core(|core, call| core.tick(call));
        self.dispatch_replies();
        self.flush();
        stopping
    }

    fn handle(&mut self, message: EngineMessage) -> bool {
        match message {
            EngineMessage::Connected(id, outbox) => drop(self.outboxes.insert(id, ConnectionReplySender::new(outbox))),
            EngineMessage::Requests { from, requests, budget } => {
                for request in requests {
                    self.handle_request(from, request);
                }
                drop(budget);
            }
            EngineMessage::Disconnected { id, links } => {
                self.outboxes.remove(&id);
                self.ended_by_fault.remove_connection(id);
                for link in links {
                    self.call_core(|core, call| core.detach(call, link));
                }
                // Last, because detaching its links still uses the connection's budget.
                self.core.remove_connection(id);
            }
            EngineMessage::Call(operation) => {
                let result = self.call_core(operation);
                self.call_results.push(result);
            }
            EngineMessage::Woken => {}
            EngineMessage::Stop => return true,
        }
        false
    }

    fn handle_request(&mut self, from: ConnectionId, request: EngineRequest) {
        if self.ended_by_fault.discards(from, &request) {
            return;
        }
        match request.fault_occasion().and_then(|(occasion, entity)| self.faults.next_fault(occasion, entity)) {
            None => self.execute(from, request),
            Some(fault) => self.execute_with_fault(from, request, fault),
        }
    }

    fn execute(&mut self, from: ConnectionId, request: EngineRequest) {
        // An unchanged position means that the request appended nothing, so its reply depends on no sync.
        let before = self.storage.journal().position();
        let reply = self.call_core(|core, call| request.execute(core, call));
        if let Some(reply) = reply {
            let timing =
                ReplyTiming::immediate_if(reply.is_attach_success() && self.storage.journal().position() == before);
            self.queue_reply(from, reply, timing);
        }
    }

    /// Fault injection for tests.
    fn execute_with_fault(&mut self, from: ConnectionId, request: EngineRequest, fault: InjectedFault) {
        match fault {
            InjectedFault::DropConnection => self.queue_durable_reply(from, EngineReply::DropConnection),
            InjectedFault::Busy => {
                if let Some(reply) = request.into_sent_reply(Err(Error::ServerBusy)) {
                    self.queue_durable_reply(from, reply);
                }
            }
            InjectedFault::LoseMessages => {
                if let Some(reply) = request.into_sent_reply(Ok(())) {
                    self.queue_durable_reply(from, reply);
                }
            }
            InjectedFault::LoseAcknowledgement => {
                self.call_core(|core, call| request.execute(core, call));
                self.queue_durable_reply(from, EngineReply::DropConnection);
            }
            InjectedFault::End(scope, error, timing) => {
                let link = request.link().expect("only sends and settlements are occasions");
                if timing == FaultTiming::After {
                    // The reply is lost with the link.
                    self.call_core(|core, call| request.execute(core, call));
                }
                self.ended_by_fault.add(from, (scope == EndScope::Link).then_some(link));
                self.queue_durable_reply(
                    from,
                    match scope {
                        EndScope::Link => EngineReply::ForceDetach { link, error },
                        EndScope::Connection => EngineReply::CloseConnection { error },
                    },
                );
            }
            InjectedFault::Delay(by) => {
                if let Some(reply) = self.call_core(|core, call| request.execute(core, call)) {
                    self.queue_durable_reply(from, EngineReply::Delayed { by, reply: Box::new(reply) });
                }
            }
            InjectedFault::LoseSession => self.execute(from, request),
        }
    }

    /// Calls the core and turns its effects into replies.
    fn call_core<T>(&mut self, operation: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        let mut effects = std::mem::take(&mut self.effects);
        let now = self.clock.now();
        let before = self.storage.journal().position();
        let mut call = CallContext { now, journal: self.storage.journal(), effects: &mut effects };
        let result = operation(&mut self.core, &mut call);
        let appended = self.storage.journal().position() != before;
        for effect in effects.drain(..) {
            let link = reply::link_of(&effect);
            let fault = self.delivery_fault(&effect);
            let timing = ReplyTiming::immediate_if(!appended && reply::is_crash_safe(&effect, self.storage.journal()));
            let reply = EngineReply::from_effect(effect, self.storage.journal());
            if !matches!(fault, Some(InjectedFault::End(_, _, FaultTiming::Before))) {
                self.queue_reply(link.connection(), reply, timing);
            }
            if let Some(fault) = fault {
                self.inject_receiver_fault(link, fault);
            }
        }
        self.effects = effects;
        result
    }

    /// Fault injection for tests.
    fn inject_receiver_fault(&mut self, link: CoreLinkId, fault: InjectedFault) {
        match fault {
            InjectedFault::End(scope, error, _) => {
                self.call_core(|core, call| core.detach(call, link));
                self.queue_durable_reply(
                    link.connection(),
                    match scope {
                        EndScope::Link => EngineReply::ForceDetachReceiver { link, error },
                        EndScope::Connection => EngineReply::CloseConnection { error },
                    },
                );
            }
            InjectedFault::LoseSession => self.call_core(|core, call| core.expire_session_lock_of_link(call, link)),
            InjectedFault::DropConnection
            | InjectedFault::Busy
            | InjectedFault::LoseAcknowledgement
            | InjectedFault::LoseMessages
            | InjectedFault::Delay(_) => {}
        }
    }

    fn delivery_fault(&self, effect: &LinkEffect) -> Option<InjectedFault> {
        let LinkEffect::Deliver { link, .. } = effect else { return None };
        let entity = self.core.queue_of(*link)?.entity;
        self.faults.next_fault(FaultOccasion::Delivery, entity)
    }

    fn queue_durable_reply(&mut self, to: ConnectionId, reply: EngineReply) {
        self.queue_reply(to, reply, ReplyTiming::WhenDurable);
    }

    fn queue_reply(&mut self, to: ConnectionId, reply: EngineReply, timing: ReplyTiming) {
        let pending = match self.pending.iter().rposition(|pending| pending.to == to) {
            Some(place) => &mut self.pending[place],
            None => {
                let deferred = self.outboxes.get(&to).is_some_and(|outbox| outbox.deferred_until > self.durable);
                self.pending.push(PendingReplies::new(to, deferred));
                self.pending.last_mut().expect("not empty: just pushed")
            }
        };
        pending.add(reply, timing);
    }

    /// Sends immediate replies. All other replies of this round wait for everything the round appended.
    fn dispatch_replies(&mut self) {
        let until = match Failpoint::ReplyBeforeSync.is_enabled() {
            true => Lsn::default(),
            false => self.storage.journal().position(),
        };
        for pending in self.pending.drain(..) {
            let Some(outbox) = self.outboxes.get_mut(&pending.to) else { continue };
            if !pending.immediate.is_empty() {
                outbox.send(pending.immediate);
            }
            if pending.defers_link_reply {
                outbox.deferred_until = until;
            }
            if !pending.deferred.is_empty() {
                self.waiting_for_sync.push_back(DurabilityWaiter {
                    until,
                    output: DeferredOutput::Replies(pending.to, pending.deferred),
                });
            }
        }
        self.waiting_for_sync.extend(
            self.call_results
                .drain(..)
                .map(|call| DurabilityWaiter { until, output: DeferredOutput::CallResult(call) }),
        );
    }

    fn send_durable(&mut self, durable: Lsn) {
        while self.waiting_for_sync.front().is_some_and(|waiter| waiter.until <= durable) {
            let waiter = self.waiting_for_sync.pop_front().expect("not empty: checked above");
            match waiter.output {
                DeferredOutput::CallResult(result) => result(),
                DeferredOutput::Replies(to, replies) => {
                    if let Some(outbox) = self.outboxes.get(&to) {
                        outbox.send(replies);
                    }
                }
            }
        }
        self.durable = durable;
    }

    /// Wakes the writer if there is something to write.
    fn flush(&mut self) {
        let position = self.storage.journal().position();
        if position != self.flushed {
            self.flushed = position;
            self.storage.flush();
        }
    }

    /// How long the engine may wait for messages: until the next timer or maintenance step.
    fn wait_limit(&self) -> Duration {
        let due = self.core.next_deadline().map(|due| self.clock.duration_until(due));
        due.unwrap_or(Duration::from_secs(60)).min(self.storage.wait_limit())
    }
}
