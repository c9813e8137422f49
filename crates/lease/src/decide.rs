//! Who may lead, decided without a clock, a network or a random number: time comes in as an argument.
//!
//! A standby keeps a [`Sighting`] (what the lease looked like, and since when) and asks [`follow`] what to do. A leader keeps
//! a [`Tenure`] (its term, and until when it may believe in it) and asks [`lead`]. The elector obeys; the model of the
//! protocol calls the same functions. What a [`Statement`] does to the stored lease is [`Statement::apply`].
//!
//! Why no two contenders are valid at once, in their own clocks, within the drift bound of [`crate::timing`]:
//! 1. Every version of the record is written once ([`Version`]), by a statement the holder sent at some moment *s*.
//! 2. The holder is valid until *s* + renew deadline of its last *acknowledged* statement ([`Tenure`]).
//! 3. A standby has seen that same version for ttl, counted from when the reply that first showed it *arrived*, hence
//!    after *s* ([`Sighting::observe`]), and takes it by a compare-and-set on exactly that version.
//! 4. An acknowledgement is a majority's, so a failover of the store forgets neither renewal nor takeover.
//!
//! A lease that was released, or whose holder is this very contender, may be taken at once: its holder has shut its gate.
//! The one rule that trusts wall clocks, [`Statement::TakeIfExpired`], is off unless the operator states how far the
//! clocks of the MongoDB servers may be apart; see [`Contest::max_clock_skew`].

use std::time::Duration;

use crate::clock::Moment;
use crate::record::{Contender, Record, Statement, Term};
use crate::timing::Timing;

#[cfg(doc)]
use crate::record::Version;

/// The rules of one contest, the same for all its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contest {
    pub timing: Timing,
    /// `None`: no wall clock decides anything. `Some`: the operator vouches that no two MongoDB servers (or routers) ever
    /// show wall clocks further apart than this, steps included; a contender that has not yet seen the lease move may
    /// then take one that the server itself calls expired, without waiting for ttl. Two pods can lead at once if that
    /// is untrue, which is why it is not the default: a failover to a server whose clock is ahead would hand a live
    /// lease to any pod that starts.
    pub max_clock_skew: Option<Duration>,
}

/// This contender, and what it must remember about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Me {
    contender: Contender,
    /// The highest heartbeat number this contender ever tried to write.
    beats: u64,
    stood_down: Option<StoodDown>,
}

/// Having given up a term on purpose, a pod lets the others have it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StoodDown {
    term: Term,
    until: Moment,
}

impl Me {
    pub const fn new(contender: Contender) -> Self {
        Self { contender, beats: 0, stood_down: None }
    }

    pub const fn contender(&self) -> Contender {
        self.contender
    }

    /// To be called before a statement is sent: its heartbeat number is used up, whatever becomes of it.
    pub fn sending(&mut self, statement: &Statement) {
        self.beats = self.beats.max(statement.heartbeat().unwrap_or(0));
    }

    /// To be called after a voluntary step-down: leaves the lease to others until somebody took it, at most for ttl.
    pub fn stand_down(&mut self, term: Term, now: Moment, timing: &Timing) {
        self.stood_down = Some(StoodDown { term, until: now + timing.ttl() });
    }

    /// The renewal to send now.
    pub const fn renewal(&self, term: Term) -> Statement {
        Statement::Renew { by: self.contender, term, heartbeat: self.beats + 1 }
    }

    /// The statement that lifts this contender's term above `floor`, the highest term what it guards has ever seen.
    pub fn raise(&self, term: Term, floor: Term) -> Statement {
        Statement::Raise { by: self.contender, term, to: term.max(floor).next(), heartbeat: self.beats + 1 }
    }

    pub const fn release(&self, term: Term) -> Statement {
        Statement::Release { by: self.contender, term }
    }

    fn next_beat(&self, seen: u64) -> u64 {
        self.beats.max(seen) + 1
    }
}

/// What a standby has seen of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sighting {
    record: Option<Record>,
    /// When the reply arrived that first showed this record: never when it was asked for.
    since: Moment,
    /// Whether the lease was ever seen to change. A contender that has not is new here, or the lease is dead.
    moved: bool,
    /// The longest ttl a holder may still rely on, should the record vanish.
    patience: Duration,
    /// The highest term ever seen: terms rise even when the record is lost.
    highest: Term,
}

impl Sighting {
    /// The first look. `at` is when the reply arrived.
    pub fn first(record: Option<Record>, at: Moment) -> Self {
        let empty = Self { record, since: at, moved: false, patience: Duration::ZERO, highest: Term::default() };
        empty.remember(record)
    }

    /// The next look. Only a version that differs restarts the wait.
    #[must_use]
    pub fn observe(self, record: Option<Record>, at: Moment) -> Self {
        let same = self.record.map(|seen| seen.version) == record.map(|seen| seen.version);
        let looked = if same { self } else { Self { since: at, moved: true, ..self } };
        Self { record, ..looked.remember(record) }
    }

