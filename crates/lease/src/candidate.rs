//! A pod's candidature: starts the elector on a thread of its own, and ends it.
//!
//! The thread has its own runtime and its own MongoDB client. A pipeline that keeps every worker of the main runtime busy
//! can therefore delay its own work, but not a heartbeat.

use std::sync::Arc;
use std::thread;

use futures_util::FutureExt;
use mongodb::options::ClientOptions;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::elector::{Elector, Rules, Work};
use crate::error::Error;
use crate::handle::{Desk, Handle};
use crate::leadership::{Leadership, Outcome};
use crate::mongo::{LeaseName, MongoLease};

/// Everything one contender needs to stand.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub name: LeaseName,
    pub config: Config,
    pub client: ClientOptions,
}

/// A started elector.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    ended: oneshot::Receiver<Result<(), Error>>,
}

impl Candidate {
    /// Starts contending. `work` is called with every term this pod gains, on the current runtime, as its future is run: nothing
    /// it does, not even making that future, stands in the way of a heartbeat. `shutdown` drains that work, gives the
    /// lease back and ends the elector.
    ///
    /// # Panics
    /// When called outside a tokio runtime.
    pub fn start<W, F>(self, work: W, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<Running, Error>
    where
        W: Fn(Leadership) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let contest = self.config.validate()?;
        let rules = Rules {
            key: self.name.key.clone(),
            pod_id: self.name.pod_id.clone(),
            contest,
            poll: self.config.poll(),
            watch: self.config.watch,
        };
        let work: Work = Arc::new(move |leadership| work(leadership).boxed());
        let (handle, desk) = Handle::new();
        let (end, ended) = oneshot::channel();
        let work_runtime = runtime::Handle::current();
        let body = move || {
            let result = self.contend(rules, desk, work, work_runtime, shutdown);
            // nobody may be waiting for it
            drop(end.send(result));
        };
        thread::Builder::new().name("lease".into()).spawn(body).map_err(Error::Thread)?;
        Ok(Running { handle, ended })
    }

    fn contend(
        self,
        rules: Rules,
        desk: Desk,
        work: Work,
        work_runtime: runtime::Handle,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let told = stop.clone();
            let waiting = tokio::spawn(async move {
                shutdown.await;
                told.cancel();
            });
            let store = MongoLease::open(self.client, self.name, &rules.contest.timing)?;
            let ended = Elector::new(store, rules, Clock::Boot, desk, work, work_runtime, stop).run().await;
            waiting.abort();
            ended
        })
    }
}

impl Running {
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the elector has ended: after a shutdown, or because the store is unfit for leases.
    pub async fn ended(self) -> Result<(), Error> {
        self.ended.await.unwrap_or(Err(Error::Died))
    }
}
