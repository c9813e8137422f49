//! Possible protocol defects, planted one at a time to show that the checker finds them.
//!
//! A defect changes the model or wraps a production function; the production code has no switch for it. Each has a test that requires a
//! counterexample.

/// One planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolDefect {
    /// A save is accepted whatever its term; its position may still not fall.
    NoFence,
    /// A save is accepted whatever its term and position.
    UncheckedSave,
    /// Claims and saves compare terms only, so two leaders with the same term pass as one.
    ClaimByTermAlone,
    /// The leader acts until the store refuses a renewal.
    NoDeadline,
    /// Validity counts from the arrival of the reply.
    ValidFromReply,
    /// A standby counts its wait from its request, not from the arrival of the reply.
    WaitFromRequest,
    /// The boot clock stops while the machine is suspended.
    ClockStopsInSuspend,
    /// The takeover compares holder and term, not the heartbeat.
    CompareTermOnly,
    /// The lease is taken when `expiresAt` has passed on the *client's* clock.
    ClientClock,
    /// The ttl is no longer than the deadline, in ticks: which the configuration check refuses.
    TtlTooShort,
    /// A standby waits for its own ttl, though the holder was configured with a longer one.
    OwnTtlOnly,
    /// The servers' clocks are further apart than the operator said.
    SkewUnderstated,
    /// A write that only the primary has counts as acknowledged.
    PrimaryAckTrusted,
    /// The lease is released before the gate closes.
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
