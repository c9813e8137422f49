//! Reads and writes the XML of the administration API: Atom entries and feeds with entity descriptions.
//!
//! Uses the description types of [`crate::core`], which also decides which values are allowed.
//! Names and order of elements are those of the service, because clients depend on both. Accepts what clients send:
//! any namespace prefix, and unknown elements are ignored. Never touches a socket, a clock or a stored entity.

mod entity;
mod feed;
mod parse;
mod rule;
mod timestamp;
mod write;

pub use entity::{
    AccessRight, AdminEntity, AuthorizationRule, EntityAddress, EntityProperties, MAX_AUTHORIZATION_RULES,
    NamespaceInfo, RuntimeProperties, StoredOnlyProperties,
};
pub use feed::{ApiVersion, FeedPage, RequestContext, entity_entry, error, namespace_entry, root_feed, rule_entry};
pub use parse::{EntitySubmission, EntryContent, EntryError, parse_entry};
pub(crate) use timestamp::format as format_timestamp;

#[cfg(test)]
mod tests;
