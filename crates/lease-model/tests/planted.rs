//! The small cuts hold, and every planted defect is found: a checker that finds nothing proves nothing.

use lease_model::cuts;
use lease_model::defect::Defect;
use lease_model::planted::Planted;
use lease_model::verify::verify;

#[test]
fn the_small_cuts_hold() {
    for cut in cuts::small() {
        let outcome = verify(&cut.bounds, 2, None);
        assert!(outcome.broken.is_empty(), "{}: {}", cut.name, outcome.broken[0]);
        assert!(outcome.states > 1_000, "{}: only {} states", cut.name, outcome.states);
    }
}

fn is_found(defect: Defect) {
    let planted = Planted::new(defect);
    let outcome = verify(&planted.bounds, 2, Some(planted.breaks));
    let found = outcome.broken.iter().any(|broken| broken.promise == planted.breaks);
    assert!(found, "{defect:?} breaks `{}`, and no history was found in {} states", planted.breaks, outcome.states);
}

#[test]
fn without_the_fence_a_deposed_leader_saves() {
    is_found(Defect::NoFence);
    is_found(Defect::BareSave);
}

#[test]
fn without_the_deadline_two_are_valid() {
    is_found(Defect::NoDeadline);
}

#[test]
fn every_other_planted_defect_is_found() {
    let told_apart = [Defect::NoFence, Defect::BareSave, Defect::NoDeadline];
    for defect in Defect::ALL.into_iter().filter(|defect| !told_apart.contains(defect)) {
        is_found(defect);
    }
}
