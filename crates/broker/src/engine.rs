//! The one thread that owns the [core](crate::core) and its journal, and the line by which others talk to it.
//!
//! It works in rounds: takes everything that waits in its inbox, lets the core decide, gathers what the core answers, asks the store to
//! sync, and takes the next round while the disk works. Answers are held until the journal is durable up to where it was when
//! they were made, and then go out in the order they were made: nothing is told that a crash could take back.
//!
//! What rests on nothing that is still on its way to the disk is told at once (see [`pending`]): that a session is held, for holds end with the
//! process in any case, and a message that has long been stored. A consumer's accepts do not wait for other people's syncs.
//!
//! Never here: sockets, or waiting for the disk. Bodies are read in the round that delivers them, while their place is certain.

mod clock;
mod faults;
mod inbox;
mod pending_replies;
mod reply;
mod request;
mod storage;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{info, warn};

pub(crate) use clock::BrokerClock;
pub(crate) use faults::FaultInjector;
pub(crate) use inbox::{EngineConnection, EngineHandle, EngineStopped, channel};
pub(crate) use reply::EngineReply;
pub(crate) use request::EngineRequest;
pub(crate) use storage::EngineStorage;
pub use storage::{Error as StorageError, Persistence};

use crate::core::{CallContext, ConnectionId, Core, CoreLinkId, Effect};
use crate::journal::Lsn;
use faults::{FaultPoint, InjectedFault};
use inbox::{EngineInbox, EngineMessage};
use pending_replies::{PendingReplies, ReplyOutbox, ReplyTiming};

/// Something that waits for the journal to be durable.
struct DurabilityWaiter {
    until: Lsn,
    what: EngineOutput,
}

enum EngineOutput {
    Replies(ConnectionId, Vec<EngineReply>),
    CallResult(Box<dyn FnOnce() + Send>),
}

/// Messages taken in one round: enough to make a sync worth while, few enough that the first does not wait for the last.
const ROUND: usize = 256;

/// How long a stopping engine waits for the disk.
const LAST_SYNC: Duration = Duration::from_secs(10);

struct Engine {
    core: Core,
    storage: EngineStorage,
    clock: Arc<BrokerClock>,
    faults: Arc<FaultInjector>,
    inbox: EngineInbox,
    outboxes: HashMap<ConnectionId, ReplyOutbox>,
    held: VecDeque<DurabilityWaiter>,
    /// What was held for the journal to be durable up to here has gone out.
    durable: Lsn,
    /// The writer was woken for what is appended up to here.
    flushed: Lsn,
    /// What this round has to say, by connection, in the order of their first word.
    pending: Vec<PendingReplies>,
    calls: Vec<Box<dyn FnOnce() + Send>>,
    effects: Vec<Effect>,
}

/// Starts the thread. It ends when told to stop, after everything held has gone out.
pub(crate) fn start(
    core: Core,
    storage: EngineStorage,
    clock: Arc<BrokerClock>,
    faults: Arc<FaultInjector>,
    inbox: EngineInbox,
) -> std::io::Result<JoinHandle<()>> {
    let engine_loop = Engine {
        core,
        storage,
        clock,
        faults,
        inbox,
        outboxes: HashMap::new(),
        held: VecDeque::new(),
        durable: Lsn::default(),
        flushed: Lsn::default(),
        pending: Vec::new(),
        calls: Vec::new(),
        effects: Vec::new(),
    };
    std::thread::Builder::new().name("broker-engine".into()).spawn(move || engine_loop.run())
}

impl Engine {
    fn run(mut self) {
        let mut stopping = false;
        while !stopping {
            let wait_limit = self.wait_limit();
            // While the disk is behind, only its own news is waited for.
            if self.storage.is_congested() {
                self.inbox.wait_for_wake(wait_limit);
            } else {
                stopping = self.run_round(wait_limit);
            }
            self.storage.run_maintenance(&mut self.core, self.clock.now());
            self.send_durable(self.storage.synced());
        }
        self.storage.flush();
        let durable = self.storage.wait_synced(LAST_SYNC);
        self.send_durable(self.storage.synced());
        if !durable {
            warn!("the store could not be brought to the disk in time; what was not acknowledged may be lost");
        }
        self.storage.close(LAST_SYNC);
        info!("the broker's engine has stopped");
    }

