//! Liveness of the service loops, derived from the counters of their handles.
//!
//! A counter that must move while there is work, and does not, means a stalled loop. If a handle cannot tell whether there is work, the loop counts
//! as idle: a false alarm would restart a healthy pod.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin::{LoopActivity, LoopLiveness, ProgressTracker};
use lease::failpoints::stall_limit;
use pipeline::{capture, consumer, publish};

/// MongoDB may skip unrelated oplog entries for a long time, and Service Bus may throttle. A loop that has work and does nothing for two
/// minutes is stalled.
const LIMIT: Duration = Duration::from_secs(120);

/// Service Bus may hold an accept request for half a minute before it replies that there is no session.
const MIN_ACCEPT_LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, Default)]
pub(super) struct LoopMonitor {
    elector: ProgressTracker,
    publish: ProgressTracker,
    acceptor: ProgressTracker,
    sessions: ProgressTracker,
    dead_letters: ProgressTracker,
    applier: ProgressTracker,
    /// Progress of the applier, and the messages that sessions had received at that time.
    applier_input: Mutex<(u64, u64)>,
}

impl LoopMonitor {
    /// A leader renews and a standby polls several times per ttl.
    pub(super) fn elector(&self, rounds: u64, stopping: bool, ttl: Duration, now: Instant) -> LoopLiveness {
        let activity = self.elector.observe(rounds, stopping, now);
        // A poll may be due after a whole ttl, and its response late.
        LoopLiveness { name: "elector", activity, limit: stall_limit((ttl * 3).max(Duration::from_secs(10))) }
    }

    pub(super) fn capture(&self, status: Option<&capture::CaptureStatus>) -> LoopLiveness {
        let activity = match status {
            Some(capture::CaptureStatus { state, last_response_at, .. }) => match state {
                capture::CaptureState::Opening
                | capture::CaptureState::Scanning { .. }
                | capture::CaptureState::Reading => LoopActivity::Active { at: last_response_at.into_std() },
                // The publisher does not take more events, or the next retry is not due: capture itself has no work.
                capture::CaptureState::Idle
                | capture::CaptureState::Full
                | capture::CaptureState::Waiting
                | capture::CaptureState::Ended => LoopActivity::Idle,
            },
            None => LoopActivity::Idle,
        };
        LoopLiveness { name: "capture", activity, limit: stall_limit(LIMIT) }
    }

    pub(super) fn publish(
        &self,
        counts: publish::PublishCounts,
        state: publish::PublishState,
        now: Instant,
    ) -> LoopLiveness {
        let progress = counts.published + counts.retried + counts.uncertain + counts.rejected + counts.store_errors;
        let has_work = matches!(state, publish::PublishState::Publishing | publish::PublishState::Draining);
        let activity = self.publish.observe(progress, !has_work || counts.in_flight_events == 0, now);
        LoopLiveness { name: "publish", activity, limit: stall_limit(LIMIT) }
    }

    /// Without a held session the acceptor requests one again and again. With some, all slots may be taken, and the session loop tells.
    pub(super) fn acceptor(&self, counts: consumer::ConsumerCounts, consuming: bool, now: Instant) -> LoopLiveness {
        let sessions = counts.sessions;
        let activity = self.acceptor.observe(sessions.accept_attempts, !consuming || sessions.held > 0, now);
        LoopLiveness { name: "acceptor", activity, limit: stall_limit(LIMIT).max(MIN_ACCEPT_LIMIT) }
    }

    pub(super) fn dead_letters(&self, counts: consumer::ConsumerCounts, consuming: bool, now: Instant) -> LoopLiveness {
        let activity = self.dead_letters.observe(counts.sessions.dead_letter_polls, !consuming, now);
        LoopLiveness { name: "dead-letters", activity, limit: stall_limit(LIMIT).max(MIN_ACCEPT_LIMIT) }
    }

    /// A session is held for seconds at most. So while any is held, some close and others are accepted.
    pub(super) fn sessions(&self, counts: consumer::ConsumerCounts, now: Instant) -> LoopLiveness {
        let sessions = counts.sessions;
        let progress = sessions.accepted + sessions.received + sessions.settled + sessions.dropped;
        LoopLiveness {
            name: "sessions",
            activity: self.sessions.observe(progress, sessions.held == 0, now),
            limit: stall_limit(LIMIT),
        }
    }

    /// Has work from the receipt of a message until it is applied, settled or dropped.
    pub(super) fn applier(&self, counts: consumer::ConsumerCounts, now: Instant) -> LoopLiveness {
        let consumer::ConsumerCounts { sessions, events, .. } = counts;
        let progress = events.groups + events.conflicts + events.unknown + sessions.settled + sessions.dropped;
        let mut input = self.applier_input.lock().unwrap_or_else(PoisonError::into_inner);
        if input.0 != progress || sessions.held == 0 {
            *input = (progress, sessions.received);
        }
        let idle = input.1 == sessions.received;
        LoopLiveness { name: "applier", activity: self.applier.observe(progress, idle, now), limit: stall_limit(LIMIT) }
    }
}

#[cfg(test)]
mod tests {
    use admin::liveness::Liveness;
    use pipeline::{session, view};

    use super::*;

