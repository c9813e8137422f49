//! The source: its collections and kind, and the paths of aggregate id, type and sequence.

mod cluster;

use serde::{Deserialize, Serialize};

use crate::event::Namespace;

pub use cluster::read_cluster_id;

/// The `source` section of the configuration, without the server address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    pub database: String,
    /// One collection…
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// …or several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collections: Vec<String>,
    #[serde(default)]
    pub kind: SourceKind,
    /// Dotted path to the aggregate's id. For `documents` it is always the document's key.
    #[serde(default = "aggregate_id")]
    pub aggregate_id: String,
    /// Dotted path to the event's type. For `documents` the type is the operation.
    #[serde(default = "event_type")]
    pub event_type: String,
    /// Dotted path to the aggregate's own count of its events, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// For `documents`: the origin of the document after an update.
    #[serde(default)]
    pub full_document: FullDocument,
}

/// The kind of the collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// An append-only collection: inserts are events; other operations are counted and logged.
    #[default]
    Events,
    /// Ordinary documents: every change is an event, and each document is its own aggregate.
    Documents,
}

/// The origin of the document after an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullDocument {
    /// The server looks it up when it reads the change. Needs no collection option; may skip intermediate states.
    #[default]
    Lookup,
    /// The collection stores post-images (`changeStreamPreAndPostImages`): exact, and four times faster to read.
    PostImage,
}

fn aggregate_id() -> String {
    "aggregateId".to_owned()
}

fn event_type() -> String {
    "type".to_owned()
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSource {
    #[error("`source` must name a `collection`, or several `collections`, and not both")]
    Collections,
    #[error("`source.{field}` must not be empty")]
    Empty { field: &'static str },
    #[error("`source.collections` names `{0}` twice")]
    Duplicate(String),
}

impl SourceConfig {
    /// One collection of events with the default paths.
    pub fn events(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            collection: Some(collection.into()),
            collections: Vec::new(),
            kind: SourceKind::Events,
            aggregate_id: aggregate_id(),
            event_type: event_type(),
            sequence: None,
            full_document: FullDocument::default(),
        }
    }

    /// One collection of ordinary documents.
    pub fn documents(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Self { kind: SourceKind::Documents, ..Self::events(database, collection) }
    }

    pub fn validate(&self) -> Result<(), InvalidSource> {
        if self.collection.is_some() != self.collections.is_empty() {
            return Err(InvalidSource::Collections);
        }
        let texts =
            [("database", &self.database), ("aggregate_id", &self.aggregate_id), ("event_type", &self.event_type)];
        if let Some((field, _)) = texts.into_iter().find(|(_, text)| text.is_empty()) {
            return Err(InvalidSource::Empty { field });
        }
        if self.sequence.as_deref() == Some("") {
            return Err(InvalidSource::Empty { field: "sequence" });
        }
        let names: Vec<_> = self.names().collect();
        if names.iter().any(|name| name.is_empty()) {
            return Err(InvalidSource::Empty { field: "collections" });
        }
        let twice = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
        twice.map_or(Ok(()), |(_, name)| Err(InvalidSource::Duplicate((*name).to_owned())))
    }

    pub fn namespaces(&self) -> Vec<Namespace> {
        self.names().map(|name| Namespace::new(&self.database, name)).collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.collection.iter().chain(&self.collections).map(String::as_str)
    }

    /// Whether the sequence orders the events of an aggregate. A document has no sequence of its own: only the position orders its changes.
    pub fn is_sequenced(&self) -> bool {
        self.kind == SourceKind::Events && self.sequence.is_some()
    }

    /// Identifies the source in the checkpoint. Leaves out settings that only change how events are read.
    pub fn fingerprint(&self) -> String {
        let mut names: Vec<_> = self.names().collect();
        names.sort_unstable();
        let kind = match self.kind {
            SourceKind::Events => "events",
            SourceKind::Documents => "documents",
        };
        format!("{kind}:{}.{}", self.database, names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_collection_or_several_but_not_both() {
        let one = SourceConfig::events("shop", "events");
        assert_eq!(one.validate(), Ok(()));
        assert_eq!(one.fingerprint(), "events:shop.events");
        let both = SourceConfig { collections: vec!["orders".into()], ..one.clone() };
        assert_eq!(both.validate(), Err(InvalidSource::Collections));
        let none = SourceConfig { collection: None, ..one.clone() };
        assert_eq!(none.validate(), Err(InvalidSource::Collections));
        let several = SourceConfig { collection: None, collections: vec!["b".into(), "a".into()], ..one.clone() };
        assert_eq!(several.validate(), Ok(()));
        assert_eq!(several.fingerprint(), "events:shop.a,b");
        let twice = SourceConfig { collection: None, collections: vec!["a".into(), "a".into()], ..one };
        assert_eq!(twice.validate(), Err(InvalidSource::Duplicate("a".into())));
    }
}
