//! The checker finds every planted defect: a checker that finds nothing proves nothing.
//!
//! Each is searched for twice: in readable histories, and with the full state reduction, so that the reduction cannot hide it.

use lease_model::bounds::{ModelBounds, StateEquivalence};
use lease_model::defect_scenario::DefectScenario;
use lease_model::protocol_defect::ProtocolDefect;
use lease_model::verify::{shortest, verify};

/// Searches for the defect. Its shortest counterexample has exactly `steps` steps.
fn assert_found(defect: ProtocolDefect, steps: usize) {
    let DefectScenario { bounds, violates, .. } = DefectScenario::new(defect);
    let broken = shortest(&bounds, violates).expect("a history that shows the defect");
    assert_eq!(broken.history.len(), steps, "{broken}");
    let result = verify(&ModelBounds { equivalence: StateEquivalence::UpToSymmetry, ..bounds }, 1, Some(violates));
    assert!(
        result.counterexamples.iter().any(|broken| broken.invariant == violates),
        "not among {} states",
        result.states
    );
}

#[test]
fn without_the_fence_a_deposed_leader_saves() {
    assert_found(ProtocolDefect::NoFence, 22);
}

#[test]
fn without_fence_and_guard_the_checkpoint_moves_back() {
    assert_found(ProtocolDefect::UncheckedSave, 27);
}

#[test]
fn a_claim_by_term_alone_lets_two_leaders_share_a_term() {
    assert_found(ProtocolDefect::ClaimByTermAlone, 18);
}

#[test]
fn without_the_deadline_two_pods_are_valid() {
    assert_found(ProtocolDefect::NoDeadline, 15);
}

#[test]
fn validity_counted_from_the_reply_outlives_the_ttl() {
    assert_found(ProtocolDefect::ValidFromReply, 15);
}

#[test]
fn a_wait_counted_from_the_request_is_too_short() {
    assert_found(ProtocolDefect::WaitFromRequest, 13);
}

#[test]
fn a_clock_that_stops_in_suspend_keeps_a_dead_leader_valid() {
    assert_found(ProtocolDefect::ClockStopsInSuspend, 15);
}

#[test]
fn a_takeover_that_compares_only_the_term_takes_a_renewed_lease() {
    assert_found(ProtocolDefect::CompareTermOnly, 19);
}

#[test]
fn a_client_clock_lets_a_fast_pod_steal_the_lease() {
    assert_found(ProtocolDefect::ClientClock, 10);
}

#[test]
fn a_ttl_the_configuration_check_refuses_is_too_short() {
    assert_found(ProtocolDefect::TtlTooShort, 14);
}

#[test]
fn a_standby_must_wait_for_the_ttl_of_the_holder() {
    assert_found(ProtocolDefect::OwnTtlOnly, 15);
}

#[test]
fn an_understated_skew_hands_over_a_live_lease() {
    assert_found(ProtocolDefect::SkewUnderstated, 12);
}

#[test]
fn a_write_on_the_primary_alone_is_no_acknowledgement() {
    assert_found(ProtocolDefect::PrimaryAckTrusted, 9);
}

#[test]
fn a_release_before_the_gate_closes_gives_two_leaders() {
    assert_found(ProtocolDefect::ReleaseBeforeGateCloses, 13);
}

#[test]
fn if_only_released_leases_are_taken_a_crash_is_final() {
    assert_found(ProtocolDefect::WaitsForRelease, 4);
}
