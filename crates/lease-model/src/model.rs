//! The protocol as a [`stateright`] model, and the invariants of every state.

use stateright::{Model, Property};

use crate::action::ModelAction;
use crate::action_counts::ActionCounts;
use crate::bounds::{ClockModel, ModelBounds};
use crate::canonical::canonical;
use crate::enabled::enabled;
use crate::recovery::recovers;
use crate::state::{ModelState, is_valid};
use crate::step::step;

pub const ONE_VALID: &str = "no two pods are valid at once";
pub const TERMS_RISE: &str = "terms only rise";
pub const FORWARD: &str = "the checkpoint never moves back";
pub const RECOVERS: &str = "a pod leads once faults stop";
pub const FENCED: &str = "a deposed leader's save is refused";

/// The protocol within bounds.
#[derive(Clone, Debug)]
pub struct LeaseProtocol {
    pub bounds: ModelBounds,
    pub counts: ActionCounts,
}

impl LeaseProtocol {
    pub fn new(bounds: ModelBounds) -> Self {
        Self { bounds, counts: ActionCounts::default() }
    }
}

impl Model for LeaseProtocol {
    type State = ModelState;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelState> {
        vec![canonical(ModelState::new(&self.bounds), &self.bounds)]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<ModelAction>) {
        enabled(state, &self.bounds, actions);
    }

    fn next_state(&self, last: &ModelState, action: ModelAction) -> Option<ModelState> {
        let next = canonical(step(last, action, &self.bounds), &self.bounds);
        if next == *last {
            return None;
        }
        self.counts.count(&action, last.store.unreplicated_writes());
        Some(next)
    }

    fn format_action(&self, action: &ModelAction) -> String {
        action.to_string()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::always(TERMS_RISE, |_, state: &ModelState| !state.history.term_reused)];
        if self.bounds.positions > 0 {
            properties.push(Property::always(FORWARD, |_, state: &ModelState| !state.history.moved_back));
            properties.push(Property::always(FENCED, |_, state: &ModelState| !state.history.deposed_saved));
        }
        if self.bounds.clocks == ClockModel::Drifting {
            properties.push(Property::always(ONE_VALID, |model: &Self, state| one_valid(state, &model.bounds)));
        }
        if self.bounds.liveness {
            properties.push(Property::always(RECOVERS, |model: &Self, state| recovers(state, &model.bounds)));
        }
        properties
    }
}

/// At most one gate is open. There is one known exception: after an operator deletes the lease, a pod that never saw it may create a
/// new one at once, while the leader from before the deletion continues until its next renewal.
fn one_valid(state: &ModelState, bounds: &ModelBounds) -> bool {
    let open = || state.pods.iter().filter(|pod| is_valid(pod, bounds)).filter_map(|pod| pod.held);
    let old = open().filter(|held| held.lease_deleted).count();
    let others = open().count() - old;
    let excused = state.history.created_after_deletion && bounds.excuse_deletion;
    if excused { old <= 1 && others <= 1 } else { old + others <= 1 }
}
