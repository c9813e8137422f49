//! Accepts sessions while a slot is free; each held session has its own task.
//!
//! [`AcceptPermits`] limits the accepts in flight, [`SessionSlots`] the sessions held. Replaces any of its tasks that panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use mongodb::Database;
use servicebus::{BusErrorKind, Client, Error, SessionReceiver};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::accept_permits::{self, AcceptPermits};
use super::attempt_marks::AttemptMarks;
use super::backoff::{SessionBackoff, backoff_delay};
use super::budget::SessionByteBudget;
use super::config::Config;
use super::dead_letters;
use super::held_session::{self, INITIAL_CREDIT};
use super::known_places::KnownPlaces;
use super::monitor::SessionMonitor;
use super::pod_runs::{PodRun, PodRuns};
use super::slots::{SessionSlot, SessionSlots};
use crate::error_chain::error_chain;
use crate::error_policy;
use crate::failpoints::LoopStall;
use crate::pause::PauseSwitch;
use crate::signing::MessageKeys;
use crate::stored::ClaimCheckStore;
use crate::view;

/// What the acceptor needs: the subscription it accepts from, and the applier that gets the events.
pub struct SessionDependencies {
    pub bus: Client,
    pub topic: String,
    pub subscription: String,
    pub oversize: ClaimCheckStore,
    pub applier: view::Handle,
    pub places: KnownPlaces,
    /// Where the run of this pod is recorded.
    pub coordination: Database,
    pub pipeline: String,
    pub pod_run: PodRun,
    /// `None`: signatures are not verified.
    pub message_keys: Option<Arc<MessageKeys>>,
}

/// Accepts and holds sessions while it runs.
pub struct SessionAcceptor {
    context: Arc<SessionContext>,
    pause: PauseSwitch,
}

pub(super) struct SessionContext {
    pub(super) config: Config,
    pub(super) bus: Client,
    /// The path of the subscription.
    pub(super) entity: String,
    pub(super) oversize: ClaimCheckStore,
    pub(super) applier: view::Handle,
    pub(super) places: KnownPlaces,
    pub(super) message_keys: Option<Arc<MessageKeys>>,
    pub(super) budget: Arc<SessionByteBudget>,
    pub(super) monitor: SessionMonitor,
    pub(super) backoff: SessionBackoff,
    pub(super) slots: SessionSlots,
    accept_permits: AcceptPermits,
    /// Oversize bodies are not part of the byte budget, so the number held at a time is limited instead.
    pub(super) oversize_permits: Arc<Semaphore>,
    pub(super) marks: AttemptMarks,
}

/// How long Service Bus waits for a session: below its own limit, and below the idle timeout of usual middleboxes.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_OVERSIZE_BODIES: usize = 2;
/// An accept granted within this time means that sessions were waiting, so there are probably more.
const QUICK_GRANT: Duration = Duration::from_secs(1);

impl SessionAcceptor {
    pub fn new(config: Config, dependencies: SessionDependencies) -> Self {
        let SessionDependencies { bus, topic, subscription, oversize, applier, places, message_keys, .. } =
            dependencies;
        let runs = PodRuns::new(&dependencies.coordination, &dependencies.pipeline, dependencies.pod_run);
        let budget = SessionByteBudget::new(config.bytes_in_flight.get());
        let context = SessionContext {
            bus,
            entity: format!("{topic}/Subscriptions/{subscription}"),
            oversize,
            applier,
            places,
            message_keys,
            monitor: SessionMonitor::new(Arc::clone(&budget)),
            budget,
            backoff: SessionBackoff::default(),
            slots: SessionSlots::new(config.max_concurrent_sessions.get()),
            accept_permits: AcceptPermits::new(config.max_concurrent_sessions.get()),
            oversize_permits: Arc::new(Semaphore::new(MAX_OVERSIZE_BODIES)),
            marks: AttemptMarks::new(runs),
            config,
        };
        Self { context: Arc::new(context), pause: PauseSwitch::default() }
    }

    /// While it is paused, no session is held.
    pub fn pause_switch(&self) -> PauseSwitch {
        self.pause.clone()
    }

    pub fn monitor(&self) -> SessionMonitor {
        self.context.monitor.clone()
    }

    /// Returns after `stop`, once every session has settled its applied messages and is closed, or after `drain_within`.
    pub async fn run(self, stop: CancellationToken) {
        let marks = &self.context.marks;
        if stop.run_until_cancelled(marks.begin_run()).await.is_none() {
            return;
        }
        let sessions_ended = CancellationToken::new();
        let consume = async {
            let mut all_drained = true;
            while stop.run_until_cancelled(self.pause.wait_until_resumed()).await.is_some() && !stop.is_cancelled() {
                all_drained &= self.run_until_paused(&stop).await == Drained::All;
            }
            sessions_ended.cancel();
            all_drained
        };
        let (all_drained, ()) = join(consume, marks.beat(&sessions_ended)).await;
        // An attempt that was cut off has not ended: the event may be what held up the stop.
        if all_drained {
            marks.end_run().await;
        }
    }

