//! The loop of one pod: load the generation, apply it, and take the next step if this pod leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Database;
use mongodb::bson::doc;
use pipeline::erasure::{self, ErasureStore};
use pipeline::generation::{
    self, BuildDependencies, BuildOptions, BuildPause, BuildProgressReport, BuildTotals, Builder, Error, Generation,
    GenerationStage, GenerationStore, IncompleteReason, RequestKind,
};
use pipeline::source::SourceKind;
use pipeline::view;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::change::{ChangeStep, decide_change};
use super::proposal::{ModelProposal, load_or_create};
use crate::config::OnModelChange;
use crate::pauses::{PauseStore, PauseTarget};
use crate::pods::{Agreement, PodRegistry};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// While transactions wait for a switch.
const SWITCH_POLL: Duration = Duration::from_millis(50);
/// A switch takes some ten milliseconds; a leader that needs much longer may be gone, and transactions of all pods wait for it.
const SWITCH_TAKEOVER: Duration = Duration::from_millis(300);
/// MongoDB elects a primary within seconds.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct GenerationService {
    pub(crate) store: GenerationStore,
    /// Loaded with every generation.
    pub(crate) erasures: ErasureStore,
    pub(crate) proposal: ModelProposal,
    pub(crate) build: BuildDependencies,
    pub(crate) applier: view::Handle,
    pub(crate) lease: lease::Handle,
    pub(crate) pods: PodRegistry,
    pub(crate) on_change: OnModelChange,
    /// How long all pods must propose the same.
    pub(crate) change_delay: Duration,
}

/// A build that runs in this pod.
struct RunningBuild {
    number: u64,
    task: JoinHandle<Result<BuildTotals, Error>>,
    cancel: CancellationToken,
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

#[derive(Default)]
struct ServiceState {
    agreed_since: Option<Instant>,
    switching_since: Option<(u64, Instant)>,
    build: Option<RunningBuild>,
    /// Told when the build of this pod ends.
    build_ended: Arc<Notify>,
    shown: Option<(u64, GenerationStage)>,
    /// The last generation after which this pod has cleaned up.
    cleaned: u64,
}

impl GenerationService {
    /// Before the first event: retries until the generation is known.
    pub(crate) async fn load_until_ok(&self) {
        loop {
            let loaded = load_or_create(&self.store, &self.build.coordination, self.views(), &self.proposal).await;
            let applied = match loaded {
                Ok(generation) => self.load_erased().await.and_then(|()| self.apply(&generation)),
                Err(error) => Err(error),
            };
            match applied {
                Ok(()) => return,
                Err(Error::Erasure(error @ erasure::Error::KeyLost)) => {
                    tracing::error!(%error, page = erasure::KEY_LOST_PAGE, "no event is applied: operator action required");
                }
                Err(error) => tracing::warn!(%error, "failed to load the generation of the read models; trying again"),
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let outdated = self.applier.outdated();
        let mut state = ServiceState::default();
        let build_ended = Arc::clone(&state.build_ended);
        let mut pause = POLL_INTERVAL;
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
                () = outdated.notified() => {}
                () = build_ended.notified() => {}
            }
            // cancel-safe: every step may be repeated by any pod
            let round = stop.run_until_cancelled(timeout(READ_TIMEOUT * 3, Box::pin(self.round(&mut state)))).await;
            pause = match round {
                None => break,
                Some(Ok(Ok(GenerationStage::Switching))) => SWITCH_POLL,
                Some(Ok(Ok(_))) => POLL_INTERVAL,
                Some(Ok(Err(error))) => {
                    tracing::warn!(error = %error_chain(&error), "failed to follow the generation of the read models; retrying");
                    RETRY_DELAY
                }
                Some(Err(_)) => RETRY_DELAY,
            };
        }
    }

    fn views(&self) -> &Database {
        &self.build.views
    }

    /// After the generation is read, and before it is applied: an erasure stores its tombstone first, and raises the generation then.
    async fn load_erased(&self) -> Result<(), Error> {
        self.applier.set_erased(self.erasures.load().await?);
        Ok(())
    }