    /// Observes once per second, as probes and announcements do. Returns the last result.
    fn observe_for(minutes: u64, mut observe: impl FnMut(u64, Instant) -> LoopLiveness) -> Liveness {
        let start = Instant::now();
        let mut liveness = Liveness::Idle;
        for second in 0..=minutes * 60 {
            let now = start + Duration::from_secs(second);
            liveness = observe(second, now).evaluate(now);
        }
        liveness
    }

    fn is_stalled(liveness: Liveness) -> bool {
        matches!(liveness, Liveness::Stalled(_))
    }

    #[test]
    fn an_elector_without_rounds_is_stalled_unless_stopping() {
        let ttl = Duration::from_secs(15);
        let loop_monitor = LoopMonitor::default();
        // A renewal every five seconds.
        assert_eq!(observe_for(3, |second, now| loop_monitor.elector(second / 5, false, ttl, now)), Liveness::Running);
        assert!(is_stalled(observe_for(3, |_, now| loop_monitor.elector(7, false, ttl, now))));
        assert_eq!(observe_for(3, |_, now| loop_monitor.elector(7, true, ttl, now)), Liveness::Idle);
    }

    #[test]
    fn a_publisher_with_work_and_no_progress_is_stalled() {
        let publishing = publish::PublishState::Publishing;
        let counts =
            |published, in_flight_events| publish::PublishCounts { published, in_flight_events, ..Default::default() };
        let run = |count: &dyn Fn(u64) -> publish::PublishCounts, state| {
            let loop_monitor = LoopMonitor::default();
            observe_for(3, |second, now| loop_monitor.publish(count(second), state, now))
        };
        assert!(is_stalled(run(&|_| counts(5, 3), publishing)));
        assert_eq!(run(&|second| counts(second / 30, 3), publishing), Liveness::Running);
        assert_eq!(run(&|_| counts(5, 0), publishing), Liveness::Idle);
        let paused = publish::PublishState::Paused(publish::PauseReason::Unreachable);
        assert_eq!(run(&|_| counts(5, 3), paused), Liveness::Idle);
    }

    #[test]
    fn a_silent_change_stream_is_stalled_a_full_one_is_not() {
        let loop_monitor = LoopMonitor::default();
        let alive_at = tokio::time::Instant::now();
        let status = |state| capture::CaptureStatus { state, ..capture::CaptureStatus::initial(alive_at) };
        let later = alive_at.into_std() + LIMIT + Duration::from_secs(1);
        let evaluate = |state| loop_monitor.capture(Some(&status(state))).evaluate(later);
        assert!(is_stalled(evaluate(capture::CaptureState::Reading)));
        assert!(is_stalled(evaluate(capture::CaptureState::Scanning { scanned: 4 })));
        assert_eq!(evaluate(capture::CaptureState::Full), Liveness::Idle);
        assert_eq!(loop_monitor.capture(None).evaluate(later), Liveness::Idle);
    }

    fn counts(held: u64, received: u64, settled: u64, groups: u64) -> consumer::ConsumerCounts {
        consumer::ConsumerCounts {
            sessions: session::SessionCounts { held, accepted: 1, received, settled, ..Default::default() },
            events: view::ApplyCounts { groups, ..Default::default() },
            ..Default::default()
        }
    }

    #[test]
    fn held_sessions_without_progress_are_stalled() {
        let loop_monitor = LoopMonitor::default();
        assert!(is_stalled(observe_for(3, |_, now| loop_monitor.sessions(counts(2, 5, 5, 1), now))));
        let loop_monitor = LoopMonitor::default();
        assert_eq!(observe_for(3, |_, now| loop_monitor.sessions(counts(0, 5, 5, 1), now)), Liveness::Idle);
    }

    #[test]
    fn acceptor_and_dead_letter_loops_must_keep_polling() {
        let polled = |asked| consumer::ConsumerCounts {
            sessions: session::SessionCounts { accept_attempts: asked, dead_letter_polls: asked, ..Default::default() },
            ..Default::default()
        };
        let loop_monitor = LoopMonitor::default();
        assert_eq!(
            observe_for(5, |second, now| loop_monitor.acceptor(polled(second / 30), true, now)),
            Liveness::Running
        );
        assert_eq!(
            observe_for(5, |second, now| loop_monitor.dead_letters(polled(second / 30), true, now)),
            Liveness::Running
        );
        assert!(is_stalled(observe_for(5, |_, now| loop_monitor.acceptor(polled(9), true, now))));
        assert!(is_stalled(observe_for(5, |_, now| loop_monitor.dead_letters(polled(9), true, now))));
        assert_eq!(observe_for(5, |_, now| loop_monitor.acceptor(polled(9), false, now)), Liveness::Idle);
        assert_eq!(observe_for(5, |_, now| loop_monitor.acceptor(counts(1, 5, 5, 1), true, now)), Liveness::Idle);
    }

    #[test]
    fn an_applier_with_input_and_no_progress_is_stalled() {
        let loop_monitor = LoopMonitor::default();
        // A quiet minute first, so that the next messages are new input.
        assert_eq!(observe_for(1, |_, now| loop_monitor.applier(counts(2, 5, 5, 1), now)), Liveness::Idle);
        assert!(is_stalled(observe_for(3, |_, now| loop_monitor.applier(counts(2, 9, 5, 1), now))));
        assert_eq!(
            observe_for(3, |second, now| loop_monitor.applier(counts(2, 9 + second, 5, second), now)),
            Liveness::Idle
        );
    }
}