    async fn run_until_paused(&self, pod_stop: &CancellationToken) -> Drained {
        let stop = pod_stop.child_token();
        let Config { connections, max_concurrent_sessions, drain_within, .. } = self.context.config;
        let clients: Vec<Client> =
            (0..connections.get()).map(|_| self.context.bus.with_own_connection(INITIAL_CREDIT)).collect();
        // Round robin, so that a lost connection drops only its share of the sessions.
        let client = |number: usize| clients[number % clients.len()].clone();
        let sessions = HeldSessions { held: TaskTracker::new(), stop: stop.clone(), abort: CancellationToken::new() };
        let mut accept_tasks = JoinSet::new();
        let accept_loop = |number: usize| Arc::clone(&self.context).accept_loop(client(number), sessions.clone());
        // At least one accept task per connection; the permits limit how many accept at a time.
        for number in 0..max_concurrent_sessions.get().min(accept_permits::MAX_PERMITS).max(connections.get()) {
            accept_tasks.spawn(accept_loop(number));
        }
        let read_dead_letters = || dead_letters::run(Arc::clone(&self.context), stop.clone());
        let mut dead_letter_task = accept_tasks.spawn(read_dead_letters()).id();
        let mut replaced = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.pause.wait_until_paused() => break,
                // cancel-safe: join_next.
                Some(Err(error)) = accept_tasks.join_next() => {
                    error!(error = %error, "accept task panicked; starting a replacement");
                    if error.id() == dead_letter_task {
                        dead_letter_task = accept_tasks.spawn(read_dead_letters()).id();
                    } else {
                        replaced += 1;
                        accept_tasks.spawn(accept_loop(replaced));
                    }
                }
            }
        }
        if pod_stop.is_cancelled() {
            // Events not yet in a transaction go back: another pod has time for them, this one has not.
            self.context.applier.drop_pending();
        } else {
            info!("consumer paused by an operator; no session is held");
            stop.cancel();
        }
        let drained = drain(&mut accept_tasks, &sessions, drain_within).await;
        for client in clients {
            let _ = client.close().await;
        }
        drained
    }
}

/// All held sessions and how to end them.
#[derive(Clone)]
struct HeldSessions {
    held: TaskTracker,
    stop: CancellationToken,
    /// Ends the sessions at once, without settling.
    abort: CancellationToken,
}

/// How the held sessions ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drained {
    All,
    /// Some were dropped unsettled.
    InPart,
}

async fn drain(accept_tasks: &mut JoinSet<()>, sessions: &HeldSessions, within: Duration) -> Drained {
    let started = Instant::now();
    let all = async {
        while let Some(ended) = accept_tasks.join_next().await {
            if let Err(error) = ended {
                warn!(error = %error, "accept task panicked during shutdown");
            }
        }
        sessions.held.close();
        sessions.held.wait().await;
    };
    match timeout_at(started + within, all).await {
        Ok(()) => {
            info!(took = ?started.elapsed(), "all sessions closed");
            Drained::All
        }
        Err(_) => {
            warn!(open = sessions.held.len(), timeout = ?within, "sessions did not close in time; dropping them unsettled");
            // Accept tasks first: none may spawn another session.
            accept_tasks.shutdown().await;
            sessions.abort.cancel();
            sessions.held.close();
            sessions.held.wait().await;
            Drained::InPart
        }
    }
}

impl SessionContext {
    /// Accepts sessions one after the other.
    async fn accept_loop(self: Arc<Self>, client: Client, sessions: HeldSessions) {
        let mut failures = 0;
        loop {
            // cancel-safe: the client releases a session that is granted after the future is dropped.
            let accepted = tokio::select! {
                biased;
                () = sessions.stop.cancelled() => return,
                accepted = self.accept(&client) => accepted,
            };
            // Also counts accepts without a session: the liveness probe sees an idle acceptor as alive.
            self.monitor.0.counters.accept_attempts.fetch_add(1, Relaxed);
            match accepted {
                Ok((receiver, slot)) => {
                    failures = 0;
                    self.monitor.0.set_bus_problem(None);
                    // `None`: the accept timed out because no session has messages.
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
        // The permit comes first: a task without one must not occupy a slot.
        let permit = self.accept_permits.acquire().await;
        let capacity = async {
            self.budget.wait_for_free_bytes().await;
            self.applier.wait_for_capacity().await;
        };
        let (slot, _accepting) = self.slots.acquire(capacity).await;
        LoopStall::Acceptor.block_if_enabled().await;
        let requested_at = Instant::now();
        let receiver = client.accept_next_session(&self.entity, ACCEPT_TIMEOUT).await?;
        permit.record_result(receiver.is_some() && requested_at.elapsed() < QUICK_GRANT);
        Ok((receiver, slot))
    }

    async fn run_session(self: Arc<Self>, receiver: SessionReceiver, slot: SessionSlot, sessions: HeldSessions) {
        let counters = &self.monitor.0.counters;
        counters.accepted.fetch_add(1, Relaxed);
        counters.held.fetch_add(1, Relaxed);
        let _held = HeldSessionGuard(&self.monitor);
        // Charged before the first message arrives, as the bus may send up to the initial credit at once.
        let share = self.budget.share(INITIAL_CREDIT);
        tokio::select! {
            biased;
            () = sessions.abort.cancelled() => {}
            // A panic drops the link, and the broker then releases the session.
            ended = AssertUnwindSafe(held_session::run_session(&self, receiver, share, &sessions.stop)).catch_unwind() => if ended.is_err() {
                error!("session task panicked; the session will be accepted again");
            },
        }
        // Last, so that the next accept starts only after this session is closed.
        drop(slot);
    }

    fn report_accept_error(&self, error: &Error) {
        // Logged once: every accept task gets the same error.
        let before = self.monitor.problem();
        let problem = error_policy::service_bus(error.kind()).accept;
        self.monitor.0.set_bus_problem(Some(problem));
        if before != Some(problem) && error.kind() != BusErrorKind::Closed {
            warn!(error = error_chain(error), problem = ?problem, "failed to accept session; retrying");
        }
    }
}

/// Counts a session as held while it exists.
struct HeldSessionGuard<'a>(&'a SessionMonitor);

impl Drop for HeldSessionGuard<'_> {
    fn drop(&mut self) {
        self.0.0.counters.held.fetch_sub(1, Relaxed);
    }
}
