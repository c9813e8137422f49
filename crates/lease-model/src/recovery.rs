//! Liveness ("a pod leads eventually"), as a property of one state.
//!
//! If faults never stop, no pod need ever lead, and a checker's `eventually` says nothing about cyclic histories. So the check asks in
//! every reachable state: if faults stop now, everything in flight arrives, every pod takes its turn and all clocks run as slowly as
//! allowed, is there a leader within [`recovery_ticks`] ticks, and does the same pod still lead a ttl later?
//! The continuation is one fixed order of fair steps, made of the same actions that the checker explores.

use lease::decide::LeaderAction;

use crate::action::ModelAction;
use crate::bounds::{ModelBounds, PODS};
use crate::compact::CandidateNumber;
use crate::pod::{ModelPod, RequestStage};
use crate::state::{ModelState, is_valid, leader_action};
use crate::step::step;
use crate::time::ClockRate;

/// How many ticks may pass without a leader after faults stop: a standby waits one ttl from its first read, on the slowest clock one
/// tick longer. A pod that stepped down pauses for the same time, in parallel.
pub fn recovery_ticks(bounds: &ModelBounds) -> u8 {
    bounds.horizon().ttl + 1
}

/// Whether a pod will lead, and keep leading, if no more faults happen.
pub fn recovers(state: &ModelState, bounds: &ModelBounds) -> bool {
    let Some((mut run, leader)) = (FaultFreeRun { state: *state, bounds }).until_led(recovery_ticks(bounds)) else {
        return false;
    };
    (0..bounds.horizon().ttl + 1).all(|_| {
        run.tick();
        run.run_round();
        run.leader() == Some(leader)
    })
}

/// A continuation without faults.
struct FaultFreeRun<'a> {
    state: ModelState,
    bounds: &'a ModelBounds,
}

impl<'a> FaultFreeRun<'a> {
    fn until_led(mut self, ticks: u8) -> Option<(FaultFreeRun<'a>, (CandidateNumber, u8))> {
        self.run_round();
        for _ in 0..ticks {
            if self.leader().is_some() {
                break;
            }
            self.tick();
            self.run_round();
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

    /// Delivers everything and lets every pod act. Three rounds are enough for a refused claim and a raised term.
    fn run_round(&mut self) {
        self.deliver();
        // Refused claim, raised term, new claim.
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
        match leader_action(pod, self.bounds) {
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

    /// Delivers everything in flight, and the replies, in a fixed order.
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
