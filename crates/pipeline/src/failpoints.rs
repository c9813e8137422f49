//! Defects a test can plant in a pod, to see that the checker finds them: a check that cannot fail proves nothing. And loops it can
//! wedge, to see that the pod notices.
//!
//! Only in builds with debug assertions; a release build has none of them, whatever its environment says.

/// One promise's mechanism, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {
    /// The checkpoint is saved whatever term claimed it since, and wherever it stands.
    NoFence,
    /// The checkpoint follows what was sent, not what was acknowledged.
    CheckpointAhead,
    /// A lane may have two transfers under way.
    TwoTransfersPerLane,
    /// The checkpoint may stand between the fragments of one event.
    TokenInsideSplit,
    /// Events are applied whatever the cursor says.
    NoCursorCheck,
    /// Messages are settled before their transaction is committed.
    SettleBeforeCommit,
    /// A session's second transaction may begin before its first is resolved.
    OverlappingTransactions,
    /// Events are applied though their aggregate is parked.
    ParkedCheckSkipped,
}

impl Failpoint {
    pub const ALL: [Self; 8] = [
        Self::NoFence,
        Self::CheckpointAhead,
        Self::TwoTransfersPerLane,
        Self::TokenInsideSplit,
        Self::NoCursorCheck,
        Self::SettleBeforeCommit,
        Self::OverlappingTransactions,
        Self::ParkedCheckSkipped,
    ];

    /// The environment variable that plants one, by its name in [`Debug`] form.
    pub const VARIABLE: &'static str = "HEADWATER_PLANTED_DEFECT";

    #[cfg(debug_assertions)]
    pub fn is_enabled(self) -> bool {
        static PLANTED: std::sync::OnceLock<Option<Failpoint>> = std::sync::OnceLock::new();
        let planted = PLANTED.get_or_init(|| {
            let name = std::env::var(Self::VARIABLE).ok()?;
            let found = Self::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
            assert!(found.is_some(), "no defect is called `{name}`");
            found
        });
        *planted == Some(self)
    }

    #[cfg(not(debug_assertions))]
    pub const fn is_enabled(self) -> bool {
        false
    }
}

/// A loop that stops in its tracks as soon as it has work, for ever. That of the elector is wedged by `lease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopStall {
    Capture,
    Publish,
    Acceptor,
    Sessions,
    DeadLetters,
    Applier,
}

impl LoopStall {
    /// The environment variable that wedges one, by its name in [`Debug`] form.
    pub const VARIABLE: &'static str = lease::planted::WEDGE;

    /// Returns at once, unless this loop is to be wedged.
    pub async fn block_if_enabled(self) {
        if lease::planted::is_wedged(&self) {
            std::future::pending::<()>().await;
        }
    }
}
