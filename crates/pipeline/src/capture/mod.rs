//! Station 1 of 5: reads the MongoDB change stream and emits [`ChangeEvent`]s.
//!
//! Starts from the phase in [`crate::checkpoint`] and hands events to [`crate::publish`] in oplog order, in batches that are bounded in
//! bytes and events. Runs only inside a term (see `lease`). Never writes the checkpoint: only an acknowledged publish may.
//!
//! Failures of the source:
//! - The server is unreachable or slow: capture reopens the stream from the last token it handed on, without limit.
//! - A collection is dropped or renamed: capture counts and logs it, and reads what is written under that name later.
//! - The oplog no longer holds the events after the token: [`Error::HistoryLost`]; `on_history_lost` decides.
//! - A post-image is missing: [`Error::PostImageGone`], because an event without it would be a silent loss.
//! - An event is larger than 16 MB: the server sends fragments and capture joins them; no token inside the event is handed on.
//!
//! Reading order: `source_client` (opens the stream), `stream` (the loop), `change` and `translate` (server events to ours),
//! `snapshot_scan` (snapshot), `sweep` (deletes at the end of a snapshot), `queue` (to the publisher), `unresumable` (meaning of errors).

mod change;
mod check;
mod config;
mod error;
mod field_path;
mod filter;
mod handle;
mod queue;
mod retry_state;
mod snapshot_scan;
mod source_client;
mod source_filter;
mod stream;
mod sweep;
mod translate;
mod unresumable;

use futures_util::StreamExt;
use mongodb::bson::{DateTime, RawDocument, Timestamp};
use mongodb::{Client, Database};
use tokio_util::sync::CancellationToken;

use self::change::CursorBatch;
use self::error::with_timeout;
use self::field_path::FieldPath;
use self::source_client::{SourceClient, StreamStart};
use self::stream::{NonInsertReport, ReaderExit, SourceReader};
use self::sweep::ReadModelCursors;
use self::translate::Translator;
use crate::checkpoint::{CheckpointPhase, SnapshotProgress};
use crate::event::{ChangeEvent, Epoch, ResumeToken};
use crate::source::SourceConfig;

pub use config::{Config, InvalidStart, StartPosition};
pub use error::Error;
pub use handle::{CaptureState, CaptureStatus, Handle};
pub use queue::CaptureReceiver;
pub use source_filter::SourceFilter;

/// The sequence of an event of this source; `None` if it has no usable one, and is rejected if the source has a sequence.
pub fn sequence_of(source: &SourceConfig, event: &RawDocument) -> Option<i64> {
    FieldPath::new(source.sequence.as_deref()?).sequence(event)
}

/// One item of the capture queue, in oplog order.
#[derive(Clone, Debug)]
pub enum CaptureItem {
    /// A change from the stream. Once it and everything before it is acknowledged, the checkpoint may move to its token.
    Change(ChangeEvent),
    /// A document read by a snapshot, or a delete from the sweep at its end, with the progress that its acknowledgement allows.
    Snapshot(ChangeEvent, SnapshotProgress),
    /// No event, only a position: the checkpoint may move here once everything before is acknowledged. Sent for a quiet stream, at the
    /// end of a snapshot, and for events that the filter removed.
    Watermark(CheckpointPhase, Option<Timestamp>),
}

/// Memory of an event besides its document and token: key, aggregate, type and the struct itself.
const EVENT_OVERHEAD: usize = 512;

impl CaptureItem {
    pub fn event(&self) -> Option<&ChangeEvent> {
        match self {
            Self::Change(event) | Self::Snapshot(event, _) => Some(event),
            Self::Watermark(..) => None,
        }
    }

    /// Approximate memory in bytes.
    pub fn weight(&self) -> usize {
        let held =
            self.event().map_or(0, |event| event.document.as_bytes().len() + event.token.as_raw().as_bytes().len());
        held + EVENT_OVERHEAD
    }

