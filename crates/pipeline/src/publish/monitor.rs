//! Read access to the publisher for the rest of the pod: state, progress and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use mongodb::bson::Timestamp;
use tokio::sync::watch;

use crate::counters::counters;

/// One per pod; the publisher of every term writes to it.
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<PublishMonitorState>);

#[derive(Debug, Default)]
struct PublishMonitorState {
    counters: PublishCounters,
    state: watch::Sender<PublishState>,
    progress: watch::Sender<PublishProgress>,
    /// Seconds and increment of a cluster time; 0 if none.
    acknowledged: AtomicU64,
}

/// The state of the publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishState {
    /// Set before the first term and after each.
    #[default]
    Idle,
    /// Set while it opens the sender link and checks the subscription.
    Opening,
    /// Set when messages can be sent.
    Publishing,
    /// Set while nothing can be sent. Ends without operator action when the reason is gone.
    Paused(PauseReason),
    /// Set when there are no more events to capture.
    Draining,
}

/// Why nothing can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// The topic would accept messages, but no subscription would store them.
    SubscriptionMissing,
    TopicMissing,
    Unauthorized,
    Disabled,
    /// Service Bus throttles, or its quota is exceeded.
    Busy,
    Unreachable,
    /// Service Bus detaches the sender link at every message, even at one without contents.
    SendRefused,
}

impl PauseReason {
    /// The problem, and what an operator or the publisher does about it.
    pub(super) fn describe(self, topic: &str, subscription: &str) -> String {
        match self {
            Self::SubscriptionMissing => format!(
                "subscription `{subscription}` of topic `{topic}` does not exist; run `headwater topology apply`"
            ),
            Self::TopicMissing => format!("topic `{topic}` does not exist; run `headwater topology apply`"),
            Self::Unauthorized => {
                "Service Bus refuses the key or token; check `service_bus.connection_string`: the key, its right Send, the expiry of a token; with Entra ID, the role Azure Service Bus Data Sender".to_owned()
            }
            Self::Disabled => format!("topic `{topic}` or its subscription is disabled; enable it"),
            Self::Busy => "Service Bus throttles or is over its quota; retrying".to_owned(),
            Self::Unreachable => "Service Bus is unreachable; retrying".to_owned(),
            Self::SendRefused => {
                format!("Service Bus detaches the sender link of topic `{topic}` at every message; check its settings")
            }
        }
    }
}

/// Progress in cluster time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PublishProgress {
    /// Of the end of the acknowledged prefix.
    pub acknowledged: Option<Timestamp>,
    /// Of the saved checkpoint.
    pub saved: Option<Timestamp>,
    pub last_save: Option<Instant>,
}

counters! {
    PublishCounters => PublishCounts {
        /// Events acknowledged by Service Bus.
        published: "headwater_events_published_total",
        /// Transfers that carried these events.
        transfers: "headwater_transfers_total",
        /// Events sent again: the first acknowledgement was lost (unacknowledged), or Service Bus refused for now (refused).
        /// The first send may have arrived; duplicate detection and cursors absorb it.
        uncertain: "headwater_events_republished_total" { "reason" = "unacknowledged" },
        /// Events republished after a temporary refusal.
        retried: "headwater_events_republished_total" { "reason" = "refused" },
        /// Events that could not be turned into messages.
        rejected: "headwater_events_rejected_total",
        /// Events too large for a message, sent by claim check.
        oversize: "headwater_events_oversize_total",
        /// Events sent or buffered, and not acknowledged yet.
        in_flight_events: "headwater_in_flight_events",
        /// Bytes of the events in flight.
        in_flight_bytes: "headwater_in_flight_bytes",
        /// Checkpoints saved.
        saves: "headwater_checkpoint_saves_total",
        /// Failed MongoDB writes of the producer; each is retried.
        store_errors: "headwater_store_errors_total",
    }
}

impl Handle {
    pub fn counts(&self) -> PublishCounts {
        self.0.counters.snapshot()
    }

    pub fn state(&self) -> PublishState {
        *self.0.state.borrow()
    }

    pub fn progress(&self) -> PublishProgress {
        let number = self.0.acknowledged.load(Relaxed);
        let time = Timestamp { time: (number >> 32) as u32, increment: number as u32 };
        PublishProgress { acknowledged: (number > 0).then_some(time), ..*self.0.progress.borrow() }
    }

    /// Notifies of state changes.
    pub fn states(&self) -> watch::Receiver<PublishState> {
        self.0.state.subscribe()
    }

    pub(super) fn counters(&self) -> &PublishCounters {
        &self.0.counters
    }

    /// Returns the state before.
    pub(super) fn set_state(&self, state: PublishState) -> PublishState {
        self.0.state.send_replace(state)
    }

    pub(super) fn record_acknowledged(&self, time: Timestamp) {
        self.0.acknowledged.store(u64::from(time.time) << 32 | u64::from(time.increment), Relaxed);
    }

    pub(super) fn record_saved(&self, cluster_time: Option<Timestamp>) {
        self.0.counters.saves.fetch_add(1, Relaxed);
        self.0.progress.send_modify(|progress| {
            progress.saved = cluster_time.or(progress.saved);
            progress.last_save = Some(Instant::now());
        });
    }
}
