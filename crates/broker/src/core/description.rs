//! Entity properties as the administration API defines them, with defaults and valid ranges.
//!
//! Stored in the journal as JSON: a later version can add a property, and older records still decode.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Error;

/// The properties of a queue, a topic or a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntityDefinition {
    Queue(QueueDescription),
    Topic(TopicDescription),
    Subscription(SubscriptionDescription),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntityStatus {
    #[default]
    Active,
    Disabled,
    SendDisabled,
    ReceiveDisabled,
}

impl EntityStatus {
    pub fn can_send(self) -> bool {
        matches!(self, Self::Active | Self::ReceiveDisabled)
    }

    pub fn can_receive(self) -> bool {
        matches!(self, Self::Active | Self::SendDisabled)
    }
}

/// Properties of the send side, common to queues and topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendProperties {
    pub max_size_in_megabytes: u64,
    /// `None`: the broker's limit applies.
    pub max_message_size_in_kilobytes: Option<u64>,
    pub requires_duplicate_detection: bool,
    #[serde(with = "millis")]
    pub duplicate_detection_window: Duration,
    pub enable_partitioning: bool,
}

impl SendProperties {
    /// A partitioned entity has its size in each of 16 partitions.
    pub fn total_size_in_megabytes(&self) -> u64 {
        let partitions = if self.enable_partitioning { super::partition_choice::COUNT.into() } else { 1 };
        self.max_size_in_megabytes * partitions
    }
}

/// Properties of the receive side, common to queues and subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiveProperties {
    #[serde(with = "millis")]
    pub lock_duration: Duration,
    pub requires_session: bool,
    pub max_delivery_count: u16,
    pub dead_lettering_on_message_expiration: bool,
    pub forward_to: Option<String>,
    pub forward_dead_lettered_messages_to: Option<String>,
}

/// Properties that every entity has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CommonEntityProperties {
    pub status: EntityStatus,
    /// `None`: messages without their own time to live never expire.
    #[serde(with = "optional_millis")]
    pub default_message_time_to_live: Option<Duration>,
    /// `None`: never.
    #[serde(with = "optional_millis")]
    pub auto_delete_on_idle: Option<Duration>,
    pub enable_batched_operations: bool,
    pub user_metadata: Option<String>,
    /// Data that the administration API stores with the entity, in its own format.
    #[serde(rename = "kept")]
    pub administration_data: Option<AdministrationData>,
}

/// Opaque to the core. May contain keys, so `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AdministrationData(pub Box<str>);

