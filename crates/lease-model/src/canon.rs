//! One way to write all states that behave alike: this is what lets the checker finish without bounding time, heartbeats or terms.
//!
//! After `forget.rs` has dropped what the store made meaningless, these are given up, in this order:
//!
//! * *Distances between old terms.* Terms are only compared, except that a takeover adds one to the current one. So the current
//!   term and those above it keep their distances, and those below keep only their order. Not while a deletion may start the count at
//!   one again.
//! * *Distances between heartbeats.* A contender's numbers are compared with its own only, and its next is above all that are left.
//! * *Names.* Contenders are only told apart: the living are named after their place, the dead in the order of mention. Up to
//!   names, pods have no place either; they are sorted.
//!
//! Ages beyond every threshold are cut in `tick.rs`. Tests in `tests/reduction.rs` compare what can be observed with and without all this.

use crate::bounds::{Alike, Bounds, PODS};
use crate::edit::Editor;
use crate::forget::forget;
use crate::pod::Pod;
use crate::stored::Nonce;
use crate::world::World;

/// The state that stands for all that behave like this one.
pub fn canonical(mut world: World, bounds: &Bounds) -> World {
    if bounds.alike != Alike::Almost {
        forget(&mut world, bounds);
    }
    if bounds.only_order_of_terms() {
        pack_terms(&mut world);
    }
    rank_beats(&mut world);
    let places = Places::of(&world, bounds);
    let written = places.orders().map(|order| named(&world, &order));
    written.min().expect("there is at least one order")
}

/// The world with its pods in this order, and everybody renamed accordingly.
fn named(world: &World, order: &[usize; PODS]) -> World {
    let mut world = *world;
    world.pods = order.map(|place| world.pods[place]);
    let mut names = Names::of(&world.pods);
    world.edit(&mut names);
    world.late.sort_unstable();
    world.late_errands.sort_unstable();
    world
}

fn pack_terms(world: &mut World) {
    let Some(majority) = world.store.majority else { return };
    let current = majority.glance.edition.term;
    let mut below = Below { current, present: 0 };
    world.edit(&mut below);
    world.edit(&mut Packed { current, below: below.present });
}

/// The terms below the current one, as bits.
struct Below {
    current: u8,
    present: u128,
}

impl Editor for Below {
    fn term(&mut self, term: &mut u8) {
        if *term > 0 && *term < self.current {
            self.present |= 1 << *term;
        }
    }
}

struct Packed {
    current: u8,
    below: u128,
}

impl Editor for Packed {
    fn term(&mut self, term: &mut u8) {
        let up_to = |term: u8| (self.below & ((1 << term) - 1)).count_ones() as u8;
        *term = match *term {
            0 => 0,
            below if below < self.current => up_to(below) + 1,
            above => above - self.current + up_to(self.current) + 1,
        };
    }
}

/// The heartbeats that occur, owner by owner, as bits. (More contenders than this are never remembered at once.)
#[derive(Default)]
struct Beats([u64; 16]);

impl Editor for Beats {
    fn beat(&mut self, owner: Nonce, beat: &mut u8) {
        self.0[usize::from(owner.0)] |= 1 << *beat;
    }
}

/// Writes each heartbeat as the number of its owner's heartbeats up to it. Zero stays: it was never sent.
struct Ranked(Beats);

impl Editor for Ranked {
    fn beat(&mut self, owner: Nonce, beat: &mut u8) {
        let below = (self.0.0[usize::from(owner.0)] & ((1 << *beat) - 1)) >> 1;
        if *beat > 0 {
            *beat = below.count_ones() as u8 + 1;
        }
    }

    fn beats(&mut self, owner: Nonce, beats: &mut u8) {
        *beats = (self.0.0[usize::from(owner.0)] >> 1).count_ones() as u8;
    }
}

fn rank_beats(world: &mut World) {
    let mut beats = Beats::default();
    world.edit(&mut beats);
    world.edit(&mut Ranked(beats));
}

/// In which orders the pods may be written.
struct Places {
    sorted: [usize; PODS],
    /// Which neighbours cannot be told apart without looking at everything.
    equal: [bool; PODS - 1],
}

impl Places {
    fn of(world: &World, bounds: &Bounds) -> Self {
        let mut sorted = [0, 1, 2];
        if bounds.alike != Alike::UpToNames {
            return Self { sorted, equal: [false; PODS - 1] };
        }
        let keys = world.pods.each_ref().map(faceless);
        let taking_part = bounds.pods.len();
        sorted[..taking_part].sort_by(|a, b| keys[*a].cmp(&keys[*b]));
        let same = |place: usize| place + 1 < taking_part && keys[sorted[place]] == keys[sorted[place + 1]];
        Self { sorted, equal: [same(0), same(1)] }
    }

    fn orders(&self) -> impl Iterator<Item = [usize; PODS]> {
        let [a, b, c] = self.sorted;
        let [first, last] = self.equal;
        let both = first && last;
        let all = [
            ([a, b, c], true),
            ([b, a, c], first),
            ([a, c, b], last),
            ([c, b, a], both),
            ([b, c, a], both),
            ([c, a, b], both),
        ];
        all.into_iter().filter_map(|(order, allowed)| allowed.then_some(order))
    }
}

/// The pod as one sees it who knows no name but the pod's own.
fn faceless(pod: &Pod) -> Pod {
    let mut faceless = *pod;
    faceless.edit(&mut Faceless { own: pod.nonce });
    faceless
}

struct Faceless {
    own: Nonce,
}

impl Editor for Faceless {
    fn nonce(&mut self, nonce: &mut Nonce) {
        *nonce = match *nonce {
            Nonce::NOBODY => Nonce::NOBODY,
            own if own == self.own => Nonce(1),
            _ => Nonce(2),
        };
    }

    fn beat(&mut self, owner: Nonce, beat: &mut u8) {
        if owner != self.own {
            *beat = 0;
        }
    }
}

/// New names: the living by place, the dead as they are met.
struct Names {
    known: [Nonce; 16],
    count: usize,
}

impl Names {
    fn of(pods: &[Pod; PODS]) -> Self {
        let mut known = [Nonce::NOBODY; 16];
        known.iter_mut().zip(pods).for_each(|(name, pod)| *name = pod.nonce);
        Self { known, count: PODS }
    }
}

impl Editor for Names {
    fn nonce(&mut self, nonce: &mut Nonce) {
        if *nonce == Nonce::NOBODY {
            return;
        }
        let place = self.known[..self.count].iter().position(|known| known == nonce).unwrap_or_else(|| {
            self.known[self.count] = *nonce;
            self.count += 1;
            self.count - 1
        });
        *nonce = Nonce(u8::try_from(place + 1).expect("few contenders are remembered"));
    }
}
