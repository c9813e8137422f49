//! Sweep: ends a snapshot of `documents` with a delete for every key that the read models hold and the source no longer has.
//!
//! After lost history no stream contains the deletes; only the cursors of the read models still name the keys. The sweep pages through the cursors
//! in id order, looks each page of keys up in the source, and hands on a delete, positioned at the start of the snapshot, for each missing key. A
//! resumed sweep starts after the last cursor of the saved progress.
//!
//! A key deleted while the snapshot runs is deleted by the stream as well; the second delete changes nothing. The sweep skips keys that the read
//! models already hold as deleted. A key without a cursor may still have messages on Service Bus; consumers skip those once the sweep has
//! raised the [`epoch_floor`]. Never writes the read models: consumers do.

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
use super::snapshot_scan::SnapshotScan;
use super::stream::{ReaderExit, SourceReader};
use crate::checkpoint::{CheckpointPhase, SnapshotProgress};
use crate::event::{Epoch, Namespace};
use crate::source::SourceKind;
use crate::stored::Identity;
use crate::stored::cursors::{CURSORS, DELETED_FIELD};

const LIST: &str = "read the cursors of the read models";
const LOOK_UP: &str = "look up keys in the source";
/// Keys in one query. A key may be as large as a document, and a command holds 16 MB.
const PAGE: usize = 1_000;
const PAGE_BYTES: usize = 4 << 20;
/// Field of the snapshot progress that holds the last swept cursor.
const SWEPT: &str = "swept";

/// The cursors of the read models.
#[derive(Clone, Debug)]
pub(super) struct ReadModelCursors {
    cursors: Collection<Document>,
    pipeline: String,
    /// Epoch of the snapshot.
    epoch: Epoch,
    /// Reads must see at least this cluster time.
    as_of: Option<Timestamp>,
}

impl ReadModelCursors {
    pub(super) fn new(database: &Database, pipeline: &str, epoch: Epoch) -> Self {
        Self { cursors: database.collection(CURSORS), pipeline: pipeline.to_owned(), epoch, as_of: None }
    }

    /// The next cursors of a collection in id order. Empty when none are left.
    async fn next_page(
        &self,
        namespace: &Namespace,
        after: Option<&Document>,
        most: usize,
    ) -> Result<CursorPage, MongoError> {
        let bound = |aggregate| doc! { "pipeline": &self.pipeline, "collection": &namespace.collection, "aggregate": aggregate };
        let mut range = doc! { "$gte": bound(Bson::MinKey), "$lte": bound(Bson::MaxKey) };
        if let Some(after) = after {
            range.insert("$gt", after);
        }
        let there = doc! { "_id": range, DELETED_FIELD: { "$ne": true } };
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

type MongoError = mongodb::error::Error;

/// Cursor ids, each with its document key.
#[derive(Debug, Default)]
struct CursorPage(Vec<(Document, Bson)>);

impl CursorPage {
    fn add(&mut self, cursor: Document) {
        let id = cursor.get_document("_id").ok();
        if let Some((id, key)) = id.and_then(|id| Some((id.clone(), id.get("aggregate")?.clone()))) {
            self.0.push((id, key));
        }
    }

    /// A regular expression under `$in` matches instead of being compared. No document has one as its `_id`, but a forged message can leave
    /// a cursor with one: it would read all keys of the source.
    fn comparable_keys(&self) -> Vec<&Bson> {
        let keys = self.0.iter().map(|(_, key)| key);
        keys.filter(|key| !matches!(key, Bson::RegularExpression(_))).collect()
    }
}

/// The cursor after which a sweep resumes, if one has started.
pub(super) fn sweep_position(progress: &SnapshotProgress) -> Option<&Document> {
    progress.after.as_ref()?.as_document()?.get_document(SWEPT).ok()
}

impl SourceReader {
    /// Hands on a delete for each missing key, from the position of `snapshot_scan` to the last cursor.
    pub(super) async fn sweep(&mut self, scan: &mut SnapshotScan) -> Result<(), ReaderExit> {
        if self.source_client.source.kind != SourceKind::Documents {
            return Ok(());
        }
        let Some(mut views) = self.views.clone() else {
            tracing::info!("sweep skipped: no read model database is configured");
            return Ok(());
        };
        self.raise_epoch_floor(&mut views, scan.progress.scanned).await?;
        let (mut checked, mut gone) = (0, 0);
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
                        (checked, gone) = (checked + swept.keys, gone + swept.gone);
                    }
                    Err(ReaderExit::Error(error)) if error.is_transient() => self.back_off(&mut retry, &error).await,
                    Err(end) => return Err(end),
                }
            }
        }
        tracing::info!(checked, gone, "sweep complete: sent deletes for keys that the source no longer has");
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

    /// The keys of the page that the source still has.
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
        let keys = page.comparable_keys();
        let collection = self.source_client.collection(namespace);
        let request = collection.find(doc! { "_id": { "$in": keys } }).projection(doc! { "_id": 1 });
        let found = async {
            let mut found = request.read_concern(ReadConcern::majority()).session(&mut session).await?;
            found.stream(&mut session).try_collect::<Vec<Document>>().await
        };
        let found = with_timeout(LOOK_UP, timeout, found).await?;
        Ok(found.iter().filter_map(|document| document.get("_id")).map(Identity::of).collect())
    }

    /// Translates missing keys to deletes that pass the filter; adds a watermark at the end of the page.
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

/// Counts of one page.
struct SweepCounts {
    keys: usize,
    gone: usize,
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Regex, raw::cstr};

    use super::*;

    #[test]
    fn a_regular_expression_is_never_looked_up() {
        let mut page = CursorPage::default();
        let regex = Regex { pattern: cstr!(".*").into(), options: cstr!("").into() };
        page.add(
            doc! { "_id": { "pipeline": "shop", "collection": "orders", "aggregate": Bson::RegularExpression(regex) } },
        );
        page.add(doc! { "_id": { "pipeline": "shop", "collection": "orders", "aggregate": "a" } });
        assert_eq!(page.0.len(), 2);
        assert_eq!(page.comparable_keys(), [&Bson::from("a")]);
    }
}
