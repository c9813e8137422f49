//! Removes data from a state that the store has superseded.
//!
//! Every version is written once, and a pod only reads versions that a majority had. So a version that was read and is no longer the
//! majority's is *superseded* for good. Two things are then irrelevant: a standby's observation of that version (its next read differs
//! from it), and a statement that expects it (it is *always refused*). Removing them changes nothing but idle steps of that pod: a
//! standby whose statement is removed is one that was refused and reads again.

use crate::bounds::{ModelBounds, PODS};
use crate::checkpoint::{CheckpointReply, CheckpointRequest};
use crate::compact::{CandidateNumber, CompactLeaseRecord, CompactStatement, CompactVersion, SentStatement};
use crate::normalize::normalized;
use crate::pod::{CompactHeldLease, CompactObservation, ModelPod, PendingRead, PendingStatement, RequestStage};
use crate::protocol_defect::ProtocolDefect;
use crate::state::{MAX_LATE, ModelState};
use crate::store::MAX_UNREPLICATED;
use crate::time::{PodTiming, WaitAge};

/// Stands for every superseded version: no real version has the heartbeat zero.
const SUPERSEDED: CompactLeaseRecord = CompactLeaseRecord {
    version: CompactVersion { holder: CandidateNumber::NOBODY, term: 0, heartbeat: 0 },
    timing: PodTiming::Short,
};

