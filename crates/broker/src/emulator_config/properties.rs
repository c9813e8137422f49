//! The properties of each kind of entity, and how to set them.

use std::time::Duration;

use atom_xml::duration;
use jsonc_parser::ast::Value;

use crate::core::{CommonEntityProperties, EntityDefinition, EntityStatus, ReceiveProperties, SendProperties};

pub(super) const QUEUE: [&str; 16] = [
    "AutoDeleteOnIdle",
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "EnablePartitioning",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "MaxMessageSizeInKilobytes",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "Status",
    "UserMetadata",
];

pub(super) const TOPIC: [&str; 11] = [
    "AutoDeleteOnIdle",
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "EnablePartitioning",
    "MaxMessageSizeInKilobytes",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "Status",
    "SupportOrdering",
    "UserMetadata",
];

pub(super) const SUBSCRIPTION: [&str; 12] = [
    "AutoDeleteOnIdle",
    "DeadLetteringOnFilterEvaluationExceptions",
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "EnableBatchedOperations",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresSession",
    "Status",
    "UserMetadata",
];

const EXPECTED_DURATION: &str = "expected an ISO 8601 duration, such as \"PT30S\", \"PT1M\" or \"P1DT12H\"";
const EXPECTED_NUMBER: &str = "expected an integer";

/// Sets one property; `Err` says which values are allowed. Null keeps the default.
pub(super) fn set(description: &mut EntityDefinition, name: &str, value: &Value<'_>) -> Result<(), &'static str> {
    if let Value::NullKeyword(_) = value {
        return Ok(());
    }
    match name {
        "AutoDeleteOnIdle" => common(description).auto_delete_on_idle = bounded(value)?,
        "DefaultMessageTimeToLive" => common(description).default_message_time_to_live = bounded(value)?,
        "EnableBatchedOperations" => common(description).enable_batched_operations = flag(value)?,
        "Status" => common(description).status = status(value)?,
        "UserMetadata" => common(description).user_metadata = text(value)?,
        "DuplicateDetectionHistoryTimeWindow" => ingress(description).duplicate_detection_window = span(value)?,
        "EnablePartitioning" => ingress(description).enable_partitioning = flag(value)?,
        "MaxMessageSizeInKilobytes" => ingress(description).max_message_size_in_kilobytes = Some(number(value)?),
        "MaxSizeInMegabytes" => ingress(description).max_size_in_megabytes = number(value)?,
        "RequiresDuplicateDetection" => ingress(description).requires_duplicate_detection = flag(value)?,
        "DeadLetteringOnMessageExpiration" => {
            egress(description).dead_lettering_on_message_expiration = flag(value)?;
        }
        "ForwardDeadLetteredMessagesTo" => egress(description).forward_dead_lettered_messages_to = text(value)?,
        "ForwardTo" => egress(description).forward_to = text(value)?,
        "LockDuration" => egress(description).lock_duration = span(value)?,
        // A number that does not fit the type is out of range too. The core reports the range.
        "MaxDeliveryCount" => {
            egress(description).max_delivery_count = number(value)?.try_into().unwrap_or(u16::MAX);
        }
        "RequiresSession" => egress(description).requires_session = flag(value)?,
        "SupportOrdering" | "DeadLetteringOnFilterEvaluationExceptions" => {
            let flag = flag(value)?;
            match description {
                EntityDefinition::Topic(topic) => topic.support_ordering = flag,
                EntityDefinition::Subscription(subscription) => {
                    subscription.dead_lettering_on_filter_evaluation_exceptions = flag;
                }
                EntityDefinition::Queue(_) => unreachable!("queues have neither property"),
            }
        }
        _ => unreachable!("the reader accepts only the names above"),
    }
    Ok(())
}

fn common(description: &mut EntityDefinition) -> &mut CommonEntityProperties {
    match description {
        EntityDefinition::Queue(queue) => &mut queue.common,
        EntityDefinition::Topic(topic) => &mut topic.common,
        EntityDefinition::Subscription(subscription) => &mut subscription.common,
    }
}

fn ingress(description: &mut EntityDefinition) -> &mut SendProperties {
    match description {
        EntityDefinition::Queue(queue) => &mut queue.ingress,
        EntityDefinition::Topic(topic) => &mut topic.ingress,
        EntityDefinition::Subscription(_) => unreachable!("subscriptions have no ingress properties"),
    }
}

fn egress(description: &mut EntityDefinition) -> &mut ReceiveProperties {
    match description {
        EntityDefinition::Queue(queue) => &mut queue.egress,
        EntityDefinition::Subscription(subscription) => &mut subscription.egress,
        EntityDefinition::Topic(_) => unreachable!("topics have no egress properties"),
    }
}

fn flag(value: &Value<'_>) -> Result<bool, &'static str> {
    value.as_boolean_lit().map(|flag| flag.value).ok_or("expected true or false")
}

fn number(value: &Value<'_>) -> Result<u64, &'static str> {
    value.as_number_lit().and_then(|number| number.value.parse().ok()).ok_or(EXPECTED_NUMBER)
}

/// The emulator's own samples use an empty string for "none".
fn text(value: &Value<'_>) -> Result<Option<String>, &'static str> {
    let text = value.as_string_lit().ok_or("expected a string")?;
    Ok(Some(text.value.to_string()).filter(|text| !text.is_empty()))
}

fn span(value: &Value<'_>) -> Result<Duration, &'static str> {
    let text = value.as_string_lit().ok_or(EXPECTED_DURATION)?;
    duration::parse(&text.value).map_err(|_| EXPECTED_DURATION)
}

fn bounded(value: &Value<'_>) -> Result<Option<Duration>, &'static str> {
    let text = value.as_string_lit().ok_or(EXPECTED_DURATION)?;
    duration::parse_bounded(&text.value).map_err(|_| EXPECTED_DURATION)
}

fn status(value: &Value<'_>) -> Result<EntityStatus, &'static str> {
    match value.as_string_lit().map(|text| &*text.value) {
        Some("Active") => Ok(EntityStatus::Active),
        Some("Disabled") => Ok(EntityStatus::Disabled),
        Some("SendDisabled") => Ok(EntityStatus::SendDisabled),
        Some("ReceiveDisabled") => Ok(EntityStatus::ReceiveDisabled),
        _ => Err("expected \"Active\", \"Disabled\", \"SendDisabled\" or \"ReceiveDisabled\""),
    }
}
