//! One candidate in a process of its own, and a started elector.

use std::collections::BTreeSet;

use mongodb::options::ClientOptions;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::election_host::ElectionHost;
use crate::error::Error;
use crate::handle::Handle;
use crate::leadership::{Leadership, TermOutcome};
use crate::mongo::LeaseName;

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
    pub(crate) handle: Handle,
    pub(crate) ended: oneshot::Receiver<Result<(), Error>>,
}

impl Candidate {
    /// Starts a host with this candidate alone; see [`ElectionHost::enter`].
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
        let keys = BTreeSet::from([self.name.key.clone()]);
        let host = ElectionHost::start(self.client, self.name.database.clone(), keys, self.config)?;
        host.enter(self.name, work, shutdown)
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
