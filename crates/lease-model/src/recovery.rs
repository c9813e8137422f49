//! "Somebody leads eventually", as a question about one state.
//!
//! With faults that never stop nobody need ever lead, and a checker's `eventually` says nothing about runs that go round in circles.
//! So of every reachable state this is pending: if the faults stop here, everything in flight arrives, every pod gets its turn and
//! all clocks run as slowly as they may, is there a leader within [`recovery_ticks`] ticks, and does the same one still lead a ttl later?
//! The continuation is one fixed order of fair steps, made of the same actions the checker explores.

use lease::decide::LeaderAction;

use crate::action::ModelAction;
use crate::bounds::{Bounds, PODS};
use crate::compact::CandidateNumber;
use crate::pod::{ModelPod, RequestStage};
use crate::state::{ModelState, is_valid, lead};
use crate::step::step;
use crate::time::ClockRate;

/// How many ticks may pass without a leader once the faults have stopped: a standby counts one ttl from its first read, on the slowest
/// clock one tick longer. A pod that stood down lets as much pass, at the same time.
pub fn recovery_ticks(bounds: &Bounds) -> u8 {
    bounds.horizon().ttl + 1
}

/// Whether somebody will lead, and go on leading, if nothing more goes wrong.
pub fn recovers(state: &ModelState, bounds: &Bounds) -> bool {
    let Some((mut calm, leader)) = (FaultFreeRun { state: *state, bounds }).until_led(recovery_ticks(bounds)) else {
        return false;
    };
    (0..bounds.horizon().ttl + 1).all(|_| {
        calm.tick();
        calm.turn();
        calm.leader() == Some(leader)
    })
}

/// A world in which nothing goes wrong any more.
struct FaultFreeRun<'a> {
    state: ModelState,
    bounds: &'a Bounds,
}

impl<'a> FaultFreeRun<'a> {
    fn until_led(mut self, ticks: u8) -> Option<(FaultFreeRun<'a>, (CandidateNumber, u8))> {
        self.turn();
        for _ in 0..ticks {
            if self.leader().is_some() {
                break;
            }
            self.tick();
            self.turn();
        }
        let leader = self.leader()?;
        Some((self, leader))
    }

    fn leader(&self) -> Option<(CandidateNumber, u8)> {
        let works = |pod: &&ModelPod| self.bounds.positions == 0 || pod.work.claimed.is_some();
        let pod = self.state.pods.iter().filter(|pod| is_valid(pod, self.bounds)).find(works)?;
        pod.held.map(|held| (pod.candidate, held.term))
    }

    fn act(&mut self, action: ModelAction) {
        self.state = step(&self.state, action, self.bounds);
    }

    fn tick(&mut self) {
        self.act(ModelAction::Tick([ClockRate::Slow; PODS]));
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
        let pod = &self.state.pods[p];
        let raising = pod.held.is_some_and(|held| held.raising_above.is_some());
        match lead(pod, self.bounds) {
            None => {
                self.act(ModelAction::SendRead(p));
                self.act(ModelAction::ReceiveRead(p));
            }
            Some(LeaderAction::Expired) => {}
            Some(_) if raising => self.act(ModelAction::Raise(p)),
            Some(LeaderAction::Renew) => self.act(ModelAction::Renew(p)),
            Some(LeaderAction::Wait { .. }) => {}
        }
    }

    fn work(&mut self, p: usize) {
        let pod = &self.state.pods[p];
        if self.bounds.positions > 0 && is_valid(pod, self.bounds) && pod.work.claimed.is_none() {
            self.act(ModelAction::Claim(p));
        }
    }

    /// Whatever is in flight arrives, in a fixed order, and so do the answers.
    fn deliver(&mut self) {
        self.replicate();
        for index in 0..self.state.late.len() {
            self.act(ModelAction::LateStatementArrives(index));
            self.replicate();
        }
        for index in 0..self.state.late_checkpoint_requests.len() {
            self.act(ModelAction::LateCheckpointRequestArrives(index));
        }
        for p in 0..self.bounds.pods.len() {
            if self.state.pods[p].pending.is_some_and(|pending| pending.stage == RequestStage::Sent) {
                self.act(ModelAction::StatementArrives(p));
            }
            self.replicate();
            if self.state.pods[p].pending.is_some() {
                self.act(ModelAction::ReceiveReply(p));
            }
            if self.state.pods[p].pending_read.is_some() {
                self.act(ModelAction::ReceiveRead(p));
                self.replicate();
            }
            if self.state.pods[p].work.request.is_some_and(|request| request.reply.is_none()) {
                self.act(ModelAction::CheckpointRequestArrives(p));
            }
            if self.state.pods[p].work.request.is_some() {
                self.act(ModelAction::ReceiveCheckpointReply(p));
            }
        }
    }

    fn replicate(&mut self) {
        while self.state.store.unreplicated_writes() > 0 {
            self.act(ModelAction::Replicate);
        }
    }
}
