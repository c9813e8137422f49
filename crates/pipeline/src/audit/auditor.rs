//! Rounds of the audit: claim it, walk the source slice by slice, rest until the next round.

use std::convert::Infallible;
use std::time::Duration;

use mongodb::{Client, Database};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::budget::WorkBudget;
use super::config::Config;
use super::error::{Error, UnauditableReason};
use super::monitor::{AuditState, Handle, WaitReason};
use super::record::{AuditHolder, AuditTotals};
use super::schedule::next_round_in;
use super::slice_audit::{HealingMode, SliceAuditor, Suspect};
use super::store::{AuditStore, ClaimScope, RoundProgress};
use crate::capture::{self, SourceFilter};
use crate::checkpoint::MongoCheckpointStore;
use crate::error_chain::error_chain;
use crate::event::ResumeToken;
use crate::pause::PauseSwitch;
use crate::publish::SessionMapping;
use crate::retry::exponential_delay;
use crate::source::SourceConfig;
use crate::source_walk::{Feed, SourceSlice, SourceWalk};
use crate::view::{self, CursorReader, PipelineStart, SourceEventReader};

/// Between two looks at a schedule, or at an index that is missing.
const RECHECK: Duration = Duration::from_secs(30);
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(15);
/// A wait that is shorter is usual under load, and not worth a write.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// How long an aggregate that is behind may take to catch up before its session is looked into. A look locks the session for a moment, so it is for
/// aggregates that are stuck, and not for those whose events were acknowledged just now.
const CATCH_UP: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(2_000),
];

/// What the audit reads, and the applier that heals.
#[derive(Clone)]
pub struct AuditDependencies {
    pub pipeline: String,
    pub pod_id: String,
    pub source: SourceConfig,
    /// The server of the source.
    pub server: Client,
    /// For its filter.
    pub capture: capture::Config,
    pub start: PipelineStart,
    /// The read-model database.
    pub views: Database,
    pub coordination: Database,
    pub bus: servicebus::Client,
    pub topic: String,
    pub subscription: String,
    pub sessions: SessionMapping,
    pub applier: view::Handle,
}

/// Audits one pipeline.
pub struct Auditor {
    config: Config,
    pod_id: String,
    /// Identifies this process as holder of the claim.
    id: String,
    store: AuditStore,
    index: IndexCheck,
    scope: Result<AuditScope, UnauditableReason>,
    monitor: Handle,
}

struct AuditScope {
    walk: SourceWalk,
    slices: SliceAuditor,
}

struct IndexCheck {
    server: Client,
    source: SourceConfig,
    capture: capture::Config,
}

/// A round on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundOptions {
    /// From the first aggregate; otherwise an unfinished round is continued.
    pub from_start: bool,
    /// Only report what is missing; neither heal it nor store the progress.
    pub dry_run: bool,
}

impl Auditor {
    pub fn new(config: Config, dependencies: AuditDependencies) -> Self {
        let monitor = Handle::new();
        let scope = AuditScope::new(&dependencies, &monitor);
        let AuditDependencies { pipeline, pod_id, source, server, capture, coordination, .. } = dependencies;
        Self {
            config,
            pod_id,
            id: format!("{:032x}", rand::random::<u128>()),
            store: AuditStore::new(&coordination, pipeline),
            index: IndexCheck { server, source, capture },
            scope,
            monitor,
        }
    }

    /// For tests: smaller slices.
    #[must_use]
    pub fn with_slice_keys(mut self, slice_keys: i64) -> Self {
        self.scope = self.scope.map(|scope| AuditScope { walk: scope.walk.with_slice_keys(slice_keys), ..scope });
        self
    }

    pub fn handle(&self) -> Handle {
        self.monitor.clone()
    }

