//! The source as the server is asked for it: one change stream over its collections.

use std::time::Duration;

use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::RawBatchCursor;
use mongodb::{Client, Collection, Database};

use super::config::Config;
use super::error::{Error, with_timeout};
use crate::event::{Namespace, ResumeToken};
use crate::source::{FullDocument, SourceConfig, SourceKind};

/// Where a stream is opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamStart<'a> {
    Now,
    At(Timestamp),
    /// Always by `startAfter`, which also takes an invalidate's token; `resumeAfter` does not.
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

    /// Opens the stream; its first batch is in the cursor.
    pub(super) async fn open(&self, from: StreamStart<'_>, timeout: Duration) -> Result<RawBatchCursor, Error> {
        self.open_with(from, &self.config.filter, self.config.batch_size.get(), timeout).await
    }

    /// Opens the stream without reading anything: its first batch is empty.
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
        // Only what a majority has is shown by a change stream in any case; said once more so that no client's setting contradicts it.
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
        if let Some(full_document) = self.full_document() {
            options.insert("fullDocument", full_document);
        }
        let mut stages = vec![doc! { "$changeStream": options }];
        stages.extend(self.only_ours());
        stages.extend(filter.iter().cloned());
        stages.push(doc! { "$changeStreamSplitLargeEvent": {} });
        stages
    }

    /// An insert always carries its document. `required`, not `whenAvailable`: a post-image that is gone must not look like a document
    /// that is gone.
    fn full_document(&self) -> Option<&'static str> {
        match (self.source.kind, self.source.full_document) {
            (SourceKind::Events, _) => None,
            (SourceKind::Documents, FullDocument::Lookup) => Some("updateLookup"),
            (SourceKind::Documents, FullDocument::PostImage) => Some("required"),
        }
    }

    /// Of a whole database, our collections; and what says that the database is gone.
    fn only_ours(&self) -> Option<Document> {
        if self.source.collection.is_some() {
            return None;
        }
        let names: Vec<Bson> = self.source.collections.iter().map(|name| name.as_str().into()).collect();
        let gone = doc! { "operationType": { "$in": ["dropDatabase", "invalidate"] } };
        Some(doc! { "$match": { "$or": [{ "ns.coll": { "$in": names } }, gone] } })
    }
}
