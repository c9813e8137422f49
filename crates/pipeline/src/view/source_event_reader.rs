//! Reads events from the source, where the bus left a gap or only the source can tell two events apart.
//!
//! Majority reads from the primary, page by page, outside any transaction. Needs an index on (aggregate, sequence), as the snapshot does.

use std::sync::Arc;

use mongodb::bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};

use super::delivered_event::{DeliveredEvent, EventBody};
use super::error::Error;
use super::event_path::EventPath;
use super::identity::Identity;
use crate::event::{AggregateId, Namespace, Operation, Term};
use crate::source::SourceConfig;

/// Events per page; a longer gap is healed page by page.
const PAGE_EVENTS: i64 = 500;
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// The events of a source with a sequence.
#[derive(Clone, Debug)]
pub struct SourceEventReader {
    collections: Vec<(Arc<Namespace>, Collection<RawDocumentBuf>)>,
    aggregate: String,
    sequence: String,
    event_type: Option<EventPath>,
}

impl SourceEventReader {
    /// `None` for a source without a sequence: its gaps cannot be found.
    pub fn new(database: &Database, source: &SourceConfig) -> Option<Self> {
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let opened = |namespace: Namespace| {
            let collection = database.collection_with_options(&namespace.collection, options.clone());
            (Arc::new(namespace), collection)
        };
        Some(Self {
            collections: source.namespaces().into_iter().map(opened).collect(),
            aggregate: source.aggregate_id.clone(),
            sequence: source.sequence.clone()?,
            event_type: EventPath::from_field(&source.event_type),
        })
    }

    /// The first page of events in this range, both ends included.
    pub(super) async fn read_range(
        &self,
        aggregate: &AggregateId,
        from: i64,
        to: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        self.read_page(aggregate, doc! { "$gte": from, "$lte": to }).await
    }

    /// The first page of events below this sequence, lowest first.
    pub(super) async fn read_below(
        &self,
        aggregate: &AggregateId,
        sequence: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        // The lower bound excludes BSON types that sort before all numbers.
        self.read_page(aggregate, doc! { "$gte": i64::MIN, "$lt": sequence }).await
    }

    /// The `_id`s of all events with this sequence.
    pub(super) async fn event_ids_at(&self, aggregate: &AggregateId, sequence: i64) -> Result<Vec<Identity>, Error> {
        let mut ids = vec![];
        for (namespace, collection) in &self.collections {
            let failed = source_error("look up event", namespace);
            let filter = self.filter(aggregate, doc! { "$eq": sequence });
            // Two are enough to see that a sequence is not unique.
            let query = collection.find(filter).projection(doc! { "_id": 1 }).limit(2);
            let mut found = query.await.map_err(&failed)?;
            while found.advance().await.map_err(&failed)? {
                ids.extend(value_at(found.current(), "_id").map(|id| Identity::of(&id)));
            }
        }
        Ok(ids)
    }

    /// The document of an event, for a replay without a stored body.
    pub(super) async fn read_document(
        &self,
        namespace: &Namespace,
        key: &Bson,
    ) -> Result<Option<RawDocumentBuf>, Error> {
        let found = self.collections.iter().find(|(known, _)| **known == *namespace);
        let Some((namespace, collection)) = found else { return Ok(None) };
        let query = collection.find_one(doc! { "_id": { "$eq": key.clone() } });
        query.await.map_err(source_error("look up event", namespace))
    }

    async fn read_page(&self, aggregate: &AggregateId, numbers: Document) -> Result<Vec<DeliveredEvent>, Error> {
        let mut page = vec![];
        for (namespace, collection) in &self.collections {
            let failed = source_error("read missing events", namespace);
            let filter = self.filter(aggregate, numbers.clone());
            let query = collection.find(filter).sort(doc! { self.sequence.as_str(): 1 }).limit(PAGE_EVENTS);
            let mut found = query.await.map_err(&failed)?;
            let mut bytes = 0;
            // Stops early on large events; the gap is then healed with the next page.
            while bytes < PAGE_BYTES && found.advance().await.map_err(&failed)? {
                bytes += found.current().as_bytes().len();
                page.extend(self.to_event(namespace, aggregate, found.current()));
            }
        }
        // Each collection returns its lowest events, so the merged page has the lowest of all.
        page.sort_by_key(|event: &DeliveredEvent| event.sequence);
        page.truncate(usize::try_from(PAGE_EVENTS).expect("500 is not negative"));
        Ok(page)
    }

    fn filter(&self, aggregate: &AggregateId, numbers: Document) -> Document {
        doc! { self.aggregate.as_str(): { "$eq": aggregate.value().clone() }, self.sequence.as_str(): numbers }
    }

    fn to_event(
        &self,
        namespace: &Arc<Namespace>,
        aggregate: &AggregateId,
        document: &RawDocument,
    ) -> Option<DeliveredEvent> {
        let event_type = self.event_type.as_ref().and_then(|path| path.find(document));
        Some(DeliveredEvent {
            message_id: String::new(),
            operation: Operation::Insert,
            namespace: namespace.clone(),
            aggregate: aggregate.clone(),
            key: value_at(document, "_id")?,
            event_type: event_type.and_then(|found| found.as_ref().as_str().map(str::to_owned)),
            sequence: Some(as_integer(EventPath::from_field(&self.sequence)?.find(document)?.as_ref())?),
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

fn source_error(action: &'static str, namespace: &Namespace) -> impl Fn(mongodb::error::Error) -> Error {
    let namespace = namespace.to_string();
    move |source| Error::Source { action, namespace: namespace.clone(), source: source.into() }
}

fn value_at(document: &RawDocument, field: &str) -> Option<Bson> {
    Bson::try_from(document.get(field).ok().flatten()?).ok()
}

fn as_integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(i64::from(number)),
        RawBsonRef::Int64(number) => Some(number),
        #[expect(clippy::cast_possible_truncation, reason = "integral, and below the precision limit of a double")]
        RawBsonRef::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(number as i64),
        _ => None,
    }
}
