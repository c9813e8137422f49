//! Signs of life of the loops, derived from what their handles tell.
//!
//! The loops count what they do; a number that must move while there is work, and does not, is a loop that is wedged. What a handle cannot tell
//! is taken for a rest: a false alarm restarts a pod that is well.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin::{Activity, LoopLiveness, ProgressTracker};
use lease::failpoints::stall_limit;
use pipeline::{capture, consumer, publish};

/// A server may skip foreign oplog entries for long without an answer, and a busy bus is waited for; a loop that does nothing at all for two
/// minutes while there is work is stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// The bus is asked to wait for half a minute with its answer that there is nothing.
const ASKED_WITHIN: Duration = Duration::from_secs(40);

#[derive(Debug, Default)]
pub(super) struct LoopMonitor {
    elector: ProgressTracker,
    publish: ProgressTracker,
    acceptor: ProgressTracker,
    sessions: ProgressTracker,
    dead_letters: ProgressTracker,
    applier: ProgressTracker,
    /// What sessions had received when the applier last moved.
    fed: Mutex<(u64, u64)>,
}

impl LoopMonitor {
    /// A leader goes round with every renewal, a standby with every look; both are due several times in a ttl.
    pub(super) fn elector(&self, rounds: u64, ends: bool, ttl: Duration, now: Instant) -> LoopLiveness {
        let activity = self.elector.activity(rounds, ends, now);
        // A look may be due after a ttl only, and its answer late.
        LoopLiveness { name: "elector", activity, limit: stall_limit((ttl * 3).max(Duration::from_secs(10))) }
    }

    pub(super) fn capture(&self, status: Option<&capture::CaptureStatus>) -> LoopLiveness {
        let activity = match status {
            Some(capture::CaptureStatus { state, last_response_at: alive_at, .. }) => match state {
                capture::CaptureState::Opening
                | capture::CaptureState::Scanning { .. }
                | capture::CaptureState::Reading => Activity::Active { at: alive_at.into_std() },
                // Nobody takes what was read, or the next try is not due: both are somebody else's to hurry.
                capture::CaptureState::Idle
                | capture::CaptureState::Full
                | capture::CaptureState::Waiting
                | capture::CaptureState::Ended => Activity::Idle,
            },
            None => Activity::Idle,
        };
        LoopLiveness { name: "capture", activity, limit: stall_limit(LIMIT) }
    }

    pub(super) fn publish(
        &self,
        counts: publish::PublishCounts,
        state: publish::PublishState,
        now: Instant,
    ) -> LoopLiveness {
        let moved = counts.published + counts.retried + counts.uncertain + counts.rejected + counts.store_errors;
        let works = matches!(state, publish::PublishState::Publishing | publish::PublishState::Draining);
        let activity = self.publish.activity(moved, !works || counts.in_flight_events == 0, now);
        LoopLiveness { name: "publish", activity, limit: stall_limit(LIMIT) }
    }

    /// While none is held, the bus is asked for a session again and again. While some are, their own loop tells, and there may be no room for more.
    pub(super) fn acceptor(&self, counts: consumer::ConsumerCounts, consumes: bool, now: Instant) -> LoopLiveness {
        let sessions = counts.sessions;
        let activity = self.acceptor.activity(sessions.accept_attempts, !consumes || sessions.held > 0, now);
        LoopLiveness { name: "acceptor", activity, limit: stall_limit(LIMIT).max(ASKED_WITHIN) }
    }

    pub(super) fn dead_letters(&self, counts: consumer::ConsumerCounts, consumes: bool, now: Instant) -> LoopLiveness {
        let activity = self.dead_letters.activity(counts.sessions.dead_letter_polls, !consumes, now);
        LoopLiveness { name: "dead-letters", activity, limit: stall_limit(LIMIT).max(ASKED_WITHIN) }
    }

    /// A session is held for seconds, whatever comes; so while any is held, some are let go and others accepted.
    pub(super) fn sessions(&self, counts: consumer::ConsumerCounts, now: Instant) -> LoopLiveness {
        let sessions = counts.sessions;
        let moved = sessions.accepted + sessions.received + sessions.settled + sessions.dropped;
        LoopLiveness {
            name: "sessions",
            activity: self.sessions.activity(moved, sessions.held == 0, now),
            limit: stall_limit(LIMIT),
        }
    }

    /// At work from the moment sessions receive something until it is applied, settled or dropped.
    pub(super) fn applier(&self, counts: consumer::ConsumerCounts, now: Instant) -> LoopLiveness {
        let consumer::ConsumerCounts { sessions, events } = counts;
        let moved = events.groups + events.conflicts + events.unknown + sessions.settled + sessions.dropped;
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        if fed.0 != moved || sessions.held == 0 {
            *fed = (moved, sessions.received);
        }
        let resting = fed.1 == sessions.received;
        LoopLiveness {
            name: "applier",
            activity: self.applier.activity(moved, resting, now),
            limit: stall_limit(LIMIT),
        }
    }
}

#[cfg(test)]
mod tests {
    use admin::liveness::Liveness;
    use pipeline::{session, view};

    use super::*;

    /// Looks once a second, as probes and announcements do, and tells how it ends.
    fn after_minutes(minutes: u64, mut look: impl FnMut(u64, Instant) -> LoopLiveness) -> Liveness {
        let start = Instant::now();
        let mut verdict = Liveness::Idle;
        for second in 0..=minutes * 60 {
            let now = start + Duration::from_secs(second);
            verdict = look(second, now).evaluate(now);
        }
        verdict
    }

