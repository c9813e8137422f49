//! The settings of sessions, each default with its reason.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Sessions held at a time by one pod. Each is a link and a task: cheap; what they hold is bounded by `bytes_in_flight`.
    pub max_concurrent_sessions: NonZeroUsize,
    /// Connections they are spread over: one is one task's work, and one that dies takes its sessions along.
    pub connections: NonZeroUsize,
    /// How long a session without messages is held while nobody waits for its place. When others wait it is let go at once.
    #[serde(with = "humantime_serde")]
    pub session_idle_timeout: Duration,
    /// A session is let go after this time, or after so many events, whatever it still has: others wait for their turn.
    #[serde(with = "humantime_serde")]
    pub max_session_duration: Duration,
    pub max_session_events: NonZeroUsize,
    /// Messages a session may hold unsettled; half of them are a batch, so that the next one comes in meanwhile.
    pub credit: NonZeroU32,
    /// Bytes of messages held by all sessions together.
    pub bytes_in_flight: NonZeroUsize,
    /// At most how long the subscription locks a session. The bus tells until when, by its own clock; where that clock and ours
    /// disagree, this is what renewal goes by.
    #[serde(with = "humantime_serde")]
    pub lock_duration: Duration,
    /// How long a stop may take: what is in hand is settled, then links are closed, whatever is left.
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
            // What Service Bus sets where nobody says otherwise.
            lock_duration: Duration::from_secs(60),
            drain_within: Duration::from_secs(20),
        }
    }
}

/// A setting that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSessionConfig {
    #[error("`consumer.lock_duration` must be between 5 s and 5 min, as Service Bus has it")]
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

    /// Events handed over at once.
    pub(super) fn batch_size(&self) -> usize {
        (self.credit.get() as usize / 2).max(1)
    }
}