/// Removes everything that the store has superseded.
pub fn prune(state: &mut ModelState, bounds: &ModelBounds) {
    if bounds.defect.is_some_and(needs_superseded_versions) {
        return;
    }
    prune_errands(state, bounds);
    let past = ReachableStoreHistory::of(state, bounds);
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

/// With these defects, a superseded version still matters.
const fn needs_superseded_versions(defect: ProtocolDefect) -> bool {
    matches!(
        defect,
        ProtocolDefect::CompareTermOnly
            | ProtocolDefect::ClientClock
            | ProtocolDefect::ReleaseBeforeGateCloses
            | ProtocolDefect::WaitFromRequest
            | ProtocolDefect::PrimaryAckTrusted
    )
}

/// The term of the last claim never falls, so a request that is refused for its term is always refused.
fn prune_errands(state: &mut ModelState, bounds: &ModelBounds) {
    let checkpoint = state.checkpoint;
    let refused = |request: &CheckpointRequest| {
        matches!({ checkpoint }.apply(request, bounds.defect).0, CheckpointReply::Refused { .. })
    };
    let always_refused = |request: &CheckpointRequest| request.term < checkpoint.term && refused(request);
    for late in &mut state.late_checkpoint_requests {
        *late = late.filter(|request| !always_refused(request));
    }
    for pod in &mut state.pods {
        let term = pod.held.map(|held| held.term);
        let idle = |request: &CheckpointRequest| Some(request.term) != term && always_refused(request);
        // The reply to a successful save tells its sender nothing new.
        pod.work.request =
            pod.work.request.filter(|request| !idle(request) && request.reply != Some(CheckpointReply::Saved));
    }
}

/// What the store has, and what may still reach it.
struct ReachableStoreHistory {
    /// The version that a majority has.
    stored: Option<CompactVersion>,
    /// New leases in flight that may still be written or replicated after a deletion: the candidate and the term.
    new_leases: [Option<(CandidateNumber, u8)>; PODS + MAX_LATE + MAX_UNREPLICATED],
    may_be_deleted: bool,
    /// The lease is never deleted.
    never_deleted: bool,
}

impl ReachableStoreHistory {
    fn of(state: &ModelState, bounds: &ModelBounds) -> Self {
        let pending = state.pods.iter().map(|pod| pod.pending.filter(|pending| pending.stage != RequestStage::Refused));
        let in_flight = pending.map(|pending| pending.map(|pending| pending.statement)).chain(state.late);
        let in_flight = in_flight.map(|statement| {
            statement.and_then(|statement| match statement.statement {
                CompactStatement::Create { term, .. } => Some((statement.by, term)),
                _ => None,
            })
        });
        let unreplicated = state.store.unreplicated.map(|write| write.map(|write| write.lease.record.version));
        let written = unreplicated.map(|version| version.map(|version| (version.holder, version.term)));
        let mut new_leases = [None; PODS + MAX_LATE + MAX_UNREPLICATED];
        new_leases.iter_mut().zip(in_flight.chain(written)).for_each(|(place, known)| *place = known);
        let stored = state.store.majority.map(|lease| lease.record.version);
        let may_be_deleted = state.faults.deletions < bounds.deletions;
        Self { stored, new_leases, may_be_deleted, never_deleted: bounds.deletions == 0 }
    }

    fn prune_statement(&self, pod: &mut ModelPod, bounds: &ModelBounds) {
        let Some(pending) = &mut pod.pending else {
            // Its gate is closed, and every raise it could send is always refused: its lease does not matter.
            let always_refused = |held: &CompactHeldLease| {
                held.raising_above.is_some() && self.is_over(pod.candidate, held.term, u8::MAX)
            };
            pod.held = pod.held.filter(|held| !always_refused(held));
            return;
        };
        if pending.stage == RequestStage::Sent && self.always_refuses(&pending.statement) {
            pending.stage = RequestStage::Refused;
        }
        // A leader whose renewal is refused continues until it receives the reply. For other pods the reply changes nothing.
        let leads = pod.held.is_some_and(|held| held.raising_above.is_none());
        if pending.stage == RequestStage::Refused && !leads {
            pod.held = None;
            pod.pending = None;
        } else if has_irrelevant_reply(pending, bounds) {
            pod.pending = None;
        }
    }

    fn prune_memory(&self, pod: &mut ModelPod, bounds: &ModelBounds) {
        // A pod that never saw the lease change may use the server clock; that must be kept.
        let blank = self.never_deleted && bounds.max_clock_skew.is_none();
        if let Some(observation) = pod.observation.filter(|observation| {
            self.is_superseded(observation.record) || may_be_taken_at_once(observation.record, pod.candidate)
        }) {
            let highest_term = if self.never_deleted { 0 } else { observation.highest_term };
            let observation = CompactObservation {
                record: Some(SUPERSEDED),
                since: WaitAge::ZERO,
                has_changed: true,
                highest_term,
                holder_timing: None,
            };
            pod.observation = (!blank).then_some(observation);
        }
        if let Some(read) = pod.pending_read.filter(|read| self.is_superseded(read.found)) {
            let term = self.term_shown_by(pod, read.found);
            let found =
                Some(CompactLeaseRecord { version: CompactVersion { term, ..SUPERSEDED.version }, ..SUPERSEDED });
            let idle = blank && pod.observation.is_none() && term == 0;
            pod.pending_read = (!idle).then_some(PendingRead { found, ..read });
        }
    }

    /// The term that a superseded version still shows a pod. If the lease is never deleted, only whether another pod followed its
    /// step-down matters.
    fn term_shown_by(&self, pod: &ModelPod, found: Option<CompactLeaseRecord>) -> u8 {
        let term = found.map_or(0, |record| record.version.term);
        match pod.step_down_pause {
            _ if !self.never_deleted => term,
            Some(step_down_pause) if term > step_down_pause.term => self.stored.map_or(0, |stored| stored.term),
            _ => 0,
        }
    }

    /// Whether the record is superseded. "No lease" is superseded when there is one that is never deleted.
    fn is_superseded(&self, seen: Option<CompactLeaseRecord>) -> bool {
        seen.map_or(self.never_deleted && self.stored.is_some(), |record| Some(record.version) != self.stored)
    }

    fn always_refuses(&self, statement: &SentStatement) -> bool {
        match statement.statement {
            CompactStatement::Create { .. } => self.stored.is_some() && !self.may_be_deleted,
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

    /// Whether this term of this holder is over, or past this heartbeat.
    fn is_over(&self, by: CandidateNumber, term: u8, heartbeat: u8) -> bool {
        let holds = self
            .stored
            .is_some_and(|stored| (stored.holder, stored.term) == (by, term) && stored.heartbeat < heartbeat);
        let returns = !self.never_deleted && self.new_leases.contains(&Some((by, term)));
        !holds && !returns
    }
}

/// Whether the record may be taken at once whenever it is read: then it need not be remembered.
fn may_be_taken_at_once(seen: Option<CompactLeaseRecord>, own: CandidateNumber) -> bool {
    seen.is_some_and(|record| [CandidateNumber::NOBODY, own].contains(&record.version.holder))
}

/// Whether its reply changes nothing: it acknowledges a release, or a takeover that was sent too long ago to start a term.
fn has_irrelevant_reply(pending: &PendingStatement, bounds: &ModelBounds) -> bool {
    let begins_nothing = match pending.statement.statement {
        CompactStatement::Create { .. } | CompactStatement::Take { .. } | CompactStatement::TakeIfExpired { .. } => {
            let trusted = matches!(bounds.defect, Some(ProtocolDefect::ValidFromReply | ProtocolDefect::NoDeadline));
            // If the lease can be deleted, the reply still shows a term.
            bounds.horizon().is_expired(pending.sent) && !trusted && bounds.deletions == 0
        }
        CompactStatement::Release { .. } | CompactStatement::AlwaysRefused => true,
        CompactStatement::Renew { .. } | CompactStatement::Raise { .. } => false,
    };
    pending.stage == RequestStage::Acknowledged && begins_nothing
}
