//! Writes entity descriptions: every property that the SDKs read, in the service's order.

use atom_xml::{XmlWriter, duration};

use crate::core::{
    CommonEntityProperties, EntityCounts, EntityDefinition, EntityStatus, QueueDescription, ReceiveProperties,
    SendProperties, SubscriptionDescription, TopicDescription,
};

use super::entity::{AdminEntity, AuthorizationRule, RuntimeProperties, StoredOnlyProperties};
use super::feed::RequestContext;
use super::timestamp;

const COUNTS: &str = "http://schemas.microsoft.com/netservices/2011/06/servicebus";
const AVAILABLE: &str = "Available";

pub(super) fn description(xml: &mut XmlWriter, entity: &AdminEntity, context: &RequestContext) {
    let (passive, runtime) = (&entity.properties.passive, &entity.runtime);
    match &entity.properties.description {
        EntityDefinition::Queue(described) => queue(xml, described, passive, runtime, context),
        EntityDefinition::Topic(described) => topic(xml, described, passive, runtime, context),
        EntityDefinition::Subscription(described) => subscription(xml, described, runtime, context),
    }
}

pub(super) fn root(description: &EntityDefinition) -> &'static str {
    match description {
        EntityDefinition::Queue(_) => "QueueDescription",
        EntityDefinition::Topic(_) => "TopicDescription",
        EntityDefinition::Subscription(_) => "SubscriptionDescription",
    }
}

fn queue(
    xml: &mut XmlWriter,
    queue: &QueueDescription,
    passive: &StoredOnlyProperties,
    runtime: &RuntimeProperties,
    context: &RequestContext,
) {
    let QueueDescription { common, ingress, egress } = queue;
    xml.leaf("LockDuration", duration::format(egress.lock_duration));
    xml.leaf("MaxSizeInMegabytes", ingress.total_size_in_megabytes());
    xml.leaf("RequiresDuplicateDetection", ingress.requires_duplicate_detection);
    xml.leaf("RequiresSession", egress.requires_session);
    time_to_live(xml, common);
    xml.leaf("DeadLetteringOnMessageExpiration", egress.dead_lettering_on_message_expiration);
    xml.leaf("DuplicateDetectionHistoryTimeWindow", duration::format(ingress.duplicate_detection_window));
    xml.leaf("MaxDeliveryCount", egress.max_delivery_count);
    xml.leaf("EnableBatchedOperations", common.enable_batched_operations);
    xml.leaf("SizeInBytes", runtime.counts.bytes);
    message_count(xml, &runtime.counts);
    xml.leaf("IsAnonymousAccessible", false);
    authorization_rules(xml, passive);
    xml.leaf("Status", status(common.status));
    forward_to(xml, egress, context);
    user_metadata(xml, common);
    times(xml, runtime);
    xml.leaf("SupportOrdering", true);
    counts(xml, &runtime.counts);
    auto_delete(xml, common);
    xml.leaf("EnablePartitioning", ingress.enable_partitioning);
    xml.leaf("EntityAvailabilityStatus", AVAILABLE);
    forward_dead_letters(xml, egress, context);
    xml.leaf("EnableExpress", passive.enable_express);
    max_message_size(xml, ingress, context);
}

fn topic(
    xml: &mut XmlWriter,
    topic: &TopicDescription,
    passive: &StoredOnlyProperties,
    runtime: &RuntimeProperties,
    context: &RequestContext,
) {
    let TopicDescription { common, ingress, support_ordering } = topic;
    time_to_live(xml, common);
    xml.leaf("MaxSizeInMegabytes", ingress.total_size_in_megabytes());
    xml.leaf("RequiresDuplicateDetection", ingress.requires_duplicate_detection);
    xml.leaf("DuplicateDetectionHistoryTimeWindow", duration::format(ingress.duplicate_detection_window));
    xml.leaf("EnableBatchedOperations", common.enable_batched_operations);
    xml.leaf("SizeInBytes", runtime.counts.bytes);
    xml.leaf("FilteringMessagesBeforePublishing", passive.filtering_messages_before_publishing);
    xml.leaf("IsAnonymousAccessible", false);
    authorization_rules(xml, passive);
    xml.leaf("Status", status(common.status));
    user_metadata(xml, common);
    times(xml, runtime);
    xml.leaf("SupportOrdering", support_ordering);
    counts(xml, &runtime.counts);
    xml.leaf("SubscriptionCount", runtime.subscriptions);
    if context.version.knows_filter_counts() {
        xml.leaf("SqlFilterCount", runtime.filters.sql);
        xml.leaf("CorrelationFilterCount", runtime.filters.correlation);
    }
    auto_delete(xml, common);
    xml.leaf("EnablePartitioning", ingress.enable_partitioning);
    xml.leaf("EntityAvailabilityStatus", AVAILABLE);
    xml.leaf("EnableSubscriptionPartitioning", false);
    xml.leaf("EnableExpress", passive.enable_express);
    max_message_size(xml, ingress, context);
}

