//! Snapshot: reads all documents of the source in an order that can be resumed.
//!
//! `events` are read along the index (aggregate, sequence), `documents` along `_id`, collection by collection in name order. A resumed scan uses
//! `min`, because `$gt` does not cross BSON types. On any member, the reads see at least everything committed before the start token; the
//! stream delivers what is committed later.

use std::sync::Arc;

use futures_util::StreamExt;
use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, RawDocument, Timestamp, doc};
use mongodb::options::{Collation, Hint, ReadConcern};
use mongodb::raw_batch_cursor::{RawBatch, SessionRawBatchCursor};

use super::CaptureItem;
use super::change::{CursorBatch, batch_documents};
use super::error::{Error, with_timeout};
use super::field_path::{FieldPath, FieldValue};
use super::filter::{self, SyntheticOperation};
use super::handle::CaptureState;
use super::retry_state::RetryState;
use super::source_client::SourceClient;
use super::stream::{ReaderExit, SourceReader};
use super::sweep::sweep_position;
use crate::checkpoint::{CheckpointPhase, SnapshotProgress};
use crate::event::{Namespace, ResumeToken};
use crate::source::{SourceConfig, SourceKind};

const SCAN: &str = "scan the source";

impl SourceReader {
    /// Scans from `progress` to the end of the last collection, sweeps, and ends with a watermark at the start of the stream.
    pub(super) async fn run_snapshot(
        &mut self,
        start: &ResumeToken,
        progress: SnapshotProgress,
    ) -> Result<(), ReaderExit> {
        let mut scan =
            SnapshotScan { order: ScanOrder::from_source(&self.source_client.source), start: start.clone(), progress };
        if sweep_position(&scan.progress).is_none() {
            self.scan_all(&mut scan).await?;
        }
        self.sweep(&mut scan).await?;
        self.finish_snapshot(scan).await
    }

    /// The collections of the source in snapshot order.
    pub(super) fn ordered_namespaces(&self) -> Vec<Arc<Namespace>> {
        let mut namespaces = self.translator.namespaces().to_vec();
        namespaces.sort();
        namespaces
    }

    async fn scan_all(&mut self, scan: &mut SnapshotScan) -> Result<(), ReaderExit> {
        let last = scan.position()?;
        for namespace in self.ordered_namespaces() {
            if last.as_ref().is_none_or(|last| last.collection <= namespace.collection) {
                self.scan_collection(scan, &namespace).await?;
            }
        }
        Ok(())
    }

    async fn finish_snapshot(&mut self, scan: SnapshotScan) -> Result<(), ReaderExit> {
        tracing::info!(scanned = scan.progress.scanned, "snapshot complete; following the change stream");
        let cluster_time = scan.start.cluster_time();
        let mark = CaptureItem::Watermark(CheckpointPhase::Stream { token: scan.start }, cluster_time);
        Ok(self.sender.send(vec![mark], || self.handle.set_state(CaptureState::Full)).await?)
    }

    async fn scan_collection(&mut self, scan: &mut SnapshotScan, namespace: &Arc<Namespace>) -> Result<(), ReaderExit> {
        let mut retry = RetryState::new(self.source_client.config.initial_timeout());
        loop {
            match self.scan_from_position(scan, namespace, &mut retry).await {
                Err(ReaderExit::Error(error)) if error.is_transient() => self.back_off(&mut retry, &error).await,
                ended => return ended,
            }
        }
    }

    pub(super) async fn back_off(&self, retry: &mut RetryState, error: &Error) {
        let pause = retry.record_failure(error);
        self.handle.set_state(CaptureState::Waiting);
        tokio::time::sleep(pause).await;
        self.handle.record_reopen();
    }

    /// Scans from the current position to the end of the collection.
    async fn scan_from_position(
        &mut self,
        scan: &mut SnapshotScan,
        namespace: &Arc<Namespace>,
        retry: &mut RetryState,
    ) -> Result<(), ReaderExit> {
        self.handle.set_state(CaptureState::Opening);
        let timeout = retry.timeout();
        let mut session = scan.session(&self.source_client, timeout).await?;
        let mut cursor = scan.open(&self.source_client, namespace, &mut session, timeout).await?;
        let mut batches = cursor.stream(&mut session);
        while let Some(batch) = with_timeout(SCAN, retry.timeout(), async { batches.next().await.transpose() }).await? {
            retry.record_success();
            self.handle.record_response(CaptureState::Scanning { scanned: scan.progress.scanned });
            self.send_scanned(scan, namespace, &batch).await?;
        }
        Ok(())
    }

