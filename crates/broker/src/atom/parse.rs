//! Parses a client's body: an entity description or a rule.
//!
//! A missing property gets its default, also in an update: the service replaces and does not merge. Read-only elements
//! (counts, times) and unknown ones are ignored. The core checks ranges.

use std::str::FromStr;
use std::time::Duration;

use atom_xml::{XmlElement, XmlError, duration};

use crate::core::{
    CommonEntityProperties, EntityDefinition, EntityStatus, QueueDescription, ReceiveProperties, SendProperties,
    SubscriptionDescription, TopicDescription,
};

use super::entity::{AccessRight, AuthorizationRule, EntityProperties, MAX_AUTHORIZATION_RULES, StoredOnlyProperties};
use super::rule;
use crate::rules::RuleDescription;

/// Why a body is invalid: the element, and the values allowed.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error(transparent)]
    Xml(#[from] XmlError),
    #[error("body is not an Atom entry with a description")]
    NoContent,
    #[error("unknown description `{0}`")]
    UnknownContent(String),
    #[error("`{field}` is `{value}`: {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("`{field}` is missing")]
    Missing { field: &'static str },
    #[error("`AuthorizationRules` has {0} rules: at most {MAX_AUTHORIZATION_RULES} are allowed")]
    TooManyAuthorizationRules(usize),
}

/// The content of an entry.
#[derive(Debug, PartialEq)]
pub enum EntryContent {
    Queue(EntitySubmission),
    Topic(EntitySubmission),
    Subscription { submitted: EntitySubmission, default_rule: Option<Box<RuleDescription>> },
    Rule(Box<RuleDescription>),
}

/// The properties of an entity as submitted by a client.
#[derive(Debug, PartialEq, Eq)]
pub struct EntitySubmission {
    properties: EntityProperties,
    names_sessions: bool,
    names_duplicate_detection: bool,
    names_partitioning: bool,
}

impl EntitySubmission {
    pub fn into_new(self) -> EntityProperties {
        self.properties
    }

    /// Properties that cannot change keep their value if they are missing; everything else is replaced.
    pub fn into_update(mut self, current: &EntityDefinition) -> EntityProperties {
        let (ingress, egress) = sides(&mut self.properties.description);
        if let (Some(new), Some(old)) = (ingress, current.ingress()) {
            if !self.names_duplicate_detection {
                new.requires_duplicate_detection = old.requires_duplicate_detection;
            }
            if !self.names_partitioning {
                new.enable_partitioning = old.enable_partitioning;
            }
            // The size that clients are shown covers all partitions, and they send it back.
            if new.max_size_in_megabytes == old.total_size_in_megabytes() {
                new.max_size_in_megabytes = old.max_size_in_megabytes;
            }
        }
        if let (Some(new), Some(old), false) = (egress, current.egress(), self.names_sessions) {
            new.requires_session = old.requires_session;
        }
        self.properties
    }
}

fn sides(description: &mut EntityDefinition) -> (Option<&mut SendProperties>, Option<&mut ReceiveProperties>) {
    match description {
        EntityDefinition::Queue(queue) => (Some(&mut queue.ingress), Some(&mut queue.egress)),
        EntityDefinition::Topic(topic) => (Some(&mut topic.ingress), None),
        EntityDefinition::Subscription(subscription) => (None, Some(&mut subscription.egress)),
    }
}

pub fn parse_entry(body: &[u8]) -> Result<EntryContent, EntryError> {
    let entry = XmlElement::parse(body)?;
    let content = entry.child("content").filter(|_| entry.name == "entry").ok_or(EntryError::NoContent)?;
    let described = content.children.first().ok_or(EntryError::NoContent)?;
    match described.name.as_str() {
        "QueueDescription" => Ok(EntryContent::Queue(submitted(described, queue(described)?)?)),
        "TopicDescription" => Ok(EntryContent::Topic(submitted(described, topic(described)?)?)),
        "SubscriptionDescription" => Ok(EntryContent::Subscription {
            submitted: submitted(described, subscription(described)?)?,
            default_rule: described.child("DefaultRuleDescription").map(rule::read).transpose()?.map(Box::new),
        }),
        "RuleDescription" => Ok(EntryContent::Rule(Box::new(rule::read(described)?))),
        other => Err(EntryError::UnknownContent(other.to_owned())),
    }
}

fn submitted(described: &XmlElement, description: EntityDefinition) -> Result<EntitySubmission, EntryError> {
    let names = |name| described.child(name).is_some();
    Ok(EntitySubmission {
        properties: EntityProperties { description, passive: passive(described)? },
        names_sessions: names("RequiresSession"),
        names_duplicate_detection: names("RequiresDuplicateDetection"),
        names_partitioning: names("EnablePartitioning"),
    })
}

fn queue(described: &XmlElement) -> Result<EntityDefinition, EntryError> {
    Ok(EntityDefinition::Queue(QueueDescription {
        common: common(described)?,
        ingress: ingress(described)?,
        egress: egress(described)?,
    }))
}

fn topic(described: &XmlElement) -> Result<EntityDefinition, EntryError> {
    let mut topic =
        TopicDescription { common: common(described)?, ingress: ingress(described)?, support_ordering: true };
    flag(described, "SupportOrdering", &mut topic.support_ordering)?;
    Ok(EntityDefinition::Topic(topic))
}

fn subscription(described: &XmlElement) -> Result<EntityDefinition, EntryError> {
    let mut subscription = SubscriptionDescription {
        common: common(described)?,
        egress: egress(described)?,
        dead_lettering_on_filter_evaluation_exceptions: true,
    };
    flag(
        described,
        "DeadLetteringOnFilterEvaluationExceptions",
        &mut subscription.dead_lettering_on_filter_evaluation_exceptions,
    )?;
    Ok(EntityDefinition::Subscription(subscription))
}

fn common(described: &XmlElement) -> Result<CommonEntityProperties, EntryError> {
    let mut common = CommonEntityProperties { enable_batched_operations: true, ..CommonEntityProperties::default() };
    if let Some(text) = described.value("Status") {
        common.status = status(text)?;
    }
    bounded(described, "DefaultMessageTimeToLive", &mut common.default_message_time_to_live)?;
    bounded(described, "AutoDeleteOnIdle", &mut common.auto_delete_on_idle)?;
    flag(described, "EnableBatchedOperations", &mut common.enable_batched_operations)?;
    common.user_metadata =
        described.child("UserMetadata").map(|element| element.text.clone()).filter(|text| !text.is_empty());
    Ok(common)
}

fn ingress(described: &XmlElement) -> Result<SendProperties, EntryError> {
    let mut ingress = SendProperties::default();
    number(described, "MaxSizeInMegabytes", &mut ingress.max_size_in_megabytes)?;
    ingress.max_message_size_in_kilobytes = optional_number(described, "MaxMessageSizeInKilobytes")?;
    flag(described, "RequiresDuplicateDetection", &mut ingress.requires_duplicate_detection)?;
    span(described, "DuplicateDetectionHistoryTimeWindow", &mut ingress.duplicate_detection_window)?;
    flag(described, "EnablePartitioning", &mut ingress.enable_partitioning)?;
    Ok(ingress)
}

fn egress(described: &XmlElement) -> Result<ReceiveProperties, EntryError> {
    let mut egress = ReceiveProperties::default();
    span(described, "LockDuration", &mut egress.lock_duration)?;
    flag(described, "RequiresSession", &mut egress.requires_session)?;
    number(described, "MaxDeliveryCount", &mut egress.max_delivery_count)?;
    flag(described, "DeadLetteringOnMessageExpiration", &mut egress.dead_lettering_on_message_expiration)?;
    egress.forward_to = forward_target(described, "ForwardTo");
    egress.forward_dead_lettered_messages_to = forward_target(described, "ForwardDeadLetteredMessagesTo");
    Ok(egress)
}

/// A URI as the service shows it: scheme and host in lower case, the entity as written.
fn forward_target(described: &XmlElement, field: &str) -> Option<String> {
    let text = text(described, field).filter(|text| !text.trim().is_empty())?;
    match text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('/')?))) {
        Some((scheme, (host, path))) => Some(format!("{}://{}/{path}", scheme.to_lowercase(), host.to_lowercase())),
        None => Some(text),
    }
}