    /// Takes what waits, at most a round of it; true when told to stop.
    fn run_round(&mut self, wait_limit: Duration) -> bool {
        let mut stopping = false;
        let mut message = self.inbox.first(wait_limit);
        let mut taken = 0;
        while let Some(next) = message {
            stopping |= self.handle(next);
            taken += 1;
            message = if taken < ROUND { self.inbox.next() } else { None };
        }
        self.call_core(|core, call| core.tick(call));
        self.dispatch_replies();
        self.flush();
        stopping
    }

    fn handle(&mut self, message: EngineMessage) -> bool {
        match message {
            EngineMessage::Connected(id, outbox) => drop(self.outboxes.insert(id, ReplyOutbox::new(outbox))),
            EngineMessage::Requests { from, requests, budget } => {
                for request in requests {
                    self.handle_request(from, request);
                }
                drop(budget);
            }
            EngineMessage::Gone { id, links } => {
                self.outboxes.remove(&id);
                for link in links {
                    self.call_core(|core, call| core.detach(call, link));
                }
                self.core.remove_connection(id);
            }
            EngineMessage::Call(operation) => {
                let answer = self.call_core(operation);
                self.calls.push(answer);
            }
            EngineMessage::Woken => {}
            EngineMessage::Stop => return true,
        }
        false
    }

    fn handle_request(&mut self, from: ConnectionId, request: EngineRequest) {
        match request.fault_point().and_then(|(fault_point, entity)| self.faults.next_fault(fault_point, entity)) {
            None => self.execute(from, request),
            Some(fault) => self.execute_with_fault(from, request, fault),
        }
    }

    fn execute(&mut self, from: ConnectionId, request: EngineRequest) {
        let before = self.storage.journal().position();
        let reply = self.call_core(|core, call| request.execute(core, call));
        if let Some(reply) = reply {
            let timing =
                ReplyTiming::immediate_if(reply.is_attach_success() && self.storage.journal().position() == before);
            self.queue_reply(from, reply, timing);
        }
    }

    /// Tests ask for this.
    fn execute_with_fault(&mut self, from: ConnectionId, request: EngineRequest, fault: InjectedFault) {
        match fault {
            InjectedFault::DropConnection => {
                self.queue_reply(from, EngineReply::DropConnection, ReplyTiming::WhenDurable)
            }
            InjectedFault::Busy => {
                if let Some(reply) = request.into_busy_reply() {
                    self.queue_reply(from, reply, ReplyTiming::WhenDurable);
                }
            }
            InjectedFault::LoseAcknowledgement => {
                self.call_core(|core, call| request.execute(core, call));
                self.queue_reply(from, EngineReply::DropConnection, ReplyTiming::WhenDurable);
            }
            InjectedFault::DetachLink => {
                if let Some(link) = request.link() {
                    self.queue_reply(from, EngineReply::ForceDetach { link }, ReplyTiming::WhenDurable);
                }
            }
            InjectedFault::Delay(by) => {
                if let Some(reply) = self.call_core(|core, call| request.execute(core, call)) {
                    self.queue_reply(
                        from,
                        EngineReply::Delayed { by, reply: Box::new(reply) },
                        ReplyTiming::WhenDurable,
                    );
                }
            }
            InjectedFault::LoseSession => self.execute(from, request),
        }
    }