    async fn send_scanned(
        &mut self,
        scan: &mut SnapshotScan,
        namespace: &Arc<Namespace>,
        batch: &RawBatch,
    ) -> Result<(), ReaderExit> {
        let reply = CursorBatch::parse(batch.as_raw_document())?;
        let last = scan.position()?.filter(|last| last.collection == namespace.collection);
        let mut read = Vec::new();
        let mut progress = scan.progress.clone();
        for document in batch_documents(reply.events) {
            let document = document?;
            if !last.as_ref().is_some_and(|last| last.is_document(document)) {
                scan.order.advance(&mut progress, namespace, document);
                read.push((document, progress.clone()));
            }
        }
        let captured = self.translate_scanned(scan, namespace, read).await?;
        let events = captured.iter().filter(|captured| captured.event().is_some()).count();
        self.sender.send(captured, || self.handle.set_state(CaptureState::Full)).await?;
        self.handle.set_state(CaptureState::Scanning { scanned: progress.scanned });
        self.handle.record_captured(events, None, None);
        scan.progress = progress;
        Ok(())
    }

    /// Applies the filter; adds a watermark if the filter removed the last document, so that progress still moves.
    async fn translate_scanned(
        &self,
        scan: &SnapshotScan,
        namespace: &Arc<Namespace>,
        read: Vec<(&RawDocument, SnapshotProgress)>,
    ) -> Result<Vec<CaptureItem>, Error> {
        let Some(reached) = read.last().map(|(_, progress)| progress.clone()) else { return Ok(Vec::new()) };
        let start = &scan.start;
        let event = |document| self.translator.snapshot_event(start, namespace, document, Some(document));
        if self.source_client.config.filter.is_empty() {
            return read
                .into_iter()
                .map(|(document, progress)| Ok(CaptureItem::Snapshot(event(document)?, progress)))
                .collect();
        }
        let whole: Vec<_> = read.iter().map(|(document, _)| *document).collect();
        let kept = filter::apply(&self.source_client, start, namespace, SyntheticOperation::Insert, &whole).await?;
        let mut captured = Vec::with_capacity(kept.len() + 1);
        for filter::FilteredDocument { at, document } in &kept {
            let (key, progress) = read.get(*at).ok_or(Error::FilterChangesId)?;
            let document = document.as_deref().ok_or(Error::Unreadable { problem: "has no `fullDocument`" })?;
            let event = self.translator.snapshot_event(start, namespace, key, Some(document))?;
            captured.push(CaptureItem::Snapshot(event, progress.clone()));
        }
        if kept.last().is_none_or(|last| last.at + 1 < read.len()) {
            captured.push(CaptureItem::Watermark(
                CheckpointPhase::Snapshot { start: start.clone(), progress: reached },
                None,
            ));
        }
        Ok(captured)
    }
}

/// A running snapshot.
#[derive(Debug)]
pub(super) struct SnapshotScan {
    order: ScanOrder,
    pub(super) start: ResumeToken,
    pub(super) progress: SnapshotProgress,
}

impl SnapshotScan {
    fn position(&self) -> Result<Option<ScanPosition>, Error> {
        self.progress
            .after
            .as_ref()
            .map(|after| ScanPosition::from_bson(after).ok_or(Error::UnreadableProgress))
            .transpose()
    }

    /// A session whose reads see everything before the start token on any member.
    pub(super) async fn session(
        &self,
        source_client: &SourceClient,
        timeout: std::time::Duration,
    ) -> Result<ClientSession, Error> {
        let request = async { source_client.client().start_session().causal_consistency(true).await };
        let mut session = with_timeout("start a session on the source", timeout, request).await?;
        if let Some(time) = self.start.cluster_time() {
            session.advance_operation_time(previous_tick(time));
        }
        Ok(session)
    }

    async fn open(
        &self,
        source_client: &SourceClient,
        namespace: &Namespace,
        session: &mut ClientSession,
        timeout: std::time::Duration,
    ) -> Result<SessionRawBatchCursor, Error> {
        let collection = source_client.collection(namespace);
        let keys = self.order.keys();
        let mut find = collection.find(doc! {}).hint(Hint::Keys(keys.clone())).sort(keys);
        find = find.batch_size(source_client.config.batch_size.get()).read_concern(ReadConcern::majority());
        if let Some(collation) = self.order.collation() {
            find = find.collation(collation);
        }
        if let Some(last) = self.position()?.filter(|last| last.collection == namespace.collection) {
            find = find.min(self.order.min_bound(last)?);
        }
        with_timeout(SCAN, timeout, find.session(session).batch()).await
    }
}

/// The start token lies one tick after the last write. A read that waits for that tick fails while nobody writes, so it waits for the tick before.
fn previous_tick(time: Timestamp) -> Timestamp {
    match time.increment.checked_sub(1) {
        Some(increment) => Timestamp { increment, ..time },
        None => Timestamp { time: time.time.saturating_sub(1), increment: u32::MAX },
    }
}

