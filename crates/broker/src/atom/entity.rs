//! An entity as the administration API shows it: address, properties, runtime values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ServiceTier;
use crate::core::{EntityCounts, EntityDefinition, EntityView, Timestamp};
use crate::rules::FilterCounts;

/// The service's limit per entity.
pub const MAX_AUTHORIZATION_RULES: usize = 12;

/// The address of an entity, with names as the client wrote them. The namespace compares names without case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntityAddress {
    /// A queue or a topic; its name may contain slashes.
    Entity(String),
    Subscription {
        topic: String,
        name: String,
    },
}

impl EntityAddress {
    fn from_view(view: &EntityView<'_>) -> Self {
        let EntityDefinition::Subscription(_) = view.description else { return Self::Entity(view.path.to_owned()) };
        let (topic, name) = view.path.rsplit_once('/').expect("a subscription's path ends in its name");
        let topic = topic.rsplit_once('/').expect("a subscription's path begins with its topic").0;
        Self::Subscription { topic: topic.to_owned(), name: name.to_owned() }
    }

    /// The last part, shown in lists and titles.
    pub fn name(&self) -> &str {
        match self {
            Self::Entity(name) | Self::Subscription { name, .. } => name,
        }
    }
}

/// The path that clients use.
impl fmt::Display for EntityAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entity(name) => f.write_str(name),
            Self::Subscription { topic, name } => write!(f, "{topic}/Subscriptions/{name}"),
        }
    }
}

/// The properties of an entity: those that the core uses, and those that are only stored for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityProperties {
    pub description: EntityDefinition,
    pub passive: StoredOnlyProperties,
}

impl From<EntityDefinition> for EntityProperties {
    fn from(description: EntityDefinition) -> Self {
        Self { description, passive: StoredOnlyProperties::default() }
    }
}

/// Properties that are stored and shown but have no effect. Serialized beside the description.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredOnlyProperties {
    pub enable_express: bool,
    pub filtering_messages_before_publishing: bool,
    pub authorization_rules: Vec<AuthorizationRule>,
}

/// A named pair of keys and their rights.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthorizationRule {
    pub claim_type: Option<String>,
    pub claim_value: Option<String>,
    pub rights: Vec<AccessRight>,
    /// As the client wrote it.
    pub created_time: Option<String>,
    pub modified_time: Option<String>,
    pub key_name: Option<String>,
    pub primary_key: Option<String>,
    pub secondary_key: Option<String>,
}

/// Keys must not appear in logs.
impl fmt::Debug for AuthorizationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizationRule")
            .field("key_name", &self.key_name)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessRight {
    Manage,
    Send,
    Listen,
}

impl AccessRight {
    pub const ALL: [Self; 3] = [Self::Manage, Self::Send, Self::Listen];
}

impl fmt::Display for AccessRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An entity as returned by get and list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminEntity {
    pub address: EntityAddress,
    pub properties: EntityProperties,
    pub runtime: RuntimeProperties,
}

impl AdminEntity {
    /// Combines the core's view of an entity with its passive properties.
    pub fn new(view: &EntityView<'_>, passive: StoredOnlyProperties) -> Self {
        Self {
            address: EntityAddress::from_view(view),
            properties: EntityProperties { description: view.description.clone(), passive },
            runtime: RuntimeProperties {
                created_at: view.created_at,
                updated_at: view.updated_at,
                accessed_at: view.accessed_at,
                counts: view.counts,
                subscriptions: view.subscriptions,
                filters: view.filters,
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeProperties {
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When a client last sent or received; `None` if unknown.
    pub accessed_at: Option<Timestamp>,
    pub counts: EntityCounts,
    /// Number of subscriptions of a topic.
    pub subscriptions: usize,
    /// The filters of a topic's subscriptions.
    pub filters: FilterCounts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    pub name: String,
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
    pub tier: ServiceTier,
    /// The limit for entities that set none of their own.
    pub max_message_size_in_kilobytes: u64,
}
