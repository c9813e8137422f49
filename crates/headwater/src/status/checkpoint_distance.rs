//! The distance between the checkpoint and the newest operation of the source.
//!
//! The checkpoint should be behind. It is ahead only if it was set to a future time, or if the source was restored.

/// The two times are read one after the other, and the clocks of members differ. So up to a minute ahead counts as no distance.
const TOLERANCE: i64 = 60;

/// In seconds by the source's clock; negative if the checkpoint is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckpointDistance(i64);

impl CheckpointDistance {
    pub(super) fn between((checkpoint, newest): (u32, u32)) -> Self {
        let seconds = i64::from(newest) - i64::from(checkpoint);
        Self(if seconds < -TOLERANCE { seconds } else { seconds.max(0) })
    }

    pub(super) fn behind(self) -> Option<f64> {
        (self.0 >= 0).then_some(self.0 as f64)
    }

    pub(super) fn ahead(self) -> Option<f64> {
        (self.0 < 0).then_some(-self.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_behind_level_or_ahead() {
        let behind_and_ahead = |checkpoint, newest| {
            let distance = CheckpointDistance::between((checkpoint, newest));
            (distance.behind(), distance.ahead())
        };
        assert_eq!(behind_and_ahead(900, 1_000), (Some(100.0), None));
        assert_eq!(behind_and_ahead(1_060, 1_000), (Some(0.0), None));
        assert_eq!(behind_and_ahead(1_061, 1_000), (None, Some(61.0)));
        assert_eq!(behind_and_ahead(u32::MAX, 0), (None, Some(f64::from(u32::MAX))));
    }
}
