//! One way to write all states that behave equivalence: this is what lets the checker finish without bounding time, heartbeats or terms.
//!
//! After `forget.rs` has dropped what the store made meaningless, these are given up, in this order:
//!
//! * *Distances between old terms.* Terms are only compared, except that a takeover adds one to the current one. So the current
//!   term and those above it keep their distances, and those below keep only their order. Not while a deletion may start the count at
//!   one again.
//! * *Distances between heartbeats.* A contender's numbers are compared with its own only, and its next is above all that are left.
//! * *CandidateRenaming.* Contenders are only told apart: the living are named after their place, the dead in the order of mention. Up to
//!   names, pods have no place either; they are sorted.
//!
//! Ages beyond every threshold are scenario in `tick.rs`. Tests in `tests/reduction.rs` compare what can be observed with and without all this.

use crate::bounds::{Bounds, PODS, StateEquivalence};
use crate::compact::CandidateNumber;
use crate::pod::ModelPod;
use crate::prune::prune;
use crate::state::ModelState;
use crate::visitor::StateVisitor;

/// The state that stands for all that behave like this one.
pub fn canonical(mut state: ModelState, bounds: &Bounds) -> ModelState {
    if bounds.equivalence != StateEquivalence::NearlyExact {
        prune(&mut state, bounds);
    }
    if bounds.only_order_of_terms() {
        pack_terms(&mut state);
    }
    rank_beats(&mut state);
    let places = PodOrderings::of(&state, bounds);
    let written = places.orders().map(|order| named(&state, &order));
    written.min().expect("there is at least one order")
}

/// The world with its pods in this order, and everybody renamed accordingly.
fn named(state: &ModelState, order: &[usize; PODS]) -> ModelState {
    let mut state = *state;
    state.pods = order.map(|place| state.pods[place]);
    let mut names = CandidateRenaming::of(&state.pods);
    state.visit(&mut names);
    state.late.sort_unstable();
    state.late_checkpoint_requests.sort_unstable();
    state
}

fn pack_terms(state: &mut ModelState) {
    let Some(majority) = state.store.majority else { return };
    let current = majority.record.version.term;
    let mut below = LowerTerms { current, present: 0 };
    state.visit(&mut below);
    state.visit(&mut TermPacking { current, below: below.present });
}

/// The terms below the current one, as bits.
struct LowerTerms {
    current: u8,
    present: u128,
}

impl StateVisitor for LowerTerms {
    fn term(&mut self, term: &mut u8) {
        if *term > 0 && *term < self.current {
            self.present |= 1 << *term;
        }
    }
}

struct TermPacking {
    current: u8,
    below: u128,
}

impl StateVisitor for TermPacking {
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
struct HeartbeatSet([u64; 16]);

impl StateVisitor for HeartbeatSet {
    fn heartbeat(&mut self, owner: CandidateNumber, heartbeat: &mut u8) {
        self.0[usize::from(owner.0)] |= 1 << *heartbeat;
    }
}

/// Writes each heartbeat as the number of its owner's heartbeats up to it. Zero stays: it was never sent.
struct HeartbeatRanking(HeartbeatSet);

impl StateVisitor for HeartbeatRanking {
    fn heartbeat(&mut self, owner: CandidateNumber, heartbeat: &mut u8) {
        let below = (self.0.0[usize::from(owner.0)] & ((1 << *heartbeat) - 1)) >> 1;
        if *heartbeat > 0 {
            *heartbeat = below.count_ones() as u8 + 1;
        }
    }

    fn last_heartbeat(&mut self, owner: CandidateNumber, last_heartbeat: &mut u8) {
        *last_heartbeat = (self.0.0[usize::from(owner.0)] >> 1).count_ones() as u8;
    }
}

fn rank_beats(state: &mut ModelState) {
    let mut last_heartbeat = HeartbeatSet::default();
    state.visit(&mut last_heartbeat);
    state.visit(&mut HeartbeatRanking(last_heartbeat));
}

/// In which orders the pods may be written.
struct PodOrderings {
    sorted: [usize; PODS],
    /// Which neighbours cannot be told apart without looking at everything.
    equal: [bool; PODS - 1],
}

impl PodOrderings {
    fn of(state: &ModelState, bounds: &Bounds) -> Self {
        let mut sorted = [0, 1, 2];
        if bounds.equivalence != StateEquivalence::UpToSymmetry {
            return Self { sorted, equal: [false; PODS - 1] };
        }
        let keys = state.pods.each_ref().map(anonymous);
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
fn anonymous(pod: &ModelPod) -> ModelPod {
    let mut anonymous = *pod;
    anonymous.visit(&mut AnonymousView { own: pod.candidate });
    anonymous
}

struct AnonymousView {
    own: CandidateNumber,
}

impl StateVisitor for AnonymousView {
    fn candidate(&mut self, candidate: &mut CandidateNumber) {
        *candidate = match *candidate {
            CandidateNumber::NOBODY => CandidateNumber::NOBODY,
            own if own == self.own => CandidateNumber(1),
            _ => CandidateNumber(2),
        };
    }

    fn heartbeat(&mut self, owner: CandidateNumber, heartbeat: &mut u8) {
        if owner != self.own {
            *heartbeat = 0;
        }
    }
}

/// New names: the living by place, the dead as they are met.
struct CandidateRenaming {
    known: [CandidateNumber; 16],
    count: usize,
}

impl CandidateRenaming {
    fn of(pods: &[ModelPod; PODS]) -> Self {
        let mut known = [CandidateNumber::NOBODY; 16];
        known.iter_mut().zip(pods).for_each(|(name, pod)| *name = pod.candidate);
        Self { known, count: PODS }
    }
}

impl StateVisitor for CandidateRenaming {
    fn candidate(&mut self, candidate: &mut CandidateNumber) {
        if *candidate == CandidateNumber::NOBODY {
            return;
        }
        let place = self.known[..self.count].iter().position(|known| known == candidate).unwrap_or_else(|| {
            self.known[self.count] = *candidate;
            self.count += 1;
            self.count - 1
        });
        *candidate = CandidateNumber(u8::try_from(place + 1).expect("few contenders are remembered"));
    }
}