    fn apply(&self, generation: &Generation) -> Result<(), Error> {
        self.applier.set_models(self.proposal.with_own_indexes(generation.clone()).model_set()?);
        Ok(())
    }

    async fn round(&self, state: &mut ServiceState) -> Result<GenerationStage, Error> {
        let Some(generation) = self.store.load().await? else {
            return Err(Error::Unreadable("_id"));
        };
        if self.applier.generation() < generation.number {
            self.load_erased().await?;
        }
        self.apply(&generation)?;
        self.show(&generation, state);
        let is_leader = self.lease.is_leader();
        if !is_leader || generation.stage != GenerationStage::Building {
            state.build = None;
        }
        match generation.stage {
            GenerationStage::Switching => self.finish_switch(generation, is_leader, state).await,
            GenerationStage::Active | GenerationStage::Building if !is_leader => Ok(generation.stage),
            GenerationStage::Active | GenerationStage::Building => self.lead(generation, state).await,
        }
    }

    fn show(&self, generation: &Generation, state: &mut ServiceState) {
        let shown = Some((generation.number, generation.stage));
        if state.shown != shown {
            let stage = generation.stage.code();
            tracing::info!(generation = generation.number, stage, "read models are at this generation");
            state.shown = shown;
        }
    }

    async fn finish_switch(
        &self,
        generation: Generation,
        is_leader: bool,
        state: &mut ServiceState,
    ) -> Result<GenerationStage, Error> {
        let since = match state.switching_since {
            Some((number, since)) if number == generation.number => since,
            _ => state.switching_since.insert((generation.number, Instant::now())).1,
        };
        if !is_leader && since.elapsed() < SWITCH_TAKEOVER {
            return Ok(GenerationStage::Switching);
        }
        let started = Instant::now();
        match generation::complete_switch(&self.store, self.views(), generation).await? {
            None => Ok(GenerationStage::Switching),
            Some(active) => {
                self.apply(&active)?;
                tracing::info!(generation = active.number, took = ?started.elapsed(), "switched the read models");
                Ok(GenerationStage::Active)
            }
        }
    }

    /// Removes what versions left behind that no longer serve: parked aggregates, and collections of cancelled builds.
    async fn clean_up(&self, active: &Generation) -> Result<(), Error> {
        let by_collection = self.build.source.kind == SourceKind::Documents;
        let versions = active.serving.iter().chain(&active.kept);
        let names: BTreeSet<String> = versions.map(|(name, version)| version.parked_name(name)).collect();
        let models = active.model_set()?;
        let parked = view::ParkedStore::new(self.views().clone(), self.store.pipeline(), by_collection, models, None);
        parked.forget_others(&names).await?;
        generation::drop_builds(self.views(), active).await
    }

    async fn lead(&self, generation: Generation, state: &mut ServiceState) -> Result<GenerationStage, Error> {
        let agreed = self.is_agreed(state).await?;
        let automatic = self.on_change == OnModelChange::Rebuild;
        match decide_change(&generation, &self.proposal, agreed, automatic, &self.build.source) {
            ChangeStep::Cancel => self.cancel(generation, state).await,
            ChangeStep::Store(next) => self.begin(generation, *next, state).await,
            ChangeStep::Nothing if generation.stage == GenerationStage::Building => {
                self.continue_build(generation, state).await
            }
            ChangeStep::Nothing => {
                let is_clean = generation.number == view::FIRST_GENERATION || state.cleaned == generation.number;
                if !is_clean {
                    self.clean_up(&generation).await?;
                    state.cleaned = generation.number;
                }
                Ok(generation.stage)
            }
        }
    }

    /// Whether all live pods propose what this one does, and have for a while.
    async fn is_agreed(&self, state: &mut ServiceState) -> Result<bool, Error> {
        let failed = |source| Error::Store { action: "read the pods", source };
        match self.pods.agreement().await.map_err(failed)? {
            Agreement::Different => {
                state.agreed_since = None;
                Ok(false)
            }
            Agreement::Same => {
                let since = *state.agreed_since.get_or_insert_with(Instant::now);
                Ok(since.elapsed() >= self.change_delay)
            }
        }
    }

