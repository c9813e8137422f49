//! Accepts sessions while there is a seat for them; each is held by a task of its own.
//!
//! Few accepts are under way while there is little to accept, and many while they are granted soon: see [`AcceptPermits`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use servicebus::{BusErrorKind, Client, Error, SessionReceiver};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::accept_permits::{self, AcceptPermits};
use super::backoff::{SessionBackoff, backoff_delay};
use super::budget::ByteBudget;
use super::config::Config;
use super::dead_letters;
use super::held_session::{self, INITIAL_CREDIT};
use super::monitor::{SessionMonitor, SessionProblem};
use super::slots::{SessionSlot, SessionSlots};
use crate::error_chain::error_chain;
use crate::failpoints::LoopStall;
use crate::publish::ClaimCheckStore;
use crate::view;

/// Where sessions are accepted, and where their events go.
pub struct SessionDependencies {
    pub bus: Client,
    pub topic: String,
    pub subscription: String,
    pub oversize: ClaimCheckStore,
    pub applier: view::Handle,
}

/// Holds sessions, while it runs.
pub struct SessionAcceptor {
    shared: Arc<SessionContext>,
}

pub(super) struct SessionContext {
    pub(super) config: Config,
    pub(super) bus: Client,
    /// The subscription's path.
    pub(super) entity: String,
    pub(super) oversize: ClaimCheckStore,
    pub(super) applier: view::Handle,
    pub(super) budget: Arc<ByteBudget>,
    pub(super) monitor: SessionMonitor,
    pub(super) backoff: SessionBackoff,
    pub(super) slots: SessionSlots,
    accept_permits: AcceptPermits,
    /// Bodies that are kept apart are large, and not in the budget: so many are in hand at a time.
    pub(super) oversize_permits: Arc<Semaphore>,
}

/// How long the bus is asked to wait for a session: less than it allows, and than a middlebox forgets a silent connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_OVERSIZE_BODIES: usize = 2;
/// A session that was granted within this time was waiting: there will be others.
const QUICK_GRANT: Duration = Duration::from_secs(1);

impl SessionAcceptor {
    pub fn new(config: Config, dependencies: SessionDependencies) -> Self {
        let SessionDependencies { bus, topic, subscription, oversize, applier } = dependencies;
        let budget = ByteBudget::new(config.bytes_in_flight.get());
        let shared = SessionContext {
            bus,
            entity: format!("{topic}/Subscriptions/{subscription}"),
            oversize,
            applier,
            monitor: SessionMonitor::new(Arc::clone(&budget)),
            budget,
            backoff: SessionBackoff::default(),
            slots: SessionSlots::new(config.max_concurrent_sessions.get()),
            accept_permits: AcceptPermits::new(config.max_concurrent_sessions.get()),
            oversize_permits: Arc::new(Semaphore::new(MAX_OVERSIZE_BODIES)),
            config,
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn monitor(&self) -> SessionMonitor {
        self.shared.monitor.clone()
    }

    /// Returns after `stop`, when every session has settled what it had in hand and was let go, or the time for that is over.
    pub async fn run(self, stop: CancellationToken) {
        let Config { connections, max_concurrent_sessions, drain_within, .. } = self.shared.config;
        let clients: Vec<Client> =
            (0..connections.get()).map(|_| self.shared.bus.with_own_connection(INITIAL_CREDIT)).collect();
        let client = |number: usize| clients[number % clients.len()].clone();
        let sessions = HeldSessions { held: TaskTracker::new(), stop: stop.clone(), abort: CancellationToken::new() };
        let mut accept_tasks = JoinSet::new();
        let accept_loop = |number: usize| Arc::clone(&self.shared).accept_loop(client(number), sessions.clone());
        for number in 0..max_concurrent_sessions.get().min(accept_permits::MAX_PERMITS).max(connections.get()) {
            accept_tasks.spawn(accept_loop(number));
        }
        let read_dead_letters = || dead_letters::run(Arc::clone(&self.shared), stop.clone());
        let mut dead_letter_task = accept_tasks.spawn(read_dead_letters()).id();
        let mut replaced = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: join_next.
                Some(Err(error)) = accept_tasks.join_next() => {
                    error!(error = %error, "a task of the sessions ended before its time; another takes its place");
                    if error.id() == dead_letter_task {
                        dead_letter_task = accept_tasks.spawn(read_dead_letters()).id();
                    } else {
                        replaced += 1;
                        accept_tasks.spawn(accept_loop(replaced));
                    }
                }
            }
        }
        // What has not begun is left to others: they have the time.
        self.shared.applier.drop_pending();
        drain(&mut accept_tasks, &sessions, drain_within).await;
        for client in clients {
            let _ = client.close().await;
        }
    }
}

