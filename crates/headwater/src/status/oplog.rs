//! How much history the oplog of the source holds, and how long the checkpoint could stay where it is.

use admin::status::OplogStatus;
use tokio::time::timeout;

use super::{READ_TIMEOUT, StatusCollector};
use crate::oplog::OplogWindow;

/// A shorter window does not tell the rate of writes.
const MIN_WINDOW: f64 = 60.0;

/// A full oplog drops its oldest entry for every new one; one that still grows has room to fill first.
pub(super) fn to_status(window: &OplogWindow, checkpoint: Option<u32>) -> OplogStatus {
    let behind = checkpoint.map(|at| f64::from(window.newest.saturating_sub(at)));
    OplogStatus {
        headroom_seconds: behind.filter(|_| window.span() >= MIN_WINDOW).map(|behind| window.span_when_full() - behind),
        window_seconds: Some(window.span()),
    }
}

impl StatusCollector {
    /// `None` if it cannot be read: through mongos, or without the privilege.
    pub(super) async fn read_oplog(&self) -> Option<OplogWindow> {
        timeout(READ_TIMEOUT, OplogWindow::read(&self.source)).await.ok()?.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(used: f64) -> OplogWindow {
        OplogWindow { oldest: 1_000, newest: 1_000 + 36_000, used, max: 100.0 }
    }

    #[test]
    fn a_full_oplog_leaves_the_time_behind_the_checkpoint() {
        assert_eq!(to_status(&window(100.0), Some(37_000)).headroom_seconds, Some(36_000.0));
        assert_eq!(to_status(&window(100.0), Some(30_000)).headroom_seconds, Some(29_000.0));
        // Already lost.
        assert_eq!(to_status(&window(100.0), Some(500)).headroom_seconds, Some(-500.0));
    }

    #[test]
    fn an_oplog_that_still_grows_leaves_more() {
        assert_eq!(to_status(&window(50.0), Some(37_000)).headroom_seconds, Some(72_000.0));
    }

    #[test]
    fn without_a_checkpoint_or_history_it_is_unknown() {
        assert_eq!(
            to_status(&window(100.0), None),
            OplogStatus { headroom_seconds: None, window_seconds: Some(36_000.0) }
        );
        let young = OplogWindow { newest: 1_059, ..window(1.0) };
        assert_eq!(to_status(&young, Some(1_059)).headroom_seconds, None);
    }
}
