//! The nouns of production, written small: a state of the model holds dozens of them, and there are millions of states.
//!
//! Nothing is decided here. [`SentStatement::apply`] turns the small forms into [`LeaseRecord`] and [`LeaseStatement`], lets the production code
//! answer, and writes the answer small again.

use std::time::Duration;

use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{CandidateId, Term};

use crate::time::{PodTiming, TICK};

/// A contender. Zero is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateNumber(pub u8);

impl CandidateNumber {
    pub const NOBODY: Self = Self(0);

    pub fn to_id(self) -> CandidateId {
        CandidateId::new(u128::from(self.0))
    }

    fn of(contender: CandidateId) -> Self {
        let found = (1..=u8::MAX).map(Self).find(|candidate| candidate.to_id() == contender);
        found.expect("every contender of the model has a small candidate")
    }
}

/// What a compare-and-set compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactVersion {
    pub holder: CandidateNumber,
    pub term: u8,
    pub heartbeat: u8,
}

impl CompactVersion {
    pub fn version(self) -> LeaseVersion {
        let holder = (self.holder != CandidateNumber::NOBODY).then(|| self.holder.to_id());
        LeaseVersion { holder, term: Term::new(self.term.into()), heartbeat: self.heartbeat.into() }
    }

    fn of(version: &LeaseVersion) -> Self {
        let holder = version.holder.map_or(CandidateNumber::NOBODY, CandidateNumber::of);
        Self { holder, term: small_term(version.term), heartbeat: small(version.heartbeat) }
    }
}

/// What a pod sees of the lease. (`expiresAt` decides at the server only.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactRecord {
    pub version: CompactVersion,
    pub timing: PodTiming,
}

impl CompactRecord {
    pub fn record(self) -> LeaseRecord {
        LeaseRecord {
            version: self.version.version(),
            ttl: self.timing.to_timing().ttl(),
            expires_at: ServerTime::default(),
        }
    }

    pub fn of(record: &LeaseRecord) -> Self {
        Self { version: CompactVersion::of(&record.version), timing: timing_of(record.ttl) }
    }
}

/// The lease as the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactLease {
    pub record: CompactRecord,
    /// What the server's clock showed when this was written, in ticks from the true present. Falls as time passes.
    pub written: i8,
}

impl CompactLease {
    fn record(self) -> LeaseRecord {
        let record = self.record.record();
        let ttl = i64::try_from(record.ttl.as_millis()).expect("a few ticks");
        LeaseRecord { expires_at: ServerTime(server_time(self.written).0 + ttl), ..record }
    }
}

/// A clock that many ticks from the true present.
pub fn server_time(offset: i8) -> ServerTime {
    ServerTime(i64::from(offset) * i64::from(TICK))
}

/// How far apart the operator says the servers' clocks may be.
pub fn skew(ticks: u8) -> Duration {
    Duration::from_millis(u64::from(ticks) * u64::from(TICK))
}

/// A statement, and who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SentStatement {
    pub by: CandidateNumber,
    pub statement: CompactStatement,
    pub timing: PodTiming,
}

/// See [`LeaseStatement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompactStatement {
    Create {
        term: u8,
        heartbeat: u8,
    },
    Take {
        expected: CompactVersion,
        term: u8,
        heartbeat: u8,
    },
    TakeIfExpired {
        expected: CompactVersion,
        skew: u8,
        term: u8,
        heartbeat: u8,
    },
    Renew {
        term: u8,
        heartbeat: u8,
    },
    Raise {
        term: u8,
        to: u8,
        heartbeat: u8,
    },
    Release {
        term: u8,
    },
    /// Whatever it was, the store has moved on and will refuse it whenever it comes. Written by `canon.rs`.
    AlwaysRefused,
}

