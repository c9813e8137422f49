//! Reads documents of a read model together with the cursors of their aggregates, from one snapshot of the read-model database.
//!
//! All reads of one call share a snapshot, so a document shows exactly the events up to the sequence of its cursor, however fast events flow.
//! For read models whose documents have the ids of aggregates of a source of events. Writes nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::{ClientSession, Database};

use super::cursor::Cursor;
use super::cursor_document::{CursorIdScheme, StoredDocument, read_cursor};
use super::error::Error;
use super::fold::FoldScratch;
use super::identity::Identity;
use super::parked::{DISCARDED, parked_event_id};
use super::{CURSORS, PARKED_EVENTS};
use crate::event::{AggregateId, Namespace};

/// Reads one read model of one pipeline.
#[derive(Clone, Debug)]
pub struct SnapshotReader {
    database: Database,
    naming: CursorIdScheme,
    /// Not part of the identity of an aggregate of events.
    namespace: Namespace,
    /// Its collection.
    model: String,
    /// The name under which its discarded events are kept.
    parked_name: String,
}

/// An aggregate and its document, at one time.
#[derive(Clone, Debug)]
pub struct AggregateSnapshot {
    pub aggregate: AggregateId,
    pub cursor: Cursor,
    pub document: Option<RawDocumentBuf>,
    /// The `_id`s of events that an operator discarded from this read model.
    pub discarded: HashSet<Identity>,
}

/// A whole read model, at one time.
#[derive(Debug)]
pub struct ModelCopy {
    /// Without documents.
    pub aggregates: Vec<AggregateSnapshot>,
    /// The collection with the copy.
    pub documents: Arc<str>,
}

const COPY_DOCUMENTS: usize = 1_000;
const COPY_BYTES: usize = 8 * 1024 * 1024;

impl SnapshotReader {
    pub fn new(database: &Database, pipeline: impl Into<String>, model: impl Into<String>) -> Self {
        let (model, naming) = (model.into(), CursorIdScheme { pipeline: pipeline.into(), by_collection: false });
        let (parked_name, namespace) = (model.clone(), Namespace::new("", ""));
        Self { database: database.clone(), naming, namespace, model, parked_name }
    }

