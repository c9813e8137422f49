//! Signs of life of the loops, derived from what their handles tell.
//!
//! The loops count what they do; a number that must move while there is work, and does not, is a loop that is wedged. What a handle cannot tell
//! is taken for a rest: a false alarm restarts a pod that is well.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin::{Loop, Movement, Pulse};
use lease::planted::patience;
use pipeline::{capture, consumer, publish};

/// A server may skip foreign oplog entries for long without an answer, and a busy bus is waited for; a loop that does nothing at all for two
/// minutes while there is work is stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// The bus is asked to wait for half a minute with its answer that there is nothing.
const ASKED_WITHIN: Duration = Duration::from_secs(40);

#[derive(Debug, Default)]
pub(super) struct Pulses {
    elector: Movement,
    publish: Movement,
    acceptor: Movement,
    sessions: Movement,
    dead_letters: Movement,
    applier: Movement,
    /// What sessions had received when the applier last moved.
    fed: Mutex<(u64, u64)>,
}

impl Pulses {
    /// A leader goes round with every renewal, a standby with every look; both are due several times in a ttl.
    pub(super) fn elector(&self, rounds: u64, ends: bool, ttl: Duration, now: Instant) -> Loop {
        let pulse = self.elector.pulse(rounds, ends, now);
        // A look may be due after a ttl only, and its answer late.
        Loop { name: "elector", pulse, limit: patience((ttl * 3).max(Duration::from_secs(10))) }
    }

    pub(super) fn capture(&self, status: Option<&capture::Status>) -> Loop {
        let pulse = match status {
            Some(capture::Status { state, alive_at, .. }) => match state {
                capture::State::Opening | capture::State::Scanning { .. } | capture::State::Reading => {
                    Pulse::Alive { at: alive_at.into_std() }
                }
                // Nobody takes what was read, or the next try is not due: both are somebody else's to hurry.
                capture::State::Idle | capture::State::Full | capture::State::Waiting | capture::State::Ended => {
                    Pulse::Resting
                }
            },
            None => Pulse::Resting,
        };
        Loop { name: "capture", pulse, limit: patience(LIMIT) }
    }

    pub(super) fn publish(&self, counts: publish::Counts, state: publish::State, now: Instant) -> Loop {
        let moved = counts.published + counts.retried + counts.uncertain + counts.rejected + counts.store_errors;
        let works = matches!(state, publish::State::Publishing | publish::State::Draining);
        let pulse = self.publish.pulse(moved, !works || counts.in_flight_events == 0, now);
        Loop { name: "publish", pulse, limit: patience(LIMIT) }
    }

    /// While none is held, the bus is asked for a session again and again. While some are, their own loop tells, and there may be no room for more.
    pub(super) fn acceptor(&self, counts: consumer::Counts, consumes: bool, now: Instant) -> Loop {
        let sessions = counts.sessions;
        let pulse = self.acceptor.pulse(sessions.asked, !consumes || sessions.held > 0, now);
        Loop { name: "acceptor", pulse, limit: patience(LIMIT).max(ASKED_WITHIN) }
    }

    pub(super) fn dead_letters(&self, counts: consumer::Counts, consumes: bool, now: Instant) -> Loop {
        let pulse = self.dead_letters.pulse(counts.sessions.looked, !consumes, now);
        Loop { name: "dead-letters", pulse, limit: patience(LIMIT).max(ASKED_WITHIN) }
    }

    /// A session is held for seconds, whatever comes; so while any is held, some are let go and others accepted.
    pub(super) fn sessions(&self, counts: consumer::Counts, now: Instant) -> Loop {
        let sessions = counts.sessions;
        let moved = sessions.accepted + sessions.received + sessions.settled + sessions.dropped;
        Loop { name: "sessions", pulse: self.sessions.pulse(moved, sessions.held == 0, now), limit: patience(LIMIT) }
    }

    /// At work from the moment sessions receive something until it is applied, settled or dropped.
    pub(super) fn applier(&self, counts: consumer::Counts, now: Instant) -> Loop {
        let consumer::Counts { sessions, events } = counts;
        let moved = events.groups + events.conflicts + events.unknown + sessions.settled + sessions.dropped;
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        if fed.0 != moved || sessions.held == 0 {
            *fed = (moved, sessions.received);
        }
        let resting = fed.1 == sessions.received;
        Loop { name: "applier", pulse: self.applier.pulse(moved, resting, now), limit: patience(LIMIT) }
    }
}

#[cfg(test)]
mod tests {
    use admin::progress::Verdict;
    use pipeline::{session, view};

    use super::*;

    /// Looks once a second, as probes and announcements do, and tells how it ends.
    fn after_minutes(minutes: u64, mut look: impl FnMut(u64, Instant) -> Loop) -> Verdict {
        let start = Instant::now();
        let mut verdict = Verdict::Resting;
        for second in 0..=minutes * 60 {
            let now = start + Duration::from_secs(second);
            verdict = look(second, now).judge(now);
        }
        verdict
    }