/// The index that the scan reads along.
#[derive(Debug)]
struct ScanOrder {
    kind: SourceKind,
    fields: Vec<(String, FieldPath)>,
}

impl ScanOrder {
    fn from_source(source: &SourceConfig) -> Self {
        let names = match source.kind {
            // `check` refuses a source without a sequence; this branch only keeps the code total.
            SourceKind::Events => {
                [Some(source.aggregate_id.clone()), source.sequence.clone()].into_iter().flatten().collect()
            }
            SourceKind::Documents => vec!["_id".to_owned()],
        };
        Self {
            kind: source.kind,
            fields: names.into_iter().map(|name| (name.clone(), FieldPath::new(&name))).collect(),
        }
    }

    fn keys(&self) -> Document {
        self.fields.iter().map(|(name, _)| (name.clone(), Bson::Int32(1))).collect()
    }

    /// The collation of the index: `check` requires the simple one for `events`; the `_id` index has that of the collection.
    fn collation(&self) -> Option<Collation> {
        match self.kind {
            SourceKind::Events => Some(Collation::builder().locale("simple").build()),
            SourceKind::Documents => None,
        }
    }

    fn min_bound(&self, last: ScanPosition) -> Result<Document, Error> {
        if last.key.len() != self.fields.len() {
            return Err(Error::UnreadableProgress);
        }
        Ok(self.fields.iter().map(|(name, _)| name.clone()).zip(last.key).collect())
    }

    fn advance(&self, progress: &mut SnapshotProgress, namespace: &Namespace, document: &RawDocument) {
        progress.scanned += 1;
        let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        if let (Some(key), Some(id)) = (self.index_key(document), id) {
            progress.after = Some(ScanPosition { collection: namespace.collection.clone(), key, id }.into_bson());
        }
    }

    /// The key of the document in the index. A document with an array in its key has several entries; the scan then resumes from the
    /// document before it, which repeats a few documents and skips none.
    fn index_key(&self, document: &RawDocument) -> Option<Vec<Bson>> {
        let value = |(_, path): &(String, FieldPath)| match path.find(document) {
            FieldValue::Value(value) => Bson::try_from(value).ok(),
            FieldValue::Missing => Some(Bson::Null),
            FieldValue::Array => None,
        };
        self.fields.iter().map(value).collect()
    }
}

/// The last scanned document. Others may share its key, in an order that differs between members, so a resumed scan starts at the key and
/// skips only this document.
#[derive(Debug, PartialEq)]
struct ScanPosition {
    collection: String,
    key: Vec<Bson>,
    id: Bson,
}

impl ScanPosition {
    fn from_bson(after: &Bson) -> Option<Self> {
        let after = after.as_document()?;
        let collection = after.get_str("in").ok()?.to_owned();
        let key = after.get_array("key").ok()?.clone();
        Some(Self { collection, key, id: after.get("id")?.clone() })
    }

    fn into_bson(self) -> Bson {
        doc! { "in": self.collection, "key": self.key, "id": self.id }.into()
    }

    fn is_document(&self, document: &RawDocument) -> bool {
        document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok()).as_ref() == Some(&self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::rawdoc;

    fn order() -> ScanOrder {
        ScanOrder::from_source(&SourceConfig {
            sequence: Some("version".into()),
            ..SourceConfig::events("shop", "events")
        })
    }

    fn none() -> SnapshotProgress {
        SnapshotProgress { run: "run".into(), scanned: 0, after: None }
    }

    #[test]
    fn progress_stores_collection_key_and_document_id() {
        let mut progress = none();
        let namespace = Namespace::new("shop", "events");
        order().advance(&mut progress, &namespace, &rawdoc! { "_id": 7, "aggregateId": "a", "version": 3 });
        let last = ScanPosition::from_bson(progress.after.as_ref().unwrap()).unwrap();
        assert_eq!(progress.scanned, 1);
        assert_eq!(last, ScanPosition { collection: "events".into(), key: vec!["a".into(), 3.into()], id: 7.into() });
        assert!(last.is_document(&rawdoc! { "_id": 7 }) && !last.is_document(&rawdoc! { "_id": 8 }));
        assert_eq!(order().min_bound(last).unwrap(), doc! { "aggregateId": "a", "version": 3 });
    }

    #[test]
    fn a_missing_field_is_null_in_the_index_key() {
        assert_eq!(order().index_key(&rawdoc! { "_id": 7 }), Some(vec![Bson::Null, Bson::Null]));
    }

    #[test]
    fn an_array_in_the_key_does_not_move_the_scan_position() {
        let (mut progress, namespace) = (none(), Namespace::new("shop", "events"));
        order().advance(&mut progress, &namespace, &rawdoc! { "_id": 7, "aggregateId": ["a", "z"], "version": 3 });
        assert_eq!(progress, SnapshotProgress { scanned: 1, ..none() });
    }
}
