//! The stored lease, reduced to the fields that decisions need, and the statements that may change it.
//!
//! [`LeaseStatement::apply`] defines each statement in plain Rust. `mongo.rs` expresses the same as MongoDB commands (a test
//! compares the two); the in-memory store and the model of the protocol call `apply` directly.

use std::fmt;
use std::time::Duration;

/// The number of one leadership. It only rises, and stores refuse writes of a lower term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(u64);

impl Term {
    /// BSON has no unsigned 64-bit number; a term above this cannot be stored.
    pub const MAX: Self = Self(i64::MAX as u64);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies one process that takes part in the election: a random number drawn at its start. Two processes with the same
/// pod id have different candidate ids. Stored in the field `contender`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateId(u128);

impl CandidateId {
    pub const fn new(nonce: u128) -> Self {
        Self(nonce)
    }

    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The server's wall clock (`$$NOW`) in milliseconds. Used for display; decides only in [`LeaseStatement::TakeIfExpired`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(pub i64);

/// The fields that a compare-and-set compares. No version is written twice: every takeover has a new term, and a candidate
/// never reuses a heartbeat number, not even for a statement whose reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseVersion {
    /// `None` after a release.
    pub holder: Option<CandidateId>,
    pub term: Term,
    pub heartbeat: u64,
}

/// The stored lease, with the fields that decisions need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseRecord {
    pub version: LeaseVersion,
    /// The ttl in the holder's configuration. A standby waits at least this long, so pods with different settings (a rolling
    /// change of `ttl`) are safe with each other.
    pub ttl: Duration,
    /// When the lease expires by the clock of the server that wrote the last heartbeat.
    pub expires_at: ServerTime,
}

/// Everything a candidate may ask the store to do. Each is one atomic statement, acknowledged by a majority or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseStatement {
    /// Writes the first record, if there is none.
    Create { candidate: CandidateId, term: Term, heartbeat: u64 },
    /// Takes the lease over, if its version still equals `expected`.
    Take { expected: LeaseVersion, candidate: CandidateId, term: Term, heartbeat: u64 },
    /// Like `Take`, and only if the server's own clock is past `expires_at` by more than `max_clock_skew`.
    TakeIfExpired {
        expected: LeaseVersion,
        max_clock_skew: Duration,
        candidate: CandidateId,
        term: Term,
        heartbeat: u64,
    },
    /// Raises the heartbeat of a lease that this candidate holds in this term. Compares with "lower than", not "one less
    /// than": an earlier renewal whose reply was lost may or may not have been applied, and must not be applied later.
    Renew { candidate: CandidateId, term: Term, heartbeat: u64 },
    /// Gives a held lease a higher term: its term fell behind the guarded store (lease deleted, or restored from a backup).
    Raise { candidate: CandidateId, term: Term, to: Term, heartbeat: u64 },
    /// Unsets the holder and keeps the term.
    Release { candidate: CandidateId, term: Term },
}

impl LeaseStatement {
    /// The record after the statement, or `None` when the statement is refused and nothing changes.
    ///
    /// `ttl` is the candidate's, `now` the clock of the server that applies the statement.
    pub fn apply(&self, stored: Option<&LeaseRecord>, ttl: Duration, now: ServerTime) -> Option<LeaseRecord> {
        let held = |candidate, term, heartbeat| LeaseRecord {
            version: LeaseVersion { holder: Some(candidate), term, heartbeat },
            ttl,
            expires_at: ServerTime(now.0.saturating_add(to_millis(ttl))),
        };
        match *self {
            Self::Create { candidate, term, heartbeat } => stored.is_none().then(|| held(candidate, term, heartbeat)),
            Self::Take { expected, candidate, term, heartbeat } => {
                (stored?.version == expected).then(|| held(candidate, term, heartbeat))
            }
            Self::TakeIfExpired { expected, max_clock_skew, candidate, term, heartbeat } => {
                let stored = stored?;
                let expired = now.0 > stored.expires_at.0.saturating_add(to_millis(max_clock_skew));
                (stored.version == expected && expired).then(|| held(candidate, term, heartbeat))
            }
            Self::Renew { candidate, term, heartbeat } => {
                let version = stored?.version;
                let is_holder = version.holder == Some(candidate) && version.term == term;
                (is_holder && version.heartbeat < heartbeat).then(|| held(candidate, term, heartbeat))
            }
            Self::Raise { candidate, term, to, heartbeat } => {
                let version = stored?.version;
                let is_holder = version.holder == Some(candidate) && version.term == term && term < to;
                (is_holder && version.heartbeat < heartbeat).then(|| held(candidate, to, heartbeat))
            }
            Self::Release { candidate, term } => {
                let stored = stored?;
                let is_holder = stored.version.holder == Some(candidate) && stored.version.term == term;
                let released = LeaseVersion { holder: None, ..stored.version };
                is_holder.then_some(LeaseRecord { version: released, ..*stored })
            }
        }
    }

