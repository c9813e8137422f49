//! What a state may forget because the store has moved on.
//!
//! Every version is written once, and what a pod saw, a majority had. So a version that was seen and is no longer the majority's has
//! *passed* for good. Two things then lose their meaning: what a standby remembers of such a version (whatever it reads next
//! differs from it), and a statement that needs it (it is *doomed*: refused whenever it comes). To forget them changes nothing but idle
//! steps of that one pod: a standby whose doomed statement is dropped is one that was refused, and looks again.

use crate::bounds::{Bounds, PODS};
use crate::checkpoint::{CheckpointReply, CheckpointRequest};
use crate::compact::{CandidateNumber, CompactRecord, CompactStatement, CompactVersion, SentStatement};
use crate::normalize::normalized;
use crate::pod::{CompactHeldLease, CompactObservation, ModelPod, PendingRead, PendingStatement, RequestStage};
use crate::protocol_defect::ProtocolDefect;
use crate::state::{MAX_LATE, ModelState};
use crate::store::MAX_UNREPLICATED;
use crate::time::{PodTiming, WaitAge};

/// Stands for every passed version: no real one has the heartbeat zero.
const SUPERSEDED: CompactRecord = CompactRecord {
    version: CompactVersion { holder: CandidateNumber::NOBODY, term: 0, heartbeat: 0 },
    timing: PodTiming::Short,
};

/// The same world without what the store has made meaningless.
pub fn prune(state: &mut ModelState, bounds: &Bounds) {
    if bounds.defect.is_some_and(makes_the_old_matter) {
        return;
    }
    prune_errands(state, bounds);
    let past = StoreHistory::of(state, bounds);
    for late in &mut state.late {
        *late = late.filter(|statement| !past.always_refuses(statement));
    }
    for index in 0..state.pods.len() {
        let pod = &mut state.pods[index];
        past.prune_statement(pod, bounds);
        past.prune_memory(pod, bounds);
        *pod = normalized(pod, bounds);
    }
}

/// With these, a version that was replaced is not as good as forgotten.
const fn makes_the_old_matter(defect: ProtocolDefect) -> bool {
    matches!(
        defect,
        ProtocolDefect::CompareTermOnly
            | ProtocolDefect::ClientClock
            | ProtocolDefect::ReleaseBeforeGateCloses
            | ProtocolDefect::WaitFromRequest
            | ProtocolDefect::PrimaryAckTrusted
    )
}

/// The term of the last claim never falls, so an request refused for its term is refused whenever it comes.
fn prune_errands(state: &mut ModelState, bounds: &Bounds) {
    let checkpoint = state.checkpoint;
    let refused = |request: &CheckpointRequest| {
        matches!({ checkpoint }.receive(request, bounds.defect).0, CheckpointReply::Refused { .. })
    };
    let hopeless = |request: &CheckpointRequest| request.term < checkpoint.term && refused(request);
    for late in &mut state.late_checkpoint_requests {
        *late = late.filter(|request| !hopeless(request));
    }
    for pod in &mut state.pods {
        let term = pod.held.map(|held| held.term);
        let idle = |request: &CheckpointRequest| Some(request.term) != term && hopeless(request);
        // That a save succeeded tells its sender nothing new.
        pod.work.request =
            pod.work.request.filter(|request| !idle(request) && request.reply != Some(CheckpointReply::Saved));
    }
}

/// How far the store has come.
struct StoreHistory {
    /// What a majority has.
    stored: Option<CompactVersion>,
    /// A first record under way, which after a deletion may still be written, or is and may reach a majority yet: by whom, and
    /// in which term.
    first: [Option<(CandidateNumber, u8)>; PODS + MAX_LATE + MAX_UNREPLICATED],
    may_vanish: bool,
    /// The lease is never deleted.
    lasting: bool,
}

impl StoreHistory {
    fn of(state: &ModelState, bounds: &Bounds) -> Self {
        let pending = state.pods.iter().map(|pod| pod.pending.filter(|pending| pending.stage != RequestStage::Refused));
        let under_way = pending.map(|pending| pending.map(|pending| pending.statement)).chain(state.late);
        let under_way = under_way.map(|statement| {
            statement.and_then(|statement| match statement.statement {
                CompactStatement::Create { term, .. } => Some((statement.by, term)),
                _ => None,
            })
        });
        let unreplicated = state.store.unreplicated.map(|write| write.map(|write| write.lease.record.version));
        let written = unreplicated.map(|version| version.map(|version| (version.holder, version.term)));
        let mut first = [None; PODS + MAX_LATE + MAX_UNREPLICATED];
        first.iter_mut().zip(under_way.chain(written)).for_each(|(place, known)| *place = known);
        let stored = state.store.majority.map(|lease| lease.record.version);
        let may_vanish = state.faults.deletions < bounds.deletions;
        Self { stored, first, may_vanish, lasting: bounds.deletions == 0 }
    }

