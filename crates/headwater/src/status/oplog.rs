//! How much history the source's oplog holds, and how long the checkpoint could stand still.

use admin::status::OplogStatus;
use tokio::time::timeout;

use super::{RESPONSE_TIMEOUT, StatusCollector};
use crate::oplog::OplogWindow;

/// The rate of writing says nothing while the oplog is younger.
const YOUNGEST: f64 = 60.0;

/// Once the oplog is full, its tail moves as its head does; until then there is room to fill first.
pub(super) fn told(ends: &OplogWindow, checkpoint: Option<u32>) -> OplogStatus {
    let behind = checkpoint.map(|at| f64::from(ends.newest.saturating_sub(at)));
    OplogStatus {
        headroom_seconds: behind.filter(|_| ends.span() >= YOUNGEST).map(|behind| ends.span_when_full() - behind),
        window_seconds: Some(ends.span()),
    }
}

impl StatusCollector {
    /// `None` where it cannot be read: through mongos, or without the right to.
    pub(super) async fn oplog(&self) -> Option<OplogWindow> {
        timeout(RESPONSE_TIMEOUT, OplogWindow::read(&self.source)).await.ok()?.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(used: f64) -> OplogWindow {
        OplogWindow { oldest: 1_000, newest: 1_000 + 36_000, used, most: 100.0 }
    }

    #[test]
    fn a_full_oplog_leaves_what_lies_between_its_tail_and_the_checkpoint() {
        assert_eq!(told(&ends(100.0), Some(37_000)).headroom_seconds, Some(36_000.0));
        assert_eq!(told(&ends(100.0), Some(30_000)).headroom_seconds, Some(29_000.0));
        // Already lost.
        assert_eq!(told(&ends(100.0), Some(500)).headroom_seconds, Some(-500.0));
    }

    #[test]
    fn one_that_still_grows_leaves_more() {
        assert_eq!(told(&ends(50.0), Some(37_000)).headroom_seconds, Some(72_000.0));
    }

    #[test]
    fn without_a_checkpoint_or_with_a_young_oplog_it_is_unknown() {
        assert_eq!(told(&ends(100.0), None), OplogStatus { headroom_seconds: None, window_seconds: Some(36_000.0) });
        let young = OplogWindow { newest: 1_059, ..ends(1.0) };
        assert_eq!(told(&young, Some(1_059)).headroom_seconds, None);
    }
}
