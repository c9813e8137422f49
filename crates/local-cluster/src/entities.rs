//! The broker's entities, in the format of the official emulator's configuration.

use std::time::Duration;

use serde_json::{Value, json};

/// Soaks redeliver often; the pods decide when to dead-letter.
const MAX_DELIVERY_COUNT: u32 = 2000;

#[derive(Clone, Debug)]
pub struct TopicEntity {
    pub name: String,
    /// `None`: no duplicate detection.
    pub duplicate_window: Option<Duration>,
    pub partitioned: bool,
    pub subscriptions: Vec<SubscriptionEntity>,
}

#[derive(Clone, Debug)]
pub struct SubscriptionEntity {
    pub name: String,
    /// The lock duration of its sessions; `None`: no sessions.
    pub session_lock: Option<Duration>,
    pub dead_letter_on_expiration: bool,
}

impl TopicEntity {
    /// With one subscription `read-models` with sessions, as a pipeline needs it.
    pub fn for_pipeline(name: impl Into<String>, partitioned: bool) -> Self {
        let subscription = SubscriptionEntity {
            name: "read-models".into(),
            session_lock: Some(Duration::from_secs(60)),
            dead_letter_on_expiration: true,
        };
        let duplicate_window = Some(Duration::from_secs(600));
        Self { name: name.into(), duplicate_window, partitioned, subscriptions: vec![subscription] }
    }

    fn to_json(&self) -> Value {
        let mut properties = json!({ "EnablePartitioning": self.partitioned });
        if let Some(window) = self.duplicate_window {
            properties["RequiresDuplicateDetection"] = true.into();
            properties["DuplicateDetectionHistoryTimeWindow"] = iso_duration(window).into();
        }
        let subscriptions: Vec<_> = self.subscriptions.iter().map(SubscriptionEntity::to_json).collect();
        json!({ "Name": self.name, "Properties": properties, "Subscriptions": subscriptions })
    }
}

impl SubscriptionEntity {
    fn to_json(&self) -> Value {
        let mut properties = json!({ "MaxDeliveryCount": MAX_DELIVERY_COUNT });
        if self.dead_letter_on_expiration {
            properties["DeadLetteringOnMessageExpiration"] = true.into();
        }
        if let Some(lock) = self.session_lock {
            properties["RequiresSession"] = true.into();
            properties["LockDuration"] = iso_duration(lock).into();
        }
        json!({ "Name": self.name, "Properties": properties })
    }
}

/// The text of the configuration file.
pub fn emulator_config(topics: &[TopicEntity]) -> String {
    let topics: Vec<_> = topics.iter().map(TopicEntity::to_json).collect();
    let config = json!({ "UserConfig": { "Namespaces": [{ "Name": "local", "Topics": topics }] } });
    format!("{config:#}")
}

fn iso_duration(duration: Duration) -> String {
    format!("PT{}S", duration.as_secs())
}