impl SentStatement {
    pub fn of(statement: &LeaseStatement, by: CandidateNumber, timing: PodTiming) -> Self {
        let statement = match *statement {
            LeaseStatement::Create { term, heartbeat, .. } => {
                CompactStatement::Create { term: small_term(term), heartbeat: small(heartbeat) }
            }
            LeaseStatement::Take { expected, term, heartbeat, .. } => CompactStatement::Take {
                expected: CompactVersion::of(&expected),
                term: small_term(term),
                heartbeat: small(heartbeat),
            },
            LeaseStatement::TakeIfExpired { expected, max_clock_skew, term, heartbeat, .. } => {
                CompactStatement::TakeIfExpired {
                    expected: CompactVersion::of(&expected),
                    skew: small(max_clock_skew.as_millis() as u64 / u64::from(TICK)),
                    term: small_term(term),
                    heartbeat: small(heartbeat),
                }
            }
            LeaseStatement::Renew { term, heartbeat, .. } => {
                CompactStatement::Renew { term: small_term(term), heartbeat: small(heartbeat) }
            }
            LeaseStatement::Raise { term, to, heartbeat, .. } => {
                CompactStatement::Raise { term: small_term(term), to: small_term(to), heartbeat: small(heartbeat) }
            }
            LeaseStatement::Release { term, .. } => CompactStatement::Release { term: small_term(term) },
        };
        Self { by, statement, timing }
    }

    /// `None` for a doomed one.
    pub fn statement(&self) -> Option<LeaseStatement> {
        let candidate = self.by.to_id();
        let term = |number: u8| Term::new(number.into());
        Some(match self.statement {
            CompactStatement::Create { term: t, heartbeat } => {
                LeaseStatement::Create { candidate, term: term(t), heartbeat: heartbeat.into() }
            }
            CompactStatement::Take { expected, term: t, heartbeat } => LeaseStatement::Take {
                expected: expected.version(),
                candidate,
                term: term(t),
                heartbeat: heartbeat.into(),
            },
            CompactStatement::TakeIfExpired { expected, skew: ticks, term: t, heartbeat } => {
                LeaseStatement::TakeIfExpired {
                    expected: expected.version(),
                    max_clock_skew: skew(ticks),
                    candidate,
                    term: term(t),
                    heartbeat: heartbeat.into(),
                }
            }
            CompactStatement::Renew { term: t, heartbeat } => {
                LeaseStatement::Renew { candidate, term: term(t), heartbeat: heartbeat.into() }
            }
            CompactStatement::Raise { term: t, to, heartbeat } => {
                LeaseStatement::Raise { candidate, term: term(t), to: term(to), heartbeat: heartbeat.into() }
            }
            CompactStatement::Release { term: t } => LeaseStatement::Release { candidate, term: term(t) },
            CompactStatement::AlwaysRefused => return None,
        })
    }

    /// What the store holds afterwards, if it does not refuse, at a server whose clock is `offset` from the true present.
    pub fn apply(&self, stored: Option<&CompactLease>, offset: i8) -> Option<CompactLease> {
        let stored_record = stored.map(|lease| lease.record());
        let ttl = self.timing.to_timing().ttl();
        let record = self.statement()?.apply(stored_record.as_ref(), ttl, server_time(offset))?;
        // A release keeps the old expiry; everything else writes a new one.
        let kept = stored.filter(|lease| lease.record().expires_at == record.expires_at);
        let written = kept.map_or(offset, |lease| lease.written);
        Some(CompactLease { record: CompactRecord::of(&record), written })
    }

    /// The heartbeat number this statement would write.
    pub const fn heartbeat(&self) -> Option<u8> {
        match self.statement {
            CompactStatement::Create { heartbeat, .. }
            | CompactStatement::Take { heartbeat, .. }
            | CompactStatement::TakeIfExpired { heartbeat, .. }
            | CompactStatement::Renew { heartbeat, .. }
            | CompactStatement::Raise { heartbeat, .. } => Some(heartbeat),
            CompactStatement::Release { .. } | CompactStatement::AlwaysRefused => None,
        }
    }
}

pub fn small(number: u64) -> u8 {
    u8::try_from(number).expect("numbers of the model stay small")
}

pub fn small_term(term: Term) -> u8 {
    small(term.get())
}

fn timing_of(ttl: Duration) -> PodTiming {
    let found = PodTiming::ALL.into_iter().find(|timing| timing.to_timing().ttl() == ttl);
    found.expect("every ttl of the model is a timing's")
}
