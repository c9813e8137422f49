//! What each action does. Every decision of a pod is asked from production: [`decide::decide_standby`], [`decide::decide_leader`], and the
//! statements of [`CandidateState`]; every judgement of the store is [`LeaseStatement::apply`](lease::record::LeaseStatement::apply).

use lease::Term;
use lease::decide::{self, CandidateState, StandbyAction, TakeoverReason};
use lease::record::{LeaseStatement, LeaseVersion};

use crate::action::{Action, Fate};
use crate::bounds::{Bounds, Clocks};
use crate::checkpoint::{Errand, Reply, Task};
use crate::defect::Defect;
use crate::enabled::is_a_term;
use crate::pod::{Asked, Hold, Look, Pod, Sight, Stage, StoodDown};
use crate::settle::{aged, settled};
use crate::stored::{Ask, Edition, Glance, Nonce, What, small_term};
use crate::tick::{Held, Waited, now};
use crate::world::{LATE, World, is_valid};

/// The state after `action`, not yet in its canonical form.
pub fn step(world: &World, action: Action, bounds: &Bounds) -> World {
    let mut next = *world;
    next.take(action, bounds);
    for pod in &mut next.pods {
        *pod = settled(pod, bounds);
    }
    next.store.settle(bounds);
    next
}

impl World {
    fn take(&mut self, action: Action, bounds: &Bounds) {
        match action {
            Action::Tick(paces) => {
                for (pod, pace) in self.pods.iter_mut().zip(paces) {
                    *pod = aged(pod, pace, bounds);
                }
                self.store.grow_older();
            }
            Action::Look(p) => {
                let found = self.store.majority.map(|lease| lease.glance);
                self.pods[p].look = Some(Look { found, age: Waited::ZERO });
            }
            Action::See(p) => self.see(p, bounds),
            Action::Renew(p) => self.send(p, |pod, me| me.renew_statement(Term::new(pod.term().into()))),
            Action::Raise(p) => self.send(p, |pod, me| me.raise_statement(Term::new(pod.term().into()), pod.floor())),
            Action::StepDown(p) => self.step_down(p, bounds),
            Action::Crash(p) => self.crash(p, bounds),
            Action::Arrive(p) => self.arrive(p, bounds),
            Action::ArriveLate(index) => {
                if let Some(ask) = self.late[index].take() {
                    self.receive(&ask, Nonce::NOBODY, bounds);
                }
            }
            Action::Replicate => self.replicate(),
            Action::Answer(p) => self.answer(p, bounds),
            Action::GiveUp(p, fate) => self.give_up(p, fate),
            Action::FailOver { kept, offset } => self.fail_over(kept, offset, bounds),
            Action::Delete => self.delete(),
            Action::Claim(p) => self.run_errand(p, Task::Claim),
            Action::Save(p) => self.save(p),
            Action::ErrandArrives(p) => self.errand_arrives(p, bounds),
            Action::ErrandAnswered(p) => self.errand_answered(p),
            Action::GiveUpErrand(p, fate) => {
                let errand = self.pods[p].work.errand.take();
                if fate == Fate::Late {
                    put(&mut self.late_errands, errand);
                }
            }
            Action::LateErrandArrives(index) => {
                if let Some(errand) = self.late_errands[index].take() {
                    self.judge(&errand, bounds);
                }
            }
        }
    }

    /// The read arrives: production observes, decides, and what it decided is sent.
    fn see(&mut self, p: usize, bounds: &Bounds) {
        let Some(look) = self.pods[p].look.take() else { return };
        let (found, at) = match bounds.defect {
            Some(Defect::SeenFromAsking) => (self.store.majority.map(|lease| lease.glance), look.age),
            _ => (look.found, Waited::ZERO),
        };
        let pod = &mut self.pods[p];
        let sight = Sight::after(pod.sight, found, at);
        pod.sight = Some(sight);
        let election = bounds.election(pod.span);
        let me = pod.me(&election.timing);
        let lying = bounds.clocks == Clocks::Lying;
        let mut sighting = if lying { Sight { since: bounds.horizon().over(), ..sight } } else { sight }.sighting();
        if bounds.has(Defect::OwnTtlOnly) {
            let own = |glance: Glance| Glance { span: pod.span, ..glance };
            sighting = Sight { seen: sight.seen.map(own), ..sight }.sighting();
        }
        let mut decided = decide::decide_standby(&me, &sighting, &election, now());
        if bounds.has(Defect::ClientClock) {
            decided = as_the_seeds_do(decided, &me, found);
        }
        let StandbyAction::Try { statement, why } = decided else { return };
        if why == TakeoverReason::HolderSilent && bounds.has(Defect::WaitsForRelease) {
            return;
        }
        // Nobody leads again before the work of a lost term has ended.
        if pod.work.errand.is_some() {
            return;
        }
        if statement.granted_term().is_some_and(|term| !is_a_term(small_term(term), bounds)) {
            return;
        }
        self.ghost.written_afresh |= why == TakeoverReason::NoLease && self.spent.deletions > 0;
        self.send(p, |_, _| statement);
    }

