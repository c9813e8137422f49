//! After how many deliveries Service Bus dead-letters a message of the subscription: its max delivery count.
//!
//! A pod parks an event at half of it, before the bus dead-letters the message and breaks the order. A pod may lack the right to read the
//! setting, so `topology apply`, which has it, stores it in the coordination database.

use std::future::IntoFuture;
use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use servicebus::administration::{AdministrationClient, EntityDescription};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::coordination_store::majority_collection;

pub(crate) const COLLECTION: &str = "subscriptions";
const FORMAT: i64 = 1;
const FIELD: &str = "maxDeliveryCount";
/// Of a subscription that nobody changed.
const SERVICE_BUS_DEFAULT: u32 = 10;
/// A pod does not wait longer for a setting that has a safe default.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a pod reads it again.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// The stored limit of one subscription.
pub(crate) struct DeliveryLimitStore {
    subscriptions: Collection<Document>,
    id: Document,
    path: String,
}

impl DeliveryLimitStore {
    pub(crate) fn new(coordination: &Database, config: &Config) -> Self {
        let path = crate::topology::subscription_path(config);
        let subscriptions = majority_collection(coordination, COLLECTION);
        Self { subscriptions, id: doc! { "pipeline": &config.pipeline, "subscription": &path }, path }
    }

    /// Stores the limit that the subscription has now. Does nothing if the subscription does not exist.
    pub(crate) async fn save(&self, bus: &AdministrationClient) -> anyhow::Result<()> {
        match bus.get(&self.path).await?.as_ref().and_then(max_delivery_count) {
            Some(limit) => self.store(limit).await,
            None => Ok(()),
        }
    }

    async fn store(&self, limit: u32) -> anyhow::Result<()> {
        let update =
            doc! { "$set": { "format": FORMAT, FIELD: i64::from(limit) }, "$currentDate": { "savedAt": true } };
        let stored = self.subscriptions.update_one(doc! { "_id": &self.id }, update).upsert(true).await;
        stored.map(drop).map_err(|error| DriverError::from(error).into())
    }

    /// The limit now, as far as it can be known. Takes a few seconds at most.
    pub(crate) async fn read(&self, bus: &AdministrationClient) -> u32 {
        let (now, stored) = tokio::join!(timeout(READ_TIMEOUT, bus.get(&self.path)), self.read_stored());
        let now = now.ok().and_then(Result::ok).flatten().as_ref().and_then(max_delivery_count);
        if let Some(now) = now.filter(|now| Some(*now) != stored) {
            // For the next pod that starts while the bus cannot be asked. Without it, that pod assumes a lower limit and is only more careful.
            let _ = timeout(READ_TIMEOUT, self.store(now)).await;
        }
        choose(now, stored)
    }

    /// Reports the limit to `set` again and again until `stop`: an operator may change it, and the bus may have been unreachable at the start.
    pub(crate) async fn watch(self, bus: AdministrationClient, set: impl Fn(u32), stop: CancellationToken) {
        let round = async || {
            sleep(READ_INTERVAL).await;
            set(self.read(&bus).await);
        };
        // cancel-safe: a read that is dropped changes nothing
        while stop.run_until_cancelled(round()).await.is_some() {}
    }

    async fn read_stored(&self) -> Option<u32> {
        let found = self.subscriptions.find_one(doc! { "_id": &self.id, "format": FORMAT });
        let found = timeout(READ_TIMEOUT, found.into_future()).await.ok()?.ok()??;
        u32::try_from(found.get_i64(FIELD).ok()?).ok()
    }
}

fn max_delivery_count(subscription: &EntityDescription) -> Option<u32> {
    subscription.value("MaxDeliveryCount")?.parse().ok()
}

fn choose(now: Option<u32>, stored: Option<u32>) -> u32 {
    now.or(stored).unwrap_or(SERVICE_BUS_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_delivery_limit_is_the_default_of_service_bus() {
        assert_eq!(choose(Some(7), Some(2_000)), 7);
        assert_eq!(choose(None, Some(2_000)), 2_000);
        assert_eq!(choose(None, None), 10);
    }
}
