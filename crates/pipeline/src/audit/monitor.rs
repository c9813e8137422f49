//! What the rest of the pod may know about the audit: its state and its counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::watch;

use super::compare::SkipReason;
use super::error::UnauditableReason;
use crate::counters::counters;

counters! {
    AuditCounters => AuditCounts {
        /// Aggregates compared by the audit: current, behind (their messages were still on the way), found (events were missing), or skipped.
        current: "headwater_audited_aggregates_total" { "result" = "current" },
        /// Aggregates that caught up while the audit watched.
        late: "headwater_audited_aggregates_total" { "result" = "late" },
        /// Aggregates that missed events.
        found: "headwater_audited_aggregates_total" { "result" = "found" },
        /// Aggregates that are not audited.
        skipped: "headwater_audited_aggregates_total" { "result" = "skipped" },
        /// Events that were missing in the read models and that the audit applied or parked.
        healed_events: "headwater_audit_healed_events_total",
    }
}

/// The state of the audit on this pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditState {
    /// Set while another pod audits, or before the first claim.
    #[default]
    Standby,
    /// Set between two rounds.
    Resting,
    Walking,
    /// Set while the round cannot continue; it continues by itself.
    Waiting(WaitReason),
    Unauditable(UnauditableReason),
}

/// What a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The checkpoint has not passed the time at which the slice was read: there is no leader, it lags, or a snapshot runs.
    Checkpoint,
    /// The sessions of aggregates that are behind have messages, or are held.
    Backlog,
    /// Missing events could not be applied; the round tries again.
    Healing,
}

impl WaitReason {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Backlog => "backlog",
            Self::Healing => "healing",
        }
    }
}

/// Cheap to clone; all clones read the same state.
#[derive(Clone, Debug)]
pub struct Handle(pub(super) Arc<AuditActivity>);

#[derive(Debug, Default)]
pub(super) struct AuditActivity {
    counters: AuditCounters,
    state: watch::Sender<AuditState>,
}

impl Handle {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    pub fn state(&self) -> AuditState {
        *self.0.state.borrow()
    }

    pub fn counts(&self) -> AuditCounts {
        self.0.counters.snapshot()
    }

    pub(super) fn set_state(&self, state: AuditState) {
        self.0.state.send_if_modified(|current| std::mem::replace(current, state) != state);
    }

    pub(super) fn record_current(&self, aggregates: u64) {
        self.0.counters.current.fetch_add(aggregates, Relaxed);
    }

    pub(super) fn record_late(&self, aggregates: u64) {
        self.0.counters.late.fetch_add(aggregates, Relaxed);
    }

    pub(super) fn record_skipped(&self, _reason: SkipReason) {
        self.0.counters.skipped.fetch_add(1, Relaxed);
    }

    pub(super) fn record_found(&self, healed_events: u64) {
        self.0.counters.found.fetch_add(1, Relaxed);
        self.0.counters.healed_events.fetch_add(healed_events, Relaxed);
    }
}
