//! Station 1 of 5: MongoDB change stream in, [`ChangeEvent`]s out.
//!
//! Reads from the phase in [`crate::checkpoint`]; hands events to [`crate::publish`] in oplog order, in batches whose sum in bytes and
//! events is bounded. Runs only inside a term (see `lease`). Never writes the checkpoint: only an acknowledged publish may.
//!
//! What it does when the source is not quiet and steady:
//! - the server is away, answers late or not at all: the stream is opened again from the last token handed on, for ever;
//! - a collection is dropped or renamed: counted and told; what is written under its name later is read;
//! - the oplog no longer holds the token's successors: [`Error::HistoryLost`], for `on_history_lost` to decide;
//! - a post-image is gone: [`Error::PostImageGone`], because handing on less would be a silent loss;
//! - an event larger than 16 MB: comes in fragments and is joined; no token inside it is handed on.
//!
//! Reading order: `source_client` (the stream as it is asked for), `stream` (the loop), `change` and `translate` (the server's words and ours),
//! `scan` (a snapshot), `sweep` (its end), `intake` (the queue), `unresumable` (what errors mean).

mod change;
mod check;
mod config;
mod error;
mod field_path;
mod filter;
mod handle;
mod queue;
mod retry_state;
mod scan;
mod source_client;
mod stream;
mod sweep;
mod translate;
mod unresumable;

use futures_util::StreamExt;
use mongodb::bson::{DateTime, Timestamp};
use mongodb::{Client, Database};
use tokio_util::sync::CancellationToken;

use self::change::CursorBatch;
use self::error::with_timeout;
use self::source_client::{SourceClient, StreamStart};
use self::stream::{NonInsertReport, ReaderExit, SourceReader};
use self::sweep::ReadModelCursors;
use self::translate::Translator;
use crate::checkpoint::{CheckpointPhase, SnapshotProgress};
use crate::event::{ChangeEvent, Epoch, ResumeToken};
use crate::source::SourceConfig;

pub use config::{Config, InvalidStart, PipelineStart};
pub use error::Error;
pub use handle::{CaptureState, CaptureStatus, Handle};
pub use queue::CaptureReceiver;

/// What capture hands on, in order.
#[derive(Clone, Debug)]
pub enum CaptureItem {
    /// A change; once it and all before are acknowledged, the checkpoint may stand at its token.
    Change(ChangeEvent),
    /// Read by a snapshot, or missed by the sweep at its end; once it and all before are acknowledged, the snapshot has come as far as this.
    Snapshot(ChangeEvent, SnapshotProgress),
    /// No event: where the checkpoint may stand once all before is acknowledged. A quiet stream's token, a snapshot's end, or
    /// events that were filtered out.
    Watermark(CheckpointPhase, Option<Timestamp>),
}

/// What an event takes besides its document and its token: key, aggregate, type, and the struct itself.
const EVENT_OVERHEAD: usize = 512;

impl CaptureItem {
    pub fn event(&self) -> Option<&ChangeEvent> {
        match self {
            Self::Change(event) | Self::Snapshot(event, _) => Some(event),
            Self::Watermark(..) => None,
        }
    }

    /// About how much memory it takes.
    pub fn weight(&self) -> usize {
        let held =
            self.event().map_or(0, |event| event.document.as_bytes().len() + event.token.as_raw().as_bytes().len());
        held + EVENT_OVERHEAD
    }

    /// Where a stream that was interrupted after it goes on.
    fn token(&self) -> Option<&ResumeToken> {
        match self {
            Self::Change(event) => Some(&event.token),
            Self::Watermark(CheckpointPhase::Stream { token }, _) => Some(token),
            Self::Snapshot(..) | Self::Watermark(CheckpointPhase::Unstarted | CheckpointPhase::Snapshot { .. }, _) => {
                None
            }
        }
    }

    fn cluster_time(&self) -> Option<Timestamp> {
        match self {
            Self::Change(event) | Self::Snapshot(event, _) => event.cluster_time,
            Self::Watermark(_, cluster_time) => *cluster_time,
        }
    }
}

/// Reads the source; one per term.
#[derive(Debug)]
pub struct Capture {
    source_client: SourceClient,
    views: Option<ReadModelCursors>,
    handle: Handle,
}

impl Capture {
    pub fn new(client: &Client, source: SourceConfig, config: Config) -> Self {
        Self { source_client: SourceClient::new(client, source, config), views: None, handle: Handle::new() }
    }

    /// Where read models of this pipeline are kept: a snapshot of `documents` then ends with a delete for every key that they know and the
    /// source no longer has. `epoch` is the one that is read.
    #[must_use]
    pub fn with_read_models(self, views: &Database, pipeline: &str, epoch: Epoch) -> Self {
        Self { views: Some(ReadModelCursors::new(views, pipeline, epoch)), ..self }
    }