    /// Runs rounds until `stop`, whenever no other pod does. Retries after errors.
    /// While `pause` is paused, it rests: it would apply events.
    pub async fn run(self, pause: PauseSwitch, stop: CancellationToken) {
        while stop.run_until_cancelled(pause.wait_until_resumed()).await.is_some() && !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = pause.wait_until_paused() => {}
                // cancel-safe: the progress is stored, and an interrupted feed is resolved by the applier.
                never = self.audit_forever() => match never {},
            }
        }
        // Another pod may claim it at once. Without a claim there is nothing to release.
        let _ = timeout(RELEASE_TIMEOUT, self.store.release(&self.id)).await;
    }

    async fn audit_forever(&self) -> Infallible {
        let mut failures = 0;
        loop {
            let Err(error) = self.audit_while_claimed().await;
            failures += 1;
            let pause = match error {
                Error::Unauditable(reason) => {
                    self.report_unauditable(reason).await;
                    RECHECK
                }
                Error::TakenOver => {
                    info!("audit taken over by another pod");
                    failures = 0;
                    FIRST_RETRY
                }
                error => {
                    warn!(error = error_chain(&error), "audit interrupted; retrying");
                    exponential_delay(failures, FIRST_RETRY, MAX_RETRY)
                }
            };
            sleep(pause).await;
        }
    }

    async fn report_unauditable(&self, reason: UnauditableReason) {
        if self.monitor.state() != AuditState::Unauditable(reason) {
            warn!(reason = %reason, "this pipeline cannot be audited");
            self.monitor.set_state(AuditState::Unauditable(reason));
        }
        if let Err(error) = self.store.enable(Some(reason)).await {
            debug!(error = error_chain(&error), "failed to store that the pipeline cannot be audited");
        }
    }

    async fn audit_while_claimed(&self) -> Result<Infallible, Error> {
        let scope = self.check_auditable().await?;
        self.store.enable(None).await?;
        self.wait_for_claim().await?;
        tokio::select! {
            ended = self.beat_while_held() => ended,
            // cancel-safe: as in `run`.
            ended = self.run_rounds(scope) => ended,
        }
    }

    async fn check_auditable(&self) -> Result<&AuditScope, Error> {
        let scope = self.scope.as_ref().map_err(|reason| Error::Unauditable(*reason))?;
        let IndexCheck { server, source, capture } = &self.index;
        match capture::check_walk_index(server, source, capture).await {
            Ok(()) => Ok(scope),
            Err(capture::Error::NoIndex { .. }) => Err(UnauditableReason::NoIndex.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until no other pod audits, or until the one that does has been silent for too long, by the clock of this process.
    async fn wait_for_claim(&self) -> Result<(), Error> {
        let mut seen: Option<(AuditHolder, Instant)> = None;
        loop {
            let holder = self.store.load().await?.and_then(|record| record.holder);
            let is_silent = |holder: &AuditHolder| {
                let unchanged = seen.as_ref().filter(|(known, _)| known == holder);
                unchanged.is_some_and(|(_, since)| since.elapsed() >= self.config.takeover)
            };
            let scope = match &holder {
                None => Some(ClaimScope::Free),
                Some(holder) if holder.id == self.id || is_silent(holder) => Some(ClaimScope::Silent(holder)),
                Some(_) => None,
            };
            if let Some(scope) = scope
                && self.store.claim(&self.pod_id, &self.id, scope).await?
            {
                return Ok(());
            }
            self.monitor.set_state(AuditState::Standby);
            if let Some(holder) = holder
                && seen.as_ref().is_none_or(|(known, _)| *known != holder)
            {
                seen = Some((holder, Instant::now()));
            }
            sleep(self.config.heartbeat()).await;
        }
    }

    /// Returns when another pod has taken over.
    async fn beat_while_held(&self) -> Result<Infallible, Error> {
        loop {
            sleep(self.config.heartbeat()).await;
            match self.store.beat(&self.id).await {
                Err(Error::TakenOver) => return Err(Error::TakenOver),
                // If it lasts, another pod takes over.
                Err(error) => debug!(error = error_chain(&error), "failed to save the heartbeat of the audit"),
                Ok(()) => {}
            }
        }
    }

    async fn run_rounds(&self, scope: &AuditScope) -> Result<Infallible, Error> {
        loop {
            let record = self.store.load().await?.unwrap_or_default();
            let since_last = record.last.as_ref().and_then(|last| last.ended_ago);
            let rest = next_round_in(record.round.is_some(), since_last, self.config.period);
            if rest > Duration::ZERO {
                self.monitor.set_state(AuditState::Resting);
                sleep(rest.min(RECHECK)).await;
                continue;
            }
            self.check_auditable().await?;
            let progress = self.begin_round(false).await?;
            let mut sink = ProgressSink { store: Some((&self.store, &self.id)), on_progress: &mut |_, _| {} };
            let mut round = Round {
                auditor: self,
                scope,
                mode: HealingMode::Background,
                budget: self.config.budget_percent,
                progress,
            };
            round.walk(&mut sink).await?;
            self.store.end_round(&self.id).await?;
            let AuditTotals { compared, found, healed, .. } = round.progress.totals;
            info!(round = round.progress.number, aggregates = compared, found, healed, "audit round complete");
        }
    }

    /// Resumes the unfinished round, or begins the next.
    async fn begin_round(&self, from_start: bool) -> Result<RoundProgress, Error> {
        let record = self.store.load().await?.unwrap_or_default();
        if let Some(round) = record.round.filter(|_| !from_start) {
            let super::record::RoundRecord { number, position, totals, .. } = round;
            return Ok(RoundProgress { number, position, totals, ..RoundProgress::default() });
        }
        let number = record.last.map_or(0, |last| last.number) + 1;
        self.store.begin_round(&self.id, number).await?;
        Ok(RoundProgress { number, ..RoundProgress::default() })
    }

    /// Runs one round now, without pauses. Takes the audit over from the pod that has it, unless it is a dry run; that pod continues afterwards.
    /// `on_progress` gets the totals and what the round waits for.
    pub async fn run_round(
        &self,
        options: RoundOptions,
        on_progress: &mut (dyn FnMut(&AuditTotals, Option<WaitReason>) + Send),
    ) -> Result<AuditTotals, Error> {
        let scope = self.check_auditable().await?;
        let RoundOptions { from_start, dry_run } = options;
        if dry_run {
            let position = match self.store.load().await? {
                Some(record) if !from_start => record.round.and_then(|round| round.position),
                Some(_) | None => None,
            };
            let progress = RoundProgress { position, ..RoundProgress::default() };
            let mut round = Round { auditor: self, scope, mode: HealingMode::DryRun, budget: 100, progress };
            round.walk(&mut ProgressSink { store: None, on_progress }).await?;
            return Ok(round.progress.totals);
        }
        self.store.enable(None).await?;
        self.store.claim(&self.pod_id, &self.id, ClaimScope::Any).await?;
        let ended = tokio::select! {
            ended = self.beat_while_held() => ended.map(|never| match never {}),
            // cancel-safe: as in `run`.
            ended = self.run_claimed_round(scope, from_start, on_progress) => ended,
        };
        let _ = self.store.release(&self.id).await;
        ended
    }

    async fn run_claimed_round(
        &self,
        scope: &AuditScope,
        from_start: bool,
        on_progress: &mut (dyn FnMut(&AuditTotals, Option<WaitReason>) + Send),
    ) -> Result<AuditTotals, Error> {
        let progress = self.begin_round(from_start).await?;
        let mut round = Round { auditor: self, scope, mode: HealingMode::OnRequest, budget: 100, progress };
        round.walk(&mut ProgressSink { store: Some((&self.store, &self.id)), on_progress }).await?;
        self.store.end_round(&self.id).await?;
        Ok(round.progress.totals)
    }
}

impl AuditScope {
    fn new(dependencies: &AuditDependencies, monitor: &Handle) -> Result<Self, UnauditableReason> {
        let AuditDependencies { source, server, capture, .. } = dependencies;
        if let Some(reason) = UnauditableReason::of_source(source) {
            return Err(reason);
        }
        let walk = SourceWalk::new(server, source).ok_or(UnauditableReason::NoSequence)?;
        let history = SourceEventReader::new(&server.database(&source.database), source);
        let history = history.ok_or(UnauditableReason::NoSequence)?;
        let filter = SourceFilter::new(server, source, capture);
        let AuditDependencies { pipeline, coordination, topic, subscription, .. } = dependencies;
        let slices = SliceAuditor {
            cursors: CursorReader::new(&dependencies.views, pipeline),
            checkpoints: MongoCheckpointStore::new(coordination, pipeline, source.fingerprint()),
            feed: Feed::new(dependencies.applier.clone(), history, filter),
            bus: dependencies.bus.clone(),
            entity: format!("{topic}/Subscriptions/{subscription}"),
            sessions: dependencies.sessions,
            start: dependencies.start,
            store: AuditStore::new(coordination, pipeline),
            monitor: monitor.clone(),
        };
        Ok(Self { walk, slices })
    }
}

/// Where the progress of a round goes.
struct ProgressSink<'a> {
    /// The store and the id of the claim; `None` in a dry run.
    store: Option<(&'a AuditStore, &'a str)>,
    on_progress: &'a mut (dyn FnMut(&AuditTotals, Option<WaitReason>) + Send),
}

impl ProgressSink<'_> {
    async fn save(&mut self, progress: &RoundProgress) -> Result<(), Error> {
        (self.on_progress)(&progress.totals, progress.waiting);
        match self.store {
            Some((store, id)) => store.save(id, progress).await,
            None => Ok(()),
        }
    }
}

