//! What the rest of the pod may know of the publisher: counters and a state, cheap to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use mongodb::bson::Timestamp;
use tokio::sync::watch;

/// One for the life of a pod; every term's publisher writes into it.
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<HandleState>);

#[derive(Debug, Default)]
struct HandleState {
    counters: PublishCounters,
    state: watch::Sender<PublishState>,
    progress: watch::Sender<PublishProgress>,
    /// Seconds and increment of a cluster time; 0: none yet.
    acknowledged: AtomicU64,
}

/// What the publisher is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishState {
    /// Set before the first term and after each.
    #[default]
    Idle,
    /// Set while it looks for the bus and its subscription.
    Opening,
    /// Set by the first message the bus could take.
    Publishing,
    /// Set while nothing can be sent; it goes on by itself when the reason is gone.
    Paused(PauseReason),
    /// Set when there is no more to come.
    Draining,
}

/// Why nothing can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// The topic would take messages that nobody keeps.
    SubscriptionMissing,
    TopicMissing,
    Unauthorized,
    Disabled,
    /// The bus asks for patience, or is full.
    Busy,
    Unreachable,
}

/// How far it has come in time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PublishProgress {
    /// Of the last event before which, and including which, the bus has acknowledged all.
    pub acknowledged: Option<Timestamp>,
    /// Of the last event behind the saved checkpoint.
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
    /// Events the bus has acknowledged.
    published,
    /// Transfers they went in.
    transfers,
    in_flight_events,
    in_flight_bytes,
    /// Events sent again although the first try may have arrived: what the bus's duplicate detection and the cursors absorb.
    uncertain,
    /// Events sent again after the bus said no for now.
    retried,
    rejected,
    oversize,
    /// Checkpoints saved.
    saves,
    /// Writes to MongoDB that had to be repeated.
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

    /// For those who wait for a state.
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
