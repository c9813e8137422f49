//! What an operator may set about the lease, and what is refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::Contest;
use crate::timing::{self, Timing};

/// The part `coordination.lease` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a standby must see nothing of the leader before it takes over.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// How long the leader may rely on its last acknowledged renewal.
    #[serde(with = "humantime_serde")]
    pub renew_deadline: Duration,
    /// How long the leader waits between two renewals.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// How often a standby looks at the lease, give or take a quarter; when absent, a fifth of `heartbeat`.
    #[serde(with = "humantime_serde")]
    pub poll: Option<Duration>,
    /// Whether standbys also watch the lease by change stream. Turn it off for large fleets: every watching pod makes the
    /// server scan the oplog once more.
    pub watch: bool,
    /// A promise by the operator about the wall clocks of the MongoDB servers, see [`Contest::max_clock_skew`].
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Option<Duration>,
}

/// The figures of the notes this project began with: a crash costs 15 s, and two renewals may fail before the term ends.
impl Default for Config {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            poll: None,
            watch: true,
            max_clock_skew: None,
        }
    }
}

/// Below a second a busy server's hiccup would end terms.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// Longer means that nobody leads for minutes after a crash; most likely a slip of the unit. It also bounds how long a
/// standby believes a damaged record.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(600);
/// Enough for any clock that is set at all; more is a slip, and as good as never.
const LARGEST_SKEW: Duration = Duration::from_secs(24 * 3600);

/// A setting that is refused: which one, and by what rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("`lease.ttl` must be between {SHORTEST_TTL:?} and {LONGEST_TTL:?}, and is {0:?}")]
    Ttl(Duration),
    #[error("`lease`: {0}")]
    Timing(#[from] timing::Invalid),
    #[error("`lease.poll` must be longer than zero and shorter than `lease.ttl`, and is {0:?}")]
    Poll(Duration),
    #[error("`lease.max_clock_skew` must not be longer than {LARGEST_SKEW:?}, and is {0:?}")]
    MaxClockSkew(Duration),
}

impl Config {
    /// Checks every rule and returns what the decisions need.
    pub fn validate(&self) -> Result<Contest, Invalid> {
        if !(SHORTEST_TTL..=LONGEST_TTL).contains(&self.ttl) {
            return Err(Invalid::Ttl(self.ttl));
        }
        let timing = Timing::new(self.ttl, self.renew_deadline, self.heartbeat)?;
        if self.poll().is_zero() || self.poll() >= self.ttl {
            return Err(Invalid::Poll(self.poll()));
        }
        match self.max_clock_skew {
            Some(skew) if skew > LARGEST_SKEW => Err(Invalid::MaxClockSkew(skew)),
            max_clock_skew => Ok(Contest { timing, max_clock_skew }),
        }
    }

    /// A fifth of a heartbeat keeps a crash within ttl + 1 s by the defaults, even without the watch.
    pub fn poll(&self) -> Duration {
        self.poll.unwrap_or(self.heartbeat / 5)
    }
}

/// Which pod this is, for people: as configured, else the host's name (in Kubernetes the pod's), else something random.
/// Safety does not rest on it; see [`crate::Contender`].
pub fn pod_id(configured: Option<&str>, hostname: Option<&str>) -> String {
    let given = [configured, hostname].into_iter().flatten().map(str::trim).find(|name| !name.is_empty());
    given.map_or_else(|| format!("pod-{:08x}", rand::random::<u32>()), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_valid_and_trust_no_wall_clock() {
        let contest = Config::default().validate().unwrap();
        assert_eq!(contest.max_clock_skew, None);
        assert_eq!(Config::default().poll(), Duration::from_secs(1));
    }

    #[test]
    fn a_refusal_names_the_field_and_the_rule() {
        let secs = Duration::from_secs;
        assert!(
            refused(|config| config.ttl = Duration::from_millis(999)).starts_with("`lease.ttl` must be between 1s")
        );
        assert!(refused(|config| config.ttl = secs(10)).contains("`ttl` must be longer than `renew_deadline`"));
        assert!(refused(|config| config.heartbeat = secs(10)).contains("`renew_deadline` must be longer than"));
        assert!(
            refused(|config| config.poll = Some(secs(15))).starts_with("`lease.poll` must be longer than zero and")
        );
        assert!(refused(|config| config.poll = Some(secs(0))).starts_with("`lease.poll`"));
        assert!(refused(|config| config.max_clock_skew = Some(secs(90_000))).starts_with("`lease.max_clock_skew`"));
    }

    #[test]
    fn durations_are_written_as_people_write_them() {
        let config: Config =
            serde_json::from_str(r#"{"ttl":"2s","renew_deadline":"1300ms","heartbeat":"600ms"}"#).unwrap();
        assert_eq!(config.renew_deadline, Duration::from_millis(1300));
        assert!(serde_json::from_str::<Config>(r#"{"tttl":"2s"}"#).is_err());
    }

    #[test]
    fn the_pod_id_is_configured_or_the_host_name_or_random() {
        assert_eq!(pod_id(Some("blue"), Some("host")), "blue");
        assert_eq!(pod_id(None, Some("host")), "host");
        assert_eq!(pod_id(Some(" "), Some("host")), "host");
        assert_ne!(pod_id(None, None), pod_id(None, Some("")));
    }
}
