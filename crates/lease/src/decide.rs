//! The election protocol as pure functions: no clock, no network, no random number. Time is an argument.
//!
//! A standby keeps a [`LeaseObservation`] (the lease as last read, and since when it is unchanged) and calls [`decide_standby`]. A
//! leader keeps a [`HeldLease`] (its term, and until when it is valid) and calls [`decide_leader`]. The elector executes the
//! decisions; the model of the protocol calls the same functions. [`LeaseStatement::apply`] defines what a statement does.
//!
//! Why no two candidates are valid at once, each by its own clock, within the drift bound of [`crate::timing`]:
//! 1. Every version of the record is written once ([`LeaseVersion`]), by a statement that the holder sent at some moment *s*.
//! 2. The holder is valid until *s* + renew deadline of its last *acknowledged* statement ([`HeldLease`]).
//! 3. A standby takes a version only after it has seen it unchanged for ttl, counted from when the reply that first showed it
//!    *arrived*, hence after *s* ([`LeaseObservation::update`]). The take is a compare-and-set on exactly that version.
//! 4. An acknowledgement comes from a majority, so a failover of the store loses neither a renewal nor a takeover.
//!
//! A lease that was released, or whose holder is this candidate itself, may be taken at once: its holder has closed its gate.
//! The one rule that trusts wall clocks, [`LeaseStatement::TakeIfExpired`], is off unless the operator states how far apart
//! the clocks of the MongoDB servers may be; see [`ElectionRules::max_clock_skew`].

use std::time::Duration;

use crate::clock::BootInstant;
use crate::record::{CandidateId, LeaseRecord, LeaseStatement, Term};
use crate::timing::Timing;

#[cfg(doc)]
use crate::record::LeaseVersion;

/// The rules of one election, the same for all its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElectionRules {
    pub timing: Timing,
    /// `None`: no wall clock decides anything. `Some`: the operator guarantees that no two MongoDB servers (or routers) ever
    /// show wall clocks further apart than this, steps included. A candidate that has not yet seen the lease change may then
    /// take one that the server calls expired, without waiting for ttl. If the guarantee is wrong, two pods can lead at once;
    /// that is why it is not the default: a failover to a server whose clock is ahead would hand a live lease to any pod
    /// that starts.
    pub max_clock_skew: Option<Duration>,
}

/// This candidate, and what it must remember about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CandidateState {
    id: CandidateId,
    /// The highest heartbeat number this candidate ever tried to write.
    last_heartbeat: u64,
    step_down_pause: Option<StepDownPause>,
}

/// After a voluntary step-down, the pod lets other pods take the lease first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StepDownPause {
    term: Term,
    until: BootInstant,
}

impl CandidateState {
    pub const fn new(id: CandidateId) -> Self {
        Self { id, last_heartbeat: 0, step_down_pause: None }
    }

    pub const fn id(&self) -> CandidateId {
        self.id
    }

    /// Call this before a statement is sent: its heartbeat number is used up, whether or not the statement succeeds.
    pub fn record_sent(&mut self, statement: &LeaseStatement) {
        self.last_heartbeat = self.last_heartbeat.max(statement.heartbeat().unwrap_or(0));
    }

    /// Call this after a voluntary step-down: leaves the lease to others until one has taken it, for at most ttl.
    pub fn record_step_down(&mut self, term: Term, now: BootInstant, timing: &Timing) {
        self.step_down_pause = Some(StepDownPause { term, until: now + timing.ttl() });
    }

    /// The renewal to send now.
    pub const fn renew_statement(&self, term: Term) -> LeaseStatement {
        LeaseStatement::Renew { candidate: self.id, term, heartbeat: self.last_heartbeat + 1 }
    }

    /// The statement that raises this candidate's term above `floor`, the highest term that the guarded store has seen.
    pub fn raise_statement(&self, term: Term, floor: Term) -> LeaseStatement {
        LeaseStatement::Raise {
            candidate: self.id,
            term,
            to: term.max(floor).next(),
            heartbeat: self.last_heartbeat + 1,
        }
    }

    pub const fn release_statement(&self, term: Term) -> LeaseStatement {
        LeaseStatement::Release { candidate: self.id, term }
    }

    fn next_heartbeat(&self, stored: u64) -> u64 {
        self.last_heartbeat.max(stored) + 1
    }
}

/// What a standby knows about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseObservation {
    record: Option<LeaseRecord>,
    /// When the reply arrived that first showed this record; never when the read was sent.
    unchanged_since: BootInstant,
    /// Whether this candidate ever saw the lease change. If not, the candidate is new, or the lease is abandoned.
    has_changed: bool,
    /// The ttl that the last holder may still rely on, should the record vanish.
    holder_ttl: Duration,
    /// The highest term ever seen: terms rise even when the record is lost.
    highest_term: Term,
}

impl LeaseObservation {
    /// The first read. `at` is when the reply arrived.
    pub fn new(record: Option<LeaseRecord>, at: BootInstant) -> Self {
        let empty = Self {
            record,
            unchanged_since: at,
            has_changed: false,
            holder_ttl: Duration::ZERO,
            highest_term: Term::default(),
        };
        empty.remember(record)
    }

    /// The next read. Only a different version restarts the wait.
    #[must_use]
    pub fn update(self, record: Option<LeaseRecord>, at: BootInstant) -> Self {
        let same = self.record.map(|known| known.version) == record.map(|read| read.version);
        let updated = if same { self } else { Self { unchanged_since: at, has_changed: true, ..self } };
        Self { record, ..updated.remember(record) }
    }

    pub const fn record(&self) -> Option<&LeaseRecord> {
        self.record.as_ref()
    }

