//! The credits of a namespace: a number per second, and a pause after they are used up. Pure; time is an argument.

use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct CreditWindow {
    started: Option<Instant>,
    used: u32,
    refused_until: Option<Instant>,
}

impl CreditWindow {
    /// Takes credits, or refuses until `pause` is over.
    pub(super) fn take(&mut self, number: u32, limit: u32, pause: Duration, now: Instant) -> bool {
        if self.refused_until.is_some_and(|until| until > now) {
            return false;
        }
        if self.started.is_none_or(|started| now.duration_since(started) >= WINDOW) {
            (self.started, self.used) = (Some(now), 0);
        }
        // A batch larger than the limit passes in a new window; otherwise it could never be sent.
        if self.used > 0 && self.used.saturating_add(number) > limit {
            self.refused_until = Some(now + pause);
            return false;
        }
        self.used = self.used.saturating_add(number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_refused_until_the_pause_is_over() {
        let (start, pause) = (Instant::now(), Duration::from_secs(2));
        let mut window = CreditWindow::default();
        let after = |millis| start + Duration::from_millis(millis);
        assert!(window.take(60, 100, pause, start));
        assert!(window.take(40, 100, pause, after(10)));
        assert!(!window.take(1, 100, pause, after(20)), "used up");
        assert!(!window.take(1, 100, pause, after(1_500)), "a new second, but throttled");
        assert!(window.take(500, 100, pause, after(2_020)), "a large batch in a new window");
        assert!(!window.take(1, 100, pause, after(2_030)));
    }
}
