//! The thread, the MongoDB client and the change stream that all candidates of a process share.
//!
//! The thread has its own runtime and its own MongoDB client. A pipeline that keeps every worker of the main runtime busy
//! delays its own work, but never a heartbeat. One client and one change stream serve any number of leases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use mongodb::options::ClientOptions;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};
use tokio_util::sync::CancellationToken;

use crate::candidate::RunningElector;
use crate::clock::Clock;
use crate::config::Config;
use crate::elector::{Elector, ElectorConfig, LeaderTask};
use crate::error::Error;
use crate::handle::Handle;
use crate::leadership::{Leadership, TermOutcome};
use crate::mongo::{LeaseName, MongoLeaseStore, SharedLeases};
use crate::spread::LeaseSpread;

/// Runs on the thread; gets what the candidates share.
type ElectorJob = Box<dyn FnOnce(Arc<SharedLeases>) -> LocalBoxFuture<'static, ()> + Send>;

/// Ends when it is dropped and all its electors have ended.
#[derive(Clone, Debug)]
pub struct ElectionHost {
    jobs: mpsc::UnboundedSender<ElectorJob>,
    keys: Arc<BTreeSet<String>>,
    config: Config,
    spread: LeaseSpread,
}

impl ElectionHost {
    /// `database` is the coordination database, `keys` are the leases that candidates may [enter](Self::enter) for. Does not wait for
    /// a connection.
    pub fn start(
        client: ClientOptions,
        database: String,
        keys: BTreeSet<String>,
        config: Config,
    ) -> Result<Self, Error> {
        let timing = config.validate()?.timing;
        let watched = keys.clone();
        let (jobs, mut received) = mpsc::unbounded_channel::<ElectorJob>();
        let (opened, result) = std::sync::mpsc::channel();
        let body = move || {
            let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(Error::Thread(error)))),
            };
            let run = async {
                // On this runtime, because the client's own tasks run where it is made.
                let leases = match SharedLeases::open(client, &database, watched, &timing) {
                    Ok(leases) => Arc::new(leases),
                    Err(error) => return drop(opened.send(Err(error))),
                };
                drop(opened.send(Ok(())));
                let watch = tokio::task::spawn_local(Arc::clone(&leases).run_watch());
                let mut electors = JoinSet::new();
                while let Some(job) = received.recv().await {
                    electors.spawn_local(job(Arc::clone(&leases)));
                }
                while electors.join_next().await.is_some() {}
                watch.abort();
                leases.close(&timing).await;
            };
            LocalSet::new().block_on(&runtime, run);
        };
        thread::Builder::new().name("lease".into()).spawn(body).map_err(Error::Thread)?;
        result.recv().unwrap_or(Err(Error::ThreadPanicked))?;
        Ok(Self { jobs, keys: Arc::new(keys), config, spread: LeaseSpread::default() })
    }

    /// The leases that this process leads.
    pub fn spread(&self) -> &LeaseSpread {
        &self.spread
    }

    /// Adds a candidate. It calls `work` for every term this pod gains, on the current runtime and inside the task of the
    /// term: nothing that `work` does, not even creating its future, delays a heartbeat. `shutdown` drains that work, releases
    /// the lease and ends the elector.
    ///
    /// # Panics
    /// When called outside a tokio runtime.
    pub fn enter<W, F>(
        &self,
        name: LeaseName,
        work: W,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<RunningElector, Error>
    where
        W: Fn(Leadership) -> F + Send + Sync + 'static,
        F: Future<Output = TermOutcome> + Send + 'static,
    {
        if !self.keys.contains(&name.key) {
            return Err(Error::UnknownLease { key: name.key });
        }
        let election = self.config.validate()?;
        let config = ElectorConfig {
            key: name.key.clone(),
            pod_id: name.pod_id.clone(),
            election,
            poll: self.config.poll(),
            watch: self.config.watch,
        };
        let work: LeaderTask = Arc::new(move |leadership| work(leadership).boxed());
        let (handle, channels) = Handle::new();
        let (end, ended) = oneshot::channel();
        let (work_runtime, spread) = (runtime::Handle::current(), self.spread.clone());
        let job: ElectorJob = Box::new(move |leases| {
            async move {
                let stop = CancellationToken::new();
                let cancel = stop.clone();
                let shutdown_task = tokio::spawn(async move {
                    shutdown.await;
                    cancel.cancel();
                });
                let store = MongoLeaseStore::shared(leases, name, &config.election.timing);
                let elector = Elector::new(store, config, Clock::Boot, channels, work, work_runtime, stop);
                let result = elector.with_spread(spread).run().await;
                shutdown_task.abort();
                // The receiver may be gone: nobody has to wait for the end.
                drop(end.send(result));
            }
            .boxed_local()
        });
        self.jobs.send(job).map_err(|_| Error::ThreadPanicked)?;
        Ok(RunningElector { handle, ended })
    }
}
