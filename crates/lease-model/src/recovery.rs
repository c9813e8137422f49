//! "Somebody leads eventually", as a question about one state.
//!
//! With faults that never stop nobody need ever lead, and a checker's `eventually` says nothing about runs that go round in circles.
//! So of every reachable state this is asked: if the faults stop here, everything in flight arrives, every pod gets its turn and
//! all clocks run as slowly as they may, is there a leader within [`patience`] ticks, and does the same one still lead a ttl later?
//! The continuation is one fixed order of fair steps, made of the same actions the checker explores.

use lease::decide::LeaderAction;

use crate::action::Action;
use crate::bounds::{Bounds, PODS};
use crate::pod::{Pod, Stage};
use crate::step::step;
use crate::stored::Nonce;
use crate::tick::Pace;
use crate::world::{World, is_valid, lead};

/// How many ticks may pass without a leader once the faults have stopped: a standby counts one ttl from its first look, on the slowest
/// clock one tick longer. A pod that stood down lets as much pass, at the same time.
pub fn patience(bounds: &Bounds) -> u8 {
    bounds.horizon().ttl + 1
}

/// Whether somebody will lead, and go on leading, if nothing more goes wrong.
pub fn recovers(world: &World, bounds: &Bounds) -> bool {
    let Some((mut calm, leader)) = (Calm { world: *world, bounds }).until_led(patience(bounds)) else { return false };
    (0..bounds.horizon().ttl + 1).all(|_| {
        calm.tick();
        calm.turn();
        calm.leader() == Some(leader)
    })
}

/// A world in which nothing goes wrong any more.
struct Calm<'a> {
    world: World,
    bounds: &'a Bounds,
}

impl<'a> Calm<'a> {
    fn until_led(mut self, patience: u8) -> Option<(Calm<'a>, (Nonce, u8))> {
        self.turn();
        for _ in 0..patience {
            if self.leader().is_some() {
                break;
            }
            self.tick();
            self.turn();
        }
        let leader = self.leader()?;
        Some((self, leader))
    }

    fn leader(&self) -> Option<(Nonce, u8)> {
        let works = |pod: &&Pod| self.bounds.positions == 0 || pod.work.claimed.is_some();
        let pod = self.world.pods.iter().filter(|pod| is_valid(pod, self.bounds)).find(works)?;
        pod.hold.map(|hold| (pod.nonce, hold.term))
    }

    fn act(&mut self, action: Action) {
        self.world = step(&self.world, action, self.bounds);
    }

    fn tick(&mut self) {
        self.act(Action::Tick([Pace::Slow; PODS]));
    }

    /// Everything arrives, and every pod does what it would do. Three times, which is enough for a claim that was refused and a term that had
    /// to be raised before it.
    fn turn(&mut self) {
        self.deliver();
        for _ in 0..3 {
            for p in 0..self.bounds.pods.len() {
                self.elect(p);
                self.deliver();
                self.work(p);
                self.deliver();
            }
        }
    }

    fn elect(&mut self, p: usize) {
        let pod = &self.world.pods[p];
        let raising = pod.hold.is_some_and(|hold| hold.raising_above.is_some());
        match lead(pod, self.bounds) {
            None => {
                self.act(Action::Look(p));
                self.act(Action::See(p));
            }
            Some(LeaderAction::Expired) => {}
            Some(_) if raising => self.act(Action::Raise(p)),
            Some(LeaderAction::Renew) => self.act(Action::Renew(p)),
            Some(LeaderAction::Wait { .. }) => {}
        }
    }

    fn work(&mut self, p: usize) {
        let pod = &self.world.pods[p];
        if self.bounds.positions > 0 && is_valid(pod, self.bounds) && pod.work.claimed.is_none() {
            self.act(Action::Claim(p));
        }
    }

    /// Whatever is in flight arrives, in a fixed order, and so do the answers.
    fn deliver(&mut self) {
        self.replicate();
        for index in 0..self.world.late.len() {
            self.act(Action::ArriveLate(index));
            self.replicate();
        }
        for index in 0..self.world.late_errands.len() {
            self.act(Action::LateErrandArrives(index));
        }
        for p in 0..self.bounds.pods.len() {
            if self.world.pods[p].asked.is_some_and(|asked| asked.stage == Stage::Sent) {
                self.act(Action::Arrive(p));
            }
            self.replicate();
            if self.world.pods[p].asked.is_some() {
                self.act(Action::Answer(p));
            }
            if self.world.pods[p].look.is_some() {
                self.act(Action::See(p));
                self.replicate();
            }
            if self.world.pods[p].work.errand.is_some_and(|errand| errand.reply.is_none()) {
                self.act(Action::ErrandArrives(p));
            }
            if self.world.pods[p].work.errand.is_some() {
                self.act(Action::ErrandAnswered(p));
            }
        }
    }

    fn replicate(&mut self) {
        while self.world.store.writes_alone() > 0 {
            self.act(Action::Replicate);
        }
    }
}
