//! Settings of the publisher.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lanes::WindowLimits;

/// The publisher settings of the `producer` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Maximum number of events after the saved checkpoint: a takeover republishes at most this many.
    pub window_events: NonZeroUsize,
    /// Maximum size of these events in bytes.
    pub window_bytes: NonZeroUsize,
    /// Maximum number of events in one batch; a batch holds events of one session.
    pub batch_count: NonZeroUsize,
    /// How long the first event of a batch waits for others.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    pub checkpoint: CheckpointInterval,
    /// How long a stop may take to publish the captured events.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    pub body: BodyFormat,
    pub sessions: SessionMapping,
    /// How long the body of an oversize event is stored.
    #[serde(with = "humantime_serde")]
    pub keep_oversize: Duration,
}

/// At 100,000 events/s this allows an acknowledgement latency of 80 ms. Each event costs about 1 KiB of memory.
const WINDOW_EVENTS: usize = 8_192;
/// The memory budget of a pod is 60 MB: the window holds messages in flight once, and capture reads ahead about the same amount.
const WINDOW_BYTES: usize = 8 << 20;
/// One aggregate has one batch in flight. With 10 ms latency, 20,000 events of one aggregate took batches of 100 at 7,500/s, of 400 at 24,000/s and of
/// 1,000 at 32,000/s. A refused batch is resent as single messages.
const BATCH_COUNT: usize = 400;
/// Under load, events queue behind a transfer in flight anyway; without load, waiting only adds latency.
const LINGER: Duration = Duration::ZERO;
/// A takeover republishes the events of this interval. A shorter one costs more majority writes.
const CHECKPOINT: Duration = Duration::from_millis(200);
/// Below the 30 s of `terminationGracePeriodSeconds`, and enough to send a full window many times.
const DRAIN: Duration = Duration::from_secs(10);
/// The usual time-to-live of messages on Service Bus; longer than an operator needs to repair a consumer.
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

/// A transfer token has 24 bits for the lane.
const MAX_WINDOW_EVENTS: usize = 1 << 20;

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPublishConfig {
    #[error("`producer.window_events` must not exceed {MAX_WINDOW_EVENTS}")]
    WindowEvents,
    #[error("`producer.keep_oversize` must be at least one hour: consumers read the stored bodies")]
    KeepOversize,
}

impl Config {
    pub fn validate(&self) -> Result<(), InvalidPublishConfig> {
        if self.window_events.get() > MAX_WINDOW_EVENTS {
            return Err(InvalidPublishConfig::WindowEvents);
        }
        if self.keep_oversize < Duration::from_secs(3_600) {
            return Err(InvalidPublishConfig::KeepOversize);
        }
        Ok(())
    }

    /// A save is due after this many events. The window also counts unsaved events, so a small window must save earlier.
    pub(super) fn save_after(&self) -> u64 {
        CheckpointInterval::EVENTS.min(self.window().events as u64 / 2).max(1)
    }

    pub(super) fn window(&self) -> WindowLimits {
        match self.checkpoint {
            // One event at a time: send, acknowledge, save.
            CheckpointInterval::Each => WindowLimits { events: 1, bytes: self.window_bytes.get() },
            CheckpointInterval::Every(_) => {
                WindowLimits { events: self.window_events.get(), bytes: self.window_bytes.get() }
            }
        }
    }
}

/// The encoding of the message body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyFormat {
    /// The BSON of the document, without re-encoding.
    #[default]
    Bson,
    /// Relaxed Extended JSON, for other readers of the topic.
    Json,
}

/// Maps aggregates to sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionMapping {
    /// One session per aggregate.
    #[default]
    Aggregate,
    /// A fixed number of sessions, for millions of short-lived aggregates. An aggregate always maps to the same session.
    Buckets(NonZeroU32),
}

impl fmt::Display for SessionMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregate => f.write_str("aggregate"),
            Self::Buckets(count) => write!(f, "buckets({count})"),
        }
    }
}

/// How often the checkpoint is saved: `each`, or a time such as `200ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// After every event, before the next is sent.
    Each,
    /// At this interval or every [1,000 events](Self::EVENTS), whichever comes first.
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
        let wrong = |_| serde::de::Error::custom(format!("`{text}` is neither `each` nor a duration such as `200ms`"));
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
    fn settings_parse_from_readable_values() {
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
    fn invalid_settings_are_refused() {
        assert!(read(doc! { "checkpoint": "often" }).unwrap_err().contains("neither `each` nor a duration"));
        assert!(read(doc! { "window": 5 }).is_err());
        let brief = Config { keep_oversize: Duration::from_secs(5), ..Config::default() };
        assert_eq!(brief.validate(), Err(InvalidPublishConfig::KeepOversize));
        assert_eq!(Config::default().validate(), Ok(()));
    }
}
