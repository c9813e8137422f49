//! The operator actions of the dashboard: the same as the commands, done by this pod.
//!
//! The dashboard runs on a thread with its own tokio runtime, while the actions run on the pod's runtime, where their clients live. An action that has
//! started runs to its end, even if its HTTP client is gone.

use std::future::Future;
use std::sync::Arc;

use admin::operator::{
    ActionDone, ActionFuture, ActionRefusal, AppliedAnswer, AppliedRequest, EventSelector, OperatorActions,
    ParkedListEntry, ParkedSelector, ReadModelSelector,
};
use admin::{OperatorAccess, OperatorToken};
use lease::mongo::MongoLeaseStore;
use mongodb::Database;
use pipeline::generation::GenerationStore;
use pipeline::verify::VerifyTotals;
use pipeline::view::{self, DiscardScope};
use tokio::runtime;

use crate::applied::{AppliedWait, UnknownEvent};
use crate::cli::read_model::GenerationCommands;
use crate::config::{Config, Secret};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::operator_log::OperatorLog;
use crate::parked::{ParkedCommands, format_id, format_time, format_typed_id};
use crate::pauses::{PauseStore, PauseTarget};
use crate::step_down_requests::{StepDownRequest, StepDownStore};
use crate::{aggregate_argument, applied, verification};

/// The dashboard shows so many; the command lists more.
const MAX_LISTED: i64 = 200;
/// Aggregates that a comparison takes. The command can take more.
const VERIFY_SAMPLE: u32 = 500;

/// The actions, on the runtime of the pod.
struct DashboardActions {
    parked_commands: ParkedCommands,
    lease: MongoLeaseStore,
    step_down: StepDownStore,
    pod_id: String,
    log: OperatorLog,
    generations: GenerationCommands,
    pauses: PauseStore,
    config: Arc<Config>,
    /// `None` without a sequence: nobody can name an event.
    applied: Option<AppliedWait>,
}

/// Starts the actions from the thread of the admin server, and waits for them.
struct BlockingDashboardActions {
    actions: Arc<DashboardActions>,
    runtime: runtime::Handle,
}

/// Connects lazily: it waits for no server.
pub(crate) async fn open(
    config: &Arc<Config>,
    token: &Secret,
    coordination: &Database,
) -> anyhow::Result<Option<OperatorAccess>> {
    let timeout = SERVER_SELECTION_TIMEOUT;
    let views = connect::shared_mongo_client(config, &config.read_models.uri, "read_models.uri", timeout).await?;
    let source = connect::shared_mongo_client(config, &config.source_uri, "source.uri", timeout).await?;
    let views = views.database(&config.read_models.database);
    let by = format!("dashboard of {}", config.pod_id);
    let actions = DashboardActions {
        generations: GenerationCommands::new(GenerationStore::new(coordination, &config.pipeline), by),
        pauses: PauseStore::new(coordination, &config.pipeline),
        config: Arc::clone(config),
        log: OperatorLog::new(coordination, &config.pipeline),
        applied: AppliedWait::new(config, &source, coordination, &views),
        parked_commands: ParkedCommands::open(config, SERVER_SELECTION_TIMEOUT).await?,
        lease: connect::lease(config).await?,
        step_down: StepDownStore::new(coordination, &config.pipeline),
        pod_id: config.pod_id.clone(),
    };
    let actions =
        Arc::new(BlockingDashboardActions { actions: Arc::new(actions), runtime: runtime::Handle::current() });
    Ok(OperatorToken::new(token.reveal()).map(|token| OperatorAccess { token, actions }))
}

impl BlockingDashboardActions {
    fn run<T, F>(&self, action: impl FnOnce(Arc<DashboardActions>) -> F) -> ActionFuture<'static, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ActionRefusal>> + Send + 'static,
    {
        let running = self.runtime.spawn(action(Arc::clone(&self.actions)));
        Box::pin(async {
            running
                .await
                .unwrap_or_else(|_| Err(ActionRefusal::conflict("this pod stopped before the action was done")))
        })
    }
}

