//! A pod's share in applying: sessions accepted, their events applied, side by side with every other pod.
//!
//! Leans on [`crate::session`] and [`crate::view`], and adds the order in which they begin and end: read models are checked and made
//! ready before the first session is accepted; sessions end before the applier they feed. Needs no lease: who holds a session is the bus's
//! to say, and what was applied the cursor's.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Database;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error_chain::error_chain;
use crate::publish::ClaimCheckStore;
use crate::retry::ErrorClass;
use crate::session::{self, Acceptor, Trouble};
use crate::source::{SourceConfig, SourceKind};
use crate::view::{self, Applier, Error, History, Model, Projection, Setup, Start, Witness};

/// What can be set about consuming.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub session: session::Config,
    pub view: view::Config,
}

/// Where the consumer reads and writes.
#[derive(Clone)]
pub struct Places {
    pub pipeline: String,
    pub source: SourceConfig,
    /// The database of the source, where missing events are read.
    pub source_database: Database,
    /// Where the pipeline began: whether an aggregate's first event must be the first the source holds.
    pub start: Start,
    /// Capture leaves event types out.
    pub filtered: bool,
    /// The database of the read models.
    pub views: Database,
    pub coordination: Database,
    pub bus: servicebus::Client,
    pub topic: String,
    pub subscription: String,
    /// Declared read models, checked against the server before they are used.
    pub models: Vec<Arc<Model>>,
    /// Read models written in Rust.
    pub projections: Vec<Arc<dyn Projection>>,
}

/// Where the consumer of this pod stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Set before it runs, and after.
    #[default]
    Idle,
    /// Set while read models are checked and made ready.
    Preparing,
    /// Set while sessions are accepted and nothing stands in the way.
    Consuming,
    /// Set while something stands in the way; it goes on by itself when that is gone.
    Troubled(Trouble),
    /// Set when only an operator can mend it: rights, an index that differs.
    Halted(String),
    /// Set while what is in hand is settled.
    Stopping,
}

/// How often a halted consumer looks whether an operator has acted.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What saying good-bye to the bus may take, when sessions have ended or were cut short: one that hangs does not answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the applier may still take when the sessions have ended: nothing is left to be done, unless they were cut short.
const AFTERMATH: Duration = Duration::from_secs(1);

pub struct Consumer {
    places: Places,
    projections: Vec<Arc<dyn Projection>>,
    applier: Applier,
    acceptor: Acceptor,
    drain_within: Duration,
    phase: watch::Sender<State>,
    handle: Handle,
}

/// What the rest of the pod may know of the consumer.
#[derive(Clone)]
pub struct Handle {
    phase: watch::Receiver<State>,
    sessions: session::Handle,
    applying: view::Handle,
}

/// A look at all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sessions: session::Counts,
    pub events: view::Counts,
}

impl Handle {
    pub fn state(&self) -> State {
        let phase = self.phase.borrow().clone();
        match (phase, self.sessions.trouble()) {
            (State::Consuming, Some(trouble)) => State::Troubled(trouble),
            (phase, _) => phase,
        }
    }

    pub fn counts(&self) -> Counts {
        Counts { sessions: self.sessions.counts(), events: self.applying.counts() }
    }

    /// What was applied in each read model, and when last.
    pub fn models(&self) -> Vec<view::ModelCounts> {
        self.applying.models()
    }

    /// When a batch was last dealt with; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        self.sessions.last_progress()
    }
}

