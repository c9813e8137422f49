//! The end of a snapshot of `documents`: a delete for every key that the read models know and the source no longer has.
//!
//! What was deleted in a history that is lost is in no stream; only the cursors of the read models still name it. They are read in the order of
//! their ids, a page at a time, each page's keys are looked up in the source, and what is not there is handed on as deleted at the
//! snapshot's start. A sweep resumes after the last cursor it has behind it.
//!
//! What is deleted while the snapshot runs is in the stream as well: then the delete is told once more than it happened, which changes no
//! read model that deletes. What the read models know as deleted is passed over. A key of which no message was ever applied has no cursor: what
//! consumers left of it on the bus they pass over, once a sweep has set its [`mark`]. Never touches the read models: that is a consumer's.

mod epoch_floor;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};

use super::CaptureItem;
use super::error::{Error, with_timeout};
use super::filter::{self, SyntheticOperation};
use super::handle::CaptureState;
use super::retry_state::RetryState;
use super::scan::SnapshotScan;
use super::stream::{ReaderExit, SourceReader};
use crate::checkpoint::{CheckpointPhase, SnapshotProgress};
use crate::event::{Epoch, Namespace};
use crate::source::SourceKind;
use crate::view::{CURSORS, GONE, Identity};

const LIST: &str = "read the cursors of the read models";
const LOOK_UP: &str = "look keys up in the source";
/// Keys in one question to the source. A key may be as large as a document, and a command holds 16 MB.
const PAGE: usize = 1_000;
const PAGE_BYTES: usize = 4 << 20;
/// Names the cursor that a snapshot's progress has reached.
const SWEPT: &str = "swept";

/// Where the read models keep what they know.
#[derive(Clone, Debug)]
pub(super) struct ReadModelCursors {
    cursors: Collection<Document>,
    pipeline: String,
    /// The snapshot's.
    epoch: Epoch,
    /// What is read must not be older.
    as_of: Option<Timestamp>,
}

impl ReadModelCursors {
    pub(super) fn new(database: &Database, pipeline: &str, epoch: Epoch) -> Self {
        Self { cursors: database.collection(CURSORS), pipeline: pipeline.to_owned(), epoch, as_of: None }
    }

    /// The ids of the next cursors of a collection, in their order. None are left when it is empty.
    async fn next_page(
        &self,
        namespace: &Namespace,
        after: Option<&Document>,
        most: usize,
    ) -> Result<CursorPage, DriverError> {
        let bound = |aggregate| doc! { "pipeline": &self.pipeline, "collection": &namespace.collection, "aggregate": aggregate };
        let mut range = doc! { "$gte": bound(Bson::MinKey), "$lte": bound(Bson::MaxKey) };
        if let Some(after) = after {
            range.insert("$gt", after);
        }
        let there = doc! { "_id": range, GONE: { "$ne": true } };
        let request = self.cursors.find(there).projection(doc! { "_id": 1 }).sort(doc! { "_id": 1 });
        let mut session = self.cursors.client().start_session().causal_consistency(true).await?;
        if let Some(time) = self.as_of {
            session.advance_operation_time(time);
        }
        let request = request.limit(most as i64).read_concern(ReadConcern::majority());
        let mut found = request.session(&mut session).await?;
        let mut page = CursorPage::default();
        let mut bytes = 0;
        while bytes < PAGE_BYTES && found.advance(&mut session).await? {
            bytes += found.current().as_bytes().len();
            page.add(found.deserialize_current()?);
        }
        Ok(page)
    }
}

type DriverError = mongodb::error::Error;

/// Cursors by their ids, each with the key it is of.
#[derive(Debug, Default)]
struct CursorPage(Vec<(Document, Bson)>);

impl CursorPage {
    fn add(&mut self, cursor: Document) {
        let id = cursor.get_document("_id").ok();
        if let Some((id, key)) = id.and_then(|id| Some((id.clone(), id.get("aggregate")?.clone()))) {
            self.0.push((id, key));
        }
    }
}

/// The cursor behind which a sweep is resumed, if one has begun.
pub(super) fn sweep_position(progress: &SnapshotProgress) -> Option<&Document> {
    progress.after.as_ref()?.as_document()?.get_document(SWEPT).ok()
}