    /// Calls the core and turns its effects into replies.
    fn call_core<T>(&mut self, act: impl FnOnce(&mut Core, &mut CallContext<'_>) -> T) -> T {
        let mut effects = std::mem::take(&mut self.effects);
        let now = self.clock.now();
        let before = self.storage.journal().position();
        let mut call = CallContext { now, journal: self.storage.journal(), effects: &mut effects };
        let answer = act(&mut self.core, &mut call);
        let noted = self.storage.journal().position() != before;
        for effect in effects.drain(..) {
            let link = reply::link_of(&effect);
            let fault = self.delivery_fault(&effect);
            let timing = ReplyTiming::immediate_if(!noted && reply::is_crash_safe(&effect, self.storage.journal()));
            let reply = EngineReply::from_effect(effect, self.storage.journal());
            self.queue_reply(link.connection(), reply, timing);
            if let Some(fault) = fault {
                self.inject_receiver_fault(link, fault);
            }
        }
        self.effects = effects;
        answer
    }

    /// Tests ask for this, too.
    fn inject_receiver_fault(&mut self, link: CoreLinkId, fault: InjectedFault) {
        match fault {
            InjectedFault::DetachLink => {
                self.call_core(|core, call| core.detach(call, link));
                self.queue_reply(
                    link.connection(),
                    EngineReply::ForceDetachReceiver { link },
                    ReplyTiming::WhenDurable,
                );
            }
            InjectedFault::LoseSession => self.call_core(|core, call| core.expire_session_lock_of_link(call, link)),
            InjectedFault::DropConnection
            | InjectedFault::Busy
            | InjectedFault::LoseAcknowledgement
            | InjectedFault::Delay(_) => {}
        }
    }

    fn delivery_fault(&self, effect: &Effect) -> Option<InjectedFault> {
        let Effect::Deliver { link, .. } = effect else { return None };
        let entity = self.core.queue_of(*link)?.entity;
        self.faults.next_fault(FaultPoint::Delivery, entity)
    }

    fn queue_reply(&mut self, to: ConnectionId, reply: EngineReply, timing: ReplyTiming) {
        let pending = match self.pending.iter().rposition(|pending| pending.to == to) {
            Some(place) => &mut self.pending[place],
            None => {
                let held = self.outboxes.get(&to).is_some_and(|outbox| outbox.deferred_until > self.durable);
                self.pending.push(PendingReplies::new(to, held));
                self.pending.last_mut().expect("not empty: just pushed")
            }
        };
        pending.add(reply, timing);
    }

    /// Lets out what is certain. All else said in this round waits for everything appended in it.
    fn dispatch_replies(&mut self) {
        let until = self.storage.journal().position();
        for pending in self.pending.drain(..) {
            let Some(outbox) = self.outboxes.get_mut(&pending.to) else { continue };
            if !pending.immediate.is_empty() {
                outbox.send(pending.immediate);
            }
            if pending.defers_link_reply {
                outbox.deferred_until = until;
            }
            if !pending.deferred.is_empty() {
                self.held
                    .push_back(DurabilityWaiter { until, what: EngineOutput::Replies(pending.to, pending.deferred) });
            }
        }
        self.held
            .extend(self.calls.drain(..).map(|call| DurabilityWaiter { until, what: EngineOutput::CallResult(call) }));
    }

    fn send_durable(&mut self, durable: Lsn) {
        while self.held.front().is_some_and(|held| held.until <= durable) {
            let held = self.held.pop_front().expect("not empty: just looked at");
            match held.what {
                EngineOutput::CallResult(answer) => answer(),
                EngineOutput::Replies(to, replies) => {
                    if let Some(outbox) = self.outboxes.get(&to) {
                        outbox.send(replies);
                    }
                }
            }
        }
        self.durable = durable;
    }

    /// Wakes the writer, if there is anything for it to write.
    fn flush(&mut self) {
        let position = self.storage.journal().position();
        if position != self.flushed {
            self.flushed = position;
            self.storage.flush();
        }
    }

    /// How long nothing needs to be done.
    fn wait_limit(&self) -> Duration {
        let due = self.core.next_deadline().map(|due| self.clock.duration_until(due));
        due.unwrap_or(Duration::from_secs(60)).min(self.storage.wait_limit())
    }
}
