//! The state reduction hides nothing: the reduced model can follow every step of the (almost) unreduced one.
//!
//! The tests walk long random histories of the raw model. After each step, the reduced form of the new state must be the reduced
//! form of the old one, or one of its successors (or one of theirs, where the reduced model needs two steps). By induction, the
//! reduced model reaches every state that the raw model reaches: it misses no history that violates an invariant.

use lease_model::action::ModelAction;
use lease_model::bounds::{ClockModel, ModelBounds, StateEquivalence};
use lease_model::canonical::canonical;
use lease_model::model::LeaseProtocol;
use lease_model::state::ModelState;
use lease_model::time::PodTiming;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use stateright::Model;

/// A few seconds each.
const WALKS: u64 = 400;
const STEPS: usize = 150;

/// The raw and the reduced model.
struct ModelPair {
    raw: LeaseProtocol,
    reduced: LeaseProtocol,
}

impl ModelPair {
    fn new(bounds: &ModelBounds) -> Self {
        let raw = LeaseProtocol::new(ModelBounds { equivalence: StateEquivalence::NearlyExact, ..bounds.clone() });
        Self {
            raw,
            reduced: LeaseProtocol::new(ModelBounds { equivalence: StateEquivalence::UpToSymmetry, ..bounds.clone() }),
        }
    }

    fn reduce(&self, state: &ModelState) -> ModelState {
        canonical(*state, &self.reduced.bounds)
    }

    fn walk(&self, mut random: StdRng) {
        let mut state = self.raw.init_states()[0];
        for _ in 0..STEPS {
            let (action, next) = self.choose(&state, &mut random);
            let (before, after) = (self.reduce(&state), self.reduce(&next));
            assert!(
                self.can_follow(&before, &after),
                "the reduced model cannot follow: {action}\nfrom {state:#?}\nreduced {before:#?}\nto {next:#?}\nreduced {after:#?}"
            );
            state = next;
        }
    }

    /// A random step. Ticks, crashes and failovers are rarer, so that histories make progress.
    fn choose(&self, state: &ModelState, random: &mut StdRng) -> (ModelAction, ModelState) {
        let steps = self.raw.next_steps(state);
        loop {
            let step = steps.choose(random).expect("there is always a possible step");
            let rare = matches!(step.0, ModelAction::Tick(_) | ModelAction::Crash(_) | ModelAction::FailOver { .. });
            if !rare || random.random_ratio(1, 5) {
                return *step;
            }
        }
    }

    fn can_follow(&self, before: &ModelState, after: &ModelState) -> bool {
        let successors = || self.reduced.next_states(before);
        before == after
            || successors().contains(after)
            || successors().iter().any(|between| self.reduced.next_states(between).contains(after))
    }
}

fn assert_follows(bounds: &ModelBounds) {
    assert_follows_walks(bounds, WALKS);
}

fn assert_follows_walks(bounds: &ModelBounds, walks: u64) {
    let pair = ModelPair::new(bounds);
    (0..walks).for_each(|seed| pair.walk(StdRng::seed_from_u64(seed)));
}

#[test]
fn the_reduced_model_follows_an_election() {
    assert_follows(&ModelBounds { late: 2, unreplicated: 2, ..ModelBounds::without_limits(3) });
}

#[test]
fn the_reduced_model_follows_a_rolling_change() {
    assert_follows(&ModelBounds {
        pods: vec![PodTiming::Short, PodTiming::Long, PodTiming::Short],
        late: 1,
        ..ModelBounds::without_limits(3)
    });
}

#[test]
fn the_reduced_model_follows_wall_clocks() {
    assert_follows(&ModelBounds {
        offsets: vec![0, 1],
        max_clock_skew: Some(1),
        late: 1,
        ..ModelBounds::without_limits(3)
    });
}

#[test]
fn the_reduced_model_follows_a_checkpoint() {
    assert_follows(&ModelBounds {
        positions: 200,
        late_checkpoint_requests: 2,
        late: 1,
        ..ModelBounds::without_limits(3)
    });
}

#[test]
fn the_reduced_model_follows_unreliable_clocks() {
    let unreliable = ModelBounds { clocks: ClockModel::Unreliable, ..ModelBounds::without_limits(3) };
    assert_follows(&ModelBounds { positions: 200, late_checkpoint_requests: 2, late: 1, ..unreliable });
}

#[test]
fn the_reduced_model_follows_a_deletion() {
    // With fewer walks, none releases a new lease that has not reached a majority.
    assert_follows_walks(
        &ModelBounds {
            deletions: 3,
            positions: 200,
            late_checkpoint_requests: 1,
            late: 1,
            ..ModelBounds::without_limits(3)
        },
        1000,
    );
}
