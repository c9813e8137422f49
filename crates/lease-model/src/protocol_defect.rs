//! Mistakes one could make, planted one at a time to see that the checker finds them.
//!
//! A defect lives in the shell of the model or wraps a production function; the production code has no switch for any. Each has
//! a test that demands a counterexample.

/// One planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolDefect {
    /// A save is accepted whatever its term; its position may still not fall.
    NoFence,
    /// A save is accepted whatever its term and position.
    UncheckedSave,
    /// Claims and saves compare terms only, so two leaders with the same term pass as one.
    ClaimByTermAlone,
    /// The leader acts as long as the store has not told it otherwise.
    NoDeadline,
    /// Validity is counted from when the answer arrived.
    ValidFromReply,
    /// A standby counts its wait from when it pending, not from when the answer arrived.
    WaitFromRequest,
    /// The boot clock stands still while the machine is suspended.
    ClockStopsInSuspend,
    /// The takeover compares holder and term, not the heartbeat.
    CompareTermOnly,
    /// The seeds' statement: taken when `expiresAt` has passed on the *client's* clock.
    ClientClock,
    /// The ttl is no longer than the deadline, in ticks: what the production check of the configuration refuses.
    TtlTooShort,
    /// A standby waits for its own ttl, though the holder was configured with a longer one.
    OwnTtlOnly,
    /// The servers' clocks are further apart than the operator said.
    SkewUnderstated,
    /// A write that only the primary has is taken for an acknowledged one.
    PrimaryAckTrusted,
    /// The lease is given back before the gate is shut.
    ReleaseBeforeGateCloses,
    /// A standby never takes a silent lease; it waits for a release.
    WaitsForRelease,
}

impl ProtocolDefect {
    pub const ALL: [Self; 15] = [
        Self::NoFence,
        Self::UncheckedSave,
        Self::ClaimByTermAlone,
        Self::NoDeadline,
        Self::ValidFromReply,
        Self::WaitFromRequest,
        Self::ClockStopsInSuspend,
        Self::CompareTermOnly,
        Self::ClientClock,
        Self::TtlTooShort,
        Self::OwnTtlOnly,
        Self::SkewUnderstated,
        Self::PrimaryAckTrusted,
        Self::ReleaseBeforeGateCloses,
        Self::WaitsForRelease,
    ];
}
