//! The enabled actions of a state.
//!
//! A pod that takes no step is paused: its clock runs, and nothing else happens. So a pod may delay any of its actions without limit.

use lease::decide::LeaderAction;

use crate::action::{AbandonedRequest, ModelAction};
use crate::bounds::{ClockModel, ModelBounds};
use crate::compact::CandidateNumber;
use crate::normalize::after_tick;
use crate::pod::{ModelPod, RequestStage};
use crate::protocol_defect::ProtocolDefect;
use crate::state::{ModelState, is_valid, leader_action};
use crate::time::ClockRate;

/// Appends the enabled actions, in a fixed order.
pub fn enabled(state: &ModelState, bounds: &ModelBounds, actions: &mut Vec<ModelAction>) {
    if bounds.clocks == ClockModel::Drifting {
        push_ticks(state, bounds, actions);
    }
    for (index, pod) in state.pods.iter().enumerate().take(bounds.pods.len()) {
        push_election_actions(state, index, pod, bounds, actions);
        if bounds.positions > 0 {
            push_checkpoint_actions(state, index, pod, bounds, actions);
        }
    }
    push_store_actions(state, bounds, actions);
    let late_checkpoint_requests =
        state.late_checkpoint_requests.iter().enumerate().filter(|(_, request)| request.is_some());
    actions.extend(late_checkpoint_requests.map(|(index, _)| ModelAction::LateCheckpointRequestArrives(index)));
}

/// Every pod's clock may be slow or fast, if that makes a difference.
fn push_ticks(state: &ModelState, bounds: &ModelBounds, actions: &mut Vec<ModelAction>) {
    let rates = state.pods.each_ref().map(|pod| {
        let differs = after_tick(pod, ClockRate::Slow, bounds) != after_tick(pod, ClockRate::Fast, bounds);
        let suspended = bounds.has(ProtocolDefect::ClockStopsInSuspend) && pod.held.is_some();
        let possible = [(ClockRate::Fast, true), (ClockRate::Slow, differs), (ClockRate::Stopped, suspended)];
        possible.into_iter().filter_map(|(rate, possible)| possible.then_some(rate)).collect::<Vec<_>>()
    });
    let [first, second, third] = &rates;
    for a in first {
        for b in second {
            actions.extend(third.iter().map(|c| ModelAction::Tick([*a, *b, *c])));
        }
    }
}

fn push_election_actions(
    state: &ModelState,
    index: usize,
    pod: &ModelPod,
    bounds: &ModelBounds,
    actions: &mut Vec<ModelAction>,
) {
    if is_within(bounds.crashes, state.faults.crashes) && *pod != ModelPod::new(pod.candidate, pod.timing) {
        actions.push(ModelAction::Crash(index));
    }
    if let Some(pending) = pod.pending {
        match pending.stage {
            RequestStage::Sent if has_write_capacity(state, index, bounds) => {
                actions.push(ModelAction::StatementArrives(index))
            }
            RequestStage::Acknowledged | RequestStage::Refused => actions.push(ModelAction::ReceiveReply(index)),
            RequestStage::Sent | RequestStage::Written => {}
        }
        push_abandon_actions(state, index, pending.stage, bounds, actions);
        return;
    }
    match leader_action(pod, bounds) {
        None if pod.pending_read.is_some() => actions.push(ModelAction::ReceiveRead(index)),
        None => actions.push(ModelAction::SendRead(index)),
        Some(_) => push_leader_actions(state, index, pod, bounds, actions),
    }
}