impl OperatorActions for BlockingDashboardActions {
    fn step_down(&self) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.step_down().await })
    }

    fn list_parked(&self) -> ActionFuture<'_, Vec<ParkedListEntry>> {
        self.run(|actions| async move { actions.list_parked().await })
    }

    fn retry_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.retry_parked(selector).await })
    }

    fn discard_parked(&self, selector: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.discard_parked(selector).await })
    }

    fn rebuild(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.rebuild(&selector.read_model).await })
    }

    fn roll_back(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.roll_back(&selector.read_model).await })
    }

    fn cancel_change(&self) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.cancel_change().await })
    }

    fn pause_build(&self) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.pause_build().await })
    }

    fn resume_build(&self) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.resume_build().await })
    }

    fn verify(&self, selector: ReadModelSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|actions| async move { actions.verify(&selector.read_model).await })
    }

    fn wait_applied(&self, request: AppliedRequest) -> ActionFuture<'_, AppliedAnswer> {
        self.run(|actions| async move { actions.wait_applied(&request).await })
    }
}

impl DashboardActions {
    async fn step_down(&self) -> Result<ActionDone, ActionRefusal> {
        let by = format!("an operator, on the dashboard of {}", self.pod_id);
        let StepDownRequest { leader, term } =
            self.step_down.request_from_leader(&self.lease, &by).await.map_err(|error| conflict(&error))?;
        self.record("step-down", &format!("{leader}, term {term}")).await;
        Ok(ActionDone { done: format!("requested that {leader} steps down from term {term}") })
    }

    async fn list_parked(&self) -> Result<Vec<ParkedListEntry>, ActionRefusal> {
        let list = self.parked_commands.list(MAX_LISTED).await.map_err(|error| conflict(&error.into()))?;
        Ok(list.iter().map(to_entry).collect())
    }

    async fn retry_parked(&self, selector: ParkedSelector) -> Result<ActionDone, ActionRefusal> {
        let found = self.find(&selector).await?;
        tracing::info!(read_model = found.model, "operator retries the parked events of one aggregate over HTTP");
        let (name, model) = (format_id(&found.aggregate), &found.model);
        match self.parked_commands.retry(&found).await {
            Ok(events) => {
                self.record("parked retry", &format!("{events} of {name} in `{model}`")).await;
                let done = format!("{} applied to {model}; {name} is no longer parked", count_events(events));
                Ok(ActionDone { done })
            }
            Err(error) => Err(conflict(&error.context(format!("{name} stays parked in {model}")))),
        }
    }

    async fn discard_parked(&self, selector: ParkedSelector) -> Result<ActionDone, ActionRefusal> {
        let found = self.find(&selector).await?;
        tracing::info!(
            read_model = found.model,
            all_events = selector.all,
            "operator discards parked events of one aggregate over HTTP"
        );
        let what = if selector.all { DiscardScope::All } else { DiscardScope::First };
        let events = self.parked_commands.discard(&found, what).await.map_err(|error| conflict(&error))?;
        let (name, model) = (format_id(&found.aggregate), &found.model);
        self.record("parked discard", &format!("{events} of {name} in `{model}`")).await;
        Ok(ActionDone { done: describe_discard(events, &name, model) })
    }

    async fn rebuild(&self, model: &str) -> Result<ActionDone, ActionRefusal> {
        self.generations.rebuild(model).await.map_err(|error| conflict(&error))?;
        self.record("read-model rebuild", &format!("`{model}`")).await;
        Ok(ActionDone { done: format!("requested: the leader builds {model} from the source") })
    }

    async fn roll_back(&self, model: &str) -> Result<ActionDone, ActionRefusal> {
        self.generations.rollback(model).await.map_err(|error| conflict(&error))?;
        self.record("read-model rollback", &format!("`{model}`")).await;
        Ok(ActionDone { done: format!("requested: the leader builds the earlier definition of {model}") })
    }

    async fn cancel_change(&self) -> Result<ActionDone, ActionRefusal> {
        self.generations.cancel().await.map_err(|error| conflict(&error))?;
        self.record("read-model cancel", "the change in progress").await;
        Ok(ActionDone { done: "requested: the leader stops the change".to_owned() })
    }

    async fn pause_build(&self) -> Result<ActionDone, ActionRefusal> {
        let by = format!("dashboard of {}", self.pod_id);
        let paused = self.pauses.pause(&PauseTarget::Build, &by, None).await;
        if !paused.map_err(|error| conflict(&error.into()))? {
            return Err(ActionRefusal::conflict("the build of read models is paused already"));
        }
        self.record("pause", &PauseTarget::Build.argument()).await;
        Ok(ActionDone { done: "paused the build of read models; the present ones go on".to_owned() })
    }

