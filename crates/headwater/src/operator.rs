//! An operator's acts as the dashboard asks for them: what the commands do, done by this pod.
//!
//! The dashboard is served by a thread with a runtime of its own; the acts run where the clients they use do. One that has begun goes on to its
//! end, whoever still listens.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use admin::operator::{Act, Done, Hands, Refusal, Waiting, Which};
use admin::{Operator, Token};
use lease::mongo::MongoLease;
use mongodb::Database;
use pipeline::view::{self, Discard};
use tokio::runtime;

use crate::config::{Config, Secret};
use crate::parked::{Office, shown, time, typed};
use crate::step_down::{self, Asked, Wish};

/// What a page shows; the command lists more.
const SHOWN: i64 = 200;
/// Whoever asks is waiting.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// What the acts need; it lives where the pod's own loops do.
struct Acts {
    office: Office,
    lease: MongoLease,
    wish: Wish,
    pod_id: String,
}

/// What the server's thread has of them: it starts them, and waits.
struct Remote {
    acts: Arc<Acts>,
    runtime: runtime::Handle,
}

/// Waits for no server.
pub(crate) async fn open(config: &Config, token: &Secret, coordination: &Database) -> anyhow::Result<Option<Operator>> {
    let acts = Acts {
        office: Office::open(config, Some(FOUND_WITHIN)).await?,
        lease: step_down::lease(config).await?,
        wish: Wish::of(coordination, &config.pipeline),
        pod_id: config.pod_id.clone(),
    };
    let hands = Arc::new(Remote { acts: Arc::new(acts), runtime: runtime::Handle::current() });
    Ok(Token::new(token.reveal()).map(|token| Operator { token, hands }))
}

impl Remote {
    fn run<T, F>(&self, act: impl FnOnce(Arc<Acts>) -> F) -> Act<'static, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let running = self.runtime.spawn(act(Arc::clone(&self.acts)));
        Box::pin(async { running.await.unwrap_or_else(|_| Err(Refusal::not_now("this pod ended before it was done"))) })
    }
}

impl Hands for Remote {
    fn step_down(&self) -> Act<'_, Done> {
        self.run(|acts| async move { acts.step_down().await })
    }

    fn parked(&self) -> Act<'_, Vec<Waiting>> {
        self.run(|acts| async move { acts.parked().await })
    }

    fn retry(&self, which: Which) -> Act<'_, Done> {
        self.run(|acts| async move { acts.retry(which).await })
    }

    fn discard(&self, which: Which) -> Act<'_, Done> {
        self.run(|acts| async move { acts.discard(which).await })
    }
}

impl Acts {
    async fn step_down(&self) -> Result<Done, Refusal> {
        let by = format!("the dashboard of {}", self.pod_id);
        let Asked { leader, term } =
            self.wish.ask_the_leader(&self.lease, &by).await.map_err(|error| not_now(&error))?;
        Ok(Done { done: format!("{leader} is asked to give term {term} up") })
    }

    async fn parked(&self) -> Result<Vec<Waiting>, Refusal> {
        let list = self.office.list(SHOWN).await.map_err(|error| not_now(&error.into()))?;
        Ok(list.iter().map(waiting).collect())
    }

    async fn retry(&self, which: Which) -> Result<Done, Refusal> {
        let found = self.find(&which).await?;
        tracing::info!(read_model = found.model, "an operator retries what is parked, over HTTP");
        let (name, model) = (shown(&found.aggregate), &found.model);
        match self.office.retry(&found).await {
            Ok(events) => Ok(Done { done: format!("{} applied to {model}; {name} goes on", counted(events)) }),
            Err(error) => Err(not_now(&anyhow::Error::new(error).context(format!("{name} stays parked in {model}")))),
        }
    }

    async fn discard(&self, which: Which) -> Result<Done, Refusal> {
        let found = self.find(&which).await?;
        tracing::info!(read_model = found.model, all = which.all, "an operator discards what is parked, over HTTP");
        let what = if which.all { Discard::All } else { Discard::First };
        let events = self.office.discard(&found, what).await.map_err(|error| not_now(&error.into()))?;
        let (name, model) = (shown(&found.aggregate), &found.model);
        Ok(Done { done: left_out(events, &name, model) })
    }

    async fn find(&self, which: &Which) -> Result<view::Waiting, Refusal> {
        let list = self.office.find(&which.id, Some(&which.read_model)).await;
        list.map_err(|error| match error.downcast_ref::<view::Error>() {
            Some(_) => not_now(&error),
            None => Refusal::not_there("no such aggregate is parked in that read model; it may have gone on meanwhile"),
        })
    }
}

fn not_now(error: &anyhow::Error) -> Refusal {
    Refusal::not_now(format!("{error:#}"))
}

fn waiting(waiting: &view::Waiting) -> Waiting {
    Waiting {
        read_model: waiting.model.clone(),
        aggregate: shown(&waiting.aggregate),
        id: typed(&waiting.aggregate),
        reason: waiting.parked.reason.to_string(),
        events: waiting.parked.waiting(),
        since: time(waiting.parked.since),
    }
}

fn left_out(events: u64, name: &str, model: &str) -> String {
    let (events, were) = if events == 1 { ("1 event".to_owned(), "was") } else { (format!("{events} events"), "were") };
    format!("{events} of {name} {were} left out of {model}; what is discarded is kept in parked_events")
}

fn counted(events: u64) -> String {
    if events == 1 { "1 event was".to_owned() } else { format!("{events} events were") }
}
