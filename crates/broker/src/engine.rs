//! The one thread that owns the [core](crate::core) and its journal, and the line by which others talk to it.
//!
//! It works in rounds: takes everything that waits in its inbox, lets the core decide, gathers what the core answers, asks the store to
//! sync, and takes the next round while the disk works. Answers are held until the journal is durable up to where it was when
//! they were made, and then go out in the order they were made: nothing is told that a crash could take back.
//!
//! What rests on nothing that is still on its way to the disk is told at once (see [`said`]): that a session is held, for holds end with the
//! process in any case, and a message that has long been stored. A consumer's accepts do not wait for other people's syncs.
//!
//! Never here: sockets, or waiting for the disk. Bodies are read in the round that delivers them, while their place is certain.

mod clock;
mod faults;
mod inbox;
mod memory;
mod reply;
mod request;
mod said;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{info, warn};

pub(crate) use clock::Clock;
pub(crate) use faults::Faults;
pub(crate) use inbox::{Engine, Line, Stopped, line};
pub(crate) use memory::Memory;
pub use memory::{Error as MemoryError, Persistence};
pub(crate) use reply::Reply;
pub(crate) use request::Request;

use crate::core::{ConnectionId, Core, Effect, LinkId, Turn};
use crate::journal::Lsn;
use faults::{Occasion, Strike};
use inbox::{Inbox, Message};
use said::{Certain, Outbox, Said};

/// Something that waits for the journal to be durable.
struct Held {
    until: Lsn,
    what: Waiting,
}

enum Waiting {
    Replies(ConnectionId, Vec<Reply>),
    Call(Box<dyn FnOnce() + Send>),
}

/// Messages taken in one round: enough to make a sync worth while, few enough that the first does not wait for the last.
const ROUND: usize = 256;

/// How long a stopping engine waits for the disk.
const LAST_SYNC: Duration = Duration::from_secs(10);

struct Worker {
    core: Core,
    memory: Memory,
    clock: Arc<Clock>,
    faults: Arc<Faults>,
    inbox: Inbox,
    outboxes: HashMap<ConnectionId, Outbox>,
    held: VecDeque<Held>,
    /// What was held for the journal to be durable up to here has gone out.
    durable: Lsn,
    /// The writer was woken for what is appended up to here.
    flushed: Lsn,
    /// What this round has to say, by connection, in the order of their first word.
    said: Vec<Said>,
    calls: Vec<Box<dyn FnOnce() + Send>>,
    effects: Vec<Effect>,
}

/// Starts the thread. It ends when told to stop, after everything held has gone out.
pub(crate) fn start(
    core: Core,
    memory: Memory,
    clock: Arc<Clock>,
    faults: Arc<Faults>,
    inbox: Inbox,
) -> std::io::Result<JoinHandle<()>> {
    let worker = Worker {
        core,
        memory,
        clock,
        faults,
        inbox,
        outboxes: HashMap::new(),
        held: VecDeque::new(),
        durable: Lsn::default(),
        flushed: Lsn::default(),
        said: Vec::new(),
        calls: Vec::new(),
        effects: Vec::new(),
    };
    std::thread::Builder::new().name("broker-engine".into()).spawn(move || worker.run())
}

impl Worker {
    fn run(mut self) {
        let mut stopping = false;
        while !stopping {
            let patience = self.patience();
            // While the disk is behind, only its own news is waited for.
            if self.memory.congested() {
                self.inbox.wait_for_wake(patience);
            } else {
                stopping = self.round(patience);
            }
            self.memory.tend(&mut self.core, self.clock.now());
            self.let_go(self.memory.synced());
        }
        self.memory.flush();
        let durable = self.memory.wait(LAST_SYNC);
        self.let_go(self.memory.synced());
        if !durable {
            warn!("the store could not be brought to the disk in time; what was not acknowledged may be lost");
        }
        self.memory.close(LAST_SYNC);
        info!("the broker's engine has stopped");
    }