fn passive(described: &XmlElement) -> Result<StoredOnlyProperties, EntryError> {
    let mut passive = StoredOnlyProperties::default();
    flag(described, "EnableExpress", &mut passive.enable_express)?;
    flag(described, "FilteringMessagesBeforePublishing", &mut passive.filtering_messages_before_publishing)?;
    if let Some(rules) = described.child("AuthorizationRules") {
        if rules.children.len() > MAX_AUTHORIZATION_RULES {
            return Err(EntryError::TooManyAuthorizationRules(rules.children.len()));
        }
        passive.authorization_rules = rules.children.iter().map(authorization_rule).collect::<Result<_, _>>()?;
    }
    Ok(passive)
}

fn authorization_rule(rule: &XmlElement) -> Result<AuthorizationRule, EntryError> {
    let rights = rule.child("Rights").map_or(&[][..], |rights| &rights.children);
    Ok(AuthorizationRule {
        claim_type: text(rule, "ClaimType"),
        claim_value: text(rule, "ClaimValue"),
        rights: rights.iter().map(|right| access_right(&right.text)).collect::<Result<_, _>>()?,
        created_time: text(rule, "CreatedTime"),
        modified_time: text(rule, "ModifiedTime"),
        key_name: text(rule, "KeyName"),
        primary_key: text(rule, "PrimaryKey"),
        secondary_key: text(rule, "SecondaryKey"),
    })
}

