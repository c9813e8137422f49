//! Translates server change events and snapshot documents to [`ChangeEvent`]s.

use std::sync::Arc;

use mongodb::bson::raw::{RawBsonRef, cstr};
use mongodb::bson::{Bson, RawDocument, RawDocumentBuf};

use super::change::RawChange;
use super::error::Error;
use super::field_path::FieldPath;
use crate::event::{AggregateId, ChangeEvent, Namespace, Operation, ResumeToken};
use crate::source::{SourceConfig, SourceKind};

/// The kind of the source, and the paths of its fields.
#[derive(Clone, Debug)]
pub(super) struct Translator {
    kind: SourceKind,
    aggregate_id: FieldPath,
    event_type: FieldPath,
    sequence: Option<FieldPath>,
    namespaces: Vec<Arc<Namespace>>,
}

/// The meaning of a change event.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are events, and none is stored")]
pub(super) enum TranslatedChange {
    Event(ChangeEvent),
    /// An update, replace or delete in a source of kind `events`.
    NonInsert,
    /// A drop, rename or invalidate of a collection of the source or of its database.
    CollectionDropped,
    /// Any other event.
    Ignored,
}

impl Translator {
    pub(super) fn new(source: &SourceConfig) -> Self {
        Self {
            kind: source.kind,
            aggregate_id: FieldPath::new(&source.aggregate_id),
            event_type: FieldPath::new(&source.event_type),
            sequence: source.sequence.as_deref().map(FieldPath::new),
            namespaces: source.namespaces().into_iter().map(Arc::new).collect(),
        }
    }

    pub(super) fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }

    pub(super) fn translate(&self, change: &RawChange<'_>) -> Result<TranslatedChange, Error> {
        let operation = match change.operation {
            Some("insert") => Operation::Insert,
            Some("update") => Operation::Update,
            Some("replace") => Operation::Replace,
            Some("delete") => Operation::Delete,
            Some("drop" | "rename" | "dropDatabase" | "invalidate") => return Ok(TranslatedChange::CollectionDropped),
            Some(_) => return Ok(TranslatedChange::Ignored),
            None => return Err(Error::Unreadable { problem: "has no `operationType`" }),
        };
        if self.kind == SourceKind::Events && operation != Operation::Insert {
            return Ok(TranslatedChange::NonInsert);
        }
        let key = change.key.or(change.document).ok_or(Error::Unreadable { problem: "has no `documentKey`" })?;
        let namespace = self.namespace(change)?;
        if self.kind == SourceKind::Documents {
            check_key_is_id(&namespace, change.key)?;
        }
        let event = self.build_event(change.token()?, operation, namespace, key, change.document)?;
        Ok(TranslatedChange::Event(ChangeEvent {
            cluster_time: change.cluster_time,
            wall_time: change.wall_time,
            ..event
        }))
    }

    /// The event of a document that a snapshot read.
    pub(super) fn snapshot_event(
        &self,
        start: &ResumeToken,
        namespace: &Arc<Namespace>,
        key: &RawDocument,
        document: Option<&RawDocument>,
    ) -> Result<ChangeEvent, Error> {
        self.build_event(start.clone(), Operation::Snapshot, Arc::clone(namespace), key, document)
    }

    /// The delete of a key that the sweep did not find.
    pub(super) fn sweep_delete(
        &self,
        start: &ResumeToken,
        namespace: &Arc<Namespace>,
        key: &RawDocument,
    ) -> Result<ChangeEvent, Error> {
        self.build_event(start.clone(), Operation::Delete, Arc::clone(namespace), key, None)
    }

    fn build_event(
        &self,
        token: ResumeToken,
        operation: Operation,
        namespace: Arc<Namespace>,
        key: &RawDocument,
        document: Option<&RawDocument>,
    ) -> Result<ChangeEvent, Error> {
        let id =
            key.get("_id").ok().flatten().ok_or(Error::Unreadable { problem: "has no `_id` in its `documentKey`" })?;
        let document = document.map_or_else(|| key_document(id), RawDocument::to_owned);
        let key = Bson::try_from(id).map_err(|_| Error::Unreadable { problem: "is not BSON" })?;
        let (aggregate, event_type) = match self.kind {
            SourceKind::Events => {
                (self.aggregate_id.value(&document), self.event_type.text(&document).map(str::to_owned))
            }
            SourceKind::Documents => (Some(key.clone()), Some(operation.as_str().to_owned())),
        };
        let sequence = self.sequence.as_ref().and_then(|path| path.sequence(&document));
        let aggregate = aggregate.and_then(AggregateId::new);
        Ok(ChangeEvent {
            token,
            operation,
            namespace,
            key,
            aggregate,
            event_type,
            sequence,
            cluster_time: None,
            wall_time: None,
            document,
        })
    }

    /// The namespace of the event. With a single collection the filter may remove `ns`.
    fn namespace(&self, change: &RawChange<'_>) -> Result<Arc<Namespace>, Error> {
        if let [only] = &self.namespaces[..] {
            return Ok(Arc::clone(only));
        }
        let collection = change.namespace.and_then(|namespace| namespace.get_str("coll").ok());
        let found = self.namespaces.iter().find(|namespace| Some(namespace.collection.as_str()) == collection);
        found.cloned().ok_or(Error::Unreadable { problem: "names no collection of the source in its `ns`" })
    }
}

