//! An operator's acts as the dashboard asks for them: what the commands do, done by this pod.
//!
//! The dashboard is served by a thread with a runtime of its own; the acts run where the clients they use do. One that has begun goes on to its
//! end, whoever still listens.

use std::future::Future;
use std::sync::Arc;

use admin::operator::{ActionDone, ActionFuture, ActionRefusal, OperatorActions, ParkedEntry, ParkedSelector};
use admin::{OperatorAccess, OperatorToken};
use lease::mongo::MongoLeaseStore;
use mongodb::Database;
use pipeline::view::{self, DiscardScope};
use tokio::runtime;

use crate::config::{Config, Secret};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::parked::{ParkedCommands, format_id, format_time, format_typed_id};
use crate::step_down::{StepDownRequest, StepDownStore};

/// What a page shows; the command lists more.
const SHOWN: i64 = 200;

/// What the acts need; it lives where the pod's own loops do.
struct PodActions {
    parked_commands: ParkedCommands,
    lease: MongoLeaseStore,
    step_down: StepDownStore,
    pod_id: String,
}

/// What the server's thread has of them: it starts them, and waits.
struct SpawnedActions {
    acts: Arc<PodActions>,
    runtime: runtime::Handle,
}

/// Waits for no server.
pub(crate) async fn open(
    config: &Config,
    token: &Secret,
    coordination: &Database,
) -> anyhow::Result<Option<OperatorAccess>> {
    let acts = PodActions {
        parked_commands: ParkedCommands::open(config, SERVER_SELECTION_TIMEOUT).await?,
        lease: connect::lease(config).await?,
        step_down: StepDownStore::new(coordination, &config.pipeline),
        pod_id: config.pod_id.clone(),
    };
    let actions = Arc::new(SpawnedActions { acts: Arc::new(acts), runtime: runtime::Handle::current() });
    Ok(OperatorToken::new(token.reveal()).map(|token| OperatorAccess { token, actions }))
}

impl SpawnedActions {
    fn run<T, F>(&self, act: impl FnOnce(Arc<PodActions>) -> F) -> ActionFuture<'static, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ActionRefusal>> + Send + 'static,
    {
        let running = self.runtime.spawn(act(Arc::clone(&self.acts)));
        Box::pin(async {
            running.await.unwrap_or_else(|_| Err(ActionRefusal::conflict("this pod ended before it was done")))
        })
    }
}

impl OperatorActions for SpawnedActions {
    fn step_down(&self) -> ActionFuture<'_, ActionDone> {
        self.run(|acts| async move { acts.step_down().await })
    }

    fn parked(&self) -> ActionFuture<'_, Vec<ParkedEntry>> {
        self.run(|acts| async move { acts.parked().await })
    }

    fn retry(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|acts| async move { acts.retry(which).await })
    }

    fn discard(&self, which: ParkedSelector) -> ActionFuture<'_, ActionDone> {
        self.run(|acts| async move { acts.discard(which).await })
    }
}

impl PodActions {
    async fn step_down(&self) -> Result<ActionDone, ActionRefusal> {
        let by = format!("the dashboard of {}", self.pod_id);
        let StepDownRequest { leader, term } =
            self.step_down.request_from_leader(&self.lease, &by).await.map_err(|error| conflict(&error))?;
        Ok(ActionDone { done: format!("{leader} is asked to give term {term} up") })
    }

    async fn parked(&self) -> Result<Vec<ParkedEntry>, ActionRefusal> {
        let list = self.parked_commands.list(SHOWN).await.map_err(|error| conflict(&error.into()))?;
        Ok(list.iter().map(waiting).collect())
    }

    async fn retry(&self, which: ParkedSelector) -> Result<ActionDone, ActionRefusal> {
        let found = self.find(&which).await?;
        tracing::info!(read_model = found.model, "an operator retries what is parked, over HTTP");
        let (name, model) = (format_id(&found.aggregate), &found.model);
        match self.parked_commands.retry(&found).await {
            Ok(events) => Ok(ActionDone { done: format!("{} applied to {model}; {name} goes on", counted(events)) }),
            Err(error) => Err(conflict(&anyhow::Error::new(error).context(format!("{name} stays parked in {model}")))),
        }
    }

    async fn discard(&self, which: ParkedSelector) -> Result<ActionDone, ActionRefusal> {
        let found = self.find(&which).await?;
        tracing::info!(read_model = found.model, all = which.all, "an operator discards what is parked, over HTTP");
        let what = if which.all { DiscardScope::All } else { DiscardScope::First };
        let events = self.parked_commands.discard(&found, what).await.map_err(|error| conflict(&error.into()))?;
        let (name, model) = (format_id(&found.aggregate), &found.model);
        Ok(ActionDone { done: left_out(events, &name, model) })
    }

    async fn find(&self, which: &ParkedSelector) -> Result<view::ParkedAggregate, ActionRefusal> {
        let list = self.parked_commands.find(&which.id, Some(&which.read_model)).await;
        list.map_err(|error| match error.downcast_ref::<view::Error>() {
            Some(_) => conflict(&error),
            None => ActionRefusal::not_found(
                "no such aggregate is parked in that read model; it may have gone on meanwhile",
            ),
        })
    }
}

fn conflict(error: &anyhow::Error) -> ActionRefusal {
    ActionRefusal::conflict(format!("{error:#}"))
}

fn waiting(waiting: &view::ParkedAggregate) -> ParkedEntry {
    ParkedEntry {
        read_model: waiting.model.clone(),
        aggregate: format_id(&waiting.aggregate),
        id: format_typed_id(&waiting.aggregate),
        reason: waiting.parked.reason.to_string(),
        events: waiting.parked.waiting(),
        since: format_time(waiting.parked.since),
    }
}

fn left_out(events: u64, name: &str, model: &str) -> String {
    let (events, were) = if events == 1 { ("1 event".to_owned(), "was") } else { (format!("{events} events"), "were") };
    format!("{events} of {name} {were} left out of {model}; what is discarded is kept in parked_events")
}

fn counted(events: u64) -> String {
    if events == 1 { "1 event was".to_owned() } else { format!("{events} events were") }
}