fn access_right(text: &str) -> Result<AccessRight, EntryError> {
    let found = AccessRight::ALL.into_iter().find(|right| right.to_string() == text.trim());
    found.ok_or_else(|| wrong("AccessRights", text, "expected Manage, Send or Listen"))
}

fn status(text: &str) -> Result<EntityStatus, EntryError> {
    match text {
        "Active" => Ok(EntityStatus::Active),
        "Disabled" => Ok(EntityStatus::Disabled),
        "SendDisabled" => Ok(EntityStatus::SendDisabled),
        "ReceiveDisabled" => Ok(EntityStatus::ReceiveDisabled),
        _ => Err(wrong("Status", text, "expected Active, Disabled, SendDisabled or ReceiveDisabled")),
    }
}

pub(super) fn text(described: &XmlElement, field: &str) -> Option<String> {
    described.value(field).map(str::to_owned)
}

fn flag(described: &XmlElement, field: &'static str, into: &mut bool) -> Result<(), EntryError> {
    if let Some(element) = described.child(field) {
        *into = boolean(&element.text).ok_or_else(|| wrong(field, &element.text, "expected true or false"))?;
    }
    Ok(())
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn number<N: FromStr>(described: &XmlElement, field: &'static str, into: &mut N) -> Result<(), EntryError> {
    if let Some(number) = optional_number(described, field)? {
        *into = number;
    }
    Ok(())
}

fn optional_number<N: FromStr>(described: &XmlElement, field: &'static str) -> Result<Option<N>, EntryError> {
    let Some(element) = described.child(field) else { return Ok(None) };
    let parsed = element.text.trim().parse().ok();
    parsed.map(Some).ok_or_else(|| wrong(field, &element.text, "expected an integer in the property's range"))
}

fn span(described: &XmlElement, field: &'static str, into: &mut Duration) -> Result<(), EntryError> {
    if let Some(element) = described.child(field) {
        *into = duration::parse(&element.text).map_err(|_| wrong(field, &element.text, EXPECTED_DURATION))?;
    }
    Ok(())
}

fn bounded(described: &XmlElement, field: &'static str, into: &mut Option<Duration>) -> Result<(), EntryError> {
    if let Some(element) = described.child(field) {
        *into = duration::parse_bounded(&element.text).map_err(|_| wrong(field, &element.text, EXPECTED_DURATION))?;
    }
    Ok(())
}

const EXPECTED_DURATION: &str = "expected an ISO 8601 duration, such as PT30S, PT1M or P1DT12H";

/// Shortens the client's value, which is sent back in the error.
pub(super) fn wrong(field: &'static str, value: &str, expected: &'static str) -> EntryError {
    EntryError::Value { field, value: value.trim().chars().take(100).collect(), expected }
}