    pub const fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub const fn highest(&self) -> Term {
        self.highest
    }

    fn remember(self, record: Option<Record>) -> Self {
        let Some(record) = record else { return self };
        let patience = if record.version.holder.is_some() { record.ttl } else { Duration::ZERO };
        Self { highest: self.highest.max(record.version.term), patience, ..self }
    }
}

/// What a standby should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Follow {
    /// Send this. If it is acknowledged by a majority, lead (see [`Tenure::granted`]); in any other case look again.
    Try { statement: Statement, why: Why },
    /// Nothing may be done before `until`, if nothing changes. (Look more often: a change restarts the wait.)
    Wait { until: Moment },
}

/// Why a contender may try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// There is no lease yet.
    Absent,
    /// The lease was seen, then it vanished, and its last holder's time is over.
    Lost,
    /// Its holder gave it back.
    Released,
    /// The record names this contender, which does not lead: an answer was lost, or its deadline passed.
    Mine,
    /// Nothing moved for ttl.
    Silent,
    /// The server's clock may say that it expired long ago.
    PerhapsExpired,
}

impl Why {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "no lease yet",
            Self::Lost => "the lease was lost",
            Self::Released => "released",
            Self::Mine => "own lease regained",
            Self::Silent => "holder silent for ttl",
            Self::PerhapsExpired => "expired by the server's clock",
        }
    }
}

/// What a standby may do now, given what it has seen.
pub fn follow(me: &Me, sighting: &Sighting, contest: &Contest, now: Moment) -> Follow {
    let ttl = contest.timing.ttl();
    if let Some(stood_down) = me.stood_down
        && sighting.highest <= stood_down.term
        && now < stood_down.until
    {
        return Follow::Wait { until: stood_down.until };
    }
    let term = sighting.highest.next();
    let by = me.contender;
    let Some(Record { version: seen, .. }) = sighting.record else {
        // A record that vanished may have had a holder who does not know it yet.
        let until = sighting.since + ttl.max(sighting.patience);
        return match sighting.moved {
            true if now < until => Follow::Wait { until },
            true => create(me, term, Why::Lost),
            false => create(me, term, Why::Absent),
        };
    };
    let heartbeat = me.next_beat(seen.heartbeat);
    let take = |why| Follow::Try { statement: Statement::Take { seen, by, term, heartbeat }, why };
    let until = sighting.since + ttl.max(sighting.patience);
    match (seen.holder, contest.max_clock_skew) {
        (None, _) => take(Why::Released),
        (Some(holder), _) if holder == by => take(Why::Mine),
        (Some(_), _) if now >= until => take(Why::Silent),
        (Some(_), Some(max_clock_skew)) if !sighting.moved => Follow::Try {
            statement: Statement::TakeIfExpired { seen, max_clock_skew, by, term, heartbeat },
            why: Why::PerhapsExpired,
        },
        (Some(_), _) => Follow::Wait { until },
    }
}

fn create(me: &Me, term: Term, why: Why) -> Follow {
    let statement = Statement::Create { by: me.contender, term, heartbeat: me.next_beat(0) };
    Follow::Try { statement, why }
}

/// A leadership, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tenure {
    term: Term,
    valid_until: Moment,
    renew_at: Moment,
}

impl Tenure {
    /// A statement sent at `sent` that grants `term` was acknowledged by a majority.
    pub fn granted(term: Term, sent: Moment, timing: &Timing) -> Self {
        Self { term, valid_until: sent + timing.renew_deadline(), renew_at: sent + timing.heartbeat() }
    }

    /// A renewal sent at `sent` was acknowledged by a majority.
    #[must_use]
    pub fn renewed(self, sent: Moment, timing: &Timing) -> Self {
        Self::granted(self.term, sent, timing)
    }

    /// A renewal came to nothing, or nobody knows: it is asked again, until the deadline.
    #[must_use]
    pub fn not_renewed(self, now: Moment, timing: &Timing) -> Self {
        Self { renew_at: now + timing.retry(), ..self }
    }

    pub const fn term(&self) -> Term {
        self.term
    }

    /// The leader may act before this moment, and not at it.
    pub const fn valid_until(&self) -> Moment {
        self.valid_until
    }

    pub fn is_valid(&self, now: Moment) -> bool {
        now < self.valid_until
    }
}

/// What a leader should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lead {
    /// Send [`Me::renewal`]. Refused: the term is over. No answer, or no majority: [`Tenure::not_renewed`].
    Renew,
    Wait {
        until: Moment,
    },
    /// The deadline passed without an acknowledged renewal: the term is over, whatever the store says.
    Expired,
}

/// What a leader must do now.
pub fn lead(tenure: &Tenure, now: Moment) -> Lead {
    if !tenure.is_valid(now) {
        Lead::Expired
    } else if now >= tenure.renew_at {
        Lead::Renew
    } else {
        Lead::Wait { until: tenure.renew_at.min(tenure.valid_until) }
    }
}

#[cfg(test)]
mod tests;
