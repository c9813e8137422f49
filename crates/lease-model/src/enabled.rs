//! Which actions are possible in a state.
//!
//! A pod that is not scheduled is paused: its clock runs, and nothing else happens to it. So whatever a pod may do, it may
//! also put off for ever.

use lease::decide::LeaderAction;

use crate::action::{Action, Fate};
use crate::bounds::{Bounds, Clocks};
use crate::defect::Defect;
use crate::pod::{Pod, Stage};
use crate::settle::aged;
use crate::stored::Nonce;
use crate::tick::Pace;
use crate::world::{World, is_valid, lead};

/// Appends what can happen next, in a fixed order.
pub fn enabled(world: &World, bounds: &Bounds, actions: &mut Vec<Action>) {
    if bounds.clocks == Clocks::Drifting {
        ticks(world, bounds, actions);
    }
    for (index, pod) in world.pods.iter().enumerate().take(bounds.pods.len()) {
        election(world, index, pod, bounds, actions);
        if bounds.positions > 0 {
            work(world, index, pod, bounds, actions);
        }
    }
    store(world, bounds, actions);
    let late_errands = world.late_errands.iter().enumerate().filter(|(_, errand)| errand.is_some());
    actions.extend(late_errands.map(|(index, _)| Action::LateErrandArrives(index)));
}

/// Every pod's clock may be slow or fast, where that makes a difference.
fn ticks(world: &World, bounds: &Bounds, actions: &mut Vec<Action>) {
    let paces = world.pods.each_ref().map(|pod| {
        let differs = aged(pod, Pace::Slow, bounds) != aged(pod, Pace::Fast, bounds);
        let suspended = bounds.has(Defect::ClockStopsInSuspend) && pod.hold.is_some();
        let possible = [(Pace::Fast, true), (Pace::Slow, differs), (Pace::Stopped, suspended)];
        possible.into_iter().filter_map(|(pace, possible)| possible.then_some(pace)).collect::<Vec<_>>()
    });
    let [first, second, third] = &paces;
    for a in first {
        for b in second {
            actions.extend(third.iter().map(|c| Action::Tick([*a, *b, *c])));
        }
    }
}

fn election(world: &World, index: usize, pod: &Pod, bounds: &Bounds, actions: &mut Vec<Action>) {
    if is_within(bounds.crashes, world.spent.crashes) && *pod != Pod::new(pod.nonce, pod.span) {
        actions.push(Action::Crash(index));
    }
    if let Some(asked) = pod.asked {
        match asked.stage {
            Stage::Sent if has_room(world, index, bounds) => actions.push(Action::Arrive(index)),
            Stage::Acknowledged | Stage::Refused => actions.push(Action::Answer(index)),
            Stage::Sent | Stage::Written => {}
        }
        give_up(world, index, asked.stage, bounds, actions);
        return;
    }
    match lead(pod, bounds) {
        None if pod.look.is_some() => actions.push(Action::See(index)),
        None => actions.push(Action::Look(index)),
        Some(_) => leader(world, index, pod, bounds, actions),
    }
}

fn leader(world: &World, index: usize, pod: &Pod, bounds: &Bounds, actions: &mut Vec<Action>) {
    let hold = pod.hold.expect("a leader holds");
    let decided = lead(pod, bounds);
    match (hold.raising_above, decided) {
        (_, None | Some(LeaderAction::Expired)) => {}
        (Some(floor), _) if is_a_term(hold.term.max(floor) + 1, bounds) => actions.push(Action::Raise(index)),
        (Some(_), _) => {}
        (None, Some(LeaderAction::Renew | LeaderAction::Wait { .. })) => {
            if decided == Some(LeaderAction::Renew) {
                actions.push(Action::Renew(index));
            }
            // The lease goes back only after the work has ended.
            if pod.work.errand.is_none() && is_within(bounds.step_downs, world.spent.step_downs) {
                actions.push(Action::StepDown(index));
            }
        }
    }
}

fn give_up(world: &World, index: usize, stage: Stage, bounds: &Bounds, actions: &mut Vec<Action>) {
    let room = world.late.iter().flatten().count() < bounds.late;
    if stage == Stage::Sent && room {
        actions.push(Action::GiveUp(index, Fate::Late));
    }
    actions.push(Action::GiveUp(index, Fate::Lost));
}

/// Whether the primary may have one more write alone; a statement it refuses needs no room.
fn has_room(world: &World, index: usize, bounds: &Bounds) -> bool {
    let mut store = world.store;
    let asked = world.pods[index].asked.expect("asked");
    store.writes_alone() < bounds.alone
        || store.receive(&asked.ask, Nonce::NOBODY, store.offset, bounds.defect) == Stage::Refused
}

fn work(world: &World, index: usize, pod: &Pod, bounds: &Bounds, actions: &mut Vec<Action>) {
    if let Some(errand) = pod.work.errand {
        let room = world.late_errands.iter().flatten().count() < bounds.late_errands;
        if errand.reply.is_none() {
            actions.push(Action::ErrandArrives(index));
            if room {
                actions.push(Action::GiveUpErrand(index, Fate::Late));
            }
        } else {
            actions.push(Action::ErrandAnswered(index));
        }
        actions.push(Action::GiveUpErrand(index, Fate::Lost));
        return;
    }
    if !is_valid(pod, bounds) {
        return;
    }
    match pod.work.claimed {
        None => actions.push(Action::Claim(index)),
        Some(position) if position < bounds.positions => actions.push(Action::Save(index)),
        Some(_) => {}
    }
}

fn store(world: &World, bounds: &Bounds, actions: &mut Vec<Action>) {
    let alone = world.store.writes_alone();
    if alone > 0 {
        actions.push(Action::Replicate);
    }
    if alone < bounds.alone {
        let late = world.late.iter().enumerate().filter(|(_, ask)| ask.is_some());
        actions.extend(late.map(|(index, _)| Action::ArriveLate(index)));
    }
    if is_within(bounds.failovers, world.spent.failovers) {
        for &offset in &bounds.offsets {
            let changes = |kept: &usize| *kept < alone || offset != world.store.offset;
            actions.extend((0..=alone).filter(changes).map(|kept| Action::FailOver { kept, offset }));
        }
    }
    if world.spent.deletions < bounds.deletions && alone == 0 && world.store.majority.is_some() {
        actions.push(Action::Delete);
    }
}

fn is_within(bound: Option<u8>, spent: u8) -> bool {
    bound.is_none_or(|bound| spent < bound)
}

/// Whether this term is within the bounds.
pub fn is_a_term(term: u8, bounds: &Bounds) -> bool {
    bounds.terms.is_none_or(|highest| term <= highest)
}
