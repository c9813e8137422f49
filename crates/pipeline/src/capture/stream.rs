//! Follows the change stream: opens it after a token, reads ahead, and reopens it after every failure.
//!
//! A task fetches the next batch while this one is translated; at most one raw batch waits. Every wait for the server has a timeout: the driver
//! would wait forever on a dead connection. A reopened stream starts after the last item that was handed on, so a term hands on every event
//! exactly once.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::CaptureItem;
use super::change::{CursorBatch, FragmentBuffer, FragmentJoin, batch_documents};
use super::error::Error;
use super::handle::{CaptureState, Handle};
use super::queue::{CaptureSender, QueueClosed};
use super::retry_state::RetryState;
use super::source_client::{SourceClient, StreamStart};
use super::sweep::ReadModelCursors;
use super::translate::{TranslatedChange, Translator};
use crate::checkpoint::CheckpointPhase;
use crate::event::ResumeToken;
use crate::failpoints::{Failpoint, LoopStall};

const READ: &str = "read the change stream";
/// Other operations may arrive by the thousand; log them at most this often.
const REPORT_FOREIGN_EVERY: Duration = Duration::from_secs(60);

/// Why reading ended.
#[derive(Debug)]
pub(super) enum ReaderExit {
    Error(Error),
    QueueClosed,
}

impl From<Error> for ReaderExit {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<QueueClosed> for ReaderExit {
    fn from(_: QueueClosed) -> Self {
        Self::QueueClosed
    }
}

/// Reads for one term.
#[derive(Debug)]
pub(super) struct SourceReader {
    pub(super) source_client: SourceClient,
    pub(super) views: Option<ReadModelCursors>,
    pub(super) translator: Translator,
    pub(super) sender: CaptureSender,
    pub(super) handle: Handle,
    pub(super) non_inserts: NonInsertReport,
}

impl SourceReader {
    /// Returns only on an error that a retry cannot fix.
    pub(super) async fn follow_stream(&mut self, mut token: ResumeToken) -> Result<Infallible, ReaderExit> {
        let mut retry = RetryState::new(self.source_client.config.initial_timeout());
        loop {
            let before = token.clone();
            let pause = match self.read_stream(&mut token, &mut retry).await {
                // The server closes a stream when its collection is dropped or renamed. Reopen at once only if the stream made progress.
                Ok(()) if token != before => None,
                Ok(()) => Some(retry.record_failure(&Error::StreamEnded)),
                Err(ReaderExit::Error(error)) if error.is_transient() => Some(retry.record_failure(&error)),
                Err(end) => return Err(end),
            };
            if let Some(pause) = pause {
                self.handle.set_state(CaptureState::Waiting);
                tokio::time::sleep(pause).await;
            }
            self.handle.record_reopen();
        }
    }

    /// Opens the stream after `token` and reads until it ends; advances `token` with every item handed on.
    async fn read_stream(&mut self, token: &mut ResumeToken, retry: &mut RetryState) -> Result<(), ReaderExit> {
        self.handle.set_state(CaptureState::Opening);
        let start = match Failpoint::ResumeFromNow.is_enabled() {
            true => StreamStart::Now,
            false => StreamStart::After(token),
        };
        let cursor = self.source_client.open(start, retry.timeout()).await?;
        let mut ahead = ReadAhead::start(cursor, retry.timeout());
        let mut fragments = FragmentBuffer::default();
        while let Some(batch) = ahead.next().await {
            let batch = batch?;
            self.handle.record_response(CaptureState::Reading);
            retry.record_success();
            let captured = self.translate(&batch, &mut fragments, token)?;
            self.send(captured, token).await?;
        }
        Ok(())
    }

