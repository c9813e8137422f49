//! The workers: each accepts the next session, holds it as long as it may, and accepts another.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use servicebus::{Client, Error, Kind, SessionReceiver};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::budget::{Budget, EXPECTED};
use super::config::Config;
use super::consumer::{self, FIRST_CREDIT};
use super::dead_letters;
use super::handle::{Handle, Trouble};
use super::troubles::{Troubles, backoff};
use crate::chain::chain;
use crate::publish::Oversize;
use crate::view;

/// Where sessions are accepted, and where their events go.
pub struct Places {
    pub bus: Client,
    pub topic: String,
    pub subscription: String,
    pub oversize: Oversize,
    pub applier: view::Handle,
}

/// Holds sessions, while it runs.
pub struct Acceptor {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) bus: Client,
    /// The subscription's path.
    pub(super) entity: String,
    pub(super) oversize: Oversize,
    pub(super) applier: view::Handle,
    pub(super) budget: Arc<Budget>,
    pub(super) handle: Handle,
    pub(super) troubles: Troubles,
    /// Workers that wait for a session: while there is one, no session waits for a worker.
    pub(super) free_workers: watch::Sender<usize>,
    /// Bodies that are kept apart are large, and not in the budget: so many are in hand at a time.
    pub(super) large: Arc<Semaphore>,
}

/// How long the bus is asked to wait for a session: less than it allows, and than a middlebox forgets a silent connection.
const WAIT: Duration = Duration::from_secs(30);
const LARGE_AT_ONCE: usize = 2;

impl Acceptor {
    pub fn new(config: Config, places: Places) -> Self {
        let Places { bus, topic, subscription, oversize, applier } = places;
        let budget = Budget::new(config.bytes_in_flight.get());
        let shared = Shared {
            bus,
            entity: format!("{topic}/Subscriptions/{subscription}"),
            oversize,
            applier,
            handle: Handle::new(Arc::clone(&budget)),
            budget,
            troubles: Troubles::default(),
            free_workers: watch::Sender::default(),
            large: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            config,
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn handle(&self) -> Handle {
        self.shared.handle.clone()
    }

    /// Returns after `stop`, when every session has settled what it had in hand and was let go, or the time for that is over.
    pub async fn run(self, stop: CancellationToken) {
        let Config { connections, max_concurrent_sessions, drain_within, .. } = self.shared.config;
        let clients: Vec<Client> = (0..connections.get()).map(|_| self.shared.bus.another(FIRST_CREDIT)).collect();
        let client = |number: usize| clients[number % clients.len()].clone();
        let mut workers = JoinSet::new();
        for number in 0..max_concurrent_sessions.get() {
            workers.spawn(Arc::clone(&self.shared).work(client(number), stop.clone()));
        }
        let read = || dead_letters::read(Arc::clone(&self.shared), stop.clone());
        let mut reader = workers.spawn(read()).id();
        let mut replaced = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: join_next. A task that panicked has dropped its link, and with it let its session go.
                Some(Err(error)) = workers.join_next() => {
                    error!(error = %error, "a task of the sessions ended before its time; another takes its place");
                    if error.id() == reader {
                        reader = workers.spawn(read()).id();
                    } else {
                        replaced += 1;
                        workers.spawn(Arc::clone(&self.shared).work(client(replaced), stop.clone()));
                    }
                }
            }
        }
        drain(&mut workers, drain_within).await;
        for client in clients {
            let _ = client.close().await;
        }
    }
}

async fn drain(workers: &mut JoinSet<()>, within: Duration) {
    let started = Instant::now();
    let all = async {
        while let Some(ended) = workers.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "a session's task ended before its time");
            }
        }
    };
    match timeout_at(started + within, all).await {
        Ok(()) => info!(took = ?started.elapsed(), "all sessions are let go"),
        Err(_) => {
            warn!(left = workers.len(), within = ?within, "sessions are dropped: they did not end in time");
            workers.shutdown().await;
        }
    }
}

impl Shared {
    async fn work(self: Arc<Self>, client: Client, stop: CancellationToken) {
        let mut failures = 0;
        loop {
            // cancel-safe: a session that is granted to nobody is let go by the client.
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = self.accept(&client) => accepted,
            };
            match accepted {
                Ok(receiver) => {
                    failures = 0;
                    self.handle.0.bus(None);
                    if let Some(receiver) = receiver {
                        self.hold(receiver, &stop).await;
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.refused(&error);
                    let pause = backoff(failures, rand::random_range(0.75..1.25));
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }

    async fn accept(&self, client: &Client) -> Result<Option<SessionReceiver>, Error> {
        self.budget.room().await;
        let _free = FreeWorker::enter(&self.free_workers);
        client.accept_next_session(&self.entity, WAIT).await
    }

    async fn hold(self: &Arc<Self>, receiver: SessionReceiver, stop: &CancellationToken) {
        let book = &self.handle.0;
        book.accepted.fetch_add(1, Relaxed);
        book.held.fetch_add(1, Relaxed);
        let _held = Held(&self.handle);
        let share = self.budget.share(FIRST_CREDIT, EXPECTED);
        consumer::hold(self, receiver, share, stop).await;
    }

    fn refused(&self, error: &Error) {
        // Told once: every worker meets it, again and again.
        let before = self.handle.trouble();
        let trouble = Trouble::of(error.kind());
        self.handle.0.bus(Some(trouble));
        if before != Some(trouble) && error.kind() != Kind::Closed {
            warn!(error = chain(error), trouble = ?trouble, "accept a session");
        }
    }
}

/// Counts a worker as free while it lives.
struct FreeWorker<'a>(&'a watch::Sender<usize>);

impl<'a> FreeWorker<'a> {
    fn enter(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for FreeWorker<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Counts a session as held while it lives.
struct Held<'a>(&'a Handle);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(1, Relaxed);
    }
}