impl Consumer {
    /// Two read models of one name are refused.
    pub fn new(config: Config, places: Places) -> Result<Self, Error> {
        let mut projections = places.projections.clone();
        projections.extend(places.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>));
        let applier = Applier::new(Setup {
            mode: config.view.mode(&places.source, places.start, places.filtered),
            config: config.view,
            database: places.views.clone(),
            pipeline: places.pipeline.clone(),
            by_collection: places.source.kind == SourceKind::Documents,
            models: projections.clone(),
            history: History::new(&places.source_database, &places.source),
        })?;
        let drain_within = config.session.drain_within;
        let acceptor = Acceptor::new(
            config.session,
            session::Places {
                bus: places.bus.clone(),
                topic: places.topic.clone(),
                subscription: places.subscription.clone(),
                // Only reads: how long bodies are kept is the publisher's to say.
                oversize: ClaimCheckStore::new(&places.coordination, Duration::ZERO),
                applier: applier.handle(),
            },
        );
        let phase = watch::Sender::default();
        let handle = Handle { phase: phase.subscribe(), sessions: acceptor.handle(), applying: applier.handle() };
        Ok(Self { places, projections, applier, acceptor, drain_within, phase, handle })
    }

    /// Who is told of every event that is applied.
    #[must_use]
    pub fn witnessed_by(mut self, witness: Arc<dyn Witness>) -> Self {
        self.applier = self.applier.witnessed_by(witness);
        self
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `stop`, and then until what is in hand is settled or the time for that is over. An error means that the read models,
    /// as they are declared, cannot be used.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        self.phase.send_replace(State::Preparing);
        let prepared = tokio::select! {
            // cancel-safe: what is half made is made whole by the next start
            prepared = self.prepare() => prepared,
            () = stop.cancelled() => {
                self.phase.send_replace(State::Idle);
                return Ok(());
            }
        };
        prepared.inspect_err(|error| drop(self.phase.send_replace(State::Halted(error.to_string()))))?;
        let Self { places, applier, acceptor, drain_within, phase, .. } = self;
        phase.send_replace(State::Consuming);
        info!(pipeline = places.pipeline, subscription = places.subscription, "accepting sessions");
        let sessions_ended = CancellationToken::new();
        let mut applying = JoinSet::new();
        applying.spawn(applier.run(sessions_ended.clone()));
        let overdue = async {
            stop.cancelled().await;
            phase.send_replace(State::Stopping);
            sleep(drain_within + FAREWELL).await;
        };
        tokio::select! {
            () = acceptor.run(stop.clone()) => {}
            // Sessions were cut when their time was over; what is left is a bus that is waited for.
            () = overdue => warn!("the bus was left without a good-bye: it did not answer in time"),
        }
        // Nobody hands anything in any more; what was handed in is resolved.
        sessions_ended.cancel();
        if timeout(AFTERMATH, async { while applying.join_next().await.is_some() {} }).await.is_err() {
            warn!("a transaction is dropped that did not end in time; its events come again");
            applying.shutdown().await;
        }
        phase.send_replace(State::Idle);
        Ok(())
    }

    /// Checks and makes ready, until it succeeds. Mistakes in what is declared are an error: only another declaration mends them.
    async fn prepare(&self) -> Result<(), Error> {
        loop {
            match self.try_prepare().await {
                Ok(()) => return Ok(()),
                Err(error @ (Error::Mistakes(_) | Error::NameTaken(_))) => return Err(error),
                Err(failed) => {
                    let waits_for = match failed.verdict() {
                        ErrorClass::Transient => State::Preparing,
                        ErrorClass::Permanent | ErrorClass::Fatal => State::Halted(error_chain(&failed)),
                    };
                    if *self.phase.borrow() != waits_for {
                        error!(
                            pipeline = self.places.pipeline,
                            error = error_chain(&failed),
                            "read models cannot be made ready"
                        );
                        self.phase.send_replace(waits_for);
                    }
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn try_prepare(&self) -> Result<(), Error> {
        let mut mistakes = vec![];
        for model in &self.places.models {
            mistakes.extend(view::validate(&self.places.views, model).await?);
        }
        if !mistakes.is_empty() {
            return Err(Error::Mistakes(mistakes));
        }
        view::prepare(&self.places.views, &self.projections).await
    }
}

impl Config {
    /// An event is parked untried at half of what the bus allows, so that the bus never dead-letters one by itself.
    #[must_use]
    pub fn with_max_delivery_count(mut self, max: u32) -> Self {
        self.view.park_at_delivery = NonZeroU32::new(max / 2).unwrap_or(NonZeroU32::MIN);
        self
    }
}