    fn send(&mut self, p: usize, statement: impl Fn(&Pod, &CandidateState) -> LeaseStatement) {
        let pod = &mut self.pods[p];
        let timing = pod.span.timing();
        let statement = statement(pod, &pod.me(&timing));
        pod.send(&statement, &timing);
    }

    fn step_down(&mut self, p: usize, bounds: &Bounds) {
        self.spent.step_downs += u8::from(bounds.step_downs.is_some());
        let pod = &mut self.pods[p];
        let term = pod.term();
        pod.stood_down = Some(StoodDown { term, age: Waited::ZERO });
        if !bounds.has(Defect::ReleasedWhileOpen) {
            pod.hold = None;
        }
        self.send(p, |_, me| me.release_statement(Term::new(term.into())));
    }

    fn crash(&mut self, p: usize, bounds: &Bounds) {
        self.spent.crashes += u8::from(bounds.crashes.is_some());
        self.nobody_waits(self.pods[p].nonce);
        let span = self.pods[p].span;
        // Nobody remembers a contender that nobody mentions; its number may be used again.
        self.pods[p] = Pod::new(Nonce::NOBODY, span);
        self.pods[p].nonce = self.unused_nonce();
    }

    fn arrive(&mut self, p: usize, bounds: &Bounds) {
        let Pod { nonce, asked, .. } = self.pods[p];
        let Some(asked) = asked else { return };
        let mut stage = self.receive(&asked.ask, nonce, bounds);
        if bounds.has(Defect::PrimaryAckTrusted) && stage == Stage::Written {
            self.nobody_waits(nonce);
            stage = Stage::Acknowledged;
        }
        self.pods[p].asked = Some(Asked { stage, ..asked });
    }

    fn receive(&mut self, ask: &Ask, awaited_by: Nonce, bounds: &Bounds) -> Stage {
        // With the seeds' statement it is the sender's wall clock that counts; the third pod's is far ahead.
        let clock = match bounds.defect {
            Some(Defect::ClientClock) if ask.by == Nonce(3) => 9,
            _ => self.store.offset,
        };
        self.store.receive(ask, awaited_by, clock, bounds.defect)
    }

    fn replicate(&mut self) {
        let before = self.store.majority.map_or(0, |lease| lease.glance.edition.term);
        let Some(waiting) = self.store.replicate() else { return };
        let after = self.store.majority.map_or(0, |lease| lease.glance.edition.term);
        self.ghost.term_reused |= after < before;
        self.at_stage(waiting, Stage::Acknowledged);
    }

    fn answer(&mut self, p: usize, bounds: &Bounds) {
        let Some(asked) = self.pods[p].asked.take() else { return };
        let pod = &mut self.pods[p];
        if asked.stage == Stage::Refused {
            pod.hold = None;
            return;
        }
        let (term, beat) = match asked.ask.what {
            What::Create { term, beat }
            | What::Take { term, beat, .. }
            | What::TakeIfExpired { term, beat, .. }
            | What::Renew { term, beat } => (term, beat),
            What::Raise { to, beat, .. } => (to, beat),
            What::Release { .. } | What::Doomed => {
                pod.hold = None;
                return;
            }
        };
        let edition = Edition { holder: pod.nonce, term, beat };
        pod.sight = Some(Sight::after(pod.sight, Some(Glance { edition, span: pod.span }), Waited::ZERO));
        let sent = if bounds.has(Defect::ValidFromAnswer) { Held::ZERO } else { asked.sent };
        match &mut pod.hold {
            Some(hold) if hold.term == term => {
                // An answer that comes after the deadline changes nothing.
                let renewed = Hold { sent, ..*hold };
                if is_valid(pod, bounds) {
                    pod.hold = Some(renewed);
                }
            }
            _ => self.begin(p, Hold { term, sent, raising_above: None, bereft: asked.bereft }, bounds),
        }
    }

    /// A leadership begins, unless its deadline has passed already.
    fn begin(&mut self, p: usize, hold: Hold, bounds: &Bounds) {
        let pod = &mut self.pods[p];
        pod.hold = Some(hold);
        if !is_valid(pod, bounds) {
            pod.hold = None;
        } else if !hold.bereft && bounds.clocks == Clocks::Drifting {
            self.ghost.term_reused |= hold.term <= self.ghost.granted;
            self.ghost.granted = hold.term;
        }
    }

