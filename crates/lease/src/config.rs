//! The settings of the lease, and the rules that they must satisfy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::ElectionRules;
use crate::timing::{InvalidTiming, Timing};

/// The section `coordination.lease` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a standby must see no heartbeat before it takes over.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// How long the leader may rely on its last acknowledged renewal.
    #[serde(with = "humantime_serde")]
    pub renew_deadline: Duration,
    /// How long the leader waits between two renewals.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// How often a standby reads the lease, plus or minus a quarter. Default: a fifth of `heartbeat`.
    #[serde(with = "humantime_serde")]
    pub poll: Option<Duration>,
    /// Whether standbys also watch the lease with a change stream. Turn it off for large fleets: for every watching pod the
    /// server scans the oplog once more.
    pub watch: bool,
    /// A guarantee by the operator about the wall clocks of the MongoDB servers, see [`ElectionRules::max_clock_skew`].
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Option<Duration>,
}

/// A crash costs 15 s without a leader, and two renewals may fail before the term ends.
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

/// Below a second, a short delay of a busy server would end terms.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// A longer ttl leaves the pipeline without a leader for minutes after a crash; most likely the unit is wrong. This also bounds
/// how long a standby trusts a damaged record.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(600);
/// Enough for any clock that is set at all; more is most likely a mistake.
const LARGEST_SKEW: Duration = Duration::from_secs(24 * 3600);

/// A setting that is refused, and the rule it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    #[error("`lease.ttl` must be between {SHORTEST_TTL:?} and {LONGEST_TTL:?}, but is {0:?}")]
    Ttl(Duration),
    #[error("`lease`: {0}")]
    Timing(#[from] InvalidTiming),
    #[error("`lease.poll` must be longer than zero and shorter than `lease.ttl`, but is {0:?}")]
    Poll(Duration),
    #[error("`lease.max_clock_skew` must not be longer than {LARGEST_SKEW:?}, but is {0:?}")]
    MaxClockSkew(Duration),
}

impl Config {
    /// Checks every rule and returns the rules of the election.
    pub fn validate(&self) -> Result<ElectionRules, InvalidConfig> {
        if !(SHORTEST_TTL..=LONGEST_TTL).contains(&self.ttl) {
            return Err(InvalidConfig::Ttl(self.ttl));
        }
        let timing = Timing::new(self.ttl, self.renew_deadline, self.heartbeat)?;
        if self.poll().is_zero() || self.poll() >= self.ttl {
            return Err(InvalidConfig::Poll(self.poll()));
        }
        match self.max_clock_skew {
            Some(skew) if skew > LARGEST_SKEW => Err(InvalidConfig::MaxClockSkew(skew)),
            max_clock_skew => Ok(ElectionRules { timing, max_clock_skew }),
        }
    }

    /// With the defaults, a fifth of a heartbeat keeps a takeover after a crash within ttl + 1 s, even without the watch.
    pub fn poll(&self) -> Duration {
        self.poll.unwrap_or(self.heartbeat / 5)
    }
}

/// The pod id, for display: as configured, else the host name (in Kubernetes the pod's name), else random. The election does
/// not depend on it; see [`crate::CandidateId`].
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
        let rules = Config::default().validate().unwrap();
        assert_eq!(rules.max_clock_skew, None);
        assert_eq!(Config::default().poll(), Duration::from_secs(1));
    }

    #[test]
    fn an_invalid_setting_names_the_field_and_the_rule() {
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
    fn durations_are_written_with_units() {
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
