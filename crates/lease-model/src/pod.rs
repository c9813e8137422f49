//! One pod as the model keeps it: what it remembers, and what it has under way.
//!
//! Production keeps [`CandidateState`], [`LeaseObservation`] and [`HeldLease`], which hold moments. The model keeps ages and builds the production
//! values from them whenever it asks a production function. `CompactObservation::of` goes the other way by search: the small form is the one
//! whose rebuilt value *equals* what production made, so nothing production remembers can be forgotten here unnoticed.

use std::iter;

use lease::decide::{CandidateState, HeldLease, LeaseObservation};
use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{Term, Timing};

use crate::checkpoint::ProducerState;
use crate::compact::{CandidateNumber, CompactRecord, SentStatement, small, small_term};
use crate::time::{LeaseAge, PodTiming, WaitAge};

/// One process. A crash replaces it by a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelPod {
    pub candidate: CandidateNumber,
    pub timing: PodTiming,
    /// The highest heartbeat number it ever tried to write.
    pub last_heartbeat: u8,
    pub step_down_pause: Option<RecentStepDown>,
    pub observation: Option<CompactObservation>,
    /// The answer to its last read, on its way.
    pub pending_read: Option<PendingRead>,
    pub held: Option<CompactHeldLease>,
    /// The statement whose answer it waits for.
    pub pending: Option<PendingStatement>,
    pub work: ProducerState,
}

/// It gave up this term on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecentStepDown {
    pub term: u8,
    pub age: WaitAge,
}

/// A read on its way back, with what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingRead {
    pub found: Option<CompactRecord>,
    /// Since it was pending. Nothing counts from here, except in a planted defect.
    pub age: WaitAge,
}

/// A leadership, as the pod believes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactHeldLease {
    pub term: u8,
    /// Since the last acknowledged statement was sent.
    pub sent: LeaseAge,
    /// The gate is shut, and the term is being raised above this one.
    pub raising_above: Option<u8>,
    /// Rests on a lease that an operator has since deleted.
    pub lease_deleted: bool,
}

/// A statement under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingStatement {
    pub statement: SentStatement,
    pub sent: LeaseAge,
    pub stage: RequestStage,
    /// It was acknowledged, and then an operator deleted the lease.
    pub lease_deleted: bool,
}

/// How far a statement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestStage {
    /// On its way to the primary.
    Sent,
    /// Written by the primary, not yet by a majority.
    Written,
    /// A majority has it; the answer is on its way.
    Acknowledged,
    /// The answer "refused" is on its way.
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
            work: ProducerState::NONE,
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
        if let Some(RecentStepDown { term, age }) = self.step_down_pause {
            me.record_step_down(Term::new(term.into()), age.instant(), timing);
        }
        me
    }

    /// Hands a statement to the network.
    pub fn send(&mut self, statement: &LeaseStatement, timing: &Timing) {
        let mut me = self.candidate_state(timing);
        me.record_sent(statement);
        let LeaseStatement::Renew { heartbeat: next, .. } = me.renew_statement(Term::default()) else {
            unreachable!("a renewal is a renewal");
        };
        self.last_heartbeat = small(next - 1);
        let statement = SentStatement::of(statement, self.candidate, self.timing);
        self.pending =
            Some(PendingStatement { statement, sent: LeaseAge::ZERO, stage: RequestStage::Sent, lease_deleted: false });
    }

    pub fn held_lease(&self, timing: &Timing) -> Option<HeldLease> {
        self.held.map(|held| HeldLease::new(Term::new(held.term.into()), held.sent.instant(), timing))
    }
}

/// What a standby has seen of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactObservation {
    pub record: Option<CompactRecord>,
    pub since: WaitAge,
    pub has_changed: bool,
    pub highest_term: u8,
    /// Whose spans the last holder had, when the lease has vanished.
    pub holder_timing: Option<PodTiming>,
}

impl CompactObservation {
    pub fn to_observation(&self) -> LeaseObservation {
        let record = self.record.map(CompactRecord::record);
        let since = self.since.instant();
        if !self.has_changed {
            return LeaseObservation::new(record, since);
        }
        // Anything else that was seen before: only its term and its holder's patience are remembered.
        let holder = self.holder_timing.map(|_| CandidateNumber(u8::MAX).to_id());
        let version = LeaseVersion { holder, term: Term::new(self.highest_term.into()), heartbeat: u64::MAX };
        let ttl = self.holder_timing.unwrap_or(PodTiming::Short).to_timing().ttl();
        LeaseObservation::new(Some(LeaseRecord { version, ttl, expires_at: ServerTime::default() }), since)
            .update(record, since)
    }

    /// The next read, as production takes it. `at` is when the answer arrived.
    pub fn after(before: Option<Self>, found: Option<CompactRecord>, at: WaitAge) -> Self {
        let record = found.map(CompactRecord::record);
        let observation = match before {
            None => LeaseObservation::new(record, at.instant()),
            Some(before) => before.to_observation().update(record, at.instant()),
        };
        let began = before.map_or(at, |before| before.since);
        Self::of(&observation, [at, began])
    }

    /// The small form of `sighting`, whose wait began at one of these.
    fn of(observation: &LeaseObservation, began: [WaitAge; 2]) -> Self {
        let record = observation.record().map(CompactRecord::of);
        let highest_term = small_term(observation.highest_term());
        let holder_timings = iter::once(None).chain(PodTiming::ALL.map(Some));
        let patient = holder_timings.flat_map(|holder_timing| began.map(|since| (holder_timing, since)));
        let mut forms = patient.flat_map(|(holder_timing, since)| {
            [false, true].map(|has_changed| Self { record, since, has_changed, highest_term, holder_timing })
        });
        let same = forms.find(|form| form.to_observation() == *observation);
        same.expect("whatever production remembers of the lease has a small form")
    }

    /// Whether the lease was looked at in vain: there was none, and never had been.
    pub fn is_empty(&self) -> bool {
        self.record.is_none() && !self.has_changed
    }
}