    /// Translates one batch; adds a watermark if the batch ends after its last event.
    fn translate(
        &mut self,
        batch: &RawBatch,
        fragments: &mut FragmentBuffer,
        after: &ResumeToken,
    ) -> Result<Vec<CaptureItem>, Error> {
        let reply = CursorBatch::parse(batch.as_raw_document())?;
        let mut captured = Vec::new();
        let (mut non_inserts, mut collection_drops) = (0, 0);
        for raw in batch_documents(reply.events) {
            match fragments.join(raw?)? {
                FragmentJoin::Partial(token) => {
                    if Failpoint::TokenInsideSplit.is_enabled() {
                        captured.push(watermark(token));
                    }
                    continue;
                }
                FragmentJoin::Whole(change) => match self.translator.translate(&change)? {
                    TranslatedChange::Event(event) => captured.push(CaptureItem::Change(event)),
                    TranslatedChange::NonInsert => non_inserts += 1,
                    TranslatedChange::CollectionDropped => collection_drops += 1,
                    TranslatedChange::Ignored => {}
                },
            }
            fragments.clear();
        }
        self.report_ignored(non_inserts, collection_drops);
        if let Some(token) = reply.token
            && !fragments.is_partial()
            && captured.last().and_then(CaptureItem::token).unwrap_or(after) != &token
        {
            captured.push(watermark(token));
        }
        Ok(captured)
    }

    async fn send(&mut self, captured: Vec<CaptureItem>, token: &mut ResumeToken) -> Result<(), QueueClosed> {
        let Some(last) = captured.last() else { return Ok(()) };
        let (reached, cluster_time) =
            (last.token().expect("every item of a stream has a token").clone(), last.cluster_time());
        let events = captured.iter().filter(|captured| captured.event().is_some()).count();
        if events > 0 {
            LoopStall::Capture.block_if_enabled().await;
        }
        self.sender.send(captured, || self.handle.set_state(CaptureState::Full)).await?;
        self.handle.set_state(CaptureState::Reading);
        self.handle.record_captured(events, Some(&reached), cluster_time);
        *token = reached;
        Ok(())
    }

    fn report_ignored(&mut self, non_inserts: u64, collection_drops: u64) {
        if non_inserts + collection_drops > 0 {
            self.handle.record_ignored(non_inserts, collection_drops);
        }
        if collection_drops > 0 {
            tracing::warn!(
                "collection of the source dropped or renamed; capturing what is written under its name from now on"
            );
        }
        self.non_inserts.add(non_inserts, Instant::now());
    }
}

fn watermark(token: ResumeToken) -> CaptureItem {
    let cluster_time = token.cluster_time();
    CaptureItem::Watermark(CheckpointPhase::Stream { token }, cluster_time)
}

/// Counts updates, replaces and deletes in an append-only source, and logs them at intervals.
#[derive(Debug, Default)]
pub(super) struct NonInsertReport {
    unreported: u64,
    reported_at: Option<Instant>,
}

impl NonInsertReport {
    fn add(&mut self, operations: u64, now: Instant) {
        self.unreported += operations;
        let due = self.reported_at.is_none_or(|reported_at| now.duration_since(reported_at) >= REPORT_FOREIGN_EVERY);
        if self.unreported > 0 && due {
            let operations = self.unreported;
            tracing::warn!(operations, "ignored updates, replaces or deletes in a source of kind `events`");
            (self.unreported, self.reported_at) = (0, Some(now));
        }
    }
}

/// Fetches the next batch as soon as the last one is taken. Ends with the stream, or after an error.
struct ReadAhead {
    batches: mpsc::Receiver<Result<RawBatch, Error>>,
    _task: AbortOnDropHandle<()>,
}

impl ReadAhead {
    fn start(cursor: RawBatchCursor, timeout: Duration) -> Self {
        let (sender, batches) = mpsc::channel(1);
        let task = tokio::spawn(read_ahead(cursor, timeout, sender));
        Self { batches, _task: AbortOnDropHandle::new(task) }
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Option<Result<RawBatch, Error>> {
        self.batches.recv().await
    }
}

async fn read_ahead(mut cursor: RawBatchCursor, timeout: Duration, batches: mpsc::Sender<Result<RawBatch, Error>>) {
    while let Ok(place) = batches.reserve().await {
        let batch = match tokio::time::timeout(timeout, cursor.next()).await {
            Ok(Some(batch)) => batch.map_err(|error| Error::from_driver(READ, error)),
            Ok(None) => return,
            Err(_) => Err(Error::Timeout { operation: READ, waited: timeout }),
        };
        let failed = batch.is_err();
        place.send(batch);
        if failed {
            return;
        }
    }
}
