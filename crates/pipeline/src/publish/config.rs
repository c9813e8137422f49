//! How the publisher behaves.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lanes::Window;

/// The publisher's part of `producer` in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Events that may be on their way and not yet behind the saved checkpoint: what a takeover publishes again at most.
    pub window_events: NonZeroUsize,
    /// And their bytes.
    pub window_bytes: NonZeroUsize,
    /// Events of one aggregate that may travel together.
    pub batch_count: NonZeroUsize,
    /// How long an aggregate's first event waits for others to travel with.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    pub checkpoint: CheckpointInterval,
    /// How long a stop may take to bring out what was captured.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    pub body: BodyFormat,
    pub sessions: SessionMapping,
    /// How long the body of an event that is too large for the bus is kept.
    #[serde(with = "humantime_serde")]
    pub keep_oversize: Duration,
}

/// At 100,000 events/s the bus may take 80 ms to answer before this is what slows us down; each costs about 1 KiB of memory.
const WINDOW_EVENTS: usize = 8_192;
/// A pod shall do with 60 MB: messages under way are held once, and capture reads ahead about as much again.
const WINDOW_BYTES: usize = 8 << 20;
/// What one aggregate sends between two answers of the bus. At 10 ms to the bus 20,000 events of one aggregate went out at 7,500/s in batches of 100,
/// at 24,000/s in batches of 400 and at 32,000/s in batches of 1,000; a refused batch costs as many single sends.
const BATCH_COUNT: usize = 400;
/// Under load events meet in their lane anyway, while a transfer is out; without load, waiting is only delay.
const LINGER: Duration = Duration::ZERO;
/// What a takeover publishes again; dearer than it looks: each save is a majority write.
const CHECKPOINT: Duration = Duration::from_millis(200);
/// Below the 30 s a pod is given to end, and enough to send a full window many times.
const DRAIN: Duration = Duration::from_secs(10);
/// As long as messages commonly live on Service Bus; longer than an operator needs to mend a consumer.
const KEEP_OVERSIZE: Duration = Duration::from_secs(14 * 24 * 3_600);

impl Default for Config {
    fn default() -> Self {
        let count = |number| NonZeroUsize::new(number).expect("a default is not zero");
        Self {
            window_events: count(WINDOW_EVENTS),
            window_bytes: count(WINDOW_BYTES),
            batch_count: count(BATCH_COUNT),
            linger: LINGER,
            checkpoint: CheckpointInterval::Every(CHECKPOINT),
            drain: DRAIN,
            body: BodyFormat::default(),
            sessions: SessionMapping::default(),
            keep_oversize: KEEP_OVERSIZE,
        }
    }
}

/// A token names a lane in 24 bits, and no window needs more.
const MOST_EVENTS: usize = 1 << 20;

/// A setting that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPublishConfig {
    #[error("`producer.window_events` must not exceed {MOST_EVENTS}")]
    WindowEvents,
    #[error("`producer.keep_oversize` must be at least an hour: consumers read what it keeps")]
    KeepOversize,
}

impl Config {
    pub fn validate(&self) -> Result<(), InvalidPublishConfig> {
        if self.window_events.get() > MOST_EVENTS {
            return Err(InvalidPublishConfig::WindowEvents);
        }
        if self.keep_oversize < Duration::from_secs(3_600) {
            return Err(InvalidPublishConfig::KeepOversize);
        }
        Ok(())
    }

    /// A save is due after so many events. The window holds what is not saved yet, so a small one must not wait for a thousand.
    pub(super) fn save_after(&self) -> u64 {
        CheckpointInterval::EVENTS.min(self.window().events as u64 / 2).max(1)
    }

    pub(super) fn window(&self) -> Window {
        match self.checkpoint {
            // One event at a time: sent, acknowledged, saved.
            CheckpointInterval::Each => Window { events: 1, bytes: self.window_bytes.get() },
            CheckpointInterval::Every(_) => Window { events: self.window_events.get(), bytes: self.window_bytes.get() },
        }
    }
}

/// How a document is written into a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyFormat {
    /// As MongoDB holds it: nothing lost, nothing re-encoded.
    #[default]
    Bson,
    /// Relaxed Extended JSON, where others read the topic.
    Json,
}

/// Which session an aggregate's messages travel in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionMapping {
    /// One each.
    #[default]
    Aggregate,
    /// So many in all, each aggregate always in the same: for millions of short-lived aggregates.
    Buckets(NonZeroU32),
}

/// How often the checkpoint is saved: `each`, or a time such as `200ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// After every event, before the next is sent.
    Each,
    /// This often, or every [1,000 events](Self::EVENTS), whichever first.
    Every(Duration),
}

impl CheckpointInterval {
    pub const EVENTS: u64 = 1_000;
}

impl fmt::Display for CheckpointInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each => f.write_str("each"),
            Self::Every(span) => humantime_serde::re::humantime::format_duration(*span).fmt(f),
        }
    }
}

impl Serialize for CheckpointInterval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CheckpointInterval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "each" {
            return Ok(Self::Each);
        }
        let span = humantime_serde::re::humantime::parse_duration(&text);
        let wrong = |_| serde::de::Error::custom(format!("`{text}` is neither `each` nor a time such as `200ms`"));
        span.map(Self::Every).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{self, Document, doc};

    fn read(document: Document) -> Result<Config, String> {
        bson::deserialize_from_document(document).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_written_as_people_write_them() {
        let config = read(doc! { "checkpoint": "50ms", "sessions": { "buckets": 64 }, "body": "json", "drain": "3s" });
        let config = config.unwrap();
        assert_eq!(config.checkpoint, CheckpointInterval::Every(Duration::from_millis(50)));
        assert_eq!(config.sessions, SessionMapping::Buckets(NonZeroU32::new(64).unwrap()));
        assert_eq!((config.body, config.drain), (BodyFormat::Json, Duration::from_secs(3)));
        assert_eq!(read(doc! { "checkpoint": "each" }).unwrap().window().events, 1);
        assert_eq!(read(doc! {}).unwrap(), Config::default());
        let back = bson::serialize_to_document(&config).unwrap();
        assert_eq!(read(back).unwrap(), config);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(read(doc! { "checkpoint": "often" }).unwrap_err().contains("neither `each` nor a time"));
        assert!(read(doc! { "window": 5 }).is_err());
        let brief = Config { keep_oversize: Duration::from_secs(5), ..Config::default() };
        assert_eq!(brief.validate(), Err(InvalidPublishConfig::KeepOversize));
        assert_eq!(Config::default().validate(), Ok(()));
    }
}