    fn give_up(&mut self, p: usize, fate: Fate) {
        let Some(asked) = self.pods[p].asked.take() else { return };
        self.nobody_waits(self.pods[p].nonce);
        if fate == Fate::Late {
            put(&mut self.late, Some(asked.ask));
        }
    }

    fn fail_over(&mut self, kept: usize, offset: i8, bounds: &Bounds) {
        self.spent.failovers += u8::from(bounds.failovers.is_some());
        let lost: Vec<Nonce> = self.store.fail_over(kept, offset).collect();
        for waiting in lost {
            self.at_stage(waiting, Stage::Sent);
        }
    }

    fn delete(&mut self) {
        self.spent.deletions += 1;
        self.store.majority = None;
        self.ghost.granted = 0;
        for pod in &mut self.pods {
            if let Some(hold) = &mut pod.hold {
                hold.bereft = true;
            }
            if let Some(asked) = &mut pod.asked {
                asked.bereft |= asked.stage == Stage::Acknowledged;
            }
        }
        let asked = self.pods.iter().filter_map(|pod| pod.asked.map(|asked| asked.ask));
        let mut under_way = asked.chain(self.late.into_iter().flatten());
        self.ghost.written_afresh |= under_way.any(|ask| matches!(ask.what, What::Create { .. }));
    }

    /// A statement under way has come this far, if somebody waits for it.
    fn at_stage(&mut self, waiting: Nonce, stage: Stage) {
        let pod = self.pods.iter_mut().find(|pod| waiting != Nonce::NOBODY && pod.nonce == waiting);
        if let Some(asked) = pod.and_then(|pod| pod.asked.as_mut()) {
            asked.stage = stage;
        }
    }

    fn nobody_waits(&mut self, nonce: Nonce) {
        for write in self.store.alone.iter_mut().flatten().filter(|write| write.awaited_by == nonce) {
            write.awaited_by = Nonce::NOBODY;
        }
    }

    fn run_errand(&mut self, p: usize, task: Task) {
        let pod = &mut self.pods[p];
        pod.work.errand = Some(Errand { by: pod.nonce, term: pod.term(), task, reply: None });
    }

    fn save(&mut self, p: usize) {
        let position = self.pods[p].work.claimed.unwrap_or(0) + 1;
        self.pods[p].work.claimed = Some(position);
        self.run_errand(p, Task::Save { position });
    }

    fn errand_arrives(&mut self, p: usize, bounds: &Bounds) {
        let Some(errand) = self.pods[p].work.errand else { return };
        let reply = self.judge(&errand, bounds);
        self.pods[p].work.errand = Some(Errand { reply: Some(reply), ..errand });
    }

    fn judge(&mut self, errand: &Errand, bounds: &Bounds) -> Reply {
        let (reply, breaches) = self.checkpoint.receive(errand, bounds.defect);
        breaches.into_iter().for_each(|breach| self.ghost.record(breach));
        reply
    }

    /// The producer learns what became of its claim or save, in a term that still goes on.
    fn errand_answered(&mut self, p: usize) {
        let pod = &mut self.pods[p];
        let Some(Errand { task, reply, .. }) = pod.work.errand.take() else { return };
        let Some(hold) = &mut pod.hold else { return };
        match (reply, task) {
            (Some(Reply::Claimed { position }), _) => pod.work.claimed = Some(position),
            (Some(Reply::Refused { seen }), Task::Claim) => hold.raising_above = Some(seen),
            (Some(Reply::Refused { .. }), Task::Save { .. }) => pod.hold = None,
            (Some(Reply::Saved) | None, _) => {}
        }
    }
}

impl Pod {
    fn term(&self) -> u8 {
        self.hold.expect("only a leader is asked for its term").term
    }

    fn floor(&self) -> Term {
        let floor = self.hold.and_then(|hold| hold.raising_above);
        Term::new(floor.expect("only a term that is behind is raised").into())
    }
}

fn put<T>(places: &mut [Option<T>; LATE], value: Option<T>) {
    if let Some(free) = places.iter_mut().find(|place| place.is_none()) {
        *free = value;
    }
}

/// The seeds look at nothing but `expiresAt`: they always try.
fn as_the_seeds_do(decided: StandbyAction, me: &CandidateState, found: Option<Glance>) -> StandbyAction {
    let Some(glance) = found else { return decided };
    let LeaseVersion { term, heartbeat, .. } = glance.edition.version();
    let seen = glance.edition.version();
    let statement = LeaseStatement::Take { seen, by: me.contender(), term: term.next(), heartbeat: heartbeat + 1 };
    StandbyAction::Try { statement, why: TakeoverReason::ServerClockExpired }
}
