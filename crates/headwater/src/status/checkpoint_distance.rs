//! Where the checkpoint stands beside the source's newest operation: behind it, or, as it should never be, ahead.

/// The two are read one after the other, and members' clocks differ: a little ahead is no distance at all.
const AS_GOOD_AS_NONE: i64 = 60;

/// In seconds of the source; negative where the checkpoint is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckpointDistance(i64);

impl CheckpointDistance {
    pub(super) fn between((checkpoint, newest): (u32, u32)) -> Self {
        let seconds = i64::from(newest) - i64::from(checkpoint);
        Self(if seconds < -AS_GOOD_AS_NONE { seconds } else { seconds.max(0) })
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
    fn a_checkpoint_is_behind_or_there_or_ahead() {
        let told = |checkpoint, newest| {
            let distance = CheckpointDistance::between((checkpoint, newest));
            (distance.behind(), distance.ahead())
        };
        assert_eq!(told(900, 1_000), (Some(100.0), None));
        assert_eq!(told(1_060, 1_000), (Some(0.0), None));
        assert_eq!(told(1_061, 1_000), (None, Some(61.0)));
        assert_eq!(told(u32::MAX, 0), (None, Some(f64::from(u32::MAX))));
    }
}