fn push_leader_actions(
    state: &ModelState,
    index: usize,
    pod: &ModelPod,
    bounds: &ModelBounds,
    actions: &mut Vec<ModelAction>,
) {
    let held = pod.held.expect("a leader holds a lease");
    let decided = leader_action(pod, bounds);
    match (held.raising_above, decided) {
        (_, None | Some(LeaderAction::Expired)) => {}
        (Some(floor), _) if is_term_allowed(held.term.max(floor) + 1, bounds) => {
            actions.push(ModelAction::Raise(index))
        }
        (Some(_), _) => {}
        (None, Some(LeaderAction::Renew | LeaderAction::Wait { .. })) => {
            if decided == Some(LeaderAction::Renew) {
                actions.push(ModelAction::Renew(index));
            }
            // The lease is released only after the work has ended.
            if pod.work.request.is_none() && is_within(bounds.step_downs, state.faults.step_downs) {
                actions.push(ModelAction::StepDown(index));
            }
        }
    }
}

fn push_abandon_actions(
    state: &ModelState,
    index: usize,
    stage: RequestStage,
    bounds: &ModelBounds,
    actions: &mut Vec<ModelAction>,
) {
    let has_capacity = state.late.iter().flatten().count() < bounds.late;
    if stage == RequestStage::Sent && has_capacity {
        actions.push(ModelAction::AbandonStatement(index, AbandonedRequest::InFlight));
    }
    actions.push(ModelAction::AbandonStatement(index, AbandonedRequest::Lost));
}

/// Whether the primary may have one more unreplicated write; a refused statement needs none.
fn has_write_capacity(state: &ModelState, index: usize, bounds: &ModelBounds) -> bool {
    let mut store = state.store;
    let pending = state.pods[index].pending.expect("a statement is pending");
    store.unreplicated_writes() < bounds.unreplicated
        || store.receive(&pending.statement, CandidateNumber::NOBODY, store.offset, bounds.defect)
            == RequestStage::Refused
}

fn push_checkpoint_actions(
    state: &ModelState,
    index: usize,
    pod: &ModelPod,
    bounds: &ModelBounds,
    actions: &mut Vec<ModelAction>,
) {
    if let Some(request) = pod.work.request {
        let has_capacity = state.late_checkpoint_requests.iter().flatten().count() < bounds.late_checkpoint_requests;
        if request.reply.is_none() {
            actions.push(ModelAction::CheckpointRequestArrives(index));
            if has_capacity {
                actions.push(ModelAction::AbandonCheckpointRequest(index, AbandonedRequest::InFlight));
            }
        } else {
            actions.push(ModelAction::ReceiveCheckpointReply(index));
        }
        actions.push(ModelAction::AbandonCheckpointRequest(index, AbandonedRequest::Lost));
        return;
    }
    if !is_valid(pod, bounds) {
        return;
    }
    match pod.work.claimed {
        None => actions.push(ModelAction::Claim(index)),
        Some(position) if position < bounds.positions => actions.push(ModelAction::Save(index)),
        Some(_) => {}
    }
}

fn push_store_actions(state: &ModelState, bounds: &ModelBounds, actions: &mut Vec<ModelAction>) {
    let unreplicated = state.store.unreplicated_writes();
    if unreplicated > 0 {
        actions.push(ModelAction::Replicate);
    }
    if unreplicated < bounds.unreplicated {
        let late = state.late.iter().enumerate().filter(|(_, statement)| statement.is_some());
        actions.extend(late.map(|(index, _)| ModelAction::LateStatementArrives(index)));
    }
    if is_within(bounds.failovers, state.faults.failovers) {
        for &offset in &bounds.offsets {
            // A failover that keeps every write and the clock changes nothing.
            let changes = |kept: &usize| *kept < unreplicated || offset != state.store.offset;
            actions.extend((0..=unreplicated).filter(changes).map(|kept| ModelAction::FailOver { kept, offset }));
        }
    }
    if state.faults.deletions < bounds.deletions && unreplicated == 0 && state.store.majority.is_some() {
        actions.push(ModelAction::Delete);
    }
}

fn is_within(bound: Option<u8>, used: u8) -> bool {
    bound.is_none_or(|bound| used < bound)
}

/// Whether this term is within the bounds.
pub fn is_term_allowed(term: u8, bounds: &ModelBounds) -> bool {
    bounds.terms.is_none_or(|highest| term <= highest)
}
