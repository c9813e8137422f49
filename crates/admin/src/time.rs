//! A wall-clock time, for display only. No decision depends on it.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970; serialized as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(i64);

impl WallTime {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// By the clock of this machine.
    #[allow(
        clippy::disallowed_methods,
        reason = "for display: it dates the collected status, and no age is computed from it"
    )]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clamp instead of failing: a clock before 1970 or after 9999 is not worth an error.
        let millis = u64::try_from(self.0).unwrap_or(0).min(253_402_300_799_999);
        humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + Duration::from_millis(millis)).fmt(f)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_serialized_as_rfc_3339() {
        let time = WallTime::from_millis(1_794_758_400_250);
        assert_eq!(serde_json::to_string(&time).unwrap(), r#""2026-11-15T16:00:00.250Z""#);
        assert_eq!(serde_json::from_str::<WallTime>(r#""2026-11-15T16:00:00.250Z""#).unwrap(), time);
        assert_eq!(WallTime::from_millis(-5).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(WallTime::from_millis(i64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }
}
