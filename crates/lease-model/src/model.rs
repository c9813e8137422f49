//! The protocol as [`stateright`] wants it, and the properties it must have in every state.

use stateright::{Model, Property};

use crate::action::Action;
use crate::bounds::{Bounds, Clocks};
use crate::canon::canonical;
use crate::enabled::enabled;
use crate::recovery::recovers;
use crate::step::step;
use crate::tally::Tally;
use crate::world::{World, is_valid};

pub const ONE_VALID: &str = "no two pods are valid at once";
pub const TERMS_RISE: &str = "terms only rise";
pub const FORWARD: &str = "the checkpoint never moves back";
pub const SOMEBODY_LEADS: &str = "somebody leads once faults stop";
pub const FENCED: &str = "a deposed leader's save is refused";

/// The protocol within bounds.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub bounds: Bounds,
    pub tally: Tally,
}

impl Protocol {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, tally: Tally::default() }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![canonical(World::new(&self.bounds), &self.bounds)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        enabled(state, &self.bounds, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let next = canonical(step(last, action, &self.bounds), &self.bounds);
        if next == *last {
            return None;
        }
        self.tally.count(&action, last.store.writes_alone());
        Some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        action.to_string()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::always(TERMS_RISE, |_, world: &World| !world.ghost.term_reused)];
        if self.bounds.positions > 0 {
            properties.push(Property::always(FORWARD, |_, world: &World| !world.ghost.moved_back));
            properties.push(Property::always(FENCED, |_, world: &World| !world.ghost.deposed_saved));
        }
        if self.bounds.clocks == Clocks::Drifting {
            properties.push(Property::always(ONE_VALID, |model: &Self, world| one_valid(world, &model.bounds)));
        }
        if self.bounds.liveness {
            properties.push(Property::always(SOMEBODY_LEADS, |model: &Self, world| recovers(world, &model.bounds)));
        }
        properties
    }
}

/// At most one gate is open. One exception is known and named: after an operator deleted the lease, and a pod that had never seen it
/// wrote a new one at once, a leader from before the deletion may go on until its next renewal.
fn one_valid(world: &World, bounds: &Bounds) -> bool {
    let open = || world.pods.iter().filter(|pod| is_valid(pod, bounds)).filter_map(|pod| pod.hold);
    let bereft = open().filter(|hold| hold.bereft).count();
    let others = open().count() - bereft;
    let excused = world.ghost.written_afresh && bounds.excuse_deletion;
    if excused { bereft <= 1 && others <= 1 } else { bereft + others <= 1 }
}
