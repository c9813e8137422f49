//! Opens change streams over the collections of the source.

use std::time::Duration;

use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::RawBatchCursor;
use mongodb::{Client, Collection, Database};

use super::config::Config;
use super::error::{Error, with_timeout};
use crate::event::{Namespace, ResumeToken};
use crate::source::{FullDocument, SourceConfig, SourceKind};

/// The position at which a stream is opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamStart<'a> {
    Now,
    At(Timestamp),
    /// Uses `startAfter`, which accepts the token of an invalidate event; `resumeAfter` does not.
    After(&'a ResumeToken),
}

#[derive(Clone, Debug)]
pub(super) struct SourceClient {
    client: Client,
    pub(super) source: SourceConfig,
    pub(super) config: Config,
}

impl SourceClient {
    pub(super) fn new(client: &Client, source: SourceConfig, config: Config) -> Self {
        Self { client: client.clone(), source, config }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn database(&self) -> Database {
        self.client.database(&self.source.database)
    }

    pub(super) fn collection(&self, namespace: &Namespace) -> Collection<Document> {
        self.client.database(&namespace.database).collection(&namespace.collection)
    }

    /// Opens the stream and fetches its first batch.
    pub(super) async fn open(&self, from: StreamStart<'_>, timeout: Duration) -> Result<RawBatchCursor, Error> {
        self.open_with(from, &self.config.filter, self.config.batch_size.get(), timeout).await
    }

    /// Opens the stream with an empty first batch.
    pub(super) async fn open_unread(
        &self,
        from: StreamStart<'_>,
        filter: &[Document],
    ) -> Result<RawBatchCursor, Error> {
        self.open_with(from, filter, 0, self.config.initial_timeout()).await
    }

    async fn open_with(
        &self,
        from: StreamStart<'_>,
        filter: &[Document],
        batch_size: u32,
        timeout: Duration,
    ) -> Result<RawBatchCursor, Error> {
        let pipeline = self.pipeline(from, filter);
        let database = self.database();
        let only: Option<Collection<Document>> = self.source.collection.as_ref().map(|name| database.collection(name));
        let request = match &only {
            Some(collection) => collection.aggregate(pipeline),
            None => database.aggregate(pipeline),
        };
        // A change stream requires majority read concern; a different client default would make the server refuse it.
        let request =
            request.batch_size(batch_size).max_await_time(self.config.max_await).read_concern(ReadConcern::majority());
        with_timeout("open the change stream", timeout, request.batch()).await
    }

    fn pipeline(&self, from: StreamStart<'_>, filter: &[Document]) -> Vec<Document> {
        let mut options = Document::new();
        match from {
            StreamStart::Now => {}
            StreamStart::At(time) => drop(options.insert("startAtOperationTime", time)),
            StreamStart::After(token) => drop(options.insert("startAfter", token.to_document())),
        }
        if let Some(full_document) = self.full_document_option() {
            options.insert("fullDocument", full_document);
        }
        let mut stages = vec![doc! { "$changeStream": options }];
        stages.extend(self.match_our_collections());
        stages.extend(filter.iter().cloned());
        stages.push(doc! { "$changeStreamSplitLargeEvent": {} });
        stages
    }

    /// Inserts always carry their document. `required`, not `whenAvailable`: a missing post-image must not look like a deleted document.
    fn full_document_option(&self) -> Option<&'static str> {
        match (self.source.kind, self.source.full_document) {
            (SourceKind::Events, _) => None,
            (SourceKind::Documents, FullDocument::Lookup) => Some("updateLookup"),
            (SourceKind::Documents, FullDocument::PostImage) => Some("required"),
        }
    }

    /// For a database-wide stream: keeps our collections, and the events that say that the database is gone.
    fn match_our_collections(&self) -> Option<Document> {
        if self.source.collection.is_some() {
            return None;
        }
        let names: Vec<Bson> = self.source.collections.iter().map(|name| name.as_str().into()).collect();
        let gone = doc! { "operationType": { "$in": ["dropDatabase", "invalidate"] } };
        Some(doc! { "$match": { "$or": [{ "ns.coll": { "$in": names } }, gone] } })
    }
}