    /// Takes what waits, at most a round of it; true when told to stop.
    fn round(&mut self, patience: Duration) -> bool {
        let mut stopping = false;
        let mut message = self.inbox.first(patience);
        let mut taken = 0;
        while let Some(next) = message {
            stopping |= self.take(next);
            taken += 1;
            message = if taken < ROUND { self.inbox.next() } else { None };
        }
        self.on_core(|core, turn| core.tick(turn));
        self.hold();
        self.flush();
        stopping
    }

    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Connected(id, outbox) => drop(self.outboxes.insert(id, Outbox::new(outbox))),
            Message::Requests { from, requests, budget } => {
                for request in requests {
                    self.obey(from, request);
                }
                drop(budget);
            }
            Message::Gone { id, links } => {
                self.outboxes.remove(&id);
                for link in links {
                    self.on_core(|core, turn| core.detach(turn, link));
                }
                self.core.hang_up(id);
            }
            Message::Call(call) => {
                let answer = self.on_core(call);
                self.calls.push(answer);
            }
            Message::Woken => {}
            Message::Stop => return true,
        }
        false
    }

    fn obey(&mut self, from: ConnectionId, request: Request) {
        match request.occasion().and_then(|(occasion, entity)| self.faults.strikes(occasion, entity)) {
            None => self.carry_out(from, request),
            Some(strike) => self.carry_out_wrongly(from, request, strike),
        }
    }

    fn carry_out(&mut self, from: ConnectionId, request: Request) {
        let before = self.memory.journal().position();
        let reply = self.on_core(|core, turn| request.carry_out(core, turn));
        if let Some(reply) = reply {
            let certain = Certain::when(reply.is_only_a_hold() && self.memory.journal().position() == before);
            self.say(from, reply, certain);
        }
    }

    /// Tests ask for this.
    fn carry_out_wrongly(&mut self, from: ConnectionId, request: Request, strike: Strike) {
        match strike {
            Strike::DropConnection => self.say(from, Reply::HangUp, Certain::WhenDurable),
            Strike::Busy => {
                if let Some(reply) = request.refuse_as_busy() {
                    self.say(from, reply, Certain::WhenDurable);
                }
            }
            Strike::LoseAcknowledgement => {
                self.on_core(|core, turn| request.carry_out(core, turn));
                self.say(from, Reply::HangUp, Certain::WhenDurable);
            }
            Strike::DetachLink => {
                if let Some(link) = request.link() {
                    self.say(from, Reply::ForceDetach { link }, Certain::WhenDurable);
                }
            }
            Strike::Delay(by) => {
                if let Some(reply) = self.on_core(|core, turn| request.carry_out(core, turn)) {
                    self.say(from, Reply::Later { by, reply: Box::new(reply) }, Certain::WhenDurable);
                }
            }
            Strike::LoseSession => self.carry_out(from, request),
        }
    }

    /// Calls the core and turns its effects into replies.
    fn on_core<T>(&mut self, act: impl FnOnce(&mut Core, &mut Turn<'_>) -> T) -> T {
        let mut effects = std::mem::take(&mut self.effects);
        let now = self.clock.now();
        let before = self.memory.journal().position();
        let mut turn = Turn { now, journal: self.memory.journal(), effects: &mut effects };
        let answer = act(&mut self.core, &mut turn);
        let noted = self.memory.journal().position() != before;
        for effect in effects.drain(..) {
            let link = reply::link_of(&effect);
            let strike = self.strike_at(&effect);
            let certain = Certain::when(!noted && reply::is_certain(&effect, self.memory.journal()));
            let reply = Reply::from_effect(effect, self.memory.journal());
            self.say(link.connection(), reply, certain);
            if let Some(strike) = strike {
                self.strike_receiver(link, strike);
            }
        }
        self.effects = effects;
        answer
    }

    /// Tests ask for this, too.
    fn strike_receiver(&mut self, link: LinkId, strike: Strike) {
        match strike {
            Strike::DetachLink => {
                self.on_core(|core, turn| core.detach(turn, link));
                self.say(link.connection(), Reply::ForceDetachReceiver { link }, Certain::WhenDurable);
            }
            Strike::LoseSession => self.on_core(|core, turn| core.lose_session_of(turn, link)),
            Strike::DropConnection | Strike::Busy | Strike::LoseAcknowledgement | Strike::Delay(_) => {}
        }
    }

    fn strike_at(&self, effect: &Effect) -> Option<Strike> {
        let Effect::Deliver { link, .. } = effect else { return None };
        let entity = self.core.queue_of(*link)?.entity;
        self.faults.strikes(Occasion::Delivery, entity)
    }

    fn say(&mut self, to: ConnectionId, reply: Reply, certain: Certain) {
        let said = match self.said.iter().rposition(|said| said.to == to) {
            Some(place) => &mut self.said[place],
            None => {
                let held = self.outboxes.get(&to).is_some_and(|outbox| outbox.held_until > self.durable);
                self.said.push(Said::new(to, held));
                self.said.last_mut().expect("not empty: just pushed")
            }
        };
        said.add(reply, certain);
    }

    /// Lets out what is certain. All else said in this round waits for everything appended in it.
    fn hold(&mut self) {
        let until = self.memory.journal().position();
        for said in self.said.drain(..) {
            let Some(outbox) = self.outboxes.get_mut(&said.to) else { continue };
            if !said.now.is_empty() {
                outbox.send(said.now);
            }
            if said.holds_a_link {
                outbox.held_until = until;
            }
            if !said.later.is_empty() {
                self.held.push_back(Held { until, what: Waiting::Replies(said.to, said.later) });
            }
        }
        self.held.extend(self.calls.drain(..).map(|call| Held { until, what: Waiting::Call(call) }));
    }

    fn let_go(&mut self, durable: Lsn) {
        while self.held.front().is_some_and(|held| held.until <= durable) {
            let held = self.held.pop_front().expect("not empty: just looked at");
            match held.what {
                Waiting::Call(answer) => answer(),
                Waiting::Replies(to, replies) => {
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
        let position = self.memory.journal().position();
        if position != self.flushed {
            self.flushed = position;
            self.memory.flush();
        }
    }

    /// How long nothing needs to be done.
    fn patience(&self) -> Duration {
        let due = self.core.next_deadline().map(|due| self.clock.until(due));
        due.unwrap_or(Duration::from_secs(60)).min(self.memory.patience())
    }
}