/// `documentKey` contains the shard key. `check` refuses it at the start; this catches a collection that is sharded later.
fn check_key_is_id(namespace: &Namespace, key: Option<&RawDocument>) -> Result<(), Error> {
    let mut names = key.into_iter().flatten().filter_map(Result::ok).map(|(name, _)| name.as_str());
    match names.find(|name| *name != "_id") {
        Some(field) => Err(Error::ShardedBy { namespace: namespace.clone(), field: field.to_owned() }),
        None => Ok(()),
    }
}

fn key_document(id: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), id);
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{DateTime, Timestamp, doc, rawdoc};

    fn meaning(source: &SourceConfig, raw: &RawDocument) -> TranslatedChange {
        Translator::new(source).translate(&RawChange::parse(raw).unwrap()).unwrap()
    }

    fn event(source: &SourceConfig, raw: &RawDocument) -> ChangeEvent {
        match meaning(source, raw) {
            TranslatedChange::Event(event) => event,
            other => panic!("{other:?}"),
        }
    }

    fn change(operation: &str, document: RawDocumentBuf) -> RawDocumentBuf {
        rawdoc! {
            "_id": { "_data": "8201" },
            "operationType": operation,
            "clusterTime": Timestamp { time: 5, increment: 1 },
            "ns": { "db": "shop", "coll": "events" },
            "documentKey": { "_id": 7, "region": "north" },
            "fullDocument": document,
        }
    }

    #[test]
    fn an_insert_is_translated_to_an_event() {
        let source = SourceConfig { sequence: Some("meta.version".into()), ..SourceConfig::events("shop", "events") };
        let document = rawdoc! { "_id": 7, "aggregateId": "order-1", "type": "Placed", "meta": { "version": 3 } };
        let event = event(&source, &change("insert", document.clone()));
        assert_eq!((event.operation, event.key, event.sequence), (Operation::Insert, Bson::Int32(7), Some(3)));
        assert_eq!(event.aggregate, AggregateId::new("order-1".into()));
        assert_eq!(event.event_type.as_deref(), Some("Placed"));
        assert_eq!(event.cluster_time, Some(Timestamp { time: 5, increment: 1 }));
        assert_eq!(event.document, document);
        assert_eq!(event.namespace.to_string(), "shop.events");
    }

    #[test]
    fn commit_time_has_milliseconds_if_the_server_sends_them() {
        let source = SourceConfig::events("shop", "events");
        let mut raw = change("insert", rawdoc! { "_id": 7 });
        assert_eq!(event(&source, &raw).committed_at(), Some(DateTime::from_millis(5_000)));
        raw.append(cstr!("wallTime"), DateTime::from_millis(5_123));
        assert_eq!(event(&source, &raw).committed_at(), Some(DateTime::from_millis(5_123)));
        let gone = ChangeEvent { cluster_time: None, wall_time: None, ..event(&source, &raw) };
        assert_eq!(gone.committed_at(), None);
    }

    #[test]
    fn other_operations_on_an_event_source_are_not_events() {
        let source = SourceConfig::events("shop", "events");
        for operation in ["update", "replace", "delete"] {
            assert!(
                matches!(meaning(&source, &change(operation, rawdoc! {})), TranslatedChange::NonInsert),
                "{operation}"
            );
        }
        for operation in ["drop", "rename", "dropDatabase", "invalidate"] {
            assert!(
                matches!(meaning(&source, &change(operation, rawdoc! {})), TranslatedChange::CollectionDropped),
                "{operation}"
            );
        }
        assert!(matches!(meaning(&source, &change("create", rawdoc! {})), TranslatedChange::Ignored));
    }

    #[test]
    fn missing_fields_are_none() {
        let event = event(&SourceConfig::events("shop", "events"), &change("insert", rawdoc! { "_id": 7 }));
        assert!(event.aggregate.is_none() && event.event_type.is_none() && event.sequence.is_none());
    }

    #[test]
    fn a_deleted_document_is_an_event_with_only_its_key() {
        let source = SourceConfig::documents("shop", "events");
        let gone = rawdoc! {
            "_id": { "_data": "8201" },
            "operationType": "update",
            "documentKey": { "_id": 7 },
            "fullDocument": null,
        };
        let event = event(&source, &gone);
        assert_eq!(event.aggregate, AggregateId::new(Bson::Int32(7)));
        assert_eq!(event.event_type.as_deref(), Some("update"));
        assert_eq!(event.document, RawDocumentBuf::try_from(&doc! { "_id": 7 }).unwrap());
    }

    #[test]
    fn a_document_key_with_a_shard_key_is_an_error() {
        let translator = Translator::new(&SourceConfig::documents("shop", "events"));
        let raw = change("delete", rawdoc! {});
        let error = translator.translate(&RawChange::parse(&raw).unwrap()).unwrap_err();
        assert!(matches!(&error, Error::ShardedBy { field, .. } if field == "region"), "{error:?}");
    }

    #[test]
    fn a_filter_that_removes_required_fields_is_an_error() {
        let translator = Translator::new(&SourceConfig::events("shop", "events"));
        for raw in
            [rawdoc! { "_id": { "_data": "82" } }, rawdoc! { "_id": { "_data": "82" }, "operationType": "insert" }]
        {
            assert!(translator.translate(&RawChange::parse(&raw).unwrap()).is_err());
        }
    }
}
