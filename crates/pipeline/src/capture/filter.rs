//! The filter over what a snapshot read.
//!
//! A filter is written against change events, so each document is made to look like the insert it once was, and each key that is gone like
//! its delete, and the server itself runs the stages over them: the answer is the one a stream would give. That sends the documents back once more, which only a pipeline with a
//! filter that starts at the beginning pays for, once.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};

use super::change::RawChange;
use super::error::{Error, with_timeout};
use super::source_client::SourceClient;
use crate::event::{Namespace, ResumeToken};

/// Documents in one command; it may hold 16 MB, and one document may have that alone.
const LARGEST_COMMAND: usize = 8 << 20;

/// A document that passed.
#[derive(Debug)]
pub(super) struct FilteredDocument {
    /// Which one it was.
    pub(super) at: usize,
    /// As the filter leaves it.
    pub(super) document: Option<RawDocumentBuf>,
}

/// What a document is made to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyntheticOperation {
    Insert,
    /// Of the document only its `_id` is looked at.
    Delete,
}

/// Those of `documents` that pass, in their order.
pub(super) async fn apply(
    source_client: &SourceClient,
    start: &ResumeToken,
    namespace: &Namespace,
    operation: SyntheticOperation,
    documents: &[&RawDocument],
) -> Result<Vec<FilteredDocument>, Error> {
    let mut passed = Vec::new();
    let (mut events, mut bytes) = (Vec::new(), 0);
    for (at, document) in documents.iter().enumerate() {
        let size = document.as_bytes().len();
        if bytes + size > LARGEST_COMMAND && !events.is_empty() {
            passed.extend(submit(source_client, std::mem::take(&mut events)).await?);
            bytes = 0;
        }
        events.push(synthetic_event(start, namespace, operation, at, document)?);
        bytes += size;
    }
    if !events.is_empty() {
        passed.extend(submit(source_client, events).await?);
    }
    Ok(passed)
}

async fn submit(source_client: &SourceClient, events: Vec<Bson>) -> Result<Vec<FilteredDocument>, Error> {
    let mut stages = vec![doc! { "$documents": { "$literal": events } }];
    stages.extend(source_client.config.filter.iter().cloned());
    let database = source_client.database();
    let request =
        async { database.aggregate(stages).with_type::<RawDocumentBuf>().await?.try_collect::<Vec<_>>().await };
    let passed = with_timeout("filter what a snapshot read", source_client.config.initial_timeout(), request).await?;
    passed.iter().map(|event| parse_result(event)).collect()
}

fn synthetic_event(
    start: &ResumeToken,
    namespace: &Namespace,
    operation: SyntheticOperation,
    at: usize,
    document: &RawDocument,
) -> Result<Bson, Error> {
    let document = Document::try_from(document).map_err(|_| Error::Unreadable { problem: "is not BSON" })?;
    let mut event = doc! {
        "_id": { "_data": start.key(), "at": i64::try_from(at).expect("a batch is small") },
        "operationType": match operation { SyntheticOperation::Insert => "insert", SyntheticOperation::Delete => "delete" },
        "ns": { "db": &namespace.database, "coll": &namespace.collection },
        "documentKey": { "_id": document.get("_id").cloned() },
        "clusterTime": start.cluster_time(),
    };
    if operation == SyntheticOperation::Insert {
        event.insert("fullDocument", document);
    }
    Ok(event.into())
}

fn parse_result(event: &RawDocument) -> Result<FilteredDocument, Error> {
    let at = event.get_document("_id").ok().and_then(|id| id.get_i64("at").ok());
    let at = at.and_then(|at| usize::try_from(at).ok()).ok_or(Error::FilterChangesId)?;
    Ok(FilteredDocument { at, document: RawChange::parse(event)?.document.map(RawDocument::to_owned) })
}
