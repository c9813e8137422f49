//! Reads events from the source, where the bus left a gap or only the source can tell two events apart.
//!
//! Majority reads from the primary, page by page, outside any transaction. Needs an index on (aggregate, sequence), as the snapshot does.

use std::collections::HashMap;
use std::sync::Arc;

use mongodb::Database;
use mongodb::bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, doc};
use mongodb::options::ReadConcern;

use super::delivered_event::{DeliveredEvent, EventBody};
use super::error::Error;
use super::event_path::EventPath;
use super::identity::Identity;
use super::source_documents::{SourceCollection, open_source_collections};
use crate::event::{AggregateId, Namespace, Operation, Term};
use crate::sequence::read_sequence;
use crate::source::SourceConfig;

/// Events per page; a longer gap is healed page by page.
const PAGE_EVENTS: usize = 500;
/// Most gaps are short.
const BATCH_EVENTS: u32 = 100;
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// For reads of many aggregates: as many as a group of a build usually has, in one round trip.
const AGGREGATES_BATCH: u32 = 10_000;
const MAX_AGGREGATES_BYTES: usize = 2 * PAGE_BYTES;

/// The events of a source with a sequence.
#[derive(Clone, Debug)]
pub struct SourceEventReader {
    collections: Vec<SourceCollection>,
    aggregate: SourceField,
    sequence: SourceField,
    event_type: Option<EventPath>,
}

/// Where an event of the source is in its aggregate.
#[derive(Clone, Debug, PartialEq)]
pub enum EventPlace {
    At {
        aggregate: AggregateId,
        sequence: i64,
    },
    /// It has no usable aggregate id or sequence: the producer rejects it.
    Nowhere,
}

/// A field as a query names it, and as a document is searched for it.
#[derive(Clone, Debug)]
struct SourceField {
    name: String,
    path: Option<EventPath>,
}

impl SourceEventReader {
    /// `None` for a source without a sequence: its gaps cannot be found.
    pub fn new(database: &Database, source: &SourceConfig) -> Option<Self> {
        Some(Self {
            collections: open_source_collections(database, source),
            aggregate: SourceField::new(&source.aggregate_id),
            sequence: SourceField::new(source.sequence.as_ref()?),
            event_type: EventPath::from_field(&source.event_type),
        })
    }

    /// The place of the event with one of these `_id`s; `None` if the source has no such event. Reads what the primary has, as a client does that
    /// has just written it.
    pub async fn find_place(&self, ids: &[Bson]) -> Result<Option<EventPlace>, Error> {
        for (namespace, collection) in &self.collections {
            let found = collection.find_one(doc! { "_id": { "$in": ids } }).read_concern(ReadConcern::local());
            if let Some(document) = found.await.map_err(source_error("look up event", namespace))? {
                return Ok(Some(self.place_of(&document).unwrap_or(EventPlace::Nowhere)));
            }
        }
        Ok(None)
    }

    fn place_of(&self, document: &RawDocument) -> Option<EventPlace> {
        let aggregate = self.aggregate.path.as_ref()?.find(document)?;
        let aggregate = AggregateId::new(Bson::try_from(aggregate.as_ref()).ok()?)?;
        let sequence = read_sequence(self.sequence.path.as_ref()?.find(document)?.as_ref())?;
        Some(EventPlace::At { aggregate, sequence })
    }

    /// The first page of events in this range, both ends included.
    pub(crate) async fn read_range(
        &self,
        aggregate: &AggregateId,
        from: i64,
        to: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        self.read_page(aggregate, doc! { "$gte": from, "$lte": to }).await
    }

    /// The events of each of these aggregates up to this sequence, in order. For aggregates of few events: one query reads them all.
    /// `None`: they are too large to be held together.
    pub(crate) async fn read_aggregates(
        &self,
        aggregates: &[AggregateId],
        upto: i64,
    ) -> Result<Option<Vec<Vec<DeliveredEvent>>>, Error> {
        let wanted: HashMap<Identity, usize> =
            aggregates.iter().enumerate().map(|(at, aggregate)| (Identity::of(aggregate.value()), at)).collect();
        let values: Vec<Bson> = aggregates.iter().map(|aggregate| aggregate.value().clone()).collect();
        let (aggregate_id, sequence) = (self.aggregate.name.as_str(), self.sequence.name.as_str());
        let (mut events, mut bytes) = (vec![vec![]; aggregates.len()], 0);
        for (namespace, collection) in &self.collections {
            let failed = source_error("read events", namespace);
            let filter = doc! { aggregate_id: { "$in": &values }, sequence: { "$gte": i64::MIN, "$lte": upto } };
            let query = collection.find(filter).sort(doc! { aggregate_id: 1, sequence: 1 });
            let mut found = query.batch_size(AGGREGATES_BATCH).await.map_err(&failed)?;
            // Events of one aggregate follow each other: most ids are that of the event before.
            let mut last: Option<(RawBson, Option<usize>)> = None;
            while found.advance().await.map_err(&failed)? {
                let document = found.current();
                bytes += document.as_bytes().len();
                if bytes > MAX_AGGREGATES_BYTES {
                    return Ok(None);
                }
                let Some(id) = self.aggregate.path.as_ref().and_then(|path| path.find(document)) else { continue };
                let at = match &last {
                    Some((known, at)) if known.as_raw_bson_ref() == id.as_ref() => *at,
                    _ => {
                        let identity = Bson::try_from(id.as_ref()).ok().map(|id| Identity::of(&id));
                        let at = identity.and_then(|identity| wanted.get(&identity).copied());
                        last = Some((id.as_ref().into(), at));
                        at
                    }
                };
                if let Some(at) = at {
                    events[at].extend(self.to_event(namespace, &aggregates[at], document));
                }
            }
        }
        if self.collections.len() > 1 {
            events.iter_mut().for_each(|events| events.sort_by_key(|event: &DeliveredEvent| event.sequence));
        }
        Ok(Some(events))
    }