    fn is_wedged(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Wedged(_))
    }

    #[test]
    fn an_elector_that_does_not_go_round_is_wedged_unless_it_ends() {
        let ttl = Duration::from_secs(15);
        let pulses = Pulses::default();
        // A renewal every five seconds.
        assert_eq!(after_minutes(3, |second, now| pulses.elector(second / 5, false, ttl, now)), Verdict::Moving);
        assert!(is_wedged(after_minutes(3, |_, now| pulses.elector(7, false, ttl, now))));
        assert_eq!(after_minutes(3, |_, now| pulses.elector(7, true, ttl, now)), Verdict::Resting);
    }

    #[test]
    fn a_publisher_with_work_that_does_not_move_is_wedged() {
        let publishing = publish::State::Publishing;
        let counts =
            |published, in_flight_events| publish::Counts { published, in_flight_events, ..Default::default() };
        let run = |count: &dyn Fn(u64) -> publish::Counts, state| {
            let pulses = Pulses::default();
            after_minutes(3, |second, now| pulses.publish(count(second), state, now))
        };
        assert!(is_wedged(run(&|_| counts(5, 3), publishing)));
        assert_eq!(run(&|second| counts(second / 30, 3), publishing), Verdict::Moving);
        assert_eq!(run(&|_| counts(5, 0), publishing), Verdict::Resting);
        let paused = publish::State::Paused(publish::Pause::Unreachable);
        assert_eq!(run(&|_| counts(5, 3), paused), Verdict::Resting);
    }

    #[test]
    fn a_stream_that_does_not_answer_is_wedged_and_one_that_nobody_reads_from_is_not() {
        let pulses = Pulses::default();
        let alive_at = tokio::time::Instant::now();
        let status = |state| capture::Status { state, ..capture::Status::before_anything(alive_at) };
        let later = alive_at.into_std() + LIMIT + Duration::from_secs(1);
        let judged = |state| pulses.capture(Some(&status(state))).judge(later);
        assert!(is_wedged(judged(capture::State::Reading)));
        assert!(is_wedged(judged(capture::State::Scanning { scanned: 4 })));
        assert_eq!(judged(capture::State::Full), Verdict::Resting);
        assert_eq!(pulses.capture(None).judge(later), Verdict::Resting);
    }

    fn counts(held: u64, received: u64, settled: u64, groups: u64) -> consumer::Counts {
        consumer::Counts {
            sessions: session::Counts { held, accepted: 1, received, settled, ..Default::default() },
            events: view::Counts { groups, ..Default::default() },
        }
    }

    #[test]
    fn sessions_that_are_held_and_do_nothing_are_wedged() {
        let pulses = Pulses::default();
        assert!(is_wedged(after_minutes(3, |_, now| pulses.sessions(counts(2, 5, 5, 1), now))));
        let pulses = Pulses::default();
        assert_eq!(after_minutes(3, |_, now| pulses.sessions(counts(0, 5, 5, 1), now)), Verdict::Resting);
    }

    #[test]
    fn who_asks_for_sessions_goes_round_while_none_is_held_and_who_looks_for_dead_letters_always() {
        let going = |asked| consumer::Counts {
            sessions: session::Counts { asked, looked: asked, ..Default::default() },
            ..Default::default()
        };
        let pulses = Pulses::default();
        assert_eq!(after_minutes(5, |second, now| pulses.acceptor(going(second / 30), true, now)), Verdict::Moving);
        assert_eq!(after_minutes(5, |second, now| pulses.dead_letters(going(second / 30), true, now)), Verdict::Moving);
        assert!(is_wedged(after_minutes(5, |_, now| pulses.acceptor(going(9), true, now))));
        assert!(is_wedged(after_minutes(5, |_, now| pulses.dead_letters(going(9), true, now))));
        assert_eq!(after_minutes(5, |_, now| pulses.acceptor(going(9), false, now)), Verdict::Resting);
        assert_eq!(after_minutes(5, |_, now| pulses.acceptor(counts(1, 5, 5, 1), true, now)), Verdict::Resting);
    }

    #[test]
    fn an_applier_that_was_given_something_and_does_not_move_is_wedged() {
        let pulses = Pulses::default();
        // First a quiet minute, so that what follows is news.
        assert_eq!(after_minutes(1, |_, now| pulses.applier(counts(2, 5, 5, 1), now)), Verdict::Resting);
        assert!(is_wedged(after_minutes(3, |_, now| pulses.applier(counts(2, 9, 5, 1), now))));
        assert_eq!(
            after_minutes(3, |second, now| pulses.applier(counts(2, 9 + second, 5, second), now)),
            Verdict::Resting
        );
    }
}
