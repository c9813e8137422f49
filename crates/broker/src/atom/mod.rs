//! The XML of Service Bus administration: Atom entries and feeds that carry the descriptions of entities, in and out.
//!
//! Leans on [`crate::core`] for what a description is and which values are allowed; here a value is only read and written.
//! Order and names of elements are those of the service, because clients depend on both. Reads what clients really send:
//! any namespace prefix, unknown elements ignored. Never touches a socket, a clock or an entity.

pub mod duration;
mod entity;
mod feed;
mod parse;
mod rule;
mod timestamp;
mod write;
mod xml_element;
mod xml_writer;

pub use entity::{
    AccessRight, AdminEntity, AuthorizationRule, EntityAddress, EntityProperties, MAX_AUTHORIZATION_RULES,
    NamespaceInfo, PassiveProperties, RuntimeProperties,
};
pub use feed::{ApiVersion, FeedPage, RequestContext, entity_entry, error, namespace_entry, rule_entry};
pub use parse::{EntitySubmission, EntryContent, EntryError, parse_entry};
pub use rule::{
    CorrelationFilter, DEFAULT_RULE, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression,
};

#[cfg(test)]
mod tests;
