//! An entity as administration sees it: where it is, what was asked of it, how it is doing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::core::{EntityCounts, EntityDescription, EntityView, Timestamp};

/// The service takes no more per entity.
pub const MAX_AUTHORIZATION_RULES: usize = 12;

/// Where an entity is. Names as the client wrote them; comparing them without case is the namespace's business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntityAddress {
    /// A queue or a topic; its name may hold slashes.
    Entity(String),
    Subscription {
        topic: String,
        name: String,
    },
}

impl EntityAddress {
    fn from_view(view: &EntityView<'_>) -> Self {
        let EntityDescription::Subscription(_) = view.description else { return Self::Entity(view.path.to_owned()) };
        let (topic, name) = view.path.rsplit_once('/').expect("a subscription's path ends in its name");
        let topic = topic.rsplit_once('/').expect("a subscription's path begins with its topic").0;
        Self::Subscription { topic: topic.to_owned(), name: name.to_owned() }
    }

    /// The last part, which lists and titles show.
    pub fn name(&self) -> &str {
        match self {
            Self::Entity(name) | Self::Subscription { name, .. } => name,
        }
    }
}

/// The path by which clients reach it.
impl fmt::Display for EntityAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entity(name) => f.write_str(name),
            Self::Subscription { topic, name } => write!(f, "{topic}/Subscriptions/{name}"),
        }
    }
}

/// What a client asks of an entity: what the core acts on, and what is only kept for clients to read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityProperties {
    pub description: EntityDescription,
    pub passive: PassiveProperties,
}

impl From<EntityDescription> for EntityProperties {
    fn from(description: EntityDescription) -> Self {
        Self { description, passive: PassiveProperties::default() }
    }
}

/// EntityProperties that are stored and shown, and that change nothing. Serialisable, to be kept beside the description.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PassiveProperties {
    pub enable_express: bool,
    pub filtering_messages_before_publishing: bool,
    pub authorization_rules: Vec<AuthorizationRule>,
}

/// A named pair of keys and what they allow.
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

/// Keys never reach a log.
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

/// An entity, as a get or a list answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminEntity {
    pub address: EntityAddress,
    pub properties: EntityProperties,
    pub runtime: RuntimeProperties,
}

impl AdminEntity {
    /// What the core shows of an entity, and what was kept beside it.
    pub fn new(view: &EntityView<'_>, passive: PassiveProperties) -> Self {
        Self {
            address: EntityAddress::from_view(view),
            properties: EntityProperties { description: view.description.clone(), passive },
            runtime: RuntimeProperties {
                created_at: view.created_at,
                updated_at: view.updated_at,
                accessed_at: None,
                counts: view.counts,
                subscriptions: view.subscriptions,
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeProperties {
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When a client last sent or received; `None` where that is not known.
    pub accessed_at: Option<Timestamp>,
    pub counts: EntityCounts,
    /// How many a topic has.
    pub subscriptions: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    pub name: String,
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
    /// What an entity takes that asks for no limit of its own.
    pub max_message_size_in_kilobytes: u64,
}