    pub const fn highest_term(&self) -> Term {
        self.highest_term
    }

    fn remember(self, record: Option<LeaseRecord>) -> Self {
        let Some(record) = record else { return self };
        // After a release nobody relies on the ttl any more.
        let holder_ttl = if record.version.holder.is_some() { record.ttl } else { Duration::ZERO };
        Self { highest_term: self.highest_term.max(record.version.term), holder_ttl, ..self }
    }
}

/// What a standby should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StandbyAction {
    /// Send this. If a majority acknowledges it, lead (see [`HeldLease::new`]); otherwise read the lease again.
    Try { statement: LeaseStatement, reason: TakeoverReason },
    /// Nothing may be done before `until`, if nothing changes. (Poll more often: a change restarts the wait.)
    Wait { until: BootInstant },
}

/// Why a candidate may try to take the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TakeoverReason {
    /// There is no lease yet.
    NoLease,
    /// The lease was there, then it vanished, and its last holder's ttl is over.
    Vanished,
    /// The holder released it.
    Released,
    /// The record names this candidate, which does not lead: a reply was lost, or its deadline passed.
    OwnLease,
    /// Nothing changed for ttl.
    HolderSilent,
    /// The server's clock may say that it expired long ago.
    ServerClockExpired,
}

impl TakeoverReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoLease => "no lease yet",
            Self::Vanished => "lease vanished",
            Self::Released => "released",
            Self::OwnLease => "own lease taken again",
            Self::HolderSilent => "holder silent for ttl",
            Self::ServerClockExpired => "expired by the server's clock",
        }
    }
}

/// What a standby may do now, given what it knows about the lease.
pub fn decide_standby(
    state: &CandidateState,
    observation: &LeaseObservation,
    rules: &ElectionRules,
    now: BootInstant,
) -> StandbyAction {
    let ttl = rules.timing.ttl();
    if let Some(pause) = state.step_down_pause
        && observation.highest_term <= pause.term
        && now < pause.until
    {
        return StandbyAction::Wait { until: pause.until };
    }
    // Above every term ever seen, even if the record was deleted or restored since.
    let term = observation.highest_term.next();
    let candidate = state.id;
    let until = observation.unchanged_since + ttl.max(observation.holder_ttl);
    let Some(LeaseRecord { version: expected, .. }) = observation.record else {
        // A record that vanished may have had a holder who does not know it yet.
        return match observation.has_changed {
            true if now < until => StandbyAction::Wait { until },
            true => create(state, term, TakeoverReason::Vanished),
            false => create(state, term, TakeoverReason::NoLease),
        };
    };
    let heartbeat = state.next_heartbeat(expected.heartbeat);
    let take = |reason| StandbyAction::Try {
        statement: LeaseStatement::Take { expected, candidate, term, heartbeat },
        reason,
    };
    match (expected.holder, rules.max_clock_skew) {
        (None, _) => take(TakeoverReason::Released),
        (Some(holder), _) if holder == candidate => take(TakeoverReason::OwnLease),
        (Some(_), _) if now >= until => take(TakeoverReason::HolderSilent),
        // A lease that was seen to change has a live holder: its expiry is not worth asking for.
        (Some(_), Some(max_clock_skew)) if !observation.has_changed => StandbyAction::Try {
            statement: LeaseStatement::TakeIfExpired { expected, max_clock_skew, candidate, term, heartbeat },
            reason: TakeoverReason::ServerClockExpired,
        },
        (Some(_), _) => StandbyAction::Wait { until },
    }
}

fn create(state: &CandidateState, term: Term, reason: TakeoverReason) -> StandbyAction {
    let statement = LeaseStatement::Create { candidate: state.id, term, heartbeat: state.next_heartbeat(0) };
    StandbyAction::Try { statement, reason }
}

/// The lease as its holder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldLease {
    term: Term,
    valid_until: BootInstant,
    renew_at: BootInstant,
}

impl HeldLease {
    /// A statement sent at `sent` that grants `term` was acknowledged by a majority.
    pub fn new(term: Term, sent: BootInstant, timing: &Timing) -> Self {
        Self { term, valid_until: sent + timing.renew_deadline(), renew_at: sent + timing.heartbeat() }
    }

    /// A renewal sent at `sent` was acknowledged by a majority.
    #[must_use]
    pub fn with_renewal(self, sent: BootInstant, timing: &Timing) -> Self {
        Self::new(self.term, sent, timing)
    }

    /// A renewal failed, or its result is unknown: it is sent again, until the deadline.
    #[must_use]
    pub fn with_retry(self, now: BootInstant, timing: &Timing) -> Self {
        Self { renew_at: now + timing.retry_interval(), ..self }
    }

    pub const fn term(&self) -> Term {
        self.term
    }

    /// The leader may act before this moment, and not at it.
    pub const fn valid_until(&self) -> BootInstant {
        self.valid_until
    }

    pub fn is_valid(&self, now: BootInstant) -> bool {
        now < self.valid_until
    }
}

/// What a leader should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaderAction {
    /// Send [`CandidateState::renew_statement`]. If it is refused, the term is over. Without a reply or a majority:
    /// [`HeldLease::with_retry`].
    Renew,
    Wait {
        until: BootInstant,
    },
    /// The deadline passed without an acknowledged renewal: the term is over, whatever the store says.
    Expired,
}

/// What a leader must do now.
pub fn decide_leader(held: &HeldLease, now: BootInstant) -> LeaderAction {
    if !held.is_valid(now) {
        LeaderAction::Expired
    } else if now >= held.renew_at {
        LeaderAction::Renew
    } else {
        LeaderAction::Wait { until: held.renew_at.min(held.valid_until) }
    }
}

#[cfg(test)]
mod tests;
