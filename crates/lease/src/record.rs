//! The lease as it is stored, reduced to what decisions need, and the statements that may change it.
//!
//! [`Statement::apply`] is the meaning of each statement in plain Rust. `mongo.rs` says the same in MongoDB's language (a
//! test holds the two together), the in-memory store and the model of the protocol call it directly.

use std::fmt;
use std::time::Duration;

/// One leadership: a number that only rises. Stores refuse what comes from a lower one.
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

/// One process that contends for the lease: random, drawn at its start. Two processes that share a pod id differ here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contender(u128);

impl Contender {
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

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The server's wall clock (`$$NOW`) in milliseconds. Shown to people; decides only in [`Statement::TakeIfExpired`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(pub i64);

/// What a compare-and-set compares. No version is written twice: the term is new with every takeover, and a contender
/// never reuses a heartbeat number, not even for a statement whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// `None` after a release.
    pub holder: Option<Contender>,
    pub term: Term,
    pub heartbeat: u64,
}

/// The stored lease, as far as decisions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    pub version: Version,
    /// The time to live its holder was configured with. A standby waits at least as long, so pods whose settings differ
    /// (a rolling change of `ttl`) are safe with each other.
    pub ttl: Duration,
    /// When the lease would run out by the clock of the server that took the last heartbeat.
    pub expires_at: ServerTime,
}

/// Everything a contender may ask the store to do: each is one atomic statement, acknowledged by a majority or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// Writes the first record, if there is none.
    Create { by: Contender, term: Term, heartbeat: u64 },
    /// Moves the lease, if it is still exactly as `seen`.
    Take { seen: Version, by: Contender, term: Term, heartbeat: u64 },
    /// As `Take`, and only if the server's own clock is past `expires_at` by more than `max_clock_skew`.
    TakeIfExpired { seen: Version, max_clock_skew: Duration, by: Contender, term: Term, heartbeat: u64 },
    /// Raises the heartbeat of a lease held by this contender in this term. Compares with "lower than", not "one less
    /// than": an earlier renewal whose answer was lost may or may not have been applied, and must not be applied later.
    Renew { by: Contender, term: Term, heartbeat: u64 },
    /// Gives a held lease a higher term: its own fell behind what it guards (lease deleted, or restored from a backup).
    Raise { by: Contender, term: Term, to: Term, heartbeat: u64 },
    /// Unsets the holder and keeps the term.
    Release { by: Contender, term: Term },
}

