//! One pod as the model keeps it: what it remembers, and what it has under way.
//!
//! Production keeps [`CandidateState`], [`LeaseObservation`] and [`HeldLease`], which hold moments. The model keeps ages and builds the production
//! values from them whenever it asks a production function. `Sight::of` goes the other way by search: the small form is the one
//! whose rebuilt value *equals* what production made, so nothing production remembers can be forgotten here unnoticed.

use std::iter;

use lease::decide::{CandidateState, HeldLease, LeaseObservation};
use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{Term, Timing};

use crate::checkpoint::Work;
use crate::stored::{Ask, Glance, Nonce, small, small_term};
use crate::tick::{Held, Span, Waited};

/// One process. A crash replaces it by a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pod {
    pub nonce: Nonce,
    pub span: Span,
    /// The highest heartbeat number it ever tried to write.
    pub beats: u8,
    pub stood_down: Option<StoodDown>,
    pub sight: Option<Sight>,
    /// The answer to its last read, on its way.
    pub look: Option<Look>,
    pub hold: Option<Hold>,
    /// The statement whose answer it waits for.
    pub asked: Option<Asked>,
    pub work: Work,
}

/// It gave up this term on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoodDown {
    pub term: u8,
    pub age: Waited,
}

/// A read on its way back, with what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Look {
    pub found: Option<Glance>,
    /// Since it was asked. Nothing counts from here, except in a planted defect.
    pub age: Waited,
}

/// A leadership, as the pod believes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub term: u8,
    /// Since the last acknowledged statement was sent.
    pub sent: Held,
    /// The gate is shut, and the term is being raised above this one.
    pub raising_above: Option<u8>,
    /// Rests on a lease that an operator has since deleted.
    pub bereft: bool,
}

/// A statement under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asked {
    pub ask: Ask,
    pub sent: Held,
    pub stage: Stage,
    /// It was acknowledged, and then an operator deleted the lease.
    pub bereft: bool,
}

/// How far a statement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// On its way to the primary.
    Sent,
    /// Written by the primary, not yet by a majority.
    Written,
    /// A majority has it; the answer is on its way.
    Acknowledged,
    /// The answer "refused" is on its way.
    Refused,
}

impl Pod {
    pub const fn new(nonce: Nonce, span: Span) -> Self {
        Self {
            nonce,
            span,
            beats: 0,
            stood_down: None,
            sight: None,
            look: None,
            hold: None,
            asked: None,
            work: Work::NONE,
        }
    }

    pub fn me(&self, timing: &Timing) -> CandidateState {
        let mut me = CandidateState::new(self.nonce.contender());
        let by = self.nonce.contender();
        me.record_sent(&LeaseStatement::Renew { by, term: Term::default(), heartbeat: self.beats.into() });
        if let Some(StoodDown { term, age }) = self.stood_down {
            me.record_step_down(Term::new(term.into()), age.moment(), timing);
        }
        me
    }

    /// Hands a statement to the network.
    pub fn send(&mut self, statement: &LeaseStatement, timing: &Timing) {
        let mut me = self.me(timing);
        me.record_sent(statement);
        let LeaseStatement::Renew { heartbeat: next, .. } = me.renew_statement(Term::default()) else {
            unreachable!("a renewal is a renewal");
        };
        self.beats = small(next - 1);
        let ask = Ask::of(statement, self.nonce, self.span);
        self.asked = Some(Asked { ask, sent: Held::ZERO, stage: Stage::Sent, bereft: false });
    }

    pub fn tenure(&self, timing: &Timing) -> Option<HeldLease> {
        self.hold.map(|hold| HeldLease::new(Term::new(hold.term.into()), hold.sent.moment(), timing))
    }
}

/// What a standby has seen of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sight {
    pub seen: Option<Glance>,
    pub since: Waited,
    pub moved: bool,
    pub highest: u8,
    /// Whose spans the last holder had, when the lease has vanished.
    pub patience: Option<Span>,
}

impl Sight {
    pub fn sighting(&self) -> LeaseObservation {
        let record = self.seen.map(Glance::record);
        let since = self.since.moment();
        if !self.moved {
            return LeaseObservation::new(record, since);
        }
        // Anything else that was seen before: only its term and its holder's patience are remembered.
        let holder = self.patience.map(|_| Nonce(u8::MAX).contender());
        let version = LeaseVersion { holder, term: Term::new(self.highest.into()), heartbeat: u64::MAX };
        let ttl = self.patience.unwrap_or(Span::Short).timing().ttl();
        LeaseObservation::new(Some(LeaseRecord { version, ttl, expires_at: ServerTime::default() }), since)
            .observe(record, since)
    }

    /// The next look, as production takes it. `at` is when the answer arrived.
    pub fn after(before: Option<Self>, found: Option<Glance>, at: Waited) -> Self {
        let record = found.map(Glance::record);
        let sighting = match before {
            None => LeaseObservation::new(record, at.moment()),
            Some(before) => before.sighting().observe(record, at.moment()),
        };
        let began = before.map_or(at, |before| before.since);
        Self::of(&sighting, [at, began])
    }

    /// The small form of `sighting`, whose wait began at one of these.
    fn of(sighting: &LeaseObservation, began: [Waited; 2]) -> Self {
        let seen = sighting.record().map(Glance::of);
        let highest = small_term(sighting.highest());
        let patiences = iter::once(None).chain(Span::ALL.map(Some));
        let patient = patiences.flat_map(|patience| began.map(|since| (patience, since)));
        let mut forms = patient
            .flat_map(|(patience, since)| [false, true].map(|moved| Self { seen, since, moved, highest, patience }));
        let same = forms.find(|form| form.sighting() == *sighting);
        same.expect("whatever production remembers of the lease has a small form")
    }

    /// Whether the lease was looked at in vain: there was none, and never had been.
    pub fn of_nothing(&self) -> bool {
        self.seen.is_none() && !self.moved
    }
}
