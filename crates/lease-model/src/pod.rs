//! One pod of the model: its memory, and its requests in flight.
//!
//! Production keeps [`CandidateState`], [`LeaseObservation`] and [`HeldLease`], which contain instants. The model keeps ages, and builds
//! the production values from them for every call. `CompactObservation::of` searches the reverse: the compact form whose rebuilt value
//! *equals* the production value, so the model cannot silently lose anything that production remembers.

use std::iter;

use lease::decide::{CandidateState, HeldLease, LeaseObservation};
use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{Term, Timing};

use crate::checkpoint::ModelProducer;
use crate::compact::{CandidateNumber, CompactLeaseRecord, SentStatement, compact_number, compact_term};
use crate::time::{LeaseAge, PodTiming, WaitAge};

/// One process. A crash replaces it with a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelPod {
    pub candidate: CandidateNumber,
    pub timing: PodTiming,
    /// The highest heartbeat number it ever tried to write.
    pub last_heartbeat: u8,
    pub step_down_pause: Option<VoluntaryStepDown>,
    pub observation: Option<CompactObservation>,
    /// The reply to its last read, in flight.
    pub pending_read: Option<PendingRead>,
    pub held: Option<CompactHeldLease>,
    /// The statement whose reply it waits for.
    pub pending: Option<PendingStatement>,
    pub work: ModelProducer,
}

/// A voluntary step-down from this term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoluntaryStepDown {
    pub term: u8,
    pub age: WaitAge,
}

/// The reply to a read, in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingRead {
    pub found: Option<CompactLeaseRecord>,
    /// Since the read was sent. Only a planted defect uses it.
    pub age: WaitAge,
}

/// The lease that the pod believes to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactHeldLease {
    pub term: u8,
    /// Since the last acknowledged statement was sent.
    pub sent: LeaseAge,
    /// The gate is closed, and the pod raises its term above this one.
    pub raising_above: Option<u8>,
    /// An operator has deleted this lease since.
    pub lease_deleted: bool,
}

/// A statement in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingStatement {
    pub statement: SentStatement,
    pub sent: LeaseAge,
    pub stage: RequestStage,
    /// It was acknowledged, and then an operator deleted the lease.
    pub lease_deleted: bool,
}

/// The progress of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestStage {
    /// On its way to the primary.
    Sent,
    /// Written by the primary, not yet by a majority.
    Written,
    /// A majority has it; the reply is in flight.
    Acknowledged,
    /// The reply "refused" is in flight.
    Refused,
}

impl ModelPod {
    pub const fn new(candidate: CandidateNumber, timing: PodTiming) -> Self {
        Self {
            candidate,
            timing,
            last_heartbeat: 0,
            step_down_pause: None,
            observation: None,
            pending_read: None,
            held: None,
            pending: None,
            work: ModelProducer::NONE,
        }
    }

    pub fn candidate_state(&self, timing: &Timing) -> CandidateState {
        let mut me = CandidateState::new(self.candidate.to_id());
        let candidate = self.candidate.to_id();
        me.record_sent(&LeaseStatement::Renew {
            candidate,
            term: Term::default(),
            heartbeat: self.last_heartbeat.into(),
        });
        if let Some(VoluntaryStepDown { term, age }) = self.step_down_pause {
            me.record_step_down(Term::new(term.into()), age.instant(), timing);
        }
        me
    }

    /// Sends a statement.
    pub fn send(&mut self, statement: &LeaseStatement, timing: &Timing) {
        let mut me = self.candidate_state(timing);
        me.record_sent(statement);
        let LeaseStatement::Renew { heartbeat: next, .. } = me.renew_statement(Term::default()) else {
            unreachable!("a renewal is a renewal");
        };
        self.last_heartbeat = compact_number(next - 1);
        let statement = SentStatement::of(statement, self.candidate, self.timing);
        self.pending =
            Some(PendingStatement { statement, sent: LeaseAge::ZERO, stage: RequestStage::Sent, lease_deleted: false });
    }

    pub fn held_lease(&self, timing: &Timing) -> Option<HeldLease> {
        self.held.map(|held| HeldLease::new(Term::new(held.term.into()), held.sent.instant(), timing))
    }
}

/// See [`LeaseObservation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactObservation {
    pub record: Option<CompactLeaseRecord>,
    pub since: WaitAge,
    pub has_changed: bool,
    pub highest_term: u8,
    /// The timing of the last holder, if the lease has vanished.
    pub holder_timing: Option<PodTiming>,
}

impl CompactObservation {
    pub fn to_observation(&self) -> LeaseObservation {
        let record = self.record.map(CompactLeaseRecord::to_record);
        let since = self.since.instant();
        if !self.has_changed {
            return LeaseObservation::new(record, since);
        }
        // Stands for any earlier record: only its term and its holder's ttl are remembered.
        let holder = self.holder_timing.map(|_| CandidateNumber(u8::MAX).to_id());
        let version = LeaseVersion { holder, term: Term::new(self.highest_term.into()), heartbeat: u64::MAX };
        let ttl = self.holder_timing.unwrap_or(PodTiming::Short).to_timing().ttl();
        LeaseObservation::new(Some(LeaseRecord { version, ttl, expires_at: ServerTime::default() }), since)
            .update(record, since)
    }

    /// The next observation, computed by production code. `at` is when the reply arrived.
    pub fn after(before: Option<Self>, found: Option<CompactLeaseRecord>, at: WaitAge) -> Self {
        let record = found.map(CompactLeaseRecord::to_record);
        let observation = match before {
            None => LeaseObservation::new(record, at.instant()),
            Some(before) => before.to_observation().update(record, at.instant()),
        };
        let began = before.map_or(at, |before| before.since);
        Self::of(&observation, [at, began])
    }

    /// The compact form of `observation`, whose wait began at one of these ages.
    fn of(observation: &LeaseObservation, began: [WaitAge; 2]) -> Self {
        let record = observation.record().map(CompactLeaseRecord::of);
        let highest_term = compact_term(observation.highest_term());
        let holder_timings = iter::once(None).chain(PodTiming::ALL.map(Some));
        let patient = holder_timings.flat_map(|holder_timing| began.map(|since| (holder_timing, since)));
        let mut forms = patient.flat_map(|(holder_timing, since)| {
            [false, true].map(|has_changed| Self { record, since, has_changed, highest_term, holder_timing })
        });
        let same = forms.find(|form| form.to_observation() == *observation);
        same.expect("every production observation has a compact form")
    }

    /// Whether the pod has read the lease and never found one.
    pub fn is_empty(&self) -> bool {
        self.record.is_none() && !self.has_changed
    }
}
