//! Settings of capture, and the start of a new pipeline.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use mongodb::bson::{DateTime, Document};
use serde::{Deserialize, Serialize};

use crate::event::Namespace;

/// Between 1,000 and 5,000 the read rate does not change; a smaller batch takes less memory.
const BATCH_SIZE: NonZeroU32 = NonZeroU32::new(2000).unwrap();
/// A tenth of a second of 1 KiB events at the maximum read rate of a mongod, enough to bridge a short stall of Service Bus. With twice as much, a
/// pod at full load took 65 MB; its budget is 60.
const READ_AHEAD_BYTES: NonZeroU32 = NonZeroU32::new(8 << 20).unwrap();
/// Small events cost more than their bytes: each has its own key, token and type.
const READ_AHEAD_EVENTS: NonZeroU32 = NonZeroU32::new(16_000).unwrap();
/// How often a quiet stream reports its position. Events do not wait for it.
const MAX_AWAIT: Duration = Duration::from_secs(1);
/// Longer than a failover with usual settings delays one response. Capture drops a dead connection after it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Maximum number of events in one reply of the server.
    pub batch_size: NonZeroU32,
    /// Maximum size of the queue. One more batch may wait for room, and one more may be in flight.
    pub read_ahead_bytes: NonZeroU32,
    pub read_ahead_events: NonZeroU32,
    /// How long the server waits for an event before it sends an empty reply.
    #[serde(with = "humantime_serde")]
    pub max_await: Duration,
    /// How long a reply may take beyond [`Self::max_await`] before capture drops the connection. Doubles after each timeout, because a server
    /// that skips millions of unrelated oplog entries sends nothing meanwhile.
    #[serde(with = "humantime_serde")]
    pub response_timeout: Duration,
    /// Aggregation stages over change events (`fullDocument.…`), run by the server.
    pub filter: Vec<Document>,
    /// Namespaces that this installation writes. Refused as a source.
    #[serde(skip)]
    pub own: Vec<Namespace>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: BATCH_SIZE,
            read_ahead_bytes: READ_AHEAD_BYTES,
            read_ahead_events: READ_AHEAD_EVENTS,
            max_await: MAX_AWAIT,
            response_timeout: RESPONSE_TIMEOUT,
            filter: Vec::new(),
            own: Vec::new(),
        }
    }
}

impl Config {
    /// How long the first attempt waits for a reply.
    pub(super) fn initial_timeout(&self) -> Duration {
        self.max_await + self.response_timeout
    }
}

/// Where a new pipeline starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StartPosition {
    /// With a snapshot of everything in the source.
    #[default]
    Beginning,
    /// With the next change.
    Now,
    /// With the first change at this time or after it; by the second, because a cluster's time counts seconds.
    At(DateTime),
}

const BEGINNING: &str = "beginning";
const NOW: &str = "now";

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a start must be `beginning`, `now`, or a time such as 2026-01-31T12:00:00Z")]
pub struct InvalidStart;

impl FromStr for StartPosition {
    type Err = InvalidStart;

    fn from_str(text: &str) -> Result<Self, InvalidStart> {
        match text {
            BEGINNING => Ok(Self::Beginning),
            NOW => Ok(Self::Now),
            time => DateTime::parse_rfc3339_str(time).map(Self::At).map_err(|_| InvalidStart),
        }
    }
}

impl TryFrom<String> for StartPosition {
    type Error = InvalidStart;

    fn try_from(text: String) -> Result<Self, InvalidStart> {
        text.parse()
    }
}

impl fmt::Display for StartPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str(BEGINNING),
            Self::Now => f.write_str(NOW),
            // A time outside the calendar cannot be written as text; milliseconds always can.
            Self::At(time) => match time.try_to_rfc3339_string() {
                Ok(text) => f.write_str(&text),
                Err(_) => write!(f, "{} ms", time.timestamp_millis()),
            },
        }
    }
}

impl From<StartPosition> for String {
    fn from(start: StartPosition) -> Self {
        start.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_formats_as_it_parses() {
        for text in ["beginning", "now", "2026-01-31T12:00:00Z"] {
            assert_eq!(text.parse::<StartPosition>().unwrap().to_string(), text);
        }
        assert_eq!("yesterday".parse::<StartPosition>(), Err(InvalidStart));
    }
}