    fn prune_statement(&self, pod: &mut ModelPod, bounds: &Bounds) {
        let Some(pending) = &mut pod.pending else {
            // With a shut gate, and every raise that it could still send doomed, it has nothing to lose either.
            let hopeless = |held: &CompactHeldLease| {
                held.raising_above.is_some() && self.is_over(pod.candidate, held.term, u8::MAX)
            };
            pod.held = pod.held.filter(|held| !hopeless(held));
            return;
        };
        if pending.stage == RequestStage::Sent && self.always_refuses(&pending.statement) {
            pending.stage = RequestStage::Refused;
        }
        // A leader whose renewal is refused goes on until it hears of it. Nobody else has anything to lose.
        let leads = pod.held.is_some_and(|held| held.raising_above.is_none());
        if pending.stage == RequestStage::Refused && !leads {
            pod.held = None;
            pod.pending = None;
        } else if is_worthless(pending, bounds) {
            pod.pending = None;
        }
    }

    fn prune_memory(&self, pod: &mut ModelPod, bounds: &Bounds) {
        // Who never saw the lease move may ask the server for the time; that must not be forgotten.
        let blank = self.lasting && bounds.max_clock_skew.is_none();
        if let Some(observation) = pod
            .observation
            .filter(|observation| self.is_past(observation.record) || is_at_once(observation.record, pod.candidate))
        {
            let highest_term = if self.lasting { 0 } else { observation.highest_term };
            let observation = CompactObservation {
                record: Some(SUPERSEDED),
                since: WaitAge::ZERO,
                has_changed: true,
                highest_term,
                holder_timing: None,
            };
            pod.observation = (!blank).then_some(observation);
        }
        if let Some(read) = pod.pending_read.filter(|read| self.is_past(read.found)) {
            let term = self.told_by(pod, read.found);
            let found = Some(CompactRecord { version: CompactVersion { term, ..SUPERSEDED.version }, ..SUPERSEDED });
            let idle = blank && pod.observation.is_none() && term == 0;
            pod.pending_read = (!idle).then_some(PendingRead { found, ..read });
        }
    }

    /// The term a passed version still tells a pod of: if the lease lasts, only whether its own resignation was heeded.
    fn told_by(&self, pod: &ModelPod, found: Option<CompactRecord>) -> u8 {
        let term = found.map_or(0, |record| record.version.term);
        match pod.step_down_pause {
            _ if !self.lasting => term,
            Some(step_down_pause) if term > step_down_pause.term => self.stored.map_or(0, |stored| stored.term),
            _ => 0,
        }
    }

    /// Whether what was seen has passed. That there was no lease passes when there is one for good.
    fn is_past(&self, seen: Option<CompactRecord>) -> bool {
        seen.map_or(self.lasting && self.stored.is_some(), |record| Some(record.version) != self.stored)
    }

    fn always_refuses(&self, statement: &SentStatement) -> bool {
        match statement.statement {
            CompactStatement::Create { .. } => self.stored.is_some() && !self.may_vanish,
            CompactStatement::Take { expected, .. } | CompactStatement::TakeIfExpired { expected, .. } => {
                Some(expected) != self.stored
            }
            CompactStatement::Renew { term, heartbeat } | CompactStatement::Raise { term, heartbeat, .. } => {
                self.is_over(statement.by, term, heartbeat)
            }
            CompactStatement::Release { term } => self.is_over(statement.by, term, u8::MAX),
            CompactStatement::AlwaysRefused => true,
        }
    }

    /// Whether this term of this holder is over, or has come past this heartbeat.
    fn is_over(&self, by: CandidateNumber, term: u8, heartbeat: u8) -> bool {
        let holds = self
            .stored
            .is_some_and(|stored| (stored.holder, stored.term) == (by, term) && stored.heartbeat < heartbeat);
        let returns = !self.lasting && self.first.contains(&Some((by, term)));
        !holds && !returns
    }
}

/// Whether what was seen may be taken at once, whenever it is seen again: then nothing need be remembered of it.
fn is_at_once(seen: Option<CompactRecord>, own: CandidateNumber) -> bool {
    seen.is_some_and(|record| [CandidateNumber::NOBODY, own].contains(&record.version.holder))
}

/// Whether its answer will change nothing: it acknowledges a release, or a takeover that was sent too long ago to begin a leadership.
fn is_worthless(pending: &PendingStatement, bounds: &Bounds) -> bool {
    let begins_nothing = match pending.statement.statement {
        CompactStatement::Create { .. } | CompactStatement::Take { .. } | CompactStatement::TakeIfExpired { .. } => {
            let trusted = matches!(bounds.defect, Some(ProtocolDefect::ValidFromReply | ProtocolDefect::NoDeadline));
            // If the lease can vanish, the answer still tells of a term.
            bounds.horizon().is_expired(pending.sent) && !trusted && bounds.deletions == 0
        }
        CompactStatement::Release { .. } | CompactStatement::AlwaysRefused => true,
        CompactStatement::Renew { .. } | CompactStatement::Raise { .. } => false,
    };
    pending.stage == RequestStage::Acknowledged && begins_nothing
}