/// The sessions that are held.
#[derive(Clone)]
struct HeldSessions {
    held: TaskTracker,
    stop: CancellationToken,
    /// Drops them as they are.
    abort: CancellationToken,
}

async fn drain(accept_tasks: &mut JoinSet<()>, sessions: &HeldSessions, within: Duration) {
    let started = Instant::now();
    let all = async {
        while let Some(ended) = accept_tasks.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "a task of the sessions ended before its time");
            }
        }
        sessions.held.close();
        sessions.held.wait().await;
    };
    match timeout_at(started + within, all).await {
        Ok(()) => info!(took = ?started.elapsed(), "all sessions are let go"),
        Err(_) => {
            warn!(left = sessions.held.len(), within = ?within, "sessions are dropped: they did not end in time");
            accept_tasks.shutdown().await;
            sessions.abort.cancel();
            sessions.held.close();
            sessions.held.wait().await;
        }
    }
}

impl SessionContext {
    /// Accepts one session after the other.
    async fn accept_loop(self: Arc<Self>, client: Client, sessions: HeldSessions) {
        let mut failures = 0;
        loop {
            // cancel-safe: a session that is granted to nobody is let go by the client.
            let accepted = tokio::select! {
                biased;
                () = sessions.stop.cancelled() => return,
                accepted = self.accept(&client) => accepted,
            };
            self.monitor.0.accept_attempts.fetch_add(1, Relaxed);
            match accepted {
                Ok((receiver, slot)) => {
                    failures = 0;
                    self.monitor.0.set_bus_problem(None);
                    if let Some(receiver) = receiver {
                        sessions.held.spawn(Arc::clone(&self).run_session(receiver, slot, sessions.clone()));
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.report_accept_error(&error);
                    let pause = backoff_delay(failures, rand::random_range(0.75..1.25));
                    tokio::select! {
                        () = sessions.stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }

    async fn accept(&self, client: &Client) -> Result<(Option<SessionReceiver>, SessionSlot), Error> {
        let permit = self.accept_permits.acquire().await;
        let capacity = async {
            self.budget.wait_for_free_bytes().await;
            self.applier.wait_for_capacity().await;
        };
        let (slot, _asking) = self.slots.acquire(capacity).await;
        LoopStall::Acceptor.block_if_enabled().await;
        let accept_attempts = Instant::now();
        let receiver = client.accept_next_session(&self.entity, ACCEPT_TIMEOUT).await?;
        permit.record_result(receiver.is_some() && accept_attempts.elapsed() < QUICK_GRANT);
        Ok((receiver, slot))
    }

    async fn run_session(self: Arc<Self>, receiver: SessionReceiver, slot: SessionSlot, sessions: HeldSessions) {
        let counters = &self.monitor.0;
        counters.accepted.fetch_add(1, Relaxed);
        counters.held.fetch_add(1, Relaxed);
        let _held = HeldGuard(&self.monitor);
        let share = self.budget.share(INITIAL_CREDIT);
        tokio::select! {
            biased;
            () = sessions.abort.cancelled() => {}
            // One that panicked has dropped its link, and with it let its session go.
            ended = AssertUnwindSafe(held_session::hold(&self, receiver, share, &sessions.stop)).catch_unwind() => if ended.is_err() {
                error!("a session's task panicked; its session is accepted again");
            },
        }
        drop(slot);
    }

    fn report_accept_error(&self, error: &Error) {
        // Told once: everybody who asks meets it, again and again.
        let before = self.monitor.problem();
        let problem = SessionProblem::from_accept_error(error.kind());
        self.monitor.0.set_bus_problem(Some(problem));
        if before != Some(problem) && error.kind() != BusErrorKind::Closed {
            warn!(error = error_chain(error), problem = ?problem, "accept a session");
        }
    }
}

/// Counts a session as held while it lives.
struct HeldGuard<'a>(&'a SessionMonitor);

impl Drop for HeldGuard<'_> {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(1, Relaxed);
    }
}