fn subscription(
    xml: &mut XmlWriter,
    subscription: &SubscriptionDescription,
    runtime: &RuntimeProperties,
    context: &RequestContext,
) {
    let SubscriptionDescription { common, egress, dead_lettering_on_filter_evaluation_exceptions } = subscription;
    xml.leaf("LockDuration", duration::format(egress.lock_duration));
    xml.leaf("RequiresSession", egress.requires_session);
    time_to_live(xml, common);
    xml.leaf("DeadLetteringOnMessageExpiration", egress.dead_lettering_on_message_expiration);
    xml.leaf("DeadLetteringOnFilterEvaluationExceptions", dead_lettering_on_filter_evaluation_exceptions);
    message_count(xml, &runtime.counts);
    xml.leaf("MaxDeliveryCount", egress.max_delivery_count);
    xml.leaf("EnableBatchedOperations", common.enable_batched_operations);
    xml.leaf("Status", status(common.status));
    forward_to(xml, egress, context);
    times(xml, runtime);
    user_metadata(xml, common);
    counts(xml, &runtime.counts);
    forward_dead_letters(xml, egress, context);
    auto_delete(xml, common);
    xml.leaf("EntityAvailabilityStatus", AVAILABLE);
}

fn time_to_live(xml: &mut XmlWriter, common: &CommonEntityProperties) {
    xml.leaf("DefaultMessageTimeToLive", duration::format_bounded(common.default_message_time_to_live));
}

fn auto_delete(xml: &mut XmlWriter, common: &CommonEntityProperties) {
    xml.leaf("AutoDeleteOnIdle", duration::format_bounded(common.auto_delete_on_idle));
}

fn user_metadata(xml: &mut XmlWriter, common: &CommonEntityProperties) {
    xml.optional_leaf("UserMetadata", common.user_metadata.as_ref());
}

fn forward_to(xml: &mut XmlWriter, egress: &ReceiveProperties, context: &RequestContext) {
    xml.optional_leaf("ForwardTo", egress.forward_to.as_deref().map(|text| forward_uri(text, context)).as_ref());
}

fn forward_dead_letters(xml: &mut XmlWriter, egress: &ReceiveProperties, context: &RequestContext) {
    let target = egress.forward_dead_lettered_messages_to.as_deref().map(|text| forward_uri(text, context));
    xml.optional_leaf("ForwardDeadLetteredMessagesTo", target.as_ref());
}

/// SDKs expect a URI, also where the configuration file has a name.
fn forward_uri(text: &str, context: &RequestContext) -> String {
    if text.contains("://") {
        return text.to_owned();
    }
    let host = context.base.split_once("://").map_or(context.base.as_str(), |(_, host)| host);
    format!("sb://{host}/{}", text.trim_matches('/'))
}

fn times(xml: &mut XmlWriter, runtime: &RuntimeProperties) {
    xml.leaf("CreatedAt", timestamp::format(runtime.created_at));
    xml.leaf("UpdatedAt", timestamp::format(runtime.updated_at));
    xml.leaf("AccessedAt", runtime.accessed_at.map_or_else(|| timestamp::NEVER.to_owned(), timestamp::format));
}

fn message_count(xml: &mut XmlWriter, counts: &EntityCounts) {
    let transfers = counts.transfer + counts.transfer_dead_letter;
    xml.leaf("MessageCount", counts.active + counts.dead_letter + counts.scheduled + transfers);
}

/// The JavaScript SDK takes the prefix from the only attribute.
fn counts(xml: &mut XmlWriter, counts: &EntityCounts) {
    xml.element("CountDetails", &[("xmlns:d2p1", COUNTS)], |xml| {
        xml.leaf("d2p1:ActiveMessageCount", counts.active);
        xml.leaf("d2p1:DeadLetterMessageCount", counts.dead_letter);
        xml.leaf("d2p1:ScheduledMessageCount", counts.scheduled);
        xml.leaf("d2p1:TransferMessageCount", counts.transfer);
        xml.leaf("d2p1:TransferDeadLetterMessageCount", counts.transfer_dead_letter);
    });
}

/// Older clients do not know this property, and the service does not send it to them.
fn max_message_size(xml: &mut XmlWriter, ingress: &SendProperties, context: &RequestContext) {
    if context.version.knows_large_messages() {
        let limit = ingress.max_message_size_in_kilobytes.unwrap_or(context.namespace.max_message_size_in_kilobytes);
        xml.leaf("MaxMessageSizeInKilobytes", limit);
    }
}

fn authorization_rules(xml: &mut XmlWriter, passive: &StoredOnlyProperties) {
    xml.element("AuthorizationRules", &[], |xml| {
        for rule in &passive.authorization_rules {
            let kind = [("i:type", "SharedAccessAuthorizationRule")];
            xml.element("AuthorizationRule", &kind, |xml| authorization_rule(xml, rule));
        }
    });
}

fn authorization_rule(xml: &mut XmlWriter, rule: &AuthorizationRule) {
    xml.optional_leaf("ClaimType", rule.claim_type.as_ref());
    xml.optional_leaf("ClaimValue", rule.claim_value.as_ref());
    xml.element("Rights", &[], |xml| rule.rights.iter().for_each(|right| xml.leaf("AccessRights", right)));
    xml.optional_leaf("CreatedTime", rule.created_time.as_ref());
    xml.optional_leaf("ModifiedTime", rule.modified_time.as_ref());
    xml.optional_leaf("KeyName", rule.key_name.as_ref());
    xml.optional_leaf("PrimaryKey", rule.primary_key.as_ref());
    xml.optional_leaf("SecondaryKey", rule.secondary_key.as_ref());
}

fn status(status: EntityStatus) -> &'static str {
    match status {
        EntityStatus::Active => "Active",
        EntityStatus::Disabled => "Disabled",
        EntityStatus::SendDisabled => "SendDisabled",
        EntityStatus::ReceiveDisabled => "ReceiveDisabled",
    }
}
