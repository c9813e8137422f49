//! The XML of Service Bus administration: Atom entries and feeds that carry the descriptions of entities, in and out.
//!
//! Leans on [`crate::core`] for what a description is and which values are allowed; here a value is only read and written.
//! Order and names of elements are those of the service, because clients depend on both. Reads what clients really send:
//! any namespace prefix, unknown elements ignored. Never touches a socket, a clock or an entity.

pub mod duration;
mod element;
mod entity;
mod feed;
mod moment;
mod read;
mod rule;
mod write;
mod xml;

pub use entity::{
    Address, AuthorizationRule, Entity, Kept, MAX_AUTHORIZATION_RULES, NamespaceInfo, Properties, Right, Runtime,
};
pub use feed::{ApiVersion, Feed, Place, entity_entry, error, namespace_entry, rule_entry};
pub use read::{Content, Malformed, Submitted, content};
pub use rule::{Action, Correlation, DEFAULT_RULE, Filter, Rule, Sql, Value};

#[cfg(test)]
mod tests;
