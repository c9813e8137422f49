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

use super::Captured;
use super::change::{Fragments, Joined, Reply, documents};
use super::error::Error;
use super::handle::{Handle, State};
use super::intake::{Closed, Outlet};
use super::sweep::Views;
use super::translate::{Meaning, Translator};
use super::trouble::Trouble;
use super::watched::{From, Watched};
use crate::checkpoint::Phase;
use crate::event::ResumeToken;
use crate::planted::{Defect, Wedge};

const READ: &str = "read the change stream";
/// Foreign operations may come by the thousand; people are told this often.
const REPORT_FOREIGN_EVERY: Duration = Duration::from_secs(60);

/// Why reading ended: for good, or because nobody takes what is read.
#[derive(Debug)]
pub(super) enum End {
    Error(Error),
    Closed,
}

impl std::convert::From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl std::convert::From<Closed> for End {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// Reads for one term.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) watched: Watched,
    pub(super) views: Option<Views>,
    pub(super) translator: Translator,
    pub(super) outlet: Outlet,
    pub(super) handle: Handle,
    pub(super) foreign: ForeignReport,
}

impl Reader {
    /// Ends only for good.
    pub(super) async fn follow(&mut self, mut token: ResumeToken) -> Result<Infallible, End> {
        let mut trouble = Trouble::none(self.watched.config.patience());
        loop {
            let before = token.clone();
            let pause = match self.read_on(&mut token, &mut trouble).await {
                // The server closes a stream whose collection is dropped or renamed; one that brought nothing is not hurried after.
                Ok(()) if token != before => None,
                Ok(()) => Some(trouble.failed(&Error::StreamEnded)),
                Err(End::Error(error)) if error.is_transient() => Some(trouble.failed(&error)),
                Err(end) => return Err(end),
            };
            if let Some(pause) = pause {
                self.handle.enter(State::Waiting);
                tokio::time::sleep(pause).await;
            }
            self.handle.reopened();
        }
    }

    /// Opens the stream after `token` and reads until it ends, moving `token` along with what is handed on.
    async fn read_on(&mut self, token: &mut ResumeToken, trouble: &mut Trouble) -> Result<(), End> {
        self.handle.enter(State::Opening);
        let cursor = self.watched.open(From::After(token), trouble.patience()).await?;
        let mut ahead = ReadAhead::start(cursor, trouble.patience());
        let mut fragments = Fragments::default();
        while let Some(batch) = ahead.next().await {
            let batch = batch?;
            self.handle.alive(State::Reading);
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
        fragments: &mut Fragments,
        after: &ResumeToken,
    ) -> Result<Vec<Captured>, Error> {
        let reply = Reply::read(batch.as_raw_document())?;
        let mut captured = Vec::new();
        let (mut foreign, mut dropped) = (0, 0);
        for raw in documents(reply.events) {
            match fragments.join(raw?)? {
                Joined::Part(token) => {
                    if Defect::TokenInsideSplit.is_planted() {
                        captured.push(mark(token));
                    }
                    continue;
                }
                Joined::Whole(change) => match self.translator.change(&change)? {
                    Meaning::Event(event) => captured.push(Captured::Change(event)),
                    Meaning::Foreign => foreign += 1,
                    Meaning::Dropped => dropped += 1,
                    Meaning::Other => {}
                },
            }
            fragments.clear();
        }
        self.report(foreign, dropped);
        if let Some(token) = reply.token
            && !fragments.is_inside()
            && captured.last().and_then(Captured::token).unwrap_or(after) != &token
        {
            captured.push(mark(token));
        }
        Ok(captured)
    }

    async fn hand_on(&mut self, captured: Vec<Captured>, token: &mut ResumeToken) -> Result<(), Closed> {
        let Some(last) = captured.last() else { return Ok(()) };
        let (reached, cluster_time) =
            (last.token().expect("a stream hands on nothing without a token").clone(), last.cluster_time());
        let events = captured.iter().filter(|captured| captured.event().is_some()).count();
        if events > 0 {
            Wedge::Capture.hold().await;
        }
        self.outlet.send(captured, || self.handle.enter(State::Full)).await?;
        self.handle.enter(State::Reading);
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

fn mark(token: ResumeToken) -> Captured {
    let cluster_time = token.cluster_time();
    Captured::Mark(Phase::Stream { token }, cluster_time)
}

/// Counts what an append-only collection should not see, and tells of it now and then.
#[derive(Debug, Default)]
pub(super) struct ForeignReport {
    untold: u64,
    told_at: Option<Instant>,
}

impl ForeignReport {
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
