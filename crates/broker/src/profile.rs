//! Profiles: what Azure Service Bus does to its clients and a broker on one machine need not do.
//!
//! Without a profile none of it happens. Times are those of the service, divided by a scale, so that a test sees in seconds what takes minutes.
//! `docs/broker.md` has the public source of each.

mod credit_window;
mod disturbances;
mod failover;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use credit_window::CreditWindow;
pub(crate) use disturbances::run_disturbances;
use failover::Failover;

use crate::tier::ServiceTier;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileName {
    AzureStandard,
    AzurePremium,
    /// Everything at once, and what operators of the service see rarely.
    Harsh,
}

/// The behaviour of one profile, with scaled times. The default has none of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceProfile {
    /// A link without a frame for this long is detached.
    pub link_idle: Option<Duration>,
    /// A connection without a link for this long is closed.
    pub connection_idle: Option<Duration>,
    /// Tokens count as expired after this time, whatever they say.
    pub max_token_lifetime: Option<Duration>,
    /// A transfer that is refused for good detaches its link, instead of being rejected alone.
    pub detaches_publishers: bool,
    /// Messages per second that all senders may send together.
    pub credits_per_second: Option<u32>,
    /// How long senders are refused once the credits of a second are used up.
    pub throttle_pause: Duration,
    /// How long an update of an entity takes.
    pub entity_update: Duration,
    /// Node moves, storms of internal errors and failovers, chosen by the seed.
    pub disturbances: Option<Disturbances>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Disturbances {
    pub seed: u64,
    /// The mean time between two.
    pub interval: Duration,
    /// How long a failover refuses connections.
    pub failover: Duration,
}

const LINK_IDLE: Duration = Duration::from_secs(600);
const CONNECTION_IDLE: Duration = Duration::from_secs(300);
const CREDITS_PER_SECOND: u32 = 1_000;
const THROTTLE_PAUSE: Duration = Duration::from_secs(2);
const ENTITY_UPDATE: Duration = Duration::from_secs(60);
const TOKEN_LIFETIME: Duration = Duration::from_secs(3_600);
const DISTURBANCE_INTERVAL: Duration = Duration::from_secs(300);
const FAILOVER: Duration = Duration::from_secs(30);

impl ProfileName {
    /// The profile with times divided by `scale`. `seed` chooses the disturbances.
    pub fn profile(self, scale: f64, seed: u64) -> ServiceProfile {
        let scaled = |time: Duration| time.div_f64(scale.max(f64::MIN_POSITIVE));
        let azure = ServiceProfile {
            link_idle: Some(scaled(LINK_IDLE)),
            connection_idle: Some(scaled(CONNECTION_IDLE)),
            detaches_publishers: true,
            ..ServiceProfile::default()
        };
        let standard = ServiceProfile {
            credits_per_second: Some(CREDITS_PER_SECOND),
            throttle_pause: scaled(THROTTLE_PAUSE),
            ..azure.clone()
        };
        match self {
            Self::AzureStandard => standard,
            Self::AzurePremium => ServiceProfile { entity_update: scaled(ENTITY_UPDATE), ..azure },
            Self::Harsh => ServiceProfile {
                entity_update: scaled(ENTITY_UPDATE),
                max_token_lifetime: Some(scaled(TOKEN_LIFETIME)),
                disturbances: Some(Disturbances {
                    seed,
                    interval: scaled(DISTURBANCE_INTERVAL),
                    failover: scaled(FAILOVER),
                }),
                ..standard
            },
        }
    }

    pub fn tier(self) -> ServiceTier {
        match self {
            Self::AzureStandard | Self::Harsh => ServiceTier::Standard,
            Self::AzurePremium => ServiceTier::Premium,
        }
    }
}

/// What all connections of a broker share.
#[derive(Debug, Default)]
pub(crate) struct ProfileState {
    pub(crate) profile: ServiceProfile,
    credits: Mutex<CreditWindow>,
    failover: Failover,
}

impl ProfileState {
    pub(crate) fn new(profile: ServiceProfile) -> Arc<Self> {
        Arc::new(Self { profile, ..Self::default() })
    }

    /// Whether these messages may be sent now. Costs nothing without a limit.
    pub(crate) fn take_credits(&self, messages: usize) -> bool {
        let Some(limit) = self.profile.credits_per_second else { return true };
        let mut window = self.credits.lock().expect("no thread panics while it holds the lock");
        window.take(messages as u32, limit, self.profile.throttle_pause, Instant::now())
    }

    /// The token that ends a new connection: with the broker, or at the next failover. `None`: refused, because a failover is running.
    pub(crate) fn admit(&self, shutdown: &CancellationToken) -> Option<CancellationToken> {
        match self.profile.disturbances {
            None => Some(shutdown.clone()),
            Some(_) => self.failover.admit(shutdown, Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_scaled_and_rates_are_not() {
        let harsh = ProfileName::Harsh.profile(60.0, 1);
        assert_eq!(harsh.link_idle, Some(Duration::from_secs(10)));
        assert_eq!(harsh.connection_idle, Some(Duration::from_secs(5)));
        assert_eq!(harsh.credits_per_second, Some(1_000));
        assert_eq!(harsh.disturbances.unwrap().failover, Duration::from_millis(500));
        let premium = ProfileName::AzurePremium.profile(1.0, 1);
        assert_eq!((premium.credits_per_second, premium.entity_update), (None, Duration::from_secs(60)));
        assert!(ProfileState::default().take_credits(1_000_000), "without a profile nothing is limited");
    }
}
