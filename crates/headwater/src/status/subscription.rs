//! The message counts of the subscription, read with one request to the Service Bus administration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use admin::status::SubscriptionStatus;
use servicebus::administration::AdministrationClient;
use tokio::time::timeout;

const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the counts of one subscription.
#[derive(Clone)]
pub(crate) struct SubscriptionMonitor {
    administration: Arc<AdministrationClient>,
    path: String,
}

impl SubscriptionMonitor {
    pub(crate) fn new(administration: AdministrationClient, topic: &str, subscription: &str) -> Self {
        Self { administration: Arc::new(administration), path: format!("{topic}/Subscriptions/{subscription}") }
    }

    /// A failed request leaves the counts unknown.
    pub(crate) async fn read_counts(&self) -> SubscriptionStatus {
        let Ok(Ok(Some(found))) = timeout(READ_TIMEOUT, self.administration.get(&self.path)).await else {
            return SubscriptionStatus::default();
        };
        SubscriptionStatus {
            active_messages: found.count("ActiveMessageCount"),
            dead_letters: found.count("DeadLetterMessageCount"),
        }
    }
}

/// Without the credentials.
impl fmt::Debug for SubscriptionMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubscriptionMonitor({})", self.path)
    }
}