impl std::fmt::Debug for AdministrationData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdministrationData({} bytes)", self.0.len())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueDescription {
    pub common: CommonEntityProperties,
    // The stored JSON keeps the field names of format version 1.
    #[serde(rename = "inlet")]
    pub ingress: SendProperties,
    #[serde(rename = "outlet")]
    pub egress: ReceiveProperties,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicDescription {
    pub common: CommonEntityProperties,
    #[serde(rename = "inlet")]
    pub ingress: SendProperties,
    pub support_ordering: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriptionDescription {
    pub common: CommonEntityProperties,
    #[serde(rename = "outlet")]
    pub egress: ReceiveProperties,
    pub dead_lettering_on_filter_evaluation_exceptions: bool,
}

// Defaults of Azure Service Bus (servicebus-semantics.md).
impl Default for SendProperties {
    fn default() -> Self {
        Self {
            max_size_in_megabytes: 1024,
            max_message_size_in_kilobytes: None,
            requires_duplicate_detection: false,
            duplicate_detection_window: Duration::from_secs(600),
            enable_partitioning: false,
        }
    }
}

impl Default for ReceiveProperties {
    fn default() -> Self {
        Self {
            lock_duration: Duration::from_secs(60),
            requires_session: false,
            max_delivery_count: 10,
            dead_lettering_on_message_expiration: false,
            forward_to: None,
            forward_dead_lettered_messages_to: None,
        }
    }
}

impl EntityDefinition {
    pub fn common(&self) -> &CommonEntityProperties {
        match self {
            Self::Queue(queue) => &queue.common,
            Self::Topic(topic) => &topic.common,
            Self::Subscription(subscription) => &subscription.common,
        }
    }

    pub fn common_mut(&mut self) -> &mut CommonEntityProperties {
        match self {
            Self::Queue(queue) => &mut queue.common,
            Self::Topic(topic) => &mut topic.common,
            Self::Subscription(subscription) => &mut subscription.common,
        }
    }

    pub fn ingress(&self) -> Option<&SendProperties> {
        match self {
            Self::Queue(queue) => Some(&queue.ingress),
            Self::Topic(topic) => Some(&topic.ingress),
            Self::Subscription(_) => None,
        }
    }

    pub fn egress(&self) -> Option<&ReceiveProperties> {
        match self {
            Self::Queue(queue) => Some(&queue.egress),
            Self::Topic(_) => None,
            Self::Subscription(subscription) => Some(&subscription.egress),
        }
    }

    /// The paths of the entities that messages and dead letters are forwarded to.
    pub fn forward_paths(&self) -> impl Iterator<Item = &str> {
        self.forwarding().into_iter().flatten()
    }

    /// The path of the entity that messages are forwarded to, and of the one for dead letters.
    pub(crate) fn forwarding(&self) -> [Option<&str>; 2] {
        let Some(egress) = self.egress() else { return [None; 2] };
        [&egress.forward_to, &egress.forward_dead_lettered_messages_to].map(|text| text.as_deref().map(forward_path))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check_common(self.common())?;
        self.ingress().map_or(Ok(()), check_ingress)?;
        self.egress().map_or(Ok(()), check_egress)
    }

    /// Refuses updates of properties that stored messages depend on.
    pub(super) fn check_update(&self, new: &Self) -> Result<(), Error> {
        new.check()?;
        if std::mem::discriminant(self) != std::mem::discriminant(new) {
            return Err(Error::NotAllowed("an entity cannot change its kind"));
        }
        if let (Some(old), Some(new)) = (self.ingress(), new.ingress()) {
            if old.requires_duplicate_detection != new.requires_duplicate_detection {
                return Err(Error::invalid("RequiresDuplicateDetection", "cannot be changed"));
            }
            if old.enable_partitioning != new.enable_partitioning {
                return Err(Error::invalid("EnablePartitioning", "cannot be changed"));
            }
        }
        if let (Some(old), Some(new)) = (self.egress(), new.egress())
            && old.requires_session != new.requires_session
        {
            return Err(Error::invalid("RequiresSession", "cannot be changed"));
        }
        Ok(())
    }
}

fn check_common(common: &CommonEntityProperties) -> Result<(), Error> {
    if common.default_message_time_to_live.is_some_and(|ttl| ttl < Duration::from_secs(1)) {
        return Err(Error::invalid("DefaultMessageTimeToLive", "must be at least 1 second"));
    }
    if common.auto_delete_on_idle.is_some_and(|idle| idle < Duration::from_secs(300)) {
        return Err(Error::invalid("AutoDeleteOnIdle", "must be at least 5 minutes"));
    }
    if common.user_metadata.as_ref().is_some_and(|text| text.chars().count() > 1024) {
        return Err(Error::invalid("UserMetadata", "must not exceed 1024 characters"));
    }
    Ok(())
}

fn check_ingress(ingress: &SendProperties) -> Result<(), Error> {
    if !(1..=81_920).contains(&ingress.max_size_in_megabytes) {
        return Err(Error::invalid("MaxSizeInMegabytes", "must be between 1 and 81920"));
    }
    if ingress.max_message_size_in_kilobytes.is_some_and(|size| !(1..=102_400).contains(&size)) {
        return Err(Error::invalid("MaxMessageSizeInKilobytes", "must be between 1 and 102400"));
    }
    let window = ingress.duplicate_detection_window;
    if window < Duration::from_secs(20) || window > Duration::from_secs(7 * 86_400) {
        return Err(Error::invalid("DuplicateDetectionHistoryTimeWindow", "must be between 20 seconds and 7 days"));
    }
    Ok(())
}

fn check_egress(egress: &ReceiveProperties) -> Result<(), Error> {
    if egress.lock_duration < Duration::from_secs(5) || egress.lock_duration > Duration::from_secs(300) {
        return Err(Error::invalid("LockDuration", "must be between 5 seconds and 5 minutes"));
    }
    if !(1..=2000).contains(&egress.max_delivery_count) {
        return Err(Error::invalid("MaxDeliveryCount", "must be between 1 and 2000"));
    }
    Ok(())
}

/// The path of the entity that messages are forwarded to. Clients write a name or a URI.
pub(super) fn forward_path(text: &str) -> &str {
    let path = text.split_once("://").map_or(text, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    path.trim_matches('/')
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        (span.as_millis() as u64).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_millis() as u64).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(change: impl FnOnce(&mut QueueDescription)) -> EntityDefinition {
        let mut description = QueueDescription::default();
        change(&mut description);
        EntityDefinition::Queue(description)
    }

    #[test]
    fn ranges_are_checked_at_both_ends() {
        let secs = Duration::from_secs;
        let cases: [(&str, EntityDefinition, bool); 12] = [
            ("defaults", queue(|_| {}), true),
            ("lock 5 s", queue(|q| q.egress.lock_duration = secs(5)), true),
            ("lock 4 s", queue(|q| q.egress.lock_duration = secs(4)), false),
            ("lock 301 s", queue(|q| q.egress.lock_duration = secs(301)), false),
            ("window 20 s", queue(|q| q.ingress.duplicate_detection_window = secs(20)), true),
            ("window 19 s", queue(|q| q.ingress.duplicate_detection_window = secs(19)), false),
            ("window 8 d", queue(|q| q.ingress.duplicate_detection_window = secs(8 * 86_400)), false),
            ("count 0", queue(|q| q.egress.max_delivery_count = 0), false),
            ("count 2000", queue(|q| q.egress.max_delivery_count = 2000), true),
            ("count 2001", queue(|q| q.egress.max_delivery_count = 2001), false),
            ("ttl 0", queue(|q| q.common.default_message_time_to_live = Some(secs(0))), false),
            ("size 0", queue(|q| q.ingress.max_size_in_megabytes = 0), false),
        ];
        for (name, description, valid) in cases {
            assert_eq!(description.check().is_ok(), valid, "{name}");
        }
    }

    #[test]
    fn sessions_duplicates_and_partitioning_cannot_be_changed() {
        let old = queue(|_| {});
        assert!(old.check_update(&queue(|q| q.egress.lock_duration = Duration::from_secs(30))).is_ok());
        for new in [
            queue(|q| q.egress.requires_session = true),
            queue(|q| q.ingress.requires_duplicate_detection = true),
            queue(|q| q.ingress.enable_partitioning = true),
        ] {
            assert!(old.check_update(&new).is_err());
        }
    }

    #[test]
    fn a_record_of_an_older_version_reads_with_defaults() {
        let read: EntityDefinition =
            serde_json::from_str(r#"{"kind":"queue","outlet":{"lock_duration":5000}}"#).unwrap();
        assert_eq!(read, queue(|q| q.egress.lock_duration = Duration::from_secs(5)));
    }
}