    async fn begin(
        &self,
        present: Generation,
        next: Generation,
        state: &mut ServiceState,
    ) -> Result<GenerationStage, Error> {
        if next.number == present.number {
            return Ok(self.store.replace(next).await?.map_or(present.stage, |stored| stored.stage));
        }
        let prepared = async {
            if let Some(problem) = generation::free_space_problem(self.views(), &next).await? {
                return Ok(Some(problem));
            }
            generation::prepare_build(self.views(), self.store.pipeline(), &next).await.map(|()| None)
        };
        let problem = match prepared.await {
            Ok(problem) => problem,
            Err(Error::View(error)) => Some(error.to_string()),
            Err(error) => return Err(error),
        };
        if problem.is_some() {
            if present.problem != problem {
                tracing::error!(problem, "the read models cannot be changed");
                self.store.replace(Generation { problem, request: None, ..present }).await?;
            }
            return Ok(GenerationStage::Active);
        }
        let models: Vec<&str> = next.to_build().map(|(name, _)| name.as_str()).collect();
        tracing::info!(generation = next.number, build = ?models, "changing the read models");
        let Some(stored) = self.store.replace(next).await? else { return Ok(present.stage) };
        self.apply(&stored)?;
        match stored.stage {
            GenerationStage::Building => self.continue_build(stored, state).await,
            GenerationStage::Active | GenerationStage::Switching => Ok(stored.stage),
        }
    }

    /// Goes back to what serves, and drops what was built.
    async fn cancel(&self, generation: Generation, state: &mut ServiceState) -> Result<GenerationStage, Error> {
        state.build = None;
        let by_request = generation.request.as_ref().is_some_and(|request| request.kind == RequestKind::Cancel);
        let active = Generation {
            number: generation.number + 1,
            stage: GenerationStage::Active,
            next: Default::default(),
            request: None,
            problem: None,
            declined: if by_request { Some(self.proposal.id()) } else { generation.declined.clone() },
            ..generation
        };
        let Some(active) = self.store.replace(active).await? else { return Ok(GenerationStage::Building) };
        tracing::info!(generation = active.number, "the change of the read models is cancelled");
        self.apply(&active)?;
        generation::raise_fence(self.views(), self.store.pipeline(), active.number).await?;
        Ok(GenerationStage::Active)
    }

    async fn continue_build(&self, generation: Generation, state: &mut ServiceState) -> Result<GenerationStage, Error> {
        let accepted = generation.request.as_ref().is_some_and(|request| request.kind == RequestKind::Accept);
        let Some(build) = state.build.as_mut().filter(|build| build.number == generation.number) else {
            if generation.problem.is_none() || accepted {
                state.build = Some(self.start_build(&generation, Arc::clone(&state.build_ended)).await?);
            }
            return Ok(GenerationStage::Building);
        };
        if !build.task.is_finished() {
            return Ok(GenerationStage::Building);
        }
        let totals = (&mut build.task).await;
        state.build = None;
        let totals = match totals {
            Ok(Err(error @ Error::NotUnique { .. })) => {
                let problem = format!(
                    "{error}; `headwater read-model cancel` keeps the present read models, `headwater read-model accept` tries again after the documents have changed"
                );
                tracing::error!(problem, "the build of the read models cannot be completed");
                self.store.replace(Generation { problem: Some(problem), request: None, ..generation }).await?;
                return Ok(GenerationStage::Building);
            }
            Ok(totals) => totals?,
            Err(error) => {
                tracing::error!(%error, "the build of the read models panicked; starting it again");
                return Ok(GenerationStage::Building);
            }
        };
        let mut next =
            Generation { number: generation.number + 1, stage: GenerationStage::Switching, ..generation.clone() };
        if totals.missing_count > 0 {
            if !accepted {
                let problem = format!(
                    "the source lacks earlier events of {} aggregates, so they cannot be built; `headwater read-model accept` goes on without them, `headwater read-model cancel` keeps the present read models",
                    totals.missing_count
                );
                tracing::error!(problem, aggregates = ?totals.missing, "the build of the read models cannot be completed");
                self.store.replace(Generation { problem: Some(problem), ..generation }).await?;
                return Ok(GenerationStage::Building);
            }
            Builder::new(self.build.clone(), &generation).await?.accept_missing(generation.number).await?;
            for (_, version) in next.next.iter_mut().filter(|(_, version)| version.since == generation.number) {
                version.incomplete = Some((IncompleteReason::MissingHistory, mongodb::bson::DateTime::now()));
            }
        }
        tracing::info!(generation = next.number, events = totals.events, "the read models are built; switching");
        next.since = Some(mongodb::bson::DateTime::now());
        generation::record_built_collections(self.views(), &mut next).await?;
        match self.store.replace(next).await? {
            None => Ok(GenerationStage::Building),
            Some(switching) => {
                self.apply(&switching)?;
                let mut own = ServiceState::default();
                self.finish_switch(switching, true, &mut own).await
            }
        }
    }

