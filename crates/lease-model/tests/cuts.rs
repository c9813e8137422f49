//! The promises hold in every state of cuts small enough for every test run. `verify_lease` searches the large ones.

use lease_model::bounds::Bounds;
use lease_model::cuts::{self, Cut};
use lease_model::model::ONE_VALID;
use lease_model::verify::{shortest, verify};

/// Searches the cut; it must have met what it claims to cover.
fn holds(name: &str, met: &[&str]) {
    let cut = cuts::small().into_iter().find(|cut| cut.name == name);
    let Cut { bounds, .. } = cut.expect("a cut of that name");
    let outcome = verify(&bounds, 1, None);
    assert!(outcome.broken.is_empty(), "{}", outcome.broken[0]);
    for kind in met {
        assert!(outcome.tally.of(kind) > 0, "no {kind} among {}", outcome.tally);
    }
}

#[test]
fn an_election_of_two_with_every_fault_holds_and_recovers() {
    holds("small-election", &["crashes", "step-downs", "rollbacks", "waits given up", "renewals", "ticks"]);
}

#[test]
fn an_election_of_three_with_failovers_holds() {
    holds("small-trio", &["rollbacks", "waits given up", "renewals", "ticks"]);
}

#[test]
fn the_fence_holds_while_all_clocks_lie() {
    holds("small-fence", &["rollbacks", "late arrivals", "claims and saves"]);
}

#[test]
fn a_deleted_lease_is_raised_again_above_the_checkpoint() {
    holds("small-deletion", &["deletions", "raises", "claims and saves"]);
}

#[test]
fn the_number_of_states_does_not_depend_on_the_number_of_threads() {
    let bounds = Bounds { failovers: Some(1), ..Bounds::calm(2) };
    assert_eq!(verify(&bounds, 1, None).states, verify(&bounds, 2, None).states);
}

/// The known limit, written down: who deletes the lease gives up that only one pod leads, until the old leader's next renewal. The fence
/// holds all the same (`small-deletion`).
#[test]
fn after_a_deletion_a_pod_that_never_saw_the_lease_may_lead_beside_the_old_leader() {
    let bounds = Bounds { deletions: 1, terms: Some(2), excuse_deletion: false, ..Bounds::calm(2) };
    let broken = shortest(&bounds, ONE_VALID).expect("a history with two valid pods");
    assert_eq!(broken.history.len(), 11, "{broken}");
}
