//! Queries whether the subscription exists. A topic accepts messages that no subscription stores, so nothing is sent while it is missing.
//!
//! Queries once a second, and at once when Service Bus closes the link of the query. Messages sent between the deletion of the subscription and its
//! detection are lost; no publisher can prevent that.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::error_chain::error_chain;
use crate::error_policy::{self, SubscriptionQueryAction};
use crate::publish::topic::PublishTopic;

/// A query costs 10 of the 1,000 operations per second of a Standard namespace.
const INTERVAL: Duration = Duration::from_secs(1);
/// Limits the queries when the link closes often.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct SubscriptionProbe<T> {
    topic: Arc<T>,
    in_flight: BoxFuture<'static, Result<bool, servicebus::Error>>,
    exists: Option<bool>,
    is_unanswerable: bool,
}

impl<T: PublishTopic> SubscriptionProbe<T> {
    pub(super) fn new(topic: Arc<T>) -> Self {
        Self { in_flight: query(Arc::clone(&topic), false), topic, exists: None, is_unanswerable: false }
    }

    /// The result of the query. Cancel-safe: the next call continues it.
    pub(super) async fn finished(&mut self) -> Result<bool, servicebus::Error> {
        (&mut self.in_flight).await
    }

    pub(super) fn record_result(&mut self, exists: Result<bool, servicebus::Error>) {
        match exists {
            Ok(exists) => self.exists = Some(exists),
            Err(error) => self.record_error(&error),
        }
        self.in_flight = query(Arc::clone(&self.topic), true);
    }

    /// `None` before the first result.
    pub(super) fn subscription_exists(&self) -> Option<bool> {
        self.exists
    }

    fn record_error(&mut self, error: &servicebus::Error) {
        match error_policy::service_bus(error.kind()).subscription_query {
            SubscriptionQueryAction::AssumeExists => {
                if !std::mem::replace(&mut self.is_unanswerable, true) {
                    tracing::warn!(error = %error_chain(error), "failed to query the subscription; assuming that it exists");
                }
                self.exists = Some(true);
            }
            SubscriptionQueryAction::KeepLastAnswer => {}
        }
    }
}

fn query<T: PublishTopic>(topic: Arc<T>, later: bool) -> BoxFuture<'static, Result<bool, servicebus::Error>> {
    Box::pin(async move {
        if later {
            tokio::time::sleep(MIN_INTERVAL).await;
            // Query after the interval, or as soon as the subscription may have changed.
            let _ = tokio::time::timeout(INTERVAL - MIN_INTERVAL, topic.changed()).await;
        }
        topic.subscription_exists().await
    })
}
