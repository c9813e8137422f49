//! What the bus itself says of the subscription: how much waits, and how many dead letters there are. One question to its administration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use admin::status::SubscriptionStatus;
use servicebus::administration::AdministrationClient;
use tokio::time::timeout;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One subscription's administration.
#[derive(Clone)]
pub(crate) struct SubscriptionMonitor {
    bus: Arc<AdministrationClient>,
    path: String,
}

impl SubscriptionMonitor {
    pub(crate) fn new(bus: AdministrationClient, topic: &str, subscription: &str) -> Self {
        Self { bus: Arc::new(bus), path: format!("{topic}/Subscriptions/{subscription}") }
    }

    /// What is not answered is not known.
    pub(super) async fn counts(&self) -> SubscriptionStatus {
        let Ok(Ok(Some(found))) = timeout(RESPONSE_TIMEOUT, self.bus.get(&self.path)).await else {
            return SubscriptionStatus::default();
        };
        SubscriptionStatus {
            active_messages: found.count("ActiveMessageCount"),
            dead_letters: found.count("DeadLetterMessageCount"),
        }
    }
}

/// Without what it takes to ask.
impl fmt::Debug for SubscriptionMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubscriptionMonitor({})", self.path)
    }
}