/// A round in progress.
struct Round<'a> {
    auditor: &'a Auditor,
    scope: &'a AuditScope,
    mode: HealingMode,
    budget: u32,
    progress: RoundProgress,
}

impl Round<'_> {
    /// Walks from the present position to the end of the source.
    async fn walk(&mut self, sink: &mut ProgressSink<'_>) -> Result<(), Error> {
        let budget = WorkBudget::new(self.budget);
        loop {
            self.auditor.monitor.set_state(AuditState::Walking);
            let began = Instant::now();
            let Some(slice) = self.scope.walk.next_slice(self.progress.position.as_ref()).await? else {
                return Ok(());
            };
            // Counted when the slice is done: another pod that resumes compares the whole slice again.
            let mut totals = AuditTotals::default();
            let suspects = self.scope.slices.compare_slice(&slice, &mut totals).await?;
            let work = began.elapsed();
            if !suspects.is_empty() {
                self.resolve(&slice, suspects, &mut totals, sink).await?;
            }
            self.finish_slice(slice, &totals);
            sink.save(&self.progress).await?;
            sleep(budget.pause_after(work)).await;
        }
    }

    fn finish_slice(&mut self, slice: SourceSlice, totals: &AuditTotals) {
        let progress = &mut self.progress;
        progress.totals.add_slice(totals);
        progress.position = Some(slice.end);
        (progress.waiting, progress.suspects, progress.missing) = (None, 0, 0);
    }

    /// Returns when none of the suspects is behind any more.
    async fn resolve(
        &mut self,
        slice: &SourceSlice,
        mut suspects: Vec<Suspect>,
        totals: &mut AuditTotals,
        sink: &mut ProgressSink<'_>,
    ) -> Result<(), Error> {
        let token = self.wait_for_checkpoint(slice, &suspects, sink).await?;
        for pause in CATCH_UP {
            suspects = self.scope.slices.still_behind(suspects, &token, totals).await?;
            if suspects.is_empty() {
                return Ok(());
            }
            sleep(pause).await;
        }
        for attempt in 1.. {
            let pass = self.scope.slices.resolve(suspects, &token, self.mode, totals).await?;
            self.progress.totals.take_found(totals);
            self.progress.missing = pass.unhealed.len() as u64;
            let waiting = if pass.unhealed.is_empty() { WaitReason::Backlog } else { WaitReason::Healing };
            suspects = pass.waiting;
            suspects.extend(pass.unhealed);
            if suspects.is_empty() {
                break;
            }
            self.wait(waiting, &suspects, sink).await?;
            sleep(exponential_delay(attempt, FIRST_RETRY, MAX_RETRY)).await;
        }
        Ok(())
    }

    async fn wait_for_checkpoint(
        &mut self,
        slice: &SourceSlice,
        suspects: &[Suspect],
        sink: &mut ProgressSink<'_>,
    ) -> Result<ResumeToken, Error> {
        let slices = &self.scope.slices;
        if let Ok(passed) = timeout(QUIET_WAIT, slices.wait_for_checkpoint(slice.read_at)).await {
            return passed;
        }
        self.wait(WaitReason::Checkpoint, suspects, sink).await?;
        slices.wait_for_checkpoint(slice.read_at).await
    }

    async fn wait(
        &mut self,
        reason: WaitReason,
        suspects: &[Suspect],
        sink: &mut ProgressSink<'_>,
    ) -> Result<(), Error> {
        if self.progress.waiting != Some(reason) {
            info!(reason = reason.name(), aggregates = suspects.len(), "audit waits");
        }
        self.auditor.monitor.set_state(AuditState::Waiting(reason));
        self.progress.waiting = Some(reason);
        self.progress.suspects = suspects.len() as u64;
        sink.save(&self.progress).await
    }
}
