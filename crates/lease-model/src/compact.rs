//! Compact forms of the production types: a state contains dozens of them, and there are millions of states.
//!
//! Decides nothing. [`SentStatement::apply`] converts the compact forms to [`LeaseRecord`] and [`LeaseStatement`], calls the production
//! code, and converts the result back.

use std::time::Duration;

use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{CandidateId, Term};

use crate::time::{PodTiming, TICK};

/// A candidate. Zero is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateNumber(pub u8);

impl CandidateNumber {
    pub const NOBODY: Self = Self(0);

    pub fn to_id(self) -> CandidateId {
        CandidateId::new(u128::from(self.0))
    }

    fn of(id: CandidateId) -> Self {
        let found = (1..=u8::MAX).map(Self).find(|candidate| candidate.to_id() == id);
        found.expect("every candidate of the model has a small number")
    }
}

/// See [`LeaseVersion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactVersion {
    pub holder: CandidateNumber,
    pub term: u8,
    pub heartbeat: u8,
}

impl CompactVersion {
    pub fn to_version(self) -> LeaseVersion {
        let holder = (self.holder != CandidateNumber::NOBODY).then(|| self.holder.to_id());
        LeaseVersion { holder, term: Term::new(self.term.into()), heartbeat: self.heartbeat.into() }
    }

    fn of(version: &LeaseVersion) -> Self {
        let holder = version.holder.map_or(CandidateNumber::NOBODY, CandidateNumber::of);
        Self { holder, term: compact_term(version.term), heartbeat: compact_number(version.heartbeat) }
    }
}

/// The lease as a pod reads it. (Only the server uses `expiresAt`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactLeaseRecord {
    pub version: CompactVersion,
    pub timing: PodTiming,
}

impl CompactLeaseRecord {
    pub fn to_record(self) -> LeaseRecord {
        LeaseRecord {
            version: self.version.to_version(),
            ttl: self.timing.to_timing().ttl(),
            expires_at: ServerTime::default(),
        }
    }

    pub fn of(record: &LeaseRecord) -> Self {
        Self { version: CompactVersion::of(&record.version), timing: timing_of(record.ttl) }
    }
}

/// The stored lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactLease {
    pub record: CompactLeaseRecord,
    /// The server's clock at the time of the write, in ticks from the true present. Decreases as time passes.
    pub written: i8,
}

impl CompactLease {
    fn to_record(self) -> LeaseRecord {
        let record = self.record.to_record();
        let ttl = i64::try_from(record.ttl.as_millis()).expect("a few ticks");
        LeaseRecord { expires_at: ServerTime(server_time(self.written).0 + ttl), ..record }
    }
}

/// A server clock at this many ticks from the true present.
pub fn server_time(offset: i8) -> ServerTime {
    ServerTime(i64::from(offset) * i64::from(TICK))
}

/// The `max_clock_skew` of this many ticks.
pub fn skew(ticks: u8) -> Duration {
    Duration::from_millis(u64::from(ticks) * u64::from(TICK))
}

/// A statement and its sender.
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
    /// The store will always refuse it. Written by `prune_superseded.rs` and `normalize.rs`.
    AlwaysRefused,
}

impl SentStatement {
    pub fn of(statement: &LeaseStatement, by: CandidateNumber, timing: PodTiming) -> Self {
        let statement = match *statement {
            LeaseStatement::Create { term, heartbeat, .. } => {
                CompactStatement::Create { term: compact_term(term), heartbeat: compact_number(heartbeat) }
            }
            LeaseStatement::Take { expected, term, heartbeat, .. } => CompactStatement::Take {
                expected: CompactVersion::of(&expected),
                term: compact_term(term),
                heartbeat: compact_number(heartbeat),
            },
            LeaseStatement::TakeIfExpired { expected, max_clock_skew, term, heartbeat, .. } => {
                CompactStatement::TakeIfExpired {
                    expected: CompactVersion::of(&expected),
                    skew: compact_number(max_clock_skew.as_millis() as u64 / u64::from(TICK)),
                    term: compact_term(term),
                    heartbeat: compact_number(heartbeat),
                }
            }
            LeaseStatement::Renew { term, heartbeat, .. } => {
                CompactStatement::Renew { term: compact_term(term), heartbeat: compact_number(heartbeat) }
            }
            LeaseStatement::Raise { term, to, heartbeat, .. } => CompactStatement::Raise {
                term: compact_term(term),
                to: compact_term(to),
                heartbeat: compact_number(heartbeat),
            },
            LeaseStatement::Release { term, .. } => CompactStatement::Release { term: compact_term(term) },
        };
        Self { by, statement, timing }
    }

    /// `None` if it is always refused.
    pub fn statement(&self) -> Option<LeaseStatement> {
        let candidate = self.by.to_id();
        let term = |number: u8| Term::new(number.into());
        Some(match self.statement {
            CompactStatement::Create { term: t, heartbeat } => {
                LeaseStatement::Create { candidate, term: term(t), heartbeat: heartbeat.into() }
            }
            CompactStatement::Take { expected, term: t, heartbeat } => LeaseStatement::Take {
                expected: expected.to_version(),
                candidate,
                term: term(t),
                heartbeat: heartbeat.into(),
            },
            CompactStatement::TakeIfExpired { expected, skew: ticks, term: t, heartbeat } => {
                LeaseStatement::TakeIfExpired {
                    expected: expected.to_version(),
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

    /// The lease afterwards, or `None` if refused, at a server whose clock is `offset` ticks from the true present.
    pub fn apply(&self, stored: Option<&CompactLease>, offset: i8) -> Option<CompactLease> {
        let stored_record = stored.map(|lease| lease.to_record());
        let ttl = self.timing.to_timing().ttl();
        let record = self.statement()?.apply(stored_record.as_ref(), ttl, server_time(offset))?;
        // A release keeps the old expiry; everything else writes a new one.
        let kept = stored.filter(|lease| lease.to_record().expires_at == record.expires_at);
        let written = kept.map_or(offset, |lease| lease.written);
        Some(CompactLease { record: CompactLeaseRecord::of(&record), written })
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

pub fn compact_number(number: u64) -> u8 {
    u8::try_from(number).expect("numbers of the model stay small")
}

pub fn compact_term(term: Term) -> u8 {
    compact_number(term.get())
}

fn timing_of(ttl: Duration) -> PodTiming {
    let found = PodTiming::ALL.into_iter().find(|timing| timing.to_timing().ttl() == ttl);
    found.expect("every ttl of the model belongs to a timing")
}
