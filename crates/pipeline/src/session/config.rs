//! Session settings, each default with its reason.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Sessions one pod holds at a time. Each is a link and a task, so it is cheap; `bytes_in_flight` bounds the memory.
    pub max_concurrent_sessions: NonZeroUsize,
    /// Connections the sessions are spread over. One connection is the work of one task, and a lost one drops its sessions.
    pub connections: NonZeroUsize,
    /// How long a session without messages is held while no other session needs its slot. Otherwise it is released at once.
    #[serde(with = "humantime_serde")]
    pub session_idle_timeout: Duration,
    /// A session is released after this time or this many events, so that other sessions get their turn.
    #[serde(with = "humantime_serde")]
    pub max_session_duration: Duration,
    pub max_session_events: NonZeroUsize,
    /// Unsettled messages per session. Half of them form a batch, so that the next batch arrives meanwhile.
    pub credit: NonZeroU32,
    /// Bytes of the unsettled messages of all sessions.
    pub bytes_in_flight: NonZeroUsize,
    /// The longest session lock of the subscription. Service Bus reports the end of a lock by its own clock; if that clock and ours
    /// differ, renewal relies on this value.
    #[serde(with = "humantime_serde")]
    pub lock_duration: Duration,
    /// Time limit of a stop: applied messages are settled, then the links are closed.
    #[serde(with = "humantime_serde")]
    pub drain_within: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_concurrent_sessions: NonZeroUsize::new(256).expect("256 is not 0"),
            connections: NonZeroUsize::new(2).expect("2 is not 0"),
            session_idle_timeout: Duration::from_secs(1),
            max_session_duration: Duration::from_secs(10),
            max_session_events: NonZeroUsize::new(5_000).expect("5000 is not 0"),
            credit: NonZeroU32::new(1_000).expect("1000 is not 0"),
            bytes_in_flight: NonZeroUsize::new(64 << 20).expect("64 MiB is not 0"),
            // The default of Service Bus.
            lock_duration: Duration::from_secs(60),
            drain_within: Duration::from_secs(20),
        }
    }
}

/// An invalid session setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSessionConfig {
    #[error("`consumer.lock_duration` must be between 5 s and 5 min, the limits of Service Bus")]
    LockDuration,
    #[error("`consumer.connections` must not exceed `consumer.max_concurrent_sessions`")]
    Connections,
}

impl Config {
    pub fn validate(&self) -> Result<(), InvalidSessionConfig> {
        if !(Duration::from_secs(5)..=Duration::from_secs(300)).contains(&self.lock_duration) {
            return Err(InvalidSessionConfig::LockDuration);
        }
        if self.connections > self.max_concurrent_sessions {
            return Err(InvalidSessionConfig::Connections);
        }
        Ok(())
    }

    /// Events per batch.
    pub(super) fn batch_size(&self) -> usize {
        (self.credit.get() as usize / 2).max(1)
    }
}
