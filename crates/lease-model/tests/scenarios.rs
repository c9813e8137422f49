//! The invariants hold in every state of scenarios that are small enough for every test run. `verify_lease` runs the large ones.

use lease_model::bounds::ModelBounds;
use lease_model::model::ONE_VALID;
use lease_model::scenarios::{self, Scenario};
use lease_model::verify::{shortest, verify};

/// Runs the scenario; it must have taken every step that it claims to cover.
fn holds(name: &str, covered: &[&str]) {
    let scenario = scenarios::small().into_iter().find(|scenario| scenario.name == name);
    let Scenario { bounds, .. } = scenario.expect("a scenario of that name exists");
    let result = verify(&bounds, 1, None);
    assert!(result.counterexamples.is_empty(), "{}", result.counterexamples[0]);
    for kind in covered {
        assert!(result.counts.of(kind) > 0, "no {kind} among {}", result.counts);
    }
}

#[test]
fn an_election_of_two_with_every_fault_holds_and_recovers() {
    holds("small-election", &["crashes", "step-downs", "rollbacks", "abandoned requests", "renewals", "ticks"]);
}

#[test]
fn an_election_of_three_with_failovers_holds() {
    holds("small-trio", &["rollbacks", "abandoned requests", "renewals", "ticks"]);
}

#[test]
fn the_fence_holds_with_unreliable_clocks() {
    holds("small-fence", &["rollbacks", "late arrivals", "claims and saves"]);
}

#[test]
fn a_deleted_lease_is_raised_again_above_the_checkpoint() {
    holds("small-deletion", &["deletions", "raises", "claims and saves"]);
}

#[test]
fn the_state_count_does_not_depend_on_threads() {
    let bounds = ModelBounds { failovers: Some(1), ..ModelBounds::without_faults(2) };
    assert_eq!(verify(&bounds, 1, None).states, verify(&bounds, 2, None).states);
}

/// A known limit: after the lease is deleted, two pods may lead until the old leader's next renewal. The fence still holds
/// (`small-deletion`).
#[test]
fn after_a_deletion_a_new_pod_may_lead_beside_the_old_leader() {
    let bounds = ModelBounds { deletions: 1, terms: Some(2), excuse_deletion: false, ..ModelBounds::without_faults(2) };
    let broken = shortest(&bounds, ONE_VALID).expect("a history with two valid pods");
    assert_eq!(broken.history.len(), 11, "{broken}");
}
