//! Starts the elector of a pod on its own thread, and ends it.
//!
//! The thread has its own runtime and its own MongoDB client. A pipeline that keeps every worker of the main runtime busy
//! delays its own work, but never a heartbeat.

use std::sync::Arc;
use std::thread;

use futures_util::FutureExt;
use mongodb::options::ClientOptions;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::elector::{Elector, ElectorConfig, LeaderTask};
use crate::error::Error;
use crate::handle::{ElectorChannels, Handle};
use crate::leadership::{Leadership, TermOutcome};
use crate::mongo::{LeaseName, MongoLeaseStore};

/// Everything a pod needs to take part in the election.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub name: LeaseName,
    pub config: Config,
    pub client: ClientOptions,
}

/// A started elector.
#[derive(Debug)]
pub struct RunningElector {
    handle: Handle,
    ended: oneshot::Receiver<Result<(), Error>>,
}

impl Candidate {
    /// Starts the elector. It calls `work` for every term this pod gains, on the current runtime and inside the task of the
    /// term: nothing that `work` does, not even creating its future, delays a heartbeat. `shutdown` drains that work, releases
    /// the lease and ends the elector.
    ///
    /// # Panics
    /// When called outside a tokio runtime.
    pub fn start<W, F>(
        self,
        work: W,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<RunningElector, Error>
    where
        W: Fn(Leadership) -> F + Send + Sync + 'static,
        F: Future<Output = TermOutcome> + Send + 'static,
    {
        let election = self.config.validate()?;
        let config = ElectorConfig {
            key: self.name.key.clone(),
            pod_id: self.name.pod_id.clone(),
            election,
            poll: self.config.poll(),
            watch: self.config.watch,
        };
        let work: LeaderTask = Arc::new(move |leadership| work(leadership).boxed());
        let (handle, channels) = Handle::new();
        let (end, ended) = oneshot::channel();
        let work_runtime = runtime::Handle::current();
        let body = move || {
            let result = self.run_elector(config, channels, work, work_runtime, shutdown);
            // The receiver may be gone: nobody has to wait for the end.
            drop(end.send(result));
        };
        thread::Builder::new().name("lease".into()).spawn(body).map_err(Error::Thread)?;
        Ok(RunningElector { handle, ended })
    }

    fn run_elector(
        self,
        config: ElectorConfig,
        channels: ElectorChannels,
        work: LeaderTask,
        work_runtime: runtime::Handle,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let cancel = stop.clone();
            let shutdown_task = tokio::spawn(async move {
                shutdown.await;
                cancel.cancel();
            });
            let store = MongoLeaseStore::open(self.client, self.name, &config.election.timing)?;
            let ended = Elector::new(store, config, Clock::Boot, channels, work, work_runtime, stop).run().await;
            shutdown_task.abort();
            ended
        })
    }
}

impl RunningElector {
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the elector has ended: after a shutdown, or because the store is unsafe for leases.
    pub async fn join(self) -> Result<(), Error> {
        self.ended.await.unwrap_or(Err(Error::ThreadPanicked))
    }
}
