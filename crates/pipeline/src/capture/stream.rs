//! Follows the change stream: opened after a token, read ahead, reopened by hand for as long as it takes.
//!
//! A task of its own asks for the next batch while this one is translated; at most one raw batch waits. Every wait for the server ends:
//! the driver would wait for ever on a connection that leads nowhere. What was handed on decides where a reopened stream begins,
//! so nothing is handed on twice within a term and nothing is left out.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::CaptureItem;
use super::change::{CursorBatch, FragmentBuffer, FragmentJoin, documents};
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
/// Foreign operations may come by the thousand; people are told this often.
const REPORT_FOREIGN_EVERY: Duration = Duration::from_secs(60);

/// Why reading ended: for good, or because nobody takes what is read.
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
    pub(super) outlet: CaptureSender,
    pub(super) handle: Handle,
    pub(super) foreign: NonInsertReport,
}

impl SourceReader {
    /// Ends only for good.
    pub(super) async fn follow(&mut self, mut token: ResumeToken) -> Result<Infallible, ReaderExit> {
        let mut trouble = RetryState::none(self.source_client.config.patience());
        loop {
            let before = token.clone();
            let pause = match self.read_on(&mut token, &mut trouble).await {
                // The server closes a stream whose collection is dropped or renamed; one that brought nothing is not hurried after.
                Ok(()) if token != before => None,
                Ok(()) => Some(trouble.failed(&Error::StreamEnded)),
                Err(ReaderExit::Error(error)) if error.is_transient() => Some(trouble.failed(&error)),
                Err(end) => return Err(end),
            };
            if let Some(pause) = pause {
                self.handle.enter(CaptureState::Waiting);
                tokio::time::sleep(pause).await;
            }
            self.handle.reopened();
        }
    }

    /// Opens the stream after `token` and reads until it ends, moving `token` along with what is handed on.
    async fn read_on(&mut self, token: &mut ResumeToken, trouble: &mut RetryState) -> Result<(), ReaderExit> {
        self.handle.enter(CaptureState::Opening);
        let cursor = self.source_client.open(StreamStart::After(token), trouble.patience()).await?;
        let mut ahead = ReadAhead::start(cursor, trouble.patience());
        let mut fragments = FragmentBuffer::default();
        while let Some(batch) = ahead.next().await {
            let batch = batch?;
            self.handle.alive(CaptureState::Reading);
            trouble.over();
            let captured = self.translate(&batch, &mut fragments, token)?;
            self.hand_on(captured, token).await?;
        }
        Ok(())
    }

    /// What is to be handed on of one batch, with a mark at its end if its last event does not stand there.
    fn translate(
        &mut self,
        batch: &RawBatch,
        fragments: &mut FragmentBuffer,
        after: &ResumeToken,
    ) -> Result<Vec<CaptureItem>, Error> {
        let reply = CursorBatch::read(batch.as_raw_document())?;
        let mut captured = Vec::new();
        let (mut foreign, mut dropped) = (0, 0);
        for raw in documents(reply.events) {
            match fragments.join(raw?)? {
                FragmentJoin::Part(token) => {
                    if Failpoint::TokenInsideSplit.is_enabled() {
                        captured.push(mark(token));
                    }
                    continue;
                }
                FragmentJoin::Whole(change) => match self.translator.change(&change)? {
                    TranslatedChange::Event(event) => captured.push(CaptureItem::Change(event)),
                    TranslatedChange::NonInsert => foreign += 1,
                    TranslatedChange::CollectionDropped => dropped += 1,
                    TranslatedChange::Ignored => {}
                },
            }
            fragments.clear();
        }
        self.report(foreign, dropped);
        if let Some(token) = reply.token
            && !fragments.is_inside()
            && captured.last().and_then(CaptureItem::token).unwrap_or(after) != &token
        {
            captured.push(mark(token));
        }
        Ok(captured)
    }

    async fn hand_on(&mut self, captured: Vec<CaptureItem>, token: &mut ResumeToken) -> Result<(), QueueClosed> {
        let Some(last) = captured.last() else { return Ok(()) };
        let (reached, cluster_time) =
            (last.token().expect("a stream hands on nothing without a token").clone(), last.cluster_time());
        let events = captured.iter().filter(|captured| captured.event().is_some()).count();
        if events > 0 {
            LoopStall::Capture.block_if_enabled().await;
        }
        self.outlet.send(captured, || self.handle.enter(CaptureState::Full)).await?;
        self.handle.enter(CaptureState::Reading);
        self.handle.handed_on(events, Some(&reached), cluster_time);
        *token = reached;
        Ok(())
    }

    fn report(&mut self, foreign: u64, dropped: u64) {
        if foreign + dropped > 0 {
            self.handle.counted(foreign, dropped);
        }
        if dropped > 0 {
            tracing::warn!(
                "a collection of the source was dropped or renamed; what is written under its name from now on is read"
            );
        }
        self.foreign.add(foreign, Instant::now());
    }
}

fn mark(token: ResumeToken) -> CaptureItem {
    let cluster_time = token.cluster_time();
    CaptureItem::Watermark(CheckpointPhase::Stream { token }, cluster_time)
}

/// Counts what an append-only collection should not see, and tells of it now and then.
#[derive(Debug, Default)]
pub(super) struct NonInsertReport {
    untold: u64,
    told_at: Option<Instant>,
}

impl NonInsertReport {
    fn add(&mut self, operations: u64, now: Instant) {
        self.untold += operations;
        let due = self.told_at.is_none_or(|told_at| now.duration_since(told_at) >= REPORT_FOREIGN_EVERY);
        if self.untold > 0 && due {
            let operations = self.untold;
            tracing::warn!(operations, "updates, replaces or deletes in a source of kind `events` are not captured");
            (self.untold, self.told_at) = (0, Some(now));
        }
    }
}

/// Asks for the next batch as soon as the last one was taken. Ends with the stream, or after an error.
struct ReadAhead {
    batches: mpsc::Receiver<Result<RawBatch, Error>>,
    _task: AbortOnDropHandle<()>,
}

impl ReadAhead {
    fn start(cursor: RawBatchCursor, patience: Duration) -> Self {
        let (sender, batches) = mpsc::channel(1);
        let task = tokio::spawn(read_ahead(cursor, patience, sender));
        Self { batches, _task: AbortOnDropHandle::new(task) }
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Option<Result<RawBatch, Error>> {
        self.batches.recv().await
    }
}

async fn read_ahead(mut cursor: RawBatchCursor, patience: Duration, batches: mpsc::Sender<Result<RawBatch, Error>>) {
    while let Ok(place) = batches.reserve().await {
        let batch = match tokio::time::timeout(patience, cursor.next()).await {
            Ok(Some(batch)) => batch.map_err(|error| Error::judged(READ, error)),
            Ok(None) => return,
            Err(_) => Err(Error::Silent { doing: READ, waited: patience }),
        };
        let failed = batch.is_err();
        place.send(batch);
        if failed {
            return;
        }
    }
}