    async fn resume_build(&self) -> Result<ActionDone, ActionRefusal> {
        let resumed = self.pauses.resume(&PauseTarget::Build).await;
        if !resumed.map_err(|error| conflict(&error.into()))? {
            return Err(ActionRefusal::conflict("the build of read models is not paused"));
        }
        self.record("resume", &PauseTarget::Build.argument()).await;
        Ok(ActionDone { done: "resumed the build of read models".to_owned() })
    }

    async fn verify(&self, model: &str) -> Result<ActionDone, ActionRefusal> {
        let by = format!("dashboard of {}", self.pod_id);
        let (config, name, runtime) = (Arc::clone(&self.config), model.to_owned(), runtime::Handle::current());
        // On a thread of its own: the compiler cannot prove that this future may move between threads.
        let verified = tokio::task::spawn_blocking(move || {
            runtime.block_on(verification::verify_sample(&config, &name, VERIFY_SAMPLE, &by))
        });
        let stopped = |_| ActionRefusal::conflict("this pod stopped before the comparison was done");
        let totals = verified.await.map_err(stopped)?.map_err(|error| conflict(&error))?;
        let done = describe_verification(model, &totals);
        self.record("read-model verify", &done).await;
        Ok(ActionDone { done })
    }

    async fn wait_applied(&self, request: &AppliedRequest) -> Result<AppliedAnswer, ActionRefusal> {
        let Some(reader) = &self.applied else {
            return Err(ActionRefusal::conflict(applied::NO_SEQUENCE));
        };
        let (aggregates, sequence) = match &request.event {
            EventSelector::Sequence { aggregate, sequence } => (aggregate_argument::candidates(aggregate), *sequence),
            EventSelector::Id(id) => {
                let found = reader.find_event(&aggregate_argument::id_candidates(id)).await;
                let (aggregate, sequence) = found.map_err(|error| match error.downcast_ref::<UnknownEvent>() {
                    Some(UnknownEvent::NotFound) => ActionRefusal::not_found(error.to_string()),
                    Some(UnknownEvent::Rejected) | None => conflict(&error),
                })?;
                (vec![aggregate], sequence)
            }
        };
        let state = reader.wait(&aggregates, sequence, request.timeout).await;
        state.map(|state| applied::to_answer(&state)).map_err(|error| conflict(&error))
    }

    /// The action is done: if it cannot be recorded, that is only logged.
    async fn record(&self, action: &str, detail: &str) {
        let by = format!("dashboard of {}", self.pod_id);
        if let Err(error) = self.log.record(&by, action, detail).await {
            tracing::warn!(%error, action, "failed to record an operator action");
        }
    }

    async fn find(&self, selector: &ParkedSelector) -> Result<view::ParkedAggregate, ActionRefusal> {
        let list = self.parked_commands.find(&selector.id, Some(&selector.read_model)).await;
        list.map_err(|error| match error.downcast_ref::<view::Error>() {
            Some(_) => conflict(&error),
            None => ActionRefusal::not_found("this aggregate is not parked in that read model (any more)"),
        })
    }
}

fn conflict(error: &anyhow::Error) -> ActionRefusal {
    ActionRefusal::conflict(format!("{error:#}"))
}

fn to_entry(waiting: &view::ParkedAggregate) -> ParkedListEntry {
    ParkedListEntry {
        read_model: waiting.model.clone(),
        aggregate: format_id(&waiting.aggregate),
        id: format_typed_id(&waiting.aggregate),
        reason: waiting.parked.reason.to_string(),
        events: waiting.parked.waiting(),
        since: format_time(waiting.parked.since),
    }
}

fn describe_verification(model: &str, totals: &VerifyTotals) -> String {
    let VerifyTotals { compared, different, .. } = totals;
    let skipped = totals.skipped();
    match different {
        0 => format!("{model}: {compared} compared, {skipped} skipped, all equal"),
        _ => format!(
            "{model}: {different} of {compared} differ, {skipped} skipped; `headwater read-model verify {model}` shows what"
        ),
    }
}

fn describe_discard(events: u64, name: &str, model: &str) -> String {
    let (events, were) = if events == 1 { ("1 event".to_owned(), "was") } else { (format!("{events} events"), "were") };
    format!("{events} of {name} {were} discarded from {model}; discarded events stay in parked_events")
}

fn count_events(events: u64) -> String {
    if events == 1 { "1 event was".to_owned() } else { format!("{events} events were") }
}
