//! The canonical form of equivalent states. Without it, the checker could not finish with unbounded time, heartbeats and terms.
//!
//! After `prune_superseded.rs` has removed data that the store has superseded, this module removes, in this order:
//!
//! * *Distances between old terms.* Terms are only compared, except that a takeover adds one to the current one. So the current
//!   term and those above keep their distances, and those below keep only their order. Not while a deletion may restart terms at one.
//! * *Distances between heartbeats.* A candidate's numbers are compared only with its own, and its next one is above all of them.
//! * *Names.* Candidates are only compared for equality: running ones are named by their position, crashed ones in the order of first
//!   use. Up to symmetry, the positions of pods do not matter either; they are sorted.
//!
//! `time.rs` cuts ages beyond every threshold. `tests/state_reduction.rs` compares the behaviour with and without the reduction.

use crate::bounds::{ModelBounds, PODS, StateEquivalence};
use crate::compact::CandidateNumber;
use crate::pod::ModelPod;
use crate::prune_superseded::prune;
use crate::state::ModelState;
use crate::state_field_visitor::StateFieldVisitor;

/// The canonical form of all states equivalent to this one.
pub fn canonical(mut state: ModelState, bounds: &ModelBounds) -> ModelState {
    if bounds.equivalence != StateEquivalence::NearlyExact {
        prune(&mut state, bounds);
    }
    if bounds.only_order_of_terms() {
        pack_terms(&mut state);
    }
    rank_beats(&mut state);
    let orderings = PodOrderings::of(&state, bounds);
    let written = orderings.orders().map(|order| named(&state, &order));
    written.min().expect("there is at least one order")
}

/// The state with its pods in this order, and all candidates renamed accordingly.
fn named(state: &ModelState, order: &[usize; PODS]) -> ModelState {
    let mut state = *state;
    state.pods = order.map(|place| state.pods[place]);
    let mut names = CandidateRenaming::of(&state.pods);
    state.visit(&mut names);
    // The network has no order: sorted, equal sets of messages are equal states.
    state.late.sort_unstable();
    state.late_checkpoint_requests.sort_unstable();
    state
}

fn pack_terms(state: &mut ModelState) {
    // Without a stored lease there is no current term to measure from.
    let Some(majority) = state.store.majority else { return };
    let current = majority.record.version.term;
    let mut below = LowerTermsInUse { current, present: 0 };
    state.visit(&mut below);
    state.visit(&mut TermPacking { current, below: below.present });
}

/// The terms below the current one, as bits.
struct LowerTermsInUse {
    current: u8,
    present: u128,
}

impl StateFieldVisitor for LowerTermsInUse {
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

impl StateFieldVisitor for TermPacking {
    fn term(&mut self, term: &mut u8) {
        let up_to = |term: u8| (self.below & ((1 << term) - 1)).count_ones() as u8;
        *term = match *term {
            0 => 0,
            below if below < self.current => up_to(below) + 1,
            above => above - self.current + up_to(self.current) + 1,
        };
    }
}

/// The heartbeats that occur, by owner, as bits. (There are never more candidates than this at once.)
#[derive(Default)]
struct HeartbeatSet([u64; 16]);

impl StateFieldVisitor for HeartbeatSet {
    fn heartbeat(&mut self, owner: CandidateNumber, heartbeat: &mut u8) {
        self.0[usize::from(owner.0)] |= 1 << *heartbeat;
    }
}

/// Replaces each heartbeat by its rank among its owner's heartbeats. Zero stays: it was never sent.
struct HeartbeatRanking(HeartbeatSet);

impl StateFieldVisitor for HeartbeatRanking {
    fn heartbeat(&mut self, owner: CandidateNumber, heartbeat: &mut u8) {
        // Shifted by one: bit zero stands for "never sent" and does not count.
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

/// The orders in which the pods may be written.
struct PodOrderings {
    sorted: [usize; PODS],
    /// Which neighbours are equal without their relations to other candidates.
    equal: [bool; PODS - 1],
}

impl PodOrderings {
    fn of(state: &ModelState, bounds: &ModelBounds) -> Self {
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
        // Only pods with equal keys may be swapped, so at most six orders are tried.
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

/// The pod with every candidate except itself made anonymous.
fn anonymous(pod: &ModelPod) -> ModelPod {
    let mut anonymous = *pod;
    anonymous.visit(&mut AnonymousView { own: pod.candidate });
    anonymous
}

struct AnonymousView {
    own: CandidateNumber,
}

impl StateFieldVisitor for AnonymousView {
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

/// New names: running candidates by position, crashed ones in the order of first use.
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

impl StateFieldVisitor for CandidateRenaming {
    fn candidate(&mut self, candidate: &mut CandidateNumber) {
        if *candidate == CandidateNumber::NOBODY {
            return;
        }
        let position = self.known[..self.count].iter().position(|known| known == candidate).unwrap_or_else(|| {
            self.known[self.count] = *candidate;
            self.count += 1;
            self.count - 1
        });
        *candidate = CandidateNumber(u8::try_from(position + 1).expect("there are few candidates"));
    }
}