    /// For a version of a read model that is parked under another name than that of its collection.
    #[must_use]
    pub fn with_parked_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.parked_name);
        self
    }

    /// The aggregates after this one in the order of the cursors, or the first ones; empty at the end.
    pub async fn next_aggregates(
        &self,
        after: Option<&AggregateId>,
        limit: i64,
    ) -> Result<Vec<AggregateSnapshot>, Error> {
        let lowest = match after {
            Some(aggregate) => doc! { "$gt": self.id(aggregate.value()) },
            None => doc! { "$gte": self.id(&Bson::MinKey) },
        };
        let mut bounds = lowest;
        bounds.insert("$lt", self.id(&Bson::MaxKey));
        self.read_where(doc! { "_id": bounds }, limit).await
    }

    /// These aggregates; those without a cursor are left out.
    pub async fn read(&self, aggregates: &[AggregateId]) -> Result<Vec<AggregateSnapshot>, Error> {
        let ids: Vec<_> = aggregates.iter().map(|aggregate| self.id(aggregate.value())).collect();
        self.read_where(doc! { "_id": { "$in": ids } }, 0).await
    }

    /// All aggregates, and a copy of all documents in a scratch collection, from one snapshot.
    pub async fn copy_whole(&self, scratch: &FoldScratch) -> Result<ModelCopy, Error> {
        let documents = scratch.create_collection().await?;
        let copied = self.copy_into(scratch, &documents).await;
        match copied {
            Ok(aggregates) => Ok(ModelCopy { aggregates, documents }),
            Err(error) => {
                scratch.drop_collection(&documents).await;
                Err(error)
            }
        }
    }

    async fn copy_into(&self, scratch: &FoldScratch, copy: &str) -> Result<Vec<AggregateSnapshot>, Error> {
        let failed = |error| self.store_error("copy a snapshot", error);
        let mut session = self.start_snapshot().await?;
        let bounds = doc! { "$gte": self.id(&Bson::MinKey), "$lt": self.id(&Bson::MaxKey) };
        let discarded = doc! { "_id": bounds.clone(), "_id.model": &self.parked_name, "state": DISCARDED };
        let mut discarded = self.read_discarded(discarded, &mut session).await?;
        let mut aggregates = vec![];
        for document in self.find(CURSORS, doc! { "_id": bounds }, 0, &mut session).await? {
            let (_, cursor) = read_cursor(&document)?;
            let Some(aggregate) = self.aggregate_of(&document) else { continue };
            let discarded = discarded.remove(&Identity::of(aggregate.value())).unwrap_or_default();
            aggregates.push(AggregateSnapshot { aggregate, cursor, document: None, discarded });
        }
        let model = self.database.collection::<RawDocumentBuf>(&self.model);
        let mut found = model.find(doc! {}).session(&mut session).await.map_err(failed)?;
        let (mut chunk, mut bytes) = (vec![], 0);
        while found.advance(&mut session).await.map_err(failed)? {
            bytes += found.current().as_bytes().len();
            chunk.push(found.current().to_owned());
            if chunk.len() >= COPY_DOCUMENTS || bytes >= COPY_BYTES {
                scratch.insert(copy, &std::mem::take(&mut chunk)).await?;
                bytes = 0;
            }
        }
        scratch.insert(copy, &chunk).await?;
        Ok(aggregates)
    }

    /// Aggregates at random, at most `count`.
    pub async fn sample_aggregates(&self, count: i64) -> Result<Vec<AggregateId>, Error> {
        let bounds = doc! { "$gte": self.id(&Bson::MinKey), "$lt": self.id(&Bson::MaxKey) };
        let found = self.sample(CURSORS, doc! { "_id": bounds }, "$_id.aggregate", count).await?;
        Ok(found.into_iter().filter_map(AggregateId::new).collect())
    }

    /// Ids of documents at random, at most `count`.
    pub async fn sample_document_ids(&self, count: i64) -> Result<Vec<Bson>, Error> {
        self.sample(&self.model, doc! {}, "$_id", count).await
    }

    /// The ids of documents after this one, in order; empty at the end.
    pub async fn next_document_ids(&self, after: Option<&Bson>, limit: i64) -> Result<Vec<Bson>, Error> {
        let failed = |error| self.store_error("read documents", error);
        let documents = self.database.collection::<Document>(&self.model);
        let mut find = documents.find(doc! {}).projection(doc! { "_id": 1 }).sort(doc! { "_id": 1 });
        find = find.hint(mongodb::options::Hint::Keys(doc! { "_id": 1 }));
        // `$gt` does not cross BSON types.
        if let Some(after) = after {
            find = find.min(doc! { "_id": after.clone() });
        }
        // `min` includes its bound.
        let mut found = find.limit(limit + 1).await.map_err(failed)?;
        let mut ids = vec![];
        while found.advance().await.map_err(failed)? {
            ids.extend(value_of(found.current().get("_id").ok().flatten()));
        }
        let is_after = |id: &Bson| after.is_none_or(|after| Identity::of(after) != Identity::of(id));
        Ok(ids.into_iter().filter(is_after).collect())
    }

    /// Those of these documents that exist although their aggregate has no cursor.
    pub async fn without_cursor(&self, ids: &[Bson]) -> Result<Vec<Bson>, Error> {
        let mut session = self.start_snapshot().await?;
        let cursor_ids: Vec<_> = ids.iter().map(|id| self.id(id)).collect();
        let cursors = self.find(CURSORS, doc! { "_id": { "$in": cursor_ids } }, 0, &mut session).await?;
        let mut known = HashSet::new();
        for cursor in &cursors {
            known.extend(self.aggregate_of(cursor).map(|aggregate| Identity::of(aggregate.value())));
        }
        let unknown: Vec<Bson> = ids.iter().filter(|id| !known.contains(&Identity::of(id))).cloned().collect();
        if unknown.is_empty() {
            return Ok(unknown);
        }
        // A document may have been deleted since its id was read.
        let documents = self.find(&self.model, doc! { "_id": { "$in": unknown } }, 0, &mut session).await?;
        Ok(documents.iter().filter_map(|document| value_of(document.get("_id").ok().flatten())).collect())
    }

    async fn read_where(&self, filter: Document, limit: i64) -> Result<Vec<AggregateSnapshot>, Error> {
        let mut session = self.start_snapshot().await?;
        let mut aggregates = vec![];
        for document in self.find(CURSORS, filter, limit, &mut session).await? {
            let (_, cursor) = read_cursor(&document)?;
            aggregates.extend(self.aggregate_of(&document).map(|aggregate| (aggregate, cursor)));
        }
        if aggregates.is_empty() {
            return Ok(vec![]);
        }
        let ids: Vec<_> = aggregates.iter().map(|(aggregate, _)| aggregate.value().clone()).collect();
        let documents = self.find(&self.model, doc! { "_id": { "$in": ids } }, 0, &mut session).await?;
        let by_id = |document: RawDocumentBuf| Some((Identity::of(&value_of(document.get("_id").ok()?)?), document));
        let mut documents: HashMap<_, _> = documents.into_iter().filter_map(by_id).collect();
        let mut discarded =
            self.find_discarded(aggregates.iter().map(|(aggregate, _)| aggregate), &mut session).await?;
        let snapshot = |(aggregate, cursor): (AggregateId, Cursor)| {
            let id = Identity::of(aggregate.value());
            let (document, discarded) = (documents.remove(&id), discarded.remove(&id).unwrap_or_default());
            AggregateSnapshot { aggregate, cursor, document, discarded }
        };
        Ok(aggregates.into_iter().map(snapshot).collect())
    }

    /// The `_id`s of discarded events, by aggregate.
    async fn find_discarded(
        &self,
        aggregates: impl Iterator<Item = &AggregateId>,
        session: &mut ClientSession,
    ) -> Result<HashMap<Identity, HashSet<Identity>>, Error> {
        let bound = |aggregate: &AggregateId, number: Bson| {
            let number = mongodb::bson::RawBson::try_from(number).expect("a bound is BSON");
            let id = parked_event_id(&self.naming, &self.namespace, aggregate, &self.parked_name, number);
            Document::try_from(&*id).expect("it was just written")
        };
        let range = |aggregate| {
            doc! { "_id": { "$gte": bound(aggregate, Bson::MinKey), "$lt": bound(aggregate, Bson::MaxKey) } }
        };
        let ranges: Vec<_> = aggregates.map(range).collect();
        self.read_discarded(doc! { "$or": ranges, "state": DISCARDED }, session).await
    }

    async fn read_discarded(
        &self,
        filter: Document,
        session: &mut ClientSession,
    ) -> Result<HashMap<Identity, HashSet<Identity>>, Error> {
        let mut discarded: HashMap<_, HashSet<_>> = HashMap::new();
        for document in self.find(PARKED_EVENTS, filter, 0, session).await? {
            let event_id = StoredDocument { what: "parked event", document: &document }.value("eventId")?;
            if let Some(aggregate) = self.aggregate_of(&document) {
                discarded.entry(Identity::of(aggregate.value())).or_default().insert(Identity::of(&event_id));
            }
        }
        Ok(discarded)
    }

    async fn start_snapshot(&self) -> Result<ClientSession, Error> {
        let started = self.database.client().start_session().snapshot(true).await;
        started.map_err(|error| self.store_error("begin snapshot", error))
    }

    async fn find(
        &self,
        collection: &str,
        filter: Document,
        limit: i64,
        session: &mut ClientSession,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let failed = |error| self.store_error("read a snapshot", error);
        let collection = self.database.collection::<RawDocumentBuf>(collection);
        let find = collection.find(filter).sort(doc! { "_id": 1 }).limit(limit);
        let mut found = find.session(&mut *session).await.map_err(failed)?;
        let mut documents = vec![];
        while found.advance(session).await.map_err(failed)? {
            documents.push(found.current().to_owned());
        }
        Ok(documents)
    }

    async fn sample(&self, collection: &str, filter: Document, value: &str, count: i64) -> Result<Vec<Bson>, Error> {
        let failed = |error| self.store_error("sample documents", error);
        let stages = [
            doc! { "$match": filter },
            doc! { "$sample": { "size": count } },
            doc! { "$project": { "_id": 0, "value": value } },
        ];
        let mut found = self.database.collection::<Document>(collection).aggregate(stages).await.map_err(failed)?;
        let mut values = HashMap::new();
        while found.advance().await.map_err(failed)? {
            let value = value_of(found.current().get("value").ok().flatten());
            // `$sample` may return a document twice.
            values.extend(value.map(|value| (Identity::of(&value), value)));
        }
        Ok(values.into_values().collect())
    }

    fn id(&self, aggregate: &Bson) -> Document {
        doc! { "pipeline": &self.naming.pipeline, "aggregate": aggregate.clone() }
    }

    fn aggregate_of(&self, document: &RawDocumentBuf) -> Option<AggregateId> {
        let id = document.get_document("_id").ok()?;
        AggregateId::new(value_of(id.get("aggregate").ok().flatten())?)
    }

    fn store_error(&self, action: &'static str, error: mongodb::error::Error) -> Error {
        Error::Store { action, database: self.database.name().to_owned(), source: error.into() }
    }
}

fn value_of(value: Option<mongodb::bson::RawBsonRef<'_>>) -> Option<Bson> {
    Bson::try_from(value?).ok()
}
