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
//! Reading order: `watched` (the stream as it is asked for), `stream` (the loop), `change` and `translate` (the server's words and ours),
//! `scan` (a snapshot), `sweep` (its end), `intake` (the queue), `unresumable` (what errors mean).

mod change;
mod check;
mod config;
mod error;
mod filter;
mod handle;
mod intake;
mod path;
mod scan;
mod stream;
mod sweep;
mod translate;
mod trouble;
mod unresumable;
mod watched;

use futures_util::StreamExt;
use mongodb::bson::{DateTime, Timestamp};
use mongodb::{Client, Database};
use tokio_util::sync::CancellationToken;

use self::change::Reply;
use self::error::answer;
use self::stream::{End, ForeignReport, Reader};
use self::sweep::Views;
use self::translate::Translator;
use self::watched::{From, Watched};
use crate::checkpoint::{Phase, Snapshot};
use crate::event::{ChangeEvent, Epoch, ResumeToken};
use crate::source::Source;

pub use config::{Config, NotAStart, Start};
pub use error::Error;
pub use handle::{Handle, State, Status};
pub use intake::Intake;

/// What capture hands on, in order.
#[derive(Clone, Debug)]
pub enum Captured {
    /// A change; once it and all before are acknowledged, the checkpoint may stand at its token.
    Change(ChangeEvent),
    /// Read by a snapshot, or missed by the sweep at its end; once it and all before are acknowledged, the snapshot has come as far as this.
    Scanned(ChangeEvent, Snapshot),
    /// No event: where the checkpoint may stand once all before is acknowledged. A quiet stream's token, a snapshot's end, or
    /// events that were filtered out.
    Mark(Phase, Option<Timestamp>),
}

/// What an event takes besides its document and its token: key, aggregate, type, and the struct itself.
const EVENT_OVERHEAD: usize = 512;

impl Captured {
    pub fn event(&self) -> Option<&ChangeEvent> {
        match self {
            Self::Change(event) | Self::Scanned(event, _) => Some(event),
            Self::Mark(..) => None,
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
            Self::Mark(Phase::Stream { token }, _) => Some(token),
            Self::Scanned(..) | Self::Mark(Phase::Unstarted | Phase::Snapshot { .. }, _) => None,
        }
    }

    fn cluster_time(&self) -> Option<Timestamp> {
        match self {
            Self::Change(event) | Self::Scanned(event, _) => event.cluster_time,
            Self::Mark(_, cluster_time) => *cluster_time,
        }
    }
}

/// Reads the source; one per term.
#[derive(Debug)]
pub struct Capture {
    watched: Watched,
    views: Option<Views>,
    handle: Handle,
}

impl Capture {
    pub fn new(client: &Client, source: Source, config: Config) -> Self {
        Self { watched: Watched::new(client, source, config), views: None, handle: Handle::new() }
    }

    /// Where read models of this pipeline are kept: a snapshot of `documents` then ends with a delete for every key that they know and the
    /// source no longer has. `epoch` is the one that is read.
    #[must_use]
    pub fn sweeping(self, views: &Database, pipeline: &str, epoch: Epoch) -> Self {
        Self { views: Some(Views::new(views, pipeline, epoch)), ..self }
    }

    /// Whatever only rises goes on from where a capture before this one left it: counters are a pod's, whichever term it is in.
    #[must_use]
    pub fn counting_on_from(self, before: &Handle) -> Self {
        Self { handle: Handle::after(&before.status()), ..self }
    }

    /// For whoever wants to know how it goes.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Whether the source can be captured at all, and from `start`: see the errors for what is looked at.
    pub async fn check(&self, start: &Start) -> Result<(), Error> {
        check::check(&self.watched, start).await
    }

    /// Where a new pipeline starts. The token is had before anything is read, so that what is stored first covers all that follows.
    pub async fn first_phase(&self, start: &Start) -> Result<Phase, Error> {
        match *start {
            Start::Now => Ok(Phase::Stream { token: self.token(From::Now).await? }),
            Start::At(time) => self.first_phase_at(time).await,
            Start::Beginning => {
                let progress = Snapshot { run: format!("{:032x}", rand::random::<u128>()), scanned: 0, after: None };
                Ok(Phase::Snapshot { start: self.token(From::Now).await?, progress })
            }
        }
    }

    /// Reads on from `phase` until `stop`; the future ends with an error only for what trying again cannot mend, and with `Ok` also when
    /// the intake is dropped. What was read and not taken stays in the intake.
    pub fn read(
        self,
        phase: Phase,
        stop: CancellationToken,
    ) -> (Intake, impl Future<Output = Result<(), Error>> + Send) {
        let Self { watched, views, handle } = self;
        let (outlet, intake) =
            intake::bounded(watched.config.read_ahead_bytes.get(), watched.config.read_ahead_events.get());
        let translator = Translator::new(&watched.source);
        let foreign = ForeignReport::default();
        let reader = Reader { watched, views, translator, outlet, handle: handle.clone(), foreign };
        let reading = async move {
            // Dropping the reader half way loses nothing: what it had not handed on is read again from the checkpoint.
            let ended = stop.run_until_cancelled(Box::pin(read_from(reader, phase))).await;
            handle.enter(State::Ended);
            match ended {
                None | Some(End::Closed) => Ok(()),
                Some(End::Error(error)) => Err(error),
            }
        };
        (intake, reading)
    }

    async fn first_phase_at(&self, time: DateTime) -> Result<Phase, Error> {
        let too_early = |error| match error {
            Error::HistoryLost(source) => Error::StartTooEarly { start: Start::At(time), source },
            error => error,
        };
        let seconds = u32::try_from(time.timestamp_millis().div_euclid(1000)).unwrap_or(0);
        // Zero stands for "no time".
        let from = From::At(Timestamp { time: seconds.max(1), increment: 0 });
        let token = self.token(from).await.map_err(too_early)?;
        self.reaches_back_to(&token).await.map_err(too_early)?;
        Ok(Phase::Stream { token })
    }

    /// Where a stream that is opened `from` stands before it has read anything.
    async fn token(&self, from: From<'_>) -> Result<ResumeToken, Error> {
        const DOING: &str = "learn where the change stream begins";
        let mut cursor = self.watched.open_unread(from, &self.watched.config.filter).await?;
        let batch = answer(DOING, self.watched.config.patience(), async { cursor.next().await.transpose() }).await?;
        let token = batch.as_ref().and_then(|batch| Reply::read(batch.as_raw_document()).ok()?.token);
        token.ok_or(Error::StreamEnded)
    }

    /// The server looks into the oplog only when it is asked for an event.
    async fn reaches_back_to(&self, token: &ResumeToken) -> Result<(), Error> {
        match self.watched.open(From::After(token), self.watched.config.patience()).await {
            // It is looking for the first event, so it has found the place.
            Ok(_) | Err(Error::Silent { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// First what is left of a snapshot, then the stream.
async fn read_from(mut reader: Reader, phase: Phase) -> End {
    let token = match phase {
        Phase::Unstarted => return End::Error(Error::Unstarted),
        Phase::Snapshot { start, progress } => match reader.scan(&start, progress).await {
            Ok(()) => start,
            Err(end) => return end,
        },
        Phase::Stream { token } => token,
    };
    match reader.follow(token).await {
        Err(end) => end,
    }
}