    async fn start_build(&self, generation: &Generation, ended: Arc<Notify>) -> Result<RunningBuild, Error> {
        generation::prepare_build(self.views(), self.store.pipeline(), generation).await?;
        // Whoever does not know this generation cannot move a cursor any more.
        generation::raise_fence(self.views(), self.store.pipeline(), generation.number).await?;
        generation::carry_discards(self.views(), self.store.pipeline(), generation).await?;
        let builder = Builder::new(self.build.clone(), generation).await?;
        let request = generation.request.as_ref();
        let rate = request.and_then(|request| u32::try_from(request.rate?).ok());
        let report = StoredProgress {
            store: self.store.clone(),
            pauses: PauseStore::new(&self.build.coordination, self.store.pipeline()),
            number: generation.number,
            started: Instant::now(),
        };
        let accepted = request.is_some_and(|request| request.kind == RequestKind::Accept);
        let (views, pipeline, building) = (self.views().clone(), self.store.pipeline().to_owned(), generation.clone());
        let cancel = CancellationToken::new();
        let cancelled = cancel.clone();
        let task = tokio::spawn(async move {
            let options = BuildOptions { rate, ..BuildOptions::default() };
            let build = async {
                let totals = builder.run(options, &report).await?;
                if totals.missing_count == 0 || accepted {
                    generation::create_unique_indexes(&views, &pipeline, &building).await?;
                }
                Ok(totals)
            };
            // A moment before the task ends: the service reads the generation first.
            let built = cancelled.run_until_cancelled(build).await;
            ended.notify_one();
            built.unwrap_or(Ok(BuildTotals::default()))
        });
        Ok(RunningBuild { number: generation.number, task, cancel })
    }
}

/// Stores the progress of a build, for `status` and `read-model list`.
struct StoredProgress {
    store: GenerationStore,
    pauses: PauseStore,
    number: u64,
    started: Instant,
}

impl BuildProgressReport for StoredProgress {
    async fn report(&self, totals: &BuildTotals) -> Result<(), Error> {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let lag = match totals.pause {
            Some(BuildPause::ReplicationLag(lag)) => Some(lag.as_secs_f64()),
            Some(BuildPause::Operator) | None => None,
        };
        let progress = doc! {
            "aggregates": count(totals.aggregates), "builtBefore": count(totals.built_before), "total": count(totals.total), "events": count(totals.events),
            "parked": count(totals.parked), "missing": count(totals.missing_count),
            "seconds": self.started.elapsed().as_secs_f64(), "replicationLag": lag,
            "paused": totals.pause == Some(BuildPause::Operator),
        };
        self.store.save_build(self.number, progress).await
    }

    async fn is_paused(&self) -> Result<bool, Error> {
        let failed = |source| Error::Store { action: "read the pauses", source };
        Ok(self.pauses.load().await.map_err(failed)?.is_paused(&PauseTarget::Build))
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