    fn is_stalled(verdict: Liveness) -> bool {
        matches!(verdict, Liveness::Stalled(_))
    }

    #[test]
    fn an_elector_that_does_not_go_round_is_wedged_unless_it_ends() {
        let ttl = Duration::from_secs(15);
        let loop_monitor = LoopMonitor::default();
        // A renewal every five seconds.
        assert_eq!(
            after_minutes(3, |second, now| loop_monitor.elector(second / 5, false, ttl, now)),
            Liveness::Running
        );
        assert!(is_stalled(after_minutes(3, |_, now| loop_monitor.elector(7, false, ttl, now))));
        assert_eq!(after_minutes(3, |_, now| loop_monitor.elector(7, true, ttl, now)), Liveness::Idle);
    }

    #[test]
    fn a_publisher_with_work_that_does_not_move_is_stalled() {
        let publishing = publish::PublishState::Publishing;
        let counts =
            |published, in_flight_events| publish::PublishCounts { published, in_flight_events, ..Default::default() };
        let run = |count: &dyn Fn(u64) -> publish::PublishCounts, state| {
            let loop_monitor = LoopMonitor::default();
            after_minutes(3, |second, now| loop_monitor.publish(count(second), state, now))
        };
        assert!(is_stalled(run(&|_| counts(5, 3), publishing)));
        assert_eq!(run(&|second| counts(second / 30, 3), publishing), Liveness::Running);
        assert_eq!(run(&|_| counts(5, 0), publishing), Liveness::Idle);
        let paused = publish::PublishState::Paused(publish::PauseReason::Unreachable);
        assert_eq!(run(&|_| counts(5, 3), paused), Liveness::Idle);
    }

    #[test]
    fn a_stream_that_does_not_answer_is_wedged_and_one_that_nobody_reads_from_is_not() {
        let loop_monitor = LoopMonitor::default();
        let alive_at = tokio::time::Instant::now();
        let status = |state| capture::CaptureStatus { state, ..capture::CaptureStatus::initial(alive_at) };
        let later = alive_at.into_std() + LIMIT + Duration::from_secs(1);
        let judged = |state| loop_monitor.capture(Some(&status(state))).evaluate(later);
        assert!(is_stalled(judged(capture::CaptureState::Reading)));
        assert!(is_stalled(judged(capture::CaptureState::Scanning { scanned: 4 })));
        assert_eq!(judged(capture::CaptureState::Full), Liveness::Idle);
        assert_eq!(loop_monitor.capture(None).evaluate(later), Liveness::Idle);
    }

    fn counts(held: u64, received: u64, settled: u64, groups: u64) -> consumer::ConsumerCounts {
        consumer::ConsumerCounts {
            sessions: session::SessionCounts { held, accepted: 1, received, settled, ..Default::default() },
            events: view::ApplyCounts { groups, ..Default::default() },
        }
    }

    #[test]
    fn sessions_that_are_held_and_do_nothing_are_wedged() {
        let loop_monitor = LoopMonitor::default();
        assert!(is_stalled(after_minutes(3, |_, now| loop_monitor.sessions(counts(2, 5, 5, 1), now))));
        let loop_monitor = LoopMonitor::default();
        assert_eq!(after_minutes(3, |_, now| loop_monitor.sessions(counts(0, 5, 5, 1), now)), Liveness::Idle);
    }

    #[test]
    fn who_asks_for_sessions_goes_round_while_none_is_held_and_who_looks_for_dead_letters_always() {
        let going = |asked| consumer::ConsumerCounts {
            sessions: session::SessionCounts { accept_attempts: asked, dead_letter_polls: asked, ..Default::default() },
            ..Default::default()
        };
        let loop_monitor = LoopMonitor::default();
        assert_eq!(
            after_minutes(5, |second, now| loop_monitor.acceptor(going(second / 30), true, now)),
            Liveness::Running
        );
        assert_eq!(
            after_minutes(5, |second, now| loop_monitor.dead_letters(going(second / 30), true, now)),
            Liveness::Running
        );
        assert!(is_stalled(after_minutes(5, |_, now| loop_monitor.acceptor(going(9), true, now))));
        assert!(is_stalled(after_minutes(5, |_, now| loop_monitor.dead_letters(going(9), true, now))));
        assert_eq!(after_minutes(5, |_, now| loop_monitor.acceptor(going(9), false, now)), Liveness::Idle);
        assert_eq!(after_minutes(5, |_, now| loop_monitor.acceptor(counts(1, 5, 5, 1), true, now)), Liveness::Idle);
    }

    #[test]
    fn an_applier_that_was_given_something_and_does_not_move_is_stalled() {
        let loop_monitor = LoopMonitor::default();
        // First a quiet minute, so that what follows is news.
        assert_eq!(after_minutes(1, |_, now| loop_monitor.applier(counts(2, 5, 5, 1), now)), Liveness::Idle);
        assert!(is_stalled(after_minutes(3, |_, now| loop_monitor.applier(counts(2, 9, 5, 1), now))));
        assert_eq!(
            after_minutes(3, |second, now| loop_monitor.applier(counts(2, 9 + second, 5, second), now)),
            Liveness::Idle
        );
    }
}