    /// The event with the document that a filter left of its own.
    pub(crate) fn with_document(&self, event: DeliveredEvent, document: RawDocumentBuf) -> DeliveredEvent {
        DeliveredEvent { event_type: self.event_type_of(&document), body: EventBody::Document(document), ..event }
    }

    /// The first page of events up to this sequence, lowest first.
    pub(super) async fn read_up_to(
        &self,
        aggregate: &AggregateId,
        sequence: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        // The lower bound excludes BSON types that sort before all numbers.
        self.read_page(aggregate, doc! { "$gte": i64::MIN, "$lte": sequence }).await
    }

    /// The `_id`s of all events with this sequence.
    pub(super) async fn event_ids_at(&self, aggregate: &AggregateId, sequence: i64) -> Result<Vec<Identity>, Error> {
        let mut ids = vec![];
        for (namespace, collection) in &self.collections {
            let failed = source_error("look up event", namespace);
            let filter = self.filter(aggregate, doc! { "$eq": sequence });
            let query = collection.find(filter).projection(self.id_projection());
            let mut found = query.await.map_err(&failed)?;
            // Two are enough to see that a sequence is not unique.
            while ids.len() < 2 && found.advance().await.map_err(&failed)? {
                let document = found.current();
                if self.is_of(aggregate, document) {
                    ids.extend(value_at(document, "_id").map(|id| Identity::of(&id)));
                }
            }
        }
        Ok(ids)
    }

    async fn read_page(&self, aggregate: &AggregateId, numbers: Document) -> Result<Vec<DeliveredEvent>, Error> {
        let mut page = vec![];
        for (namespace, collection) in &self.collections {
            let failed = source_error("read missing events", namespace);
            let filter = self.filter(aggregate, numbers.clone());
            let query = collection.find(filter).sort(doc! { self.sequence.name.as_str(): 1 }).batch_size(BATCH_EVENTS);
            let mut found = query.await.map_err(&failed)?;
            let (mut bytes, mut events) = (0, 0);
            // Stops early on large events; the gap is then healed with the next page.
            while bytes < PAGE_BYTES && events < PAGE_EVENTS && found.advance().await.map_err(&failed)? {
                let document = found.current();
                if self.is_of(aggregate, document) {
                    (bytes, events) = (bytes + document.as_bytes().len(), events + 1);
                    page.extend(self.to_event(namespace, aggregate, document));
                }
            }
        }
        // Each collection returns its lowest events, so the merged page has the lowest of all.
        page.sort_by_key(|event: &DeliveredEvent| event.sequence);
        page.truncate(PAGE_EVENTS);
        Ok(page)
    }

    fn filter(&self, aggregate: &AggregateId, numbers: Document) -> Document {
        let (aggregate_id, sequence) = (self.aggregate.name.as_str(), self.sequence.name.as_str());
        doc! { aggregate_id: { "$eq": aggregate.value().clone() }, sequence: numbers }
    }

    fn id_projection(&self) -> Document {
        match self.aggregate.name.as_str() {
            // A part of the `_id` cannot be named beside it.
            name if name == "_id" || name.starts_with("_id.") => doc! { "_id": 1 },
            name => doc! { "_id": 1, name: 1 },
        }
    }

    /// The filter alone is not enough: with a collation of the collection it also matches other aggregates, and in any collection an array that
    /// contains the id. A query with the simple collation could not use the index.
    fn is_of(&self, aggregate: &AggregateId, document: &RawDocument) -> bool {
        let found = self.aggregate.path.as_ref().and_then(|path| path.find(document));
        let found = found.and_then(|found| Bson::try_from(found.as_ref()).ok());
        found.is_some_and(|found| Identity::of(&found) == Identity::of(aggregate.value()))
    }

    fn event_type_of(&self, document: &RawDocument) -> Option<String> {
        let found = self.event_type.as_ref().and_then(|path| path.find(document));
        found.and_then(|found| found.as_ref().as_str().map(str::to_owned))
    }

    fn to_event(
        &self,
        namespace: &Arc<Namespace>,
        aggregate: &AggregateId,
        document: &RawDocument,
    ) -> Option<DeliveredEvent> {
        Some(DeliveredEvent {
            message_id: String::new(),
            operation: Operation::Insert,
            namespace: namespace.clone(),
            aggregate: aggregate.clone(),
            key: value_at(document, "_id")?,
            event_type: self.event_type_of(document),
            sequence: Some(read_sequence(self.sequence.path.as_ref()?.find(document)?.as_ref())?),
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

impl SourceField {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), path: EventPath::from_field(name) }
    }
}

fn source_error(action: &'static str, namespace: &Namespace) -> impl Fn(mongodb::error::Error) -> Error {
    let namespace = namespace.to_string();
    move |source| Error::Source { action, namespace: namespace.clone(), source: source.into() }
}

fn value_at(document: &RawDocument, field: &str) -> Option<Bson> {
    Bson::try_from(document.get(field).ok().flatten()?).ok()
}
