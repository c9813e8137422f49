//! Read access to the publisher for the rest of the pod: state, progress and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use mongodb::bson::Timestamp;
use tokio::sync::watch;

/// One per pod; the publisher of every term writes to it.
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<HandleState>);

#[derive(Debug, Default)]
struct HandleState {
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

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(super) struct PublishCounters { $(pub(super) $name: AtomicU64),* }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PublishCounts { $($(#[$doc])* pub $name: u64),* }

        impl PublishCounters {
            fn read(&self) -> PublishCounts {
                PublishCounts { $($name: self.$name.load(Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Events acknowledged by Service Bus.
    published,
    /// Transfers that carried them.
    transfers,
    in_flight_events,
    in_flight_bytes,
    /// Events republished although the first send may have arrived. Duplicate detection and cursors absorb them.
    uncertain,
    /// Events republished after a temporary refusal.
    retried,
    rejected,
    oversize,
    /// Checkpoints saved.
    saves,
    /// Failed writes to MongoDB, which are retried.
    store_errors,
}

impl Handle {
    pub fn counts(&self) -> PublishCounts {
        self.0.counters.read()
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

    /// Says so in the log when a pause begins or ends.
    pub(super) fn set_state(&self, state: PublishState) {
        let before = self.0.state.send_replace(state);
        match (before, state) {
            (before, state) if before == state => {}
            (_, PublishState::Paused(why)) => tracing::warn!(?why, "publishing pauses"),
            (PublishState::Paused(why), _) => tracing::info!(?why, "publishing goes on"),
            _ => {}
        }
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
