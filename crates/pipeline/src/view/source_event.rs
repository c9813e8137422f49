//! An event made from a document of the source: for tests of read models, where no bus delivers it.

use std::sync::Arc;

use mongodb::bson::{Bson, RawDocument};

use super::delivered_event::{DeliveredEvent, EventBody};
use super::event_path::EventPath;
use crate::event::{AggregateId, Namespace, Operation, Term};
use crate::sequence::read_sequence;
use crate::source::SourceConfig;

/// Why a document of the source is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSourceEvent {
    #[error("has no valid aggregate id at `{0}`")]
    NoAggregateId(String),
    #[error("has no whole number as sequence at `{0}`")]
    NoSequence(String),
    #[error("has no `_id`")]
    NoId,
}

impl DeliveredEvent {
    /// The insert of this document into the first collection of a source of events, or into `collection`.
    pub fn from_source(
        source: &SourceConfig,
        collection: Option<&str>,
        document: &RawDocument,
    ) -> Result<Self, InvalidSourceEvent> {
        let find = |path: &str| {
            let found = EventPath::from_field(path)?.find(document)?;
            Bson::try_from(found.as_ref()).ok()
        };
        let first = || source.namespaces().into_iter().next().unwrap_or_else(|| Namespace::new(&source.database, ""));
        let namespace = collection.map_or_else(first, |name| Namespace::new(&source.database, name));
        let no_aggregate = || InvalidSourceEvent::NoAggregateId(source.aggregate_id.clone());
        let sequence = match &source.sequence {
            None => None,
            Some(path) => {
                let found = EventPath::from_field(path).and_then(|path| read_sequence(path.find(document)?.as_ref()));
                Some(found.ok_or_else(|| InvalidSourceEvent::NoSequence(path.clone()))?)
            }
        };
        Ok(Self {
            message_id: String::new(),
            operation: Operation::Insert,
            namespace: Arc::new(namespace),
            aggregate: find(&source.aggregate_id).and_then(AggregateId::new).ok_or_else(no_aggregate)?,
            key: find("_id").ok_or(InvalidSourceEvent::NoId)?,
            event_type: find(&source.event_type).and_then(|name| name.as_str().map(str::to_owned)),
            sequence,
            position: None,
            term: Term::new(0),
            body: EventBody::Document(document.to_owned()),
            committed: None,
            delivery_count: 0,
            dead_lettered: false,
            trace: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Document, RawDocumentBuf, doc};

    use super::*;

    #[test]
    fn an_event_has_the_fields_the_source_names() {
        let source = SourceConfig {
            aggregate_id: "head.order".into(),
            sequence: Some("head.number".into()),
            ..SourceConfig::events("shop", "events")
        };
        let read = |document: Document| {
            let event = DeliveredEvent::from_source(&source, None, &RawDocumentBuf::try_from(&document).unwrap());
            event.map(|event| (event.aggregate.value().clone(), event.sequence, event.event_type))
        };
        let whole = doc! { "_id": 1, "head": { "order": "o-1", "number": 3 }, "type": "Placed" };
        assert_eq!(read(whole), Ok(("o-1".into(), Some(3), Some("Placed".into()))));
        let unnumbered = read(doc! { "_id": 1, "head": { "order": "o-1" } });
        assert_eq!(unnumbered, Err(InvalidSourceEvent::NoSequence("head.number".into())));
        assert_eq!(
            read(doc! { "_id": 1, "head": { "number": 1 } }),
            Err(InvalidSourceEvent::NoAggregateId("head.order".into()))
        );
    }
}