    /// Whatever only rises goes on from where a capture before this one left it: counters are a pod's, whichever term it is in.
    #[must_use]
    pub fn continue_counters(self, before: &Handle) -> Self {
        Self { handle: Handle::continuing(&before.status()), ..self }
    }

    /// For whoever wants to know how it goes.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Whether the source can be captured at all, and from `start`: see the errors for what is looked at.
    pub async fn check(&self, start: &PipelineStart) -> Result<(), Error> {
        check::check(&self.source_client, start).await
    }

    /// Where a new pipeline starts. The token is had before anything is read, so that what is stored first covers all that follows.
    pub async fn initial_phase(&self, start: &PipelineStart) -> Result<CheckpointPhase, Error> {
        match *start {
            PipelineStart::Now => Ok(CheckpointPhase::Stream { token: self.token(StreamStart::Now).await? }),
            PipelineStart::At(time) => self.initial_phase_at(time).await,
            PipelineStart::Beginning => {
                let progress =
                    SnapshotProgress { run: format!("{:032x}", rand::random::<u128>()), scanned: 0, after: None };
                Ok(CheckpointPhase::Snapshot { start: self.token(StreamStart::Now).await?, progress })
            }
        }
    }

    /// Reads on from `phase` until `stop`; the future ends with an error only for what trying again cannot mend, and with `Ok` also when
    /// the intake is dropped. What was read and not taken stays in the intake.
    pub fn read(
        self,
        phase: CheckpointPhase,
        stop: CancellationToken,
    ) -> (CaptureReceiver, impl Future<Output = Result<(), Error>> + Send) {
        let Self { source_client, views, handle } = self;
        let (sender, receiver) = queue::bounded_queue(
            source_client.config.read_ahead_bytes.get(),
            source_client.config.read_ahead_events.get(),
        );
        let translator = Translator::new(&source_client.source);
        let non_inserts = NonInsertReport::default();
        let reader = SourceReader { source_client, views, translator, sender, handle: handle.clone(), non_inserts };
        let reading = async move {
            // Dropping the reader half way loses nothing: what it had not handed on is read again from the checkpoint.
            let ended = stop.run_until_cancelled(Box::pin(read_from(reader, phase))).await;
            handle.set_state(CaptureState::Ended);
            match ended {
                None | Some(ReaderExit::QueueClosed) => Ok(()),
                Some(ReaderExit::Error(error)) => Err(error),
            }
        };
        (receiver, reading)
    }

    async fn initial_phase_at(&self, time: DateTime) -> Result<CheckpointPhase, Error> {
        let too_early = |error| match error {
            Error::HistoryLost(source) => Error::StartTooEarly { start: PipelineStart::At(time), source },
            error => error,
        };
        let seconds = u32::try_from(time.timestamp_millis().div_euclid(1000)).unwrap_or(0);
        // Zero stands for "no time".
        let from = StreamStart::At(Timestamp { time: seconds.max(1), increment: 0 });
        let token = self.token(from).await.map_err(too_early)?;
        self.reaches_back_to(&token).await.map_err(too_early)?;
        Ok(CheckpointPhase::Stream { token })
    }

    /// Where a stream that is opened `from` stands before it has read anything.
    async fn token(&self, from: StreamStart<'_>) -> Result<ResumeToken, Error> {
        const DOING: &str = "learn where the change stream begins";
        let mut cursor = self.source_client.open_unread(from, &self.source_client.config.filter).await?;
        let batch =
            with_timeout(DOING, self.source_client.config.initial_timeout(), async { cursor.next().await.transpose() })
                .await?;
        let token = batch.as_ref().and_then(|batch| CursorBatch::parse(batch.as_raw_document()).ok()?.token);
        token.ok_or(Error::StreamEnded)
    }

    /// The server looks into the oplog only when it is asked for an event.
    async fn reaches_back_to(&self, token: &ResumeToken) -> Result<(), Error> {
        match self.source_client.open(StreamStart::After(token), self.source_client.config.initial_timeout()).await {
            // It is looking for the first event, so it has found the place.
            Ok(_) | Err(Error::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// First what is left of a snapshot, then the stream.
async fn read_from(mut reader: SourceReader, phase: CheckpointPhase) -> ReaderExit {
    let token = match phase {
        CheckpointPhase::Unstarted => return ReaderExit::Error(Error::Unstarted),
        CheckpointPhase::Snapshot { start, progress } => match reader.run_snapshot(&start, progress).await {
            Ok(()) => start,
            Err(end) => return end,
        },
        CheckpointPhase::Stream { token } => token,
    };
    match reader.follow_stream(token).await {
        Err(end) => end,
    }
}
