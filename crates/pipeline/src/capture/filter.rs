//! Applies the change-event filter to documents that a snapshot read.
//!
//! A filter is written against change events. This module wraps each document as an insert event, and each missing key as a delete event, and
//! lets the server run the stages over them, so a snapshot passes exactly what a stream would pass. The documents travel to the server once
//! more; only a pipeline with a filter pays for that, and only during its snapshot.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};

use super::change::RawChange;
use super::error::{Error, with_timeout};
use super::source_client::SourceClient;
use crate::event::{Namespace, ResumeToken};

/// Bytes of documents in one command. A command may hold 16 MB, and so may one document.
const MAX_COMMAND_BYTES: usize = 8 << 20;

/// A document that passed the filter.
#[derive(Debug)]
pub(super) struct FilteredDocument {
    /// Index of the document in the input.
    pub(super) at: usize,
    /// The document after the filter, which may remove fields.
    pub(super) document: Option<RawDocumentBuf>,
}

/// The operation of the synthetic change event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyntheticOperation {
    Insert,
    /// Only the `_id` of the document is used.
    Delete,
}

/// The documents that pass, in input order.
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
        if bytes + size > MAX_COMMAND_BYTES && !events.is_empty() {
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
    let passed =
        with_timeout("filter the documents of a snapshot", source_client.config.initial_timeout(), request).await?;
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