    /// The heartbeat number this statement would write.
    pub const fn heartbeat(&self) -> Option<u64> {
        match *self {
            Self::Create { heartbeat, .. }
            | Self::Take { heartbeat, .. }
            | Self::TakeIfExpired { heartbeat, .. }
            | Self::Renew { heartbeat, .. }
            | Self::Raise { heartbeat, .. } => Some(heartbeat),
            Self::Release { .. } => None,
        }
    }

    /// The term in which this candidate leads if the statement is applied.
    pub const fn granted_term(&self) -> Option<Term> {
        match *self {
            Self::Create { term, .. } | Self::Take { term, .. } | Self::TakeIfExpired { term, .. } => Some(term),
            Self::Raise { to, .. } => Some(to),
            Self::Renew { .. } | Self::Release { .. } => None,
        }
    }
}

pub(crate) fn to_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: CandidateId = CandidateId::new(1);
    const OTHER: CandidateId = CandidateId::new(2);
    const TTL: Duration = Duration::from_secs(15);

    fn record(holder: Option<CandidateId>, term: u64, heartbeat: u64) -> LeaseRecord {
        LeaseRecord {
            version: LeaseVersion { holder, term: Term(term), heartbeat },
            ttl: TTL,
            expires_at: ServerTime(15_000),
        }
    }

    fn apply(statement: LeaseStatement, stored: Option<LeaseRecord>) -> Option<LeaseVersion> {
        statement.apply(stored.as_ref(), TTL, ServerTime(0)).map(|record| record.version)
    }

    #[test]
    fn only_the_expected_version_can_be_taken() {
        let expected = record(Some(OTHER), 3, 7).version;
        let take = LeaseStatement::Take { expected, candidate: ME, term: Term(4), heartbeat: 8 };
        assert_eq!(apply(take, Some(record(Some(OTHER), 3, 7))), Some(record(Some(ME), 4, 8).version));
        for moved in [record(Some(OTHER), 3, 8), record(Some(OTHER), 4, 7), record(None, 3, 7)] {
            assert_eq!(apply(take, Some(moved)), None, "{moved:?}");
        }
        assert_eq!(apply(take, None), None);
    }

    #[test]
    fn a_late_renewal_changes_nothing() {
        let late = LeaseStatement::Renew { candidate: ME, term: Term(3), heartbeat: 7 };
        assert!(apply(late, Some(record(Some(ME), 3, 6))).is_some());
        for after in [record(Some(ME), 3, 8), record(Some(ME), 4, 1), record(None, 3, 6), record(Some(OTHER), 3, 6)] {
            assert_eq!(apply(late, Some(after)), None, "{after:?}");
        }
    }

    #[test]
    fn only_the_holder_can_release_and_the_term_stays() {
        let release = LeaseStatement::Release { candidate: ME, term: Term(3) };
        assert_eq!(apply(release, Some(record(Some(ME), 3, 6))), Some(record(None, 3, 6).version));
        for others in [record(Some(OTHER), 3, 6), record(Some(ME), 4, 6), record(None, 3, 6)] {
            assert_eq!(apply(release, Some(others)), None, "{others:?}");
        }
    }

    #[test]
    fn a_lease_is_created_once() {
        let create = LeaseStatement::Create { candidate: ME, term: Term(1), heartbeat: 1 };
        assert!(apply(create, None).is_some());
        assert_eq!(apply(create, Some(record(None, 1, 1))), None);
    }

    #[test]
    fn the_holder_can_raise_its_term_but_not_lower_it() {
        let raise = |to| LeaseStatement::Raise { candidate: ME, term: Term(3), to: Term(to), heartbeat: 7 };
        assert_eq!(apply(raise(9), Some(record(Some(ME), 3, 6))), Some(record(Some(ME), 9, 7).version));
        assert_eq!(apply(raise(2), Some(record(Some(ME), 3, 6))), None);
        assert_eq!(apply(raise(9), Some(record(Some(OTHER), 3, 6))), None);
    }

    #[test]
    fn expiry_is_decided_by_the_server_clock_and_the_skew() {
        let stored = record(Some(OTHER), 3, 7);
        let skew = Duration::from_secs(60);
        let expected = stored.version;
        let take = LeaseStatement::TakeIfExpired {
            expected,
            max_clock_skew: skew,
            candidate: ME,
            term: Term(4),
            heartbeat: 8,
        };
        assert_eq!(take.apply(Some(&stored), TTL, ServerTime(75_000)), None);
        assert!(take.apply(Some(&stored), TTL, ServerTime(75_001)).is_some());
    }
}
