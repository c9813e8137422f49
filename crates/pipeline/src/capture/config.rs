//! What can be set about reading the source, and where a new pipeline starts.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use mongodb::bson::{DateTime, Document};
use serde::{Deserialize, Serialize};

use crate::event::Namespace;

/// Between 1,000 and 5,000 the reading rate no longer depends on it; the smaller, the less memory a batch takes.
const BATCH_SIZE: NonZeroU32 = NonZeroU32::new(2000).unwrap();
/// A tenth of a second of 1 KiB events at the rate a mongod can be read: enough to bridge any hiccup of the bus. With twice as much a pod at full load
/// took 65 MB, and its whole budget is 60.
const READ_AHEAD_BYTES: NonZeroU32 = NonZeroU32::new(8 << 20).unwrap();
/// Small events cost more than their bytes: each has a key, a token and a type of its own.
const READ_AHEAD_EVENTS: NonZeroU32 = NonZeroU32::new(16_000).unwrap();
/// How often a quiet stream says where it is. Events do not wait for it.
const MAX_AWAIT: Duration = Duration::from_secs(1);
/// Longer than a failover within a data centre's usual settings blocks one answer; a connection into a black hole is given up after it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Events the server puts into one answer at most.
    pub batch_size: NonZeroU32,
    /// How much may be read and not taken yet. One more batch may be waiting for room, and one may be on its way.
    pub read_ahead_bytes: NonZeroU32,
    pub read_ahead_events: NonZeroU32,
    /// How long the server waits for news before it answers that there are none.
    #[serde(with = "humantime_serde")]
    pub max_await: Duration,
    /// How long an answer may take beyond [`Self::max_await`] before the connection is given up. Doubled after each time in
    /// vain, because a server that skips millions of foreign oplog entries says nothing meanwhile.
    #[serde(with = "humantime_serde")]
    pub response_timeout: Duration,
    /// Stages of an aggregation over change events (`fullDocument.…`), run by the server.
    pub filter: Vec<Document>,
    /// What this installation itself writes: never captured, and refused as a source.
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
    /// How long the first try waits for an answer.
    pub(super) fn initial_timeout(&self) -> Duration {
        self.max_await + self.response_timeout
    }
}

/// Where a new pipeline starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PipelineStart {
    /// With everything the source holds.
    #[default]
    Beginning,
    /// With the next change.
    Now,
    /// With the first change at this time or after it; by the second, because a cluster's time counts seconds.
    At(DateTime),
}

const BEGINNING: &str = "beginning";
const NOW: &str = "now";

/// Neither of the words, nor a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a start is `beginning`, `now`, or a time such as 2026-01-31T12:00:00Z")]
pub struct InvalidStart;

impl FromStr for PipelineStart {
    type Err = InvalidStart;

    fn from_str(text: &str) -> Result<Self, InvalidStart> {
        match text {
            BEGINNING => Ok(Self::Beginning),
            NOW => Ok(Self::Now),
            time => DateTime::parse_rfc3339_str(time).map(Self::At).map_err(|_| InvalidStart),
        }
    }
}

impl TryFrom<String> for PipelineStart {
    type Error = InvalidStart;

    fn try_from(text: String) -> Result<Self, InvalidStart> {
        text.parse()
    }
}

impl fmt::Display for PipelineStart {
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

impl From<PipelineStart> for String {
    fn from(start: PipelineStart) -> Self {
        start.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_written_as_it_is_read() {
        for text in ["beginning", "now", "2026-01-31T12:00:00Z"] {
            assert_eq!(text.parse::<PipelineStart>().unwrap().to_string(), text);
        }
        assert_eq!("yesterday".parse::<PipelineStart>(), Err(InvalidStart));
    }
}
