//! Reads cursors outside any transaction, for the audit. What it returns may be out of date at once; only a transaction decides.

use std::collections::HashMap;

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};

use super::CURSORS;
use super::cursor::Cursor;
use super::cursor_document::{CursorIdScheme, read_cursor};
use super::error::Error;
use crate::event::{AggregateId, Namespace};
use crate::stored::Identity;

/// The cursors of a source of events.
#[derive(Clone, Debug)]
pub struct CursorReader {
    cursors: Collection<RawDocumentBuf>,
    naming: CursorIdScheme,
    /// Not part of the identity of an aggregate of events.
    namespace: Namespace,
}

impl CursorReader {
    pub fn new(database: &Database, pipeline: impl Into<String>) -> Self {
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let naming = CursorIdScheme { pipeline: pipeline.into(), by_collection: false };
        let cursors = database.collection_with_options(CURSORS, options);
        Self { cursors, naming, namespace: Namespace::new("", "") }
    }

    /// The key of an aggregate in the result of [`Self::read`].
    pub fn identity(&self, aggregate: &AggregateId) -> Identity {
        self.naming.identity(&self.namespace, aggregate)
    }

    /// Majority-committed cursors; aggregates without a cursor are left out.
    pub async fn read(
        &self,
        aggregates: impl Iterator<Item = &AggregateId>,
    ) -> Result<HashMap<Identity, Cursor>, Error> {
        let id = |aggregate| Document::try_from(&*self.naming.id(&self.namespace, aggregate));
        let ids: Vec<Document> = aggregates.filter_map(|aggregate| id(aggregate).ok()).collect();
        let failed = |source: mongodb::error::Error| Error::Store {
            action: "read cursors",
            database: self.cursors.namespace().db,
            source: source.into(),
        };
        let mut cursors = HashMap::with_capacity(ids.len());
        let mut found = self.cursors.find(doc! { "_id": { "$in": ids } }).await.map_err(failed)?;
        while found.advance().await.map_err(failed)? {
            let (identity, cursor) = read_cursor(found.current())?;
            cursors.insert(identity, cursor);
        }
        Ok(cursors)
    }
}
