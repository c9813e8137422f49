//! Every planted defect is found: a checker that finds nothing proves nothing.
//!
//! Each is searched for twice: in histories that can be read, and among states that have lost the names of their pods, so that
//! what the model forgets cannot hide it.

use lease_model::bounds::{Alike, Bounds};
use lease_model::defect::Defect;
use lease_model::planted::Planted;
use lease_model::verify::{shortest, verify};

/// Searches for the defect. The shortest history that shows it has this many steps; a shorter one would be news.
fn is_found(defect: Defect, steps: usize) {
    let Planted { bounds, breaks, .. } = Planted::new(defect);
    let broken = shortest(&bounds, breaks).expect("a history that shows the defect");
    assert_eq!(broken.history.len(), steps, "{broken}");
    let outcome = verify(&Bounds { alike: Alike::UpToNames, ..bounds }, 1, Some(breaks));
    assert!(outcome.broken.iter().any(|broken| broken.promise == breaks), "not among {} states", outcome.states);
}

#[test]
fn without_the_fence_a_deposed_leader_saves() {
    is_found(Defect::NoFence, 22);
}

#[test]
fn without_fence_and_guard_the_checkpoint_moves_back() {
    is_found(Defect::BareSave, 27);
}

#[test]
fn a_claim_by_term_alone_lets_two_leaders_share_a_term() {
    is_found(Defect::ClaimByTermAlone, 18);
}

#[test]
fn without_the_deadline_two_are_valid() {
    is_found(Defect::NoDeadline, 15);
}

#[test]
fn validity_counted_from_the_answer_outlives_the_ttl() {
    is_found(Defect::ValidFromAnswer, 15);
}

#[test]
fn a_wait_counted_from_the_question_is_too_short() {
    is_found(Defect::SeenFromAsking, 13);
}

#[test]
fn a_clock_that_stops_in_suspend_keeps_a_dead_leader_valid() {
    is_found(Defect::ClockStopsInSuspend, 15);
}

#[test]
fn a_takeover_that_compares_only_the_term_takes_a_renewed_lease() {
    is_found(Defect::CompareTermOnly, 19);
}

#[test]
fn the_seeds_statement_lets_a_pod_whose_clock_is_ahead_steal_the_lease() {
    is_found(Defect::ClientClock, 10);
}

#[test]
fn a_ttl_the_configuration_check_refuses_is_too_short() {
    is_found(Defect::TtlTooShort, 14);
}

#[test]
fn a_standby_must_wait_for_the_ttl_of_the_holder() {
    is_found(Defect::OwnTtlOnly, 15);
}

#[test]
fn a_skew_that_was_understated_hands_over_a_live_lease() {
    is_found(Defect::SkewUnderstated, 12);
}

#[test]
fn what_only_the_primary_has_is_no_acknowledgement() {
    is_found(Defect::PrimaryAckTrusted, 9);
}

#[test]
fn a_lease_given_back_before_the_gate_is_shut_is_taken_at_once() {
    is_found(Defect::ReleasedWhileOpen, 13);
}

#[test]
fn if_only_released_leases_are_taken_a_crash_ends_all_leading() {
    is_found(Defect::WaitsForRelease, 4);
}