    /// The token to resume from after this item.
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

/// Fails with [`Error::NoIndex`] if a collection of the source has no index on (aggregate, sequence) that can be walked.
pub async fn check_walk_index(client: &Client, source: &SourceConfig, config: &Config) -> Result<(), Error> {
    let source_client = SourceClient::new(client, source.clone(), config.clone());
    for namespace in source.namespaces() {
        check::check_scan_index(&source_client, namespace).await?;
    }
    Ok(())
}

/// Reads the source during one term.
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

    /// Sets the database of the read models. A snapshot of `documents` then ends with a delete for every key that the read models hold and
    /// the source no longer has. `epoch` is the epoch of the snapshot.
    #[must_use]
    pub fn with_read_models(self, views: &Database, pipeline: &str, epoch: Epoch) -> Self {
        Self { views: Some(ReadModelCursors::new(views, pipeline, epoch)), ..self }
    }

    /// Continues the counters of an earlier capture: counters belong to the pod and survive a change of term.
    #[must_use]
    pub fn continue_counters(self, before: &Handle) -> Self {
        Self { handle: Handle::continuing(&before.status()), ..self }
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Checks that the source can be captured from `start`; see [`Error`] for the conditions.
    pub async fn check(&self, start: &StartPosition) -> Result<(), Error> {
        check::check(&self.source_client, start).await
    }

    /// The first phase of a new pipeline. The token is fetched before anything is read, so the stored phase covers every later event.
    pub async fn initial_phase(&self, start: &StartPosition) -> Result<CheckpointPhase, Error> {
        match *start {
            StartPosition::Now => Ok(CheckpointPhase::Stream { token: self.token(StreamStart::Now).await? }),
            StartPosition::At(time) => self.initial_phase_at(time).await,
            StartPosition::Beginning => {
                let progress =
                    SnapshotProgress { run: format!("{:032x}", rand::random::<u128>()), scanned: 0, after: None };
                Ok(CheckpointPhase::Snapshot { start: self.token(StreamStart::Now).await?, progress })
            }
        }
    }

    /// Reads from `phase` until `stop`. The future fails only with errors that a retry cannot fix, and returns `Ok` when the receiver is
    /// dropped. Items that were read and not received stay in the receiver.
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
            // cancel-safe: items that were not handed on are read again from the checkpoint
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
            Error::HistoryLost(source) => Error::StartTooEarly { start: StartPosition::At(time), source },
            error => error,
        };
        let seconds = u32::try_from(time.timestamp_millis().div_euclid(1000)).unwrap_or(0);
        // MongoDB reads a timestamp of zero as "no time".
        let from = StreamStart::At(Timestamp { time: seconds.max(1), increment: 0 });
        let token = self.token(from).await.map_err(too_early)?;
        self.check_oplog_reaches(&token).await.map_err(too_early)?;
        Ok(CheckpointPhase::Stream { token })
    }

    /// The resume token of a stream opened at `from`, before it has read anything.
    async fn token(&self, from: StreamStart<'_>) -> Result<ResumeToken, Error> {
        const OPERATION: &str = "get the start token of the change stream";
        let mut cursor = self.source_client.open_unread(from, &self.source_client.config.filter).await?;
        let batch = with_timeout(OPERATION, self.source_client.config.initial_timeout(), async {
            cursor.next().await.transpose()
        })
        .await?;
        let token = batch.as_ref().and_then(|batch| CursorBatch::parse(batch.as_raw_document()).ok()?.token);
        token.ok_or(Error::StreamEnded)
    }

    /// Opening alone does not prove it: the server reads the oplog only when it fetches an event.
    async fn check_oplog_reaches(&self, token: &ResumeToken) -> Result<(), Error> {
        match self.source_client.open(StreamStart::After(token), self.source_client.config.initial_timeout()).await {
            // A timeout means that the server found the position and waits for the next event.
            Ok(_) | Err(Error::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Finishes the snapshot, if there is one, then follows the stream.
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
