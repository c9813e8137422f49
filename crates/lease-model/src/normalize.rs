//! Ages a pod by one tick, and removes data that no longer affects its behaviour.

use lease::decide::LeaderAction;

use crate::bounds::{ClockModel, ModelBounds};
use crate::compact::{CandidateNumber, CompactStatement};
use crate::pod::{ModelPod, RequestStage};
use crate::protocol_defect::ProtocolDefect;
use crate::state::leader_action;
use crate::time::{ClockRate, LeaseAge, WaitAge};

/// The pod after one tick.
pub fn after_tick(pod: &ModelPod, rate: ClockRate, bounds: &ModelBounds) -> ModelPod {
    let horizon = bounds.horizon();
    let add_wait = |age: &mut WaitAge| *age = horizon.after_wait_tick(*age, rate);
    let add_lease_age = |age: &mut LeaseAge| *age = horizon.after_lease_tick(*age, rate);
    let mut pod = *pod;
    pod.step_down_pause.iter_mut().for_each(|step_down_pause| add_wait(&mut step_down_pause.age));
    pod.observation.iter_mut().for_each(|observation| add_wait(&mut observation.since));
    pod.pending_read.iter_mut().for_each(|read| add_wait(&mut read.age));
    pod.held.iter_mut().for_each(|held| add_lease_age(&mut held.sent));
    pod.pending.iter_mut().for_each(|pending| add_lease_age(&mut pending.sent));
    normalized(&pod, bounds)
}

/// The pod without data that no step reads.
pub fn normalized(pod: &ModelPod, bounds: &ModelBounds) -> ModelPod {
    let mut pod = *pod;
    if bounds.clocks == ClockModel::Unreliable {
        apply_unreliable_clock(&mut pod, bounds);
    }
    normalize_statement(&mut pod);
    // An expired leader without a pending statement can only stop.
    if pod.pending.is_none() && leader_action(&pod, bounds) == Some(LeaderAction::Expired) {
        pod.held = None;
    }
    normalize_work(&mut pod);
    normalize_memory(&mut pod, bounds);
    pod
}

/// Makes every wait over, and every statement just sent.
fn apply_unreliable_clock(pod: &mut ModelPod, bounds: &ModelBounds) {
    pod.observation.iter_mut().for_each(|observation| observation.since = bounds.horizon().over());
    pod.held.iter_mut().for_each(|held| held.sent = LeaseAge::ZERO);
    pod.step_down_pause = None;
}

/// Keeps only the arrival of a reply without content.
fn normalize_statement(pod: &mut ModelPod) {
    let Some(pending) = &mut pod.pending else { return };
    let release = matches!(pending.statement.statement, CompactStatement::Release { .. });
    if pending.stage == RequestStage::Refused || (pending.stage == RequestStage::Acknowledged && release) {
        pending.statement.statement = CompactStatement::AlwaysRefused;
    }
    if release || pending.statement.statement == CompactStatement::AlwaysRefused {
        pending.sent = LeaseAge::ZERO;
    }
}

/// Drops a reply that belongs to a term that is over.
fn normalize_work(pod: &mut ModelPod) {
    if pod.held.is_none() {
        pod.work.claimed = None;
    }
    let current = pod.held.map(|held| held.term);
    pod.work.request = pod.work.request.filter(|request| request.reply.is_none() || Some(request.term) == current);
}

fn normalize_memory(pod: &mut ModelPod, bounds: &ModelBounds) {
    if !bounds.has(ProtocolDefect::WaitFromRequest) {
        pod.pending_read.iter_mut().for_each(|read| read.age = WaitAge::ZERO);
    }
    if let Some(observation) = &mut pod.observation {
        let holder = observation.record.map(|record| record.version.holder);
        // Taken at once, whatever the wait.
        if observation.is_empty() || holder == Some(CandidateNumber::NOBODY) || holder == Some(pod.candidate) {
            observation.since = WaitAge::ZERO;
        }
        // Only the rule that trusts wall clocks uses whether the lease was ever seen to change.
        observation.has_changed |= observation.record.is_some() && bounds.max_clock_skew.is_none();
        // A holder's ttl that is not longer than the pod's own changes no wait.
        observation.holder_timing =
            observation.holder_timing.filter(|holder_timing| holder_timing.ttl() > pod.timing.ttl());
        let highest_term = observation.highest_term;
        pod.step_down_pause = pod.step_down_pause.filter(|step_down_pause| highest_term <= step_down_pause.term);
    }
    pod.step_down_pause = pod.step_down_pause.filter(|step_down_pause| !bounds.horizon().is_over(step_down_pause.age));
}
