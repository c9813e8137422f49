//! Failpoints: defects that a test enables in a pod, to prove that the checker finds them, and loops that it stalls, to prove that the liveness
//! probe notices.
//!
//! Compiled only with debug assertions; a release build ignores the environment variables.

/// Disables the mechanism behind one guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {
    /// Saves the checkpoint without the term fence.
    NoFence,
    /// The checkpoint follows sent events instead of acknowledged ones.
    CheckpointAhead,
    /// A lane may have two transfers in flight.
    TwoTransfersPerLane,
    /// The checkpoint may point between the fragments of one event.
    TokenInsideSplit,
    /// Consumers apply events without the cursor check.
    NoCursorCheck,
    /// Consumers settle messages before the transaction commits.
    SettleBeforeCommit,
    /// A session may start a second transaction before the first is resolved.
    OverlappingTransactions,
    /// Consumers apply events of a parked aggregate.
    ParkedCheckSkipped,
    /// Pods apply their generation of the read models whatever generation the cursors have, and no fence is raised.
    NoGenerationCheck,
    /// Every send of an event has another message id.
    RandomMessageIds,
    /// A leader opens the change stream at the present instead of at the checkpoint.
    ResumeFromNow,
    /// A transfer that Service Bus refused for now counts as acknowledged.
    RefusedIsAcknowledged,
    /// The events of one aggregate go to several sessions.
    SessionsPerAggregate,
    /// Consumers apply the event after a gap.
    GapIgnored,
    /// Consumers pass over an event that cannot be applied.
    PoisonSkipped,
    /// A paused read model passes over its events.
    PausedEventsSkipped,
}

impl Failpoint {
    pub const ALL: [Self; 16] = [
        Self::NoFence,
        Self::CheckpointAhead,
        Self::TwoTransfersPerLane,
        Self::TokenInsideSplit,
        Self::NoCursorCheck,
        Self::SettleBeforeCommit,
        Self::OverlappingTransactions,
        Self::ParkedCheckSkipped,
        Self::NoGenerationCheck,
        Self::RandomMessageIds,
        Self::ResumeFromNow,
        Self::RefusedIsAcknowledged,
        Self::SessionsPerAggregate,
        Self::GapIgnored,
        Self::PoisonSkipped,
        Self::PausedEventsSkipped,
    ];

    /// The environment variable that enables one by its [`Debug`] name.
    pub const VARIABLE: &'static str = "HEADWATER_PLANTED_DEFECT";

    #[cfg(debug_assertions)]
    pub fn is_enabled(self) -> bool {
        static ENABLED: std::sync::OnceLock<Option<Failpoint>> = std::sync::OnceLock::new();
        let enabled = ENABLED.get_or_init(|| {
            let name = std::env::var(Self::VARIABLE).ok()?;
            let found = Self::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
            assert!(found.is_some(), "unknown failpoint `{name}`");
            found
        });
        *enabled == Some(self)
    }

    #[cfg(not(debug_assertions))]
    pub const fn is_enabled(self) -> bool {
        false
    }
}

/// The environment variable with the type of events whose handling ends the process at once.
pub const FATAL_EVENT_VARIABLE: &str = "HEADWATER_FATAL_EVENT";

/// Ends the process, as a stack overflow does, if events of this type are fatal.
#[cfg(debug_assertions)]
pub fn abort_if_fatal(event_type: Option<&str>) {
    static FATAL: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let fatal = FATAL.get_or_init(|| std::env::var(FATAL_EVENT_VARIABLE).ok());
    if fatal.is_some() && fatal.as_deref() == event_type {
        std::process::abort();
    }
}

#[cfg(not(debug_assertions))]
pub const fn abort_if_fatal(_event_type: Option<&str>) {}

/// Stalls a loop forever as soon as it has work. `lease` stalls the elector.
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
    /// The environment variable that stalls one by its [`Debug`] name.
    pub const VARIABLE: &'static str = lease::failpoints::STALL_VARIABLE;

    /// Returns at once unless this loop is stalled.
    pub async fn block_if_enabled(self) {
        if lease::failpoints::is_stalled(&self) {
            std::future::pending::<()>().await;
        }
    }
}
