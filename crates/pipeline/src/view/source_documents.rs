//! Reads one event from the source by its `_id`: for the replay of a parked event whose body is not stored.
//!
//! Majority reads from the primary. Needs no sequence, unlike [`super::SourceEventReader`].

use std::sync::Arc;

use mongodb::bson::{Bson, RawDocument, RawDocumentBuf, cstr, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};

use super::delivered_event::{DeliveredEvent, EventBody};
use super::error::Error;
use super::event_path::EventPath;
use super::identity::Identity;
use crate::event::{Namespace, Operation};
use crate::source::{SourceConfig, SourceKind};

/// A collection of the source, for majority reads from the primary.
pub(super) type SourceCollection = (Arc<Namespace>, Collection<RawDocumentBuf>);

pub(super) fn open_source_collections(database: &Database, source: &SourceConfig) -> Vec<SourceCollection> {
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    let open = |namespace: Namespace| {
        let collection = database.collection_with_options(&namespace.collection, options.clone());
        (Arc::new(namespace), collection)
    };
    source.namespaces().into_iter().map(open).collect()
}

/// The documents of the source.
#[derive(Clone, Debug)]
pub struct SourceDocuments {
    kind: SourceKind,
    collections: Vec<SourceCollection>,
    aggregate: Option<EventPath>,
    event_type: Option<EventPath>,
}

impl SourceDocuments {
    pub fn new(database: &Database, source: &SourceConfig) -> Self {
        Self {
            kind: source.kind,
            collections: open_source_collections(database, source),
            aggregate: EventPath::from_field(&source.aggregate_id),
            event_type: EventPath::from_field(&source.event_type),
        }
    }

    /// The same event with its body and its type, which a marker lacks. `None` if the source does not have it.
    pub(super) async fn complete(&self, event: &DeliveredEvent) -> Result<Option<DeliveredEvent>, Error> {
        let document = match (self.kind, event.operation) {
            // Nothing is left to read, and the key is all that such an event carries.
            (SourceKind::Documents, Operation::Delete) => Some(key_document(&event.key)),
            (_, _) => self.read(event).await?,
        };
        Ok(document.map(|document| DeliveredEvent {
            event_type: event.event_type.clone().or_else(|| self.type_of(event, &document)),
            body: EventBody::Document(document),
            ..event.clone()
        }))
    }

    async fn read(&self, event: &DeliveredEvent) -> Result<Option<RawDocumentBuf>, Error> {
        let found = self.collections.iter().find(|(known, _)| *known == event.namespace);
        let Some((namespace, collection)) = found else { return Ok(None) };
        let failed = |source: mongodb::error::Error| Error::Source {
            action: "look up event",
            namespace: namespace.to_string(),
            source: source.into(),
        };
        let found = collection.find_one(doc! { "_id": { "$eq": event.key.clone() } }).await.map_err(failed)?;
        Ok(found.filter(|document| self.is_same_event(event, document)))
    }

    /// A collation of the collection may find another `_id`, and a restored source may hold another event under it.
    fn is_same_event(&self, event: &DeliveredEvent, document: &RawDocument) -> bool {
        let is_equal = |value: Bson, expected: &Bson| Identity::of(&value) == Identity::of(expected);
        let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        let aggregate = match self.kind {
            SourceKind::Documents => return id.is_some_and(|id| is_equal(id, &event.key)),
            SourceKind::Events => self.aggregate.as_ref().and_then(|path| path.find(document)),
        };
        let aggregate = aggregate.and_then(|found| Bson::try_from(found.as_ref()).ok());
        id.is_some_and(|id| is_equal(id, &event.key))
            && aggregate.is_some_and(|aggregate| is_equal(aggregate, event.aggregate.value()))
    }

    fn type_of(&self, event: &DeliveredEvent, document: &RawDocument) -> Option<String> {
        match self.kind {
            SourceKind::Documents => Some(event.operation.as_str().to_owned()),
            SourceKind::Events => {
                let found = self.event_type.as_ref()?.find(document)?;
                found.as_ref().as_str().map(str::to_owned)
            }
        }
    }
}

fn key_document(key: &Bson) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    if let Ok(key) = mongodb::bson::RawBson::try_from(key.clone()) {
        document.append(cstr!("_id"), key);
    }
    document
}
