//! Accepts sessions while there is a seat for them; each is held by a task of its own.
//!
//! Few accepts are under way while there is little to accept, and many while they are granted soon: see [`Accepts`].

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

use super::accepts::{self, Accepts};
use super::budget::Budget;
use super::config::Config;
use super::consumer::{self, FIRST_CREDIT};
use super::dead_letters;
use super::handle::{Handle, Trouble};
use super::seats::{Seat, Seats};
use super::troubles::{Troubles, backoff};
use crate::error_chain::error_chain;
use crate::failpoints::LoopStall;
use crate::publish::ClaimCheckStore;
use crate::view;

/// Where sessions are accepted, and where their events go.
pub struct Places {
    pub bus: Client,
    pub topic: String,
    pub subscription: String,
    pub oversize: ClaimCheckStore,
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
    pub(super) oversize: ClaimCheckStore,
    pub(super) applier: view::Handle,
    pub(super) budget: Arc<Budget>,
    pub(super) handle: Handle,
    pub(super) troubles: Troubles,
    pub(super) seats: Seats,
    accepts: Accepts,
    /// Bodies that are kept apart are large, and not in the budget: so many are in hand at a time.
    pub(super) large: Arc<Semaphore>,
}

/// How long the bus is asked to wait for a session: less than it allows, and than a middlebox forgets a silent connection.
const WAIT: Duration = Duration::from_secs(30);
const LARGE_AT_ONCE: usize = 2;
/// A session that was granted within this time was waiting: there will be others.
const SOON: Duration = Duration::from_secs(1);

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
            seats: Seats::new(config.max_concurrent_sessions.get()),
            accepts: Accepts::new(config.max_concurrent_sessions.get()),
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
        let clients: Vec<Client> =
            (0..connections.get()).map(|_| self.shared.bus.with_own_connection(FIRST_CREDIT)).collect();
        let client = |number: usize| clients[number % clients.len()].clone();
        let sessions = Sessions { held: TaskTracker::new(), stop: stop.clone(), cut: CancellationToken::new() };
        let mut askers = JoinSet::new();
        let ask = |number: usize| Arc::clone(&self.shared).ask(client(number), sessions.clone());
        for number in 0..max_concurrent_sessions.get().min(accepts::MOST).max(connections.get()) {
            askers.spawn(ask(number));
        }
        let read = || dead_letters::read(Arc::clone(&self.shared), stop.clone());
        let mut reader = askers.spawn(read()).id();
        let mut replaced = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: join_next.
                Some(Err(error)) = askers.join_next() => {
                    error!(error = %error, "a task of the sessions ended before its time; another takes its place");
                    if error.id() == reader {
                        reader = askers.spawn(read()).id();
                    } else {
                        replaced += 1;
                        askers.spawn(ask(replaced));
                    }
                }
            }
        }
        // What has not begun is left to others: they have the time.
        self.shared.applier.give_back();
        drain(&mut askers, &sessions, drain_within).await;
        for client in clients {
            let _ = client.close().await;
        }
    }
}

/// The sessions that are held.
#[derive(Clone)]
struct Sessions {
    held: TaskTracker,
    stop: CancellationToken,
    /// Drops them as they are.
    cut: CancellationToken,
}

async fn drain(askers: &mut JoinSet<()>, sessions: &Sessions, within: Duration) {
    let started = Instant::now();
    let all = async {
        while let Some(ended) = askers.join_next().await {
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
            askers.shutdown().await;
            sessions.cut.cancel();
            sessions.held.close();
            sessions.held.wait().await;
        }
    }
}

impl Shared {
    /// Accepts one session after the other.
    async fn ask(self: Arc<Self>, client: Client, sessions: Sessions) {
        let mut failures = 0;
        loop {
            // cancel-safe: a session that is granted to nobody is let go by the client.
            let accepted = tokio::select! {
                biased;
                () = sessions.stop.cancelled() => return,
                accepted = self.accept(&client) => accepted,
            };
            self.handle.0.asked.fetch_add(1, Relaxed);
            match accepted {
                Ok((receiver, seat)) => {
                    failures = 0;
                    self.handle.0.bus(None);
                    if let Some(receiver) = receiver {
                        sessions.held.spawn(Arc::clone(&self).hold(receiver, seat, sessions.clone()));
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.refused(&error);
                    let pause = backoff(failures, rand::random_range(0.75..1.25));
                    tokio::select! {
                        () = sessions.stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }

    async fn accept(&self, client: &Client) -> Result<(Option<SessionReceiver>, Seat), Error> {
        let leave = self.accepts.leave().await;
        let room = async {
            self.budget.room().await;
            self.applier.room().await;
        };
        let (seat, _asking) = self.seats.take(room).await;
        LoopStall::Acceptor.block_if_enabled().await;
        let asked = Instant::now();
        let receiver = client.accept_next_session(&self.entity, WAIT).await?;
        leave.used(receiver.is_some() && asked.elapsed() < SOON);
        Ok((receiver, seat))
    }

    async fn hold(self: Arc<Self>, receiver: SessionReceiver, seat: Seat, sessions: Sessions) {
        let book = &self.handle.0;
        book.accepted.fetch_add(1, Relaxed);
        book.held.fetch_add(1, Relaxed);
        let _held = Held(&self.handle);
        let share = self.budget.share(FIRST_CREDIT);
        tokio::select! {
            biased;
            () = sessions.cut.cancelled() => {}
            // One that panicked has dropped its link, and with it let its session go.
            ended = AssertUnwindSafe(consumer::hold(&self, receiver, share, &sessions.stop)).catch_unwind() => if ended.is_err() {
                error!("a session's task panicked; its session is accepted again");
            },
        }
        drop(seat);
    }

    fn refused(&self, error: &Error) {
        // Told once: everybody who asks meets it, again and again.
        let before = self.handle.trouble();
        let trouble = Trouble::of(error.kind());
        self.handle.0.bus(Some(trouble));
        if before != Some(trouble) && error.kind() != BusErrorKind::Closed {
            warn!(error = error_chain(error), trouble = ?trouble, "accept a session");
        }
    }
}

/// Counts a session as held while it lives.
struct Held<'a>(&'a Handle);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(1, Relaxed);
    }
}