impl SourceReader {
    /// Hands on a delete for what is gone, from where `scan` stands to the last cursor.
    pub(super) async fn sweep(&mut self, scan: &mut SnapshotScan) -> Result<(), ReaderExit> {
        if self.source_client.source.kind != SourceKind::Documents {
            return Ok(());
        }
        let Some(mut views) = self.views.clone() else {
            tracing::info!("not told where the read models are: what the source no longer has is not swept");
            return Ok(());
        };
        self.raise_epoch_floor(&mut views, scan.progress.scanned).await?;
        let (mut looked_at, mut gone) = (0, 0);
        for namespace in self.ordered_namespaces() {
            let reached = sweep_position(&scan.progress).and_then(|cursor| cursor.get_str("collection").ok());
            if reached.is_some_and(|reached| reached > namespace.collection.as_str()) {
                continue;
            }
            let mut retry = RetryState::new(self.source_client.config.initial_timeout());
            loop {
                match self.sweep_page(scan, &views, &namespace, retry.timeout()).await {
                    Ok(SweepCounts { keys: 0, .. }) => break,
                    Ok(swept) => {
                        retry.record_success();
                        (looked_at, gone) = (looked_at + swept.keys, gone + swept.gone);
                    }
                    Err(ReaderExit::Error(error)) if error.is_transient() => self.back_off(&mut retry, &error).await,
                    Err(end) => return Err(end),
                }
            }
        }
        tracing::info!(looked_at, gone, "swept what the read models know and the source no longer has");
        Ok(())
    }

    async fn sweep_page(
        &mut self,
        scan: &mut SnapshotScan,
        views: &ReadModelCursors,
        namespace: &Arc<Namespace>,
        timeout: Duration,
    ) -> Result<SweepCounts, ReaderExit> {
        let after = sweep_position(&scan.progress)
            .filter(|cursor| cursor.get_str("collection").is_ok_and(|it| it == namespace.collection));
        let most = PAGE.min(self.source_client.config.batch_size.get() as usize);
        let page = with_timeout(LIST, timeout, views.next_page(namespace, after, most)).await?;
        let held = self.find_existing(scan, namespace, &page, timeout).await?;
        self.handle.record_response(CaptureState::Scanning { scanned: scan.progress.scanned });
        let mut progress = scan.progress.clone();
        let (keys, mut gone) = (page.0.len(), Vec::new());
        for (cursor, key) in page.0 {
            progress.scanned += 1;
            progress.after = Some(doc! { SWEPT: cursor }.into());
            if !held.contains(&Identity::of(&key)) {
                gone.push((key, progress.clone()));
            }
        }
        let captured = self.translate_deletes(scan, namespace, gone, &progress).await?;
        let events = captured.iter().filter(|captured| captured.event().is_some()).count();
        self.sender.send(captured, || self.handle.set_state(CaptureState::Full)).await?;
        self.handle.record_captured(events, None, None);
        scan.progress = progress;
        Ok(SweepCounts { keys, gone: events })
    }

    /// Those of the page's keys that the source has.
    async fn find_existing(
        &self,
        scan: &SnapshotScan,
        namespace: &Namespace,
        page: &CursorPage,
        timeout: Duration,
    ) -> Result<HashSet<Identity>, Error> {
        if page.0.is_empty() {
            return Ok(HashSet::new());
        }
        let mut session = scan.session(&self.source_client, timeout).await?;
        let keys: Vec<&Bson> = page.0.iter().map(|(_, key)| key).collect();
        let collection = self.source_client.collection(namespace);
        let request = collection.find(doc! { "_id": { "$in": keys } }).projection(doc! { "_id": 1 });
        let found = async {
            let mut found = request.read_concern(ReadConcern::majority()).session(&mut session).await?;
            found.stream(&mut session).try_collect::<Vec<Document>>().await
        };
        let found = with_timeout(LOOK_UP, timeout, found).await?;
        Ok(found.iter().filter_map(|document| document.get("_id")).map(Identity::of).collect())
    }

    /// What the filter leaves of the deletes, and a mark at the page's end.
    async fn translate_deletes(
        &self,
        scan: &SnapshotScan,
        namespace: &Arc<Namespace>,
        gone: Vec<(Bson, SnapshotProgress)>,
        reached: &SnapshotProgress,
    ) -> Result<Vec<CaptureItem>, Error> {
        let unreadable = |_| Error::Unreadable { problem: "is not BSON" };
        let keys = gone.iter().map(|(key, _)| RawDocumentBuf::try_from(&doc! { "_id": key }).map_err(unreadable));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let passed: Vec<usize> = if self.source_client.config.filter.is_empty() {
            (0..keys.len()).collect()
        } else {
            let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
            let kept =
                filter::apply(&self.source_client, &scan.start, namespace, SyntheticOperation::Delete, &keys).await?;
            kept.into_iter().map(|kept| kept.at).collect()
        };
        let mut captured = Vec::with_capacity(passed.len() + 1);
        for at in passed {
            let (key, (_, progress)) = keys.get(at).zip(gone.get(at)).ok_or(Error::FilterChangesId)?;
            let event = self.translator.sweep_delete(&scan.start, namespace, key)?;
            captured.push(CaptureItem::Snapshot(event, progress.clone()));
        }
        if scan.progress != *reached {
            captured.push(CaptureItem::Watermark(
                CheckpointPhase::Snapshot { start: scan.start.clone(), progress: reached.clone() },
                None,
            ));
        }
        Ok(captured)
    }
}

/// What became of a page.
struct SweepCounts {
    keys: usize,
    gone: usize,
}