impl Statement {
    /// What the store holds afterwards, or `None` when the statement is refused and nothing changes.
    ///
    /// `ttl` is the asking contender's, `now` the clock of the server that applies it.
    pub fn apply(&self, stored: Option<&Record>, ttl: Duration, now: ServerTime) -> Option<Record> {
        let held = |by, term, heartbeat| Record {
            version: Version { holder: Some(by), term, heartbeat },
            ttl,
            expires_at: ServerTime(now.0.saturating_add(millis(ttl))),
        };
        match *self {
            Self::Create { by, term, heartbeat } => stored.is_none().then(|| held(by, term, heartbeat)),
            Self::Take { seen, by, term, heartbeat } => (stored?.version == seen).then(|| held(by, term, heartbeat)),
            Self::TakeIfExpired { seen, max_clock_skew, by, term, heartbeat } => {
                let stored = stored?;
                let expired = now.0 > stored.expires_at.0.saturating_add(millis(max_clock_skew));
                (stored.version == seen && expired).then(|| held(by, term, heartbeat))
            }
            Self::Renew { by, term, heartbeat } => {
                let version = stored?.version;
                let mine = version.holder == Some(by) && version.term == term;
                (mine && version.heartbeat < heartbeat).then(|| held(by, term, heartbeat))
            }
            Self::Raise { by, term, to, heartbeat } => {
                let version = stored?.version;
                let mine = version.holder == Some(by) && version.term == term && term < to;
                (mine && version.heartbeat < heartbeat).then(|| held(by, to, heartbeat))
            }
            Self::Release { by, term } => {
                let stored = stored?;
                let mine = stored.version.holder == Some(by) && stored.version.term == term;
                let released = Version { holder: None, ..stored.version };
                mine.then_some(Record { version: released, ..*stored })
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

    /// The term this contender leads in, should the statement be applied.
    pub const fn grants(&self) -> Option<Term> {
        match *self {
            Self::Create { term, .. } | Self::Take { term, .. } | Self::TakeIfExpired { term, .. } => Some(term),
            Self::Raise { to, .. } => Some(to),
            Self::Renew { .. } | Self::Release { .. } => None,
        }
    }
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Contender = Contender::new(1);
    const OTHER: Contender = Contender::new(2);
    const TTL: Duration = Duration::from_secs(15);

    fn record(holder: Option<Contender>, term: u64, heartbeat: u64) -> Record {
        Record { version: Version { holder, term: Term(term), heartbeat }, ttl: TTL, expires_at: ServerTime(15_000) }
    }

    fn applied(statement: Statement, stored: Option<Record>) -> Option<Version> {
        statement.apply(stored.as_ref(), TTL, ServerTime(0)).map(|record| record.version)
    }

    #[test]
    fn only_the_exact_version_seen_can_be_taken() {
        let seen = record(Some(OTHER), 3, 7).version;
        let take = Statement::Take { seen, by: ME, term: Term(4), heartbeat: 8 };
        assert_eq!(applied(take, Some(record(Some(OTHER), 3, 7))), Some(record(Some(ME), 4, 8).version));
        for moved in [record(Some(OTHER), 3, 8), record(Some(OTHER), 4, 7), record(None, 3, 7)] {
            assert_eq!(applied(take, Some(moved)), None, "{moved:?}");
        }
        assert_eq!(applied(take, None), None);
    }

    #[test]
    fn a_renewal_that_comes_late_changes_nothing() {
        let late = Statement::Renew { by: ME, term: Term(3), heartbeat: 7 };
        assert!(applied(late, Some(record(Some(ME), 3, 6))).is_some());
        for after in [record(Some(ME), 3, 8), record(Some(ME), 4, 1), record(None, 3, 6), record(Some(OTHER), 3, 6)] {
            assert_eq!(applied(late, Some(after)), None, "{after:?}");
        }
    }

    #[test]
    fn a_release_keeps_the_term_and_is_for_the_holder_only() {
        let release = Statement::Release { by: ME, term: Term(3) };
        assert_eq!(applied(release, Some(record(Some(ME), 3, 6))), Some(record(None, 3, 6).version));
        for others in [record(Some(OTHER), 3, 6), record(Some(ME), 4, 6), record(None, 3, 6)] {
            assert_eq!(applied(release, Some(others)), None, "{others:?}");
        }
    }

    #[test]
    fn a_lease_is_created_once() {
        let create = Statement::Create { by: ME, term: Term(1), heartbeat: 1 };
        assert!(applied(create, None).is_some());
        assert_eq!(applied(create, Some(record(None, 1, 1))), None);
    }

    #[test]
    fn a_term_can_be_raised_by_its_holder_but_not_lowered() {
        let raise = |to| Statement::Raise { by: ME, term: Term(3), to: Term(to), heartbeat: 7 };
        assert_eq!(applied(raise(9), Some(record(Some(ME), 3, 6))), Some(record(Some(ME), 9, 7).version));
        assert_eq!(applied(raise(2), Some(record(Some(ME), 3, 6))), None);
        assert_eq!(applied(raise(9), Some(record(Some(OTHER), 3, 6))), None);
    }

    #[test]
    fn an_expired_lease_is_told_by_the_server_clock_and_the_skew() {
        let stored = record(Some(OTHER), 3, 7);
        let skew = Duration::from_secs(60);
        let seen = stored.version;
        let take = Statement::TakeIfExpired { seen, max_clock_skew: skew, by: ME, term: Term(4), heartbeat: 8 };
        assert_eq!(take.apply(Some(&stored), TTL, ServerTime(75_000)), None);
        assert!(take.apply(Some(&stored), TTL, ServerTime(75_001)).is_some());
    }
}
