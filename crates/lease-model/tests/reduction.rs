//! What the model forgets changes nothing: the reduced model can follow every step of the one that forgets (almost) nothing.
//!
//! Long random histories are walked without forgetting. After each step the reduced form of the new state must be the reduced form of
//! the old one, or one of its successors (or theirs, where a single step of the raw model is one that the reduced model takes in two). By
//! induction, whatever the raw model reaches, the reduced one reaches too: it misses no history that breaks a promise.

use lease_model::action::Action;
use lease_model::bounds::{Alike, Bounds, Clocks};
use lease_model::canon::canonical;
use lease_model::model::Protocol;
use lease_model::tick::Span;
use lease_model::world::World;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use stateright::Model;

/// A few seconds each.
const WALKS: u64 = 400;
const STEPS: usize = 150;

/// The two models, side by side.
struct Pair {
    raw: Protocol,
    reduced: Protocol,
}

impl Pair {
    fn new(bounds: &Bounds) -> Self {
        let raw = Protocol::new(Bounds { alike: Alike::Almost, ..bounds.clone() });
        Self { raw, reduced: Protocol::new(Bounds { alike: Alike::UpToNames, ..bounds.clone() }) }
    }

    fn reduce(&self, world: &World) -> World {
        canonical(*world, &self.reduced.bounds)
    }

    fn walk(&self, mut random: StdRng) {
        let mut world = self.raw.init_states()[0];
        for _ in 0..STEPS {
            let (action, next) = self.choose(&world, &mut random);
            let (before, after) = (self.reduce(&world), self.reduce(&next));
            assert!(
                self.can_follow(&before, &after),
                "the reduced model cannot follow: {action}\nfrom {world:#?}\nreduced {before:#?}\nto {next:#?}\nreduced {after:#?}"
            );
            world = next;
        }
    }

    /// Any step; those that set everybody back are taken less often, so that histories get somewhere.
    fn choose(&self, world: &World, random: &mut StdRng) -> (Action, World) {
        let steps = self.raw.next_steps(world);
        loop {
            let step = steps.choose(random).expect("there is always something that can happen");
            let rare = matches!(step.0, Action::Tick(_) | Action::Crash(_) | Action::FailOver { .. });
            if !rare || random.random_ratio(1, 5) {
                return *step;
            }
        }
    }

    fn can_follow(&self, before: &World, after: &World) -> bool {
        let successors = || self.reduced.next_states(before);
        before == after
            || successors().contains(after)
            || successors().iter().any(|between| self.reduced.next_states(between).contains(after))
    }
}

fn follows_every_walk(bounds: &Bounds) {
    follows_walks(bounds, WALKS);
}

fn follows_walks(bounds: &Bounds, walks: u64) {
    let pair = Pair::new(bounds);
    (0..walks).for_each(|seed| pair.walk(StdRng::seed_from_u64(seed)));
}

#[test]
fn an_election_can_be_followed() {
    follows_every_walk(&Bounds { late: 2, alone: 2, ..Bounds::of(3) });
}

#[test]
fn a_rolling_change_can_be_followed() {
    follows_every_walk(&Bounds { pods: vec![Span::Short, Span::Long, Span::Short], late: 1, ..Bounds::of(3) });
}

#[test]
fn wall_clocks_can_be_followed() {
    follows_every_walk(&Bounds { offsets: vec![0, 1], max_clock_skew: Some(1), late: 1, ..Bounds::of(3) });
}

#[test]
fn a_checkpoint_can_be_followed() {
    follows_every_walk(&Bounds { positions: 200, late_errands: 2, late: 1, ..Bounds::of(3) });
}

#[test]
fn lying_clocks_can_be_followed() {
    let lying = Bounds { clocks: Clocks::Lying, ..Bounds::of(3) };
    follows_every_walk(&Bounds { positions: 200, late_errands: 2, late: 1, ..lying });
}

#[test]
fn a_deletion_can_be_followed() {
    // among fewer, none releases a lease that was written anew and has not reached a majority
    follows_walks(&Bounds { deletions: 3, positions: 200, late_errands: 1, late: 1, ..Bounds::of(3) }, 1000);
}
