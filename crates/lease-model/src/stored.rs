//! The nouns of production, written small: a state of the model holds dozens of them, and there are millions of states.
//!
//! Nothing is decided here. [`Ask::apply`] turns the small forms into [`LeaseRecord`] and [`LeaseStatement`], lets the production code
//! answer, and writes the answer small again.

use std::time::Duration;

use lease::record::{LeaseRecord, LeaseStatement, LeaseVersion, ServerTime};
use lease::{CandidateId, Term};

use crate::tick::{Span, TICK};

/// A contender. Zero is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u8);

impl Nonce {
    pub const NOBODY: Self = Self(0);

    pub fn contender(self) -> CandidateId {
        CandidateId::new(u128::from(self.0))
    }

    fn of(contender: CandidateId) -> Self {
        let found = (1..=u8::MAX).map(Self).find(|nonce| nonce.contender() == contender);
        found.expect("every contender of the model has a small nonce")
    }
}

/// What a compare-and-set compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edition {
    pub holder: Nonce,
    pub term: u8,
    pub beat: u8,
}

impl Edition {
    pub fn version(self) -> LeaseVersion {
        let holder = (self.holder != Nonce::NOBODY).then(|| self.holder.contender());
        LeaseVersion { holder, term: Term::new(self.term.into()), heartbeat: self.beat.into() }
    }

    fn of(version: &LeaseVersion) -> Self {
        let holder = version.holder.map_or(Nonce::NOBODY, Nonce::of);
        Self { holder, term: small_term(version.term), beat: small(version.heartbeat) }
    }
}

/// What a pod sees of the lease. (`expiresAt` decides at the server only.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glance {
    pub edition: Edition,
    pub span: Span,
}

impl Glance {
    pub fn record(self) -> LeaseRecord {
        LeaseRecord {
            version: self.edition.version(),
            ttl: self.span.timing().ttl(),
            expires_at: ServerTime::default(),
        }
    }

    pub fn of(record: &LeaseRecord) -> Self {
        Self { edition: Edition::of(&record.version), span: span_of(record.ttl) }
    }
}

/// The lease as the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub glance: Glance,
    /// What the server's clock showed when this was written, in ticks from the true present. Falls as time passes.
    pub written: i8,
}

impl Lease {
    fn record(self) -> LeaseRecord {
        let glance = self.glance.record();
        let ttl = i64::try_from(glance.ttl.as_millis()).expect("a few ticks");
        LeaseRecord { expires_at: ServerTime(server_time(self.written).0 + ttl), ..glance }
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
pub struct Ask {
    pub by: Nonce,
    pub what: What,
    pub span: Span,
}

/// See [`LeaseStatement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    Create {
        term: u8,
        beat: u8,
    },
    Take {
        seen: Edition,
        term: u8,
        beat: u8,
    },
    TakeIfExpired {
        seen: Edition,
        skew: u8,
        term: u8,
        beat: u8,
    },
    Renew {
        term: u8,
        beat: u8,
    },
    Raise {
        term: u8,
        to: u8,
        beat: u8,
    },
    Release {
        term: u8,
    },
    /// Whatever it was, the store has moved on and will refuse it whenever it comes. Written by `canon.rs`.
    Doomed,
}

impl Ask {
    pub fn of(statement: &LeaseStatement, by: Nonce, span: Span) -> Self {
        let what = match *statement {
            LeaseStatement::Create { term, heartbeat, .. } => {
                What::Create { term: small_term(term), beat: small(heartbeat) }
            }
            LeaseStatement::Take { seen, term, heartbeat, .. } => {
                What::Take { seen: Edition::of(&seen), term: small_term(term), beat: small(heartbeat) }
            }
            LeaseStatement::TakeIfExpired { seen, max_clock_skew, term, heartbeat, .. } => What::TakeIfExpired {
                seen: Edition::of(&seen),
                skew: small(max_clock_skew.as_millis() as u64 / u64::from(TICK)),
                term: small_term(term),
                beat: small(heartbeat),
            },
            LeaseStatement::Renew { term, heartbeat, .. } => {
                What::Renew { term: small_term(term), beat: small(heartbeat) }
            }
            LeaseStatement::Raise { term, to, heartbeat, .. } => {
                What::Raise { term: small_term(term), to: small_term(to), beat: small(heartbeat) }
            }
            LeaseStatement::Release { term, .. } => What::Release { term: small_term(term) },
        };
        Self { by, what, span }
    }

    /// `None` for a doomed one.
    pub fn statement(&self) -> Option<LeaseStatement> {
        let by = self.by.contender();
        let term = |number: u8| Term::new(number.into());
        Some(match self.what {
            What::Create { term: t, beat } => LeaseStatement::Create { by, term: term(t), heartbeat: beat.into() },
            What::Take { seen, term: t, beat } => {
                LeaseStatement::Take { seen: seen.version(), by, term: term(t), heartbeat: beat.into() }
            }
            What::TakeIfExpired { seen, skew: ticks, term: t, beat } => LeaseStatement::TakeIfExpired {
                seen: seen.version(),
                max_clock_skew: skew(ticks),
                by,
                term: term(t),
                heartbeat: beat.into(),
            },
            What::Renew { term: t, beat } => LeaseStatement::Renew { by, term: term(t), heartbeat: beat.into() },
            What::Raise { term: t, to, beat } => {
                LeaseStatement::Raise { by, term: term(t), to: term(to), heartbeat: beat.into() }
            }
            What::Release { term: t } => LeaseStatement::Release { by, term: term(t) },
            What::Doomed => return None,
        })
    }

    /// What the store holds afterwards, if it does not refuse, at a server whose clock is `offset` from the true present.
    pub fn apply(&self, stored: Option<&Lease>, offset: i8) -> Option<Lease> {
        let stored_record = stored.map(|lease| lease.record());
        let ttl = self.span.timing().ttl();
        let record = self.statement()?.apply(stored_record.as_ref(), ttl, server_time(offset))?;
        // A release keeps the old expiry; everything else writes a new one.
        let kept = stored.filter(|lease| lease.record().expires_at == record.expires_at);
        let written = kept.map_or(offset, |lease| lease.written);
        Some(Lease { glance: Glance::of(&record), written })
    }

    /// The heartbeat number this statement would write.
    pub const fn beat(&self) -> Option<u8> {
        match self.what {
            What::Create { beat, .. }
            | What::Take { beat, .. }
            | What::TakeIfExpired { beat, .. }
            | What::Renew { beat, .. }
            | What::Raise { beat, .. } => Some(beat),
            What::Release { .. } | What::Doomed => None,
        }
    }
}

pub fn small(number: u64) -> u8 {
    u8::try_from(number).expect("numbers of the model stay small")
}

pub fn small_term(term: Term) -> u8 {
    small(term.get())
}

fn span_of(ttl: Duration) -> Span {
    let found = Span::ALL.into_iter().find(|span| span.timing().ttl() == ttl);
    found.expect("every ttl of the model is a span's")
}
