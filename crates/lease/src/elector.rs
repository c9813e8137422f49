//! The election loop of one candidate: follow until this pod holds the lease, then lead until it loses it.
//!
//! Executes the decisions of [`decide`]; adds only the waiting. Runs on its own thread (`candidate.rs`), where the leader's
//! work cannot starve it. The work runs on another runtime, as one task per term, and the lease is released only after that
//! task has ended. Never ends because MongoDB is unreachable: a leader stops at its deadline, a standby keeps retrying.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mongo_error::ErrorChain;
use tokio::runtime;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::backoff::{LeaseBackoff, with_jitter};
use crate::clock::{BootInstant, Clock};
use crate::decide::{
    self, CandidateState, ElectionRules, HeldLease, LeaderAction, LeaseObservation, StandbyAction, TakeoverReason,
};
use crate::error::Error;
use crate::failpoints;
use crate::handle::{ElectorChannels, LeaseStatus};
use crate::leadership::{Leadership, LeadershipGate, LossReason, StopSignal, TermOutcome};
use crate::record::{CandidateId, LeaseRecord, LeaseStatement, Term};
use crate::spread::{LeaseSpread, TakenLease};
use crate::store::LeaseStore;
use crate::watch::LeaseWatcher;

/// The leader's work: called once per term, in a task on the runtime the elector was started from.
pub(crate) type LeaderTask = Arc<dyn Fn(Leadership) -> BoxFuture<'static, TermOutcome> + Send + Sync>;

/// Which lease this pod competes for, and by which rules.
#[derive(Clone, Debug)]
pub(crate) struct ElectorConfig {
    pub(crate) key: String,
    pub(crate) pod_id: String,
    pub(crate) election: ElectionRules,
    pub(crate) poll: Duration,
    pub(crate) watch: bool,
}

pub(crate) struct Elector<S> {
    store: Arc<S>,
    config: ElectorConfig,
    clock: Clock,
    candidate: CandidateState,
    observation: Option<LeaseObservation>,
    channels: ElectorChannels,
    work: LeaderTask,
    work_runtime: runtime::Handle,
    /// The work of a lost term, until it has ended: this pod takes no new term before.
    unfinished_work: Option<JoinHandle<TermOutcome>>,
    shutdown: CancellationToken,
    logged_problem: Option<StoreProblem>,
    spread: LeaseSpread,
    /// The lease that this candidate leads, as this process counts it.
    taken: Option<TakenLease>,
}

/// The problem last logged about the store, until the store works again. Ordered by severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StoreProblem {
    Unreachable,
    Unusable,
}

/// The result of a statement that was retried until there was a reply.
enum SubmitResult {
    Applied(AcknowledgedWrite),
    /// This candidate no longer holds the lease in that term: an earlier attempt was applied after all, or another pod has it.
    Refused,
    TimedOut,
}

/// An acknowledged statement: the record it wrote, and when it was sent.
type AcknowledgedWrite = (LeaseRecord, BootInstant);

/// The next step of a standby.
enum StandbyStep {
    Lead(HeldLease, &'static str),
    PollAgainIn(Duration),
}

/// How a term ended.
enum TermEnd {
    /// The work has ended, and this pod still holds the lease and must release it.
    Drained(LossReason),
    Lost(LossReason),
}

impl<S: LeaseStore> Elector<S> {
    pub(crate) fn new(
        store: S,
        config: ElectorConfig,
        clock: Clock,
        channels: ElectorChannels,
        work: LeaderTask,
        work_runtime: runtime::Handle,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            store: Arc::new(store),
            config,
            clock,
            candidate: CandidateState::new(CandidateId::random()),
            observation: None,
            channels,
            work,
            work_runtime,
            unfinished_work: None,
            shutdown,
            logged_problem: None,
            spread: LeaseSpread::default(),
            taken: None,
        }
    }

    /// The leases of the whole process.
    pub(crate) fn with_spread(mut self, spread: LeaseSpread) -> Self {
        self.spread = spread;
        self
    }

    /// Returns after a shutdown, or when the store is unsafe for leases.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let result = self.run_election().await;
        if let Some(work) = self.unfinished_work.take() {
            drop(work.await);
        }
        self.channels.status.send_replace(LeaseStatus::Stopped);
        // The driver sends `endSessions` to servers that may not reply: that must not delay a stop.
        let _ = timeout(self.config.election.timing.request_timeout(), self.store.close()).await;
        result
    }

    async fn run_election(&mut self) -> Result<(), Error> {
        self.inspect_store().await?;
        while let Some((mut held, mut reason)) = self.follow().await {
            while let Some(raised) = self.lead(held, reason).await {
                (held, reason) = (raised, "term raised above the one seen");
            }
        }
        Ok(())
    }

    /// Waits until the store replies, and refuses one that would lose leases.
    async fn inspect_store(&mut self) -> Result<(), Error> {
        let mut backoff = self.backoff();
        let shutdown = self.shutdown.clone();
        while !shutdown.is_cancelled() {
            self.channels.count_iteration();
            let timeout = self.config.election.timing.request_timeout();
            match self.with_timeout("inspect", timeout, self.store.inspect()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => self.log_problem(&error),
                Err(error) => return Err(error),
            }
            shutdown.run_until_cancelled(sleep(backoff.next_delay())).await;
        }
        Ok(())
    }

    /// The loop of a standby. Returns the lease it took and the reason, or `None` at shutdown.
    async fn follow(&mut self) -> Option<(HeldLease, &'static str)> {
        let changed = Notify::new();
        let store = Arc::clone(&self.store);
        let watcher = LeaseWatcher { pod_id: self.config.pod_id.clone(), backoff: self.backoff(), failures: 0 };
        let mut watching = pin!(watcher.run(&*store, self.config.watch, &changed));
        let mut backoff = self.backoff();
        let shutdown = self.shutdown.clone();
        while !shutdown.is_cancelled() {
            self.channels.count_iteration();
            let pause = match self.poll_lease().await {
                Ok(StandbyStep::Lead(held, reason)) => return Some((held, reason)),
                Ok(StandbyStep::PollAgainIn(pause)) => pause,
                Err(error) => {
                    self.log_problem(&error);
                    // A change does not cut this pause short: it may be our own, by a statement whose reply was lost.
                    shutdown.run_until_cancelled(sleep(backoff.next_delay())).await;
                    continue;
                }
            };
            backoff.reset();
            // Every arm is cancel-safe: a permit that was not taken stays, and `watching` lives on outside.
            tokio::select! {
                () = sleep(pause) => {}
                () = changed.notified() => {}
                never = &mut watching => match never {},
                () = wait_for_end(&mut self.unfinished_work) => self.unfinished_work = None,
                () = shutdown.cancelled() => {}
            }
        }
        None
    }

    /// Reads the lease once, and tries to take it if the protocol allows it.
    async fn poll_lease(&mut self) -> Result<StandbyStep, Error> {
        let request_timeout = self.config.election.timing.request_timeout();
        let record = self.with_timeout("read", request_timeout, self.store.read()).await?;
        self.clear_problem();
        let now = self.clock.now();
        let observation = self.observe(record, now);
        let pause = with_jitter(self.config.poll);
        match decide::decide_standby(&self.candidate, &observation, &self.config.election, now) {
            StandbyAction::Wait { until } => {
                failpoints::stall_standby().await;
                Ok(StandbyStep::PollAgainIn(until.since(now).min(pause)))
            }
            // The work of the last term still runs: two terms of one pod must not overlap.
            StandbyAction::Try { .. } if self.unfinished_work.is_some() => Ok(StandbyStep::PollAgainIn(pause)),
            StandbyAction::Try { statement, reason } => {
                let mut taken = self.spread.attempt();
                // A lease that names this candidate is no other pod's turn.
                if reason != TakeoverReason::OwnLease && self.yield_turn(taken.delay(), statement).await? {
                    return Ok(StandbyStep::PollAgainIn(pause));
                }
                let Some(write) = self.submit(&statement, request_timeout).await? else {
                    return Ok(StandbyStep::PollAgainIn(pause));
                };
                let step = self.accept_grant(write, reason.as_str());
                if matches!(step, StandbyStep::Lead(..)) {
                    taken.set_led();
                    self.taken = Some(taken);
                }
                Ok(step)
            }
        }
    }

    /// Waits, so that a pod that leads fewer leases can take this one first. Whether one did, or the statement is no longer what to
    /// send.
    async fn yield_turn(&mut self, delay: Duration, statement: LeaseStatement) -> Result<bool, Error> {
        if delay.is_zero() {
            return Ok(false);
        }
        sleep(delay).await;
        let request_timeout = self.config.election.timing.request_timeout();
        let record = self.with_timeout("read", request_timeout, self.store.read()).await?;
        let now = self.clock.now();
        let observation = self.observe(record, now);
        let again = decide::decide_standby(&self.candidate, &observation, &self.config.election, now);
        Ok(!matches!(again, StandbyAction::Try { statement: same, .. } if same == statement))
    }

    fn accept_grant(&mut self, (record, sent): AcknowledgedWrite, reason: &'static str) -> StandbyStep {
        let now = self.clock.now();
        self.observe(Some(record), now);
        let held = HeldLease::new(record.version.term, sent, &self.config.election.timing);
        // A reply that took longer than the deadline grants nothing. The record names us, so the lease can be taken again.
        if held.is_valid(now) { StandbyStep::Lead(held, reason) } else { StandbyStep::PollAgainIn(Duration::ZERO) }
    }

    /// Leads for one term. Returns the lease with its new term if the term was raised, and `None` when the term is over.
    async fn lead(&mut self, mut held: HeldLease, reason: &str) -> Option<HeldLease> {
        let term = held.term();
        let gate = LeadershipGate::open(term, held.valid_until(), self.clock);
        let (stop, stop_receiver) = watch::channel(None);
        let leadership = Leadership { candidate_id: self.candidate.id(), gate: gate.clone(), stop: stop_receiver };
        let work = Arc::clone(&self.work);
        let mut work = self.work_runtime.spawn(async move { work(leadership).await });
        self.channels.status.send_replace(LeaseStatus::Leading { gate: gate.clone() });
        info!(pod_id = self.config.pod_id, lease = self.config.key, %term, reason, "lease acquired");

        let end = self.renew_until_end(&mut held, &gate, &stop, &mut work).await;

        // The gate closes before the lease is released: nothing is written after another pod may lead.
        gate.close();
        let taken = self.taken.take();
        let highest_term = self.observation.map_or(term, |observation| observation.highest_term());
        self.channels.status.send_replace(LeaseStatus::Following { highest_term });
        match end {
            TermEnd::Drained(LossReason::TermBehind { seen }) => {
                let raised = self.raise_term(held, seen).await;
                self.taken = taken.filter(|_| raised.is_some());
                raised
            }
            TermEnd::Drained(loss) => {
                self.release(&held, &loss).await;
                None
            }
            TermEnd::Lost(loss) => {
                stop.send_replace(Some(StopSignal::Lost));
                // The work has received the signal to stop, but may still run. `follow` waits for it before it takes another term.
                self.unfinished_work = Some(work);
                self.log_loss(term, &loss);
                None
            }
        }
    }

    /// Renews until the work has ended, the term is lost, or its deadline passes.
    async fn renew_until_end(
        &mut self,
        held: &mut HeldLease,
        gate: &LeadershipGate,
        stop: &watch::Sender<Option<StopSignal>>,
        work: &mut JoinHandle<TermOutcome>,
    ) -> TermEnd {
        let term = held.term();
        let mut step_down = self.channels.step_down.clone();
        let mut stop_reason: Option<LossReason> = None;
        loop {
            self.channels.count_iteration();
            let now = self.clock.now();
            match decide::decide_leader(held, now) {
                LeaderAction::Expired => return TermEnd::Lost(LossReason::Deadline),
                LeaderAction::Renew => {
                    if !self.renew(held, gate, now).await {
                        return TermEnd::Lost(LossReason::Deposed);
                    }
                }
                // Every arm is cancel-safe: the work's handle is only borrowed.
                LeaderAction::Wait { until } => tokio::select! {
                    () = sleep(until.since(now)) => {}
                    outcome = &mut *work => return TermEnd::Drained(loss_reason(outcome, stop_reason)),
                    () = self.shutdown.cancelled(), if stop_reason.is_none() => {
                        stop_reason = Some(LossReason::ShuttingDown);
                        stop.send_replace(Some(StopSignal::Drain));
                    }
                    // An error means that every handle is gone, which is not a request.
                    Ok(_) = step_down.wait_for(|requested| *requested == Some(term)), if stop_reason.is_none() => {
                        stop_reason = Some(LossReason::SteppedDown);
                        stop.send_replace(Some(StopSignal::Drain));
                    }
                },
            }
        }
    }

    /// Sends one renewal. False when the store refused it.
    async fn renew(&mut self, held: &mut HeldLease, gate: &LeadershipGate, now: BootInstant) -> bool {
        failpoints::stall_elector().await;
        let timing = self.config.election.timing;
        let timeout = timing.request_timeout().min(held.valid_until().since(now));
        match self.submit(&self.candidate.renew_statement(held.term()), timeout).await {
            Ok(Some((record, sent))) => {
                self.clear_problem();
                let now = self.clock.now();
                self.observe(Some(record), now);
                // A reply after the deadline changes nothing: the gate has closed, and stays closed.
                if held.is_valid(now) {
                    *held = held.with_renewal(sent, &timing);
                    gate.extend(held.valid_until());
                    self.channels.status.send_replace(LeaseStatus::Leading { gate: gate.clone() });
                }
            }
            Ok(None) => return false,
            Err(error) => {
                self.log_problem(&error);
                *held = held.with_retry(self.clock.now(), &timing);
            }
        }
        true
    }

    /// The work reported that this term was used before: takes a higher one, while this pod still holds the lease.
    async fn raise_term(&mut self, held: HeldLease, seen: Term) -> Option<HeldLease> {
        self.log_loss(held.term(), &LossReason::TermBehind { seen });
        let statement = |candidate: &CandidateState| candidate.raise_statement(held.term(), seen);
        // If refused, the standby takes the lease again, as any lease that names this candidate.
        let SubmitResult::Applied(write) = self.submit_with_retry(statement, held.valid_until()).await else {
            return None;
        };
        match self.accept_grant(write, "") {
            StandbyStep::Lead(raised, _) => Some(raised),
            StandbyStep::PollAgainIn(_) => None,
        }
    }

    /// Lets another pod take the lease at once. The gate is closed and the work has ended.
    async fn release(&mut self, held: &HeldLease, loss: &LossReason) {
        let term = held.term();
        self.log_loss(term, loss);
        // A pod that shuts down does not compete again, so it needs no pause.
        if *loss != LossReason::ShuttingDown {
            self.candidate.record_step_down(term, self.clock.now(), &self.config.election.timing);
        }
        let ElectorConfig { pod_id, key: lease, .. } = &self.config;
        let (pod_id, lease) = (pod_id.clone(), lease.clone());
        match self.submit_with_retry(|candidate| candidate.release_statement(term), held.valid_until()).await {
            SubmitResult::Applied(_) => {}
            SubmitResult::Refused => debug!(pod_id, lease, %term, "lease was already released or taken"),
            SubmitResult::TimedOut => {
                warn!(pod_id, lease, %term, "failed to release lease; other pods take over after ttl");
            }
        }
    }

    /// Sends the statement until there is a reply, or until `deadline`.
    async fn submit_with_retry(
        &mut self,
        statement: impl Fn(&CandidateState) -> LeaseStatement,
        deadline: BootInstant,
    ) -> SubmitResult {
        let timing = self.config.election.timing;
        loop {
            let left = deadline.since(self.clock.now());
            if left.is_zero() {
                return SubmitResult::TimedOut;
            }
            match self.submit(&statement(&self.candidate), timing.request_timeout().min(left)).await {
                Ok(write) => {
                    self.clear_problem();
                    return write.map_or(SubmitResult::Refused, SubmitResult::Applied);
                }
                Err(error) => self.log_problem(&error),
            }
            sleep(timing.retry_interval().min(left)).await;
        }
    }

    /// Sends one statement. `None` means refused. After an error the statement may have been applied, may be applied later, or
    /// never.
    async fn submit(
        &mut self,
        statement: &LeaseStatement,
        timeout: Duration,
    ) -> Result<Option<AcknowledgedWrite>, Error> {
        self.candidate.record_sent(statement);
        // Validity counts from the moment before the send: the safe side of an unknown delay.
        let sent = self.clock.now();
        let record = self.with_timeout("write", timeout, self.store.submit(statement)).await?;
        Ok(record.map(|record| (record, sent)))
    }

    async fn with_timeout<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let timed_out = |_| Err(Error::Timeout { operation, key: self.config.key.clone(), timeout: limit });
        timeout(limit, request).await.unwrap_or_else(timed_out)
    }

    fn observe(&mut self, record: Option<LeaseRecord>, at: BootInstant) -> LeaseObservation {
        let observation =
            self.observation.map_or_else(|| LeaseObservation::new(record, at), |known| known.update(record, at));
        self.observation = Some(observation);
        let highest_term = observation.highest_term();
        self.channels.status.send_if_modified(|status| match status {
            LeaseStatus::Following { highest_term: known } if *known == highest_term => false,
            LeaseStatus::Leading { .. } => false,
            LeaseStatus::Starting | LeaseStatus::Following { .. } | LeaseStatus::Stopped => {
                *status = LeaseStatus::Following { highest_term };
                true
            }
        });
        observation
    }

    fn log_loss(&self, term: Term, loss: &LossReason) {
        let ElectorConfig { pod_id, key: lease, .. } = &self.config;
        match loss {
            LossReason::ShuttingDown | LossReason::SteppedDown => {
                info!(pod_id, lease, %term, reason = %loss, "lease given up");
            }
            LossReason::Deposed | LossReason::Deadline | LossReason::WorkEnded(_) | LossReason::TermBehind { .. } => {
                warn!(pod_id, lease, %term, reason = %loss, "lease lost");
            }
        }
    }

    /// Logs the first problem of an outage, and once more if it becomes one that a retry cannot fix. The rest goes to debug.
    fn log_problem(&mut self, error: &Error) {
        let pod_id = &self.config.pod_id;
        let problem = if error.is_transient() { StoreProblem::Unreachable } else { StoreProblem::Unusable };
        let is_worse = self.logged_problem.is_none_or(|logged| logged < problem);
        let error = ErrorChain(error);
        match problem {
            _ if !is_worse => debug!(pod_id, %error, "lease store still unavailable"),
            StoreProblem::Unreachable => warn!(pod_id, %error, "lease store unreachable; retrying"),
            StoreProblem::Unusable => {
                error!(pod_id, %error, "lease cannot be used; fix the cause named here, the pod keeps retrying");
            }
        }
        self.logged_problem = self.logged_problem.max(Some(problem));
    }

    fn clear_problem(&mut self) {
        if self.logged_problem.take().is_some() {
            info!(pod_id = self.config.pod_id, "lease store reachable again");
        }
    }

    /// Short enough to find a new primary soon, long enough to be no load while there is none.
    fn backoff(&self) -> LeaseBackoff {
        LeaseBackoff::new(
            Duration::from_millis(50),
            (self.config.election.timing.ttl() / 4).min(Duration::from_secs(1)),
        )
    }
}

/// Resolves when the work has ended; never, if there is none.
async fn wait_for_end(work: &mut Option<JoinHandle<TermOutcome>>) {
    match work {
        Some(work) => drop(work.await),
        None => std::future::pending().await,
    }
}

/// Work that ends without a stop signal, or panics, cannot lead in this pod.
fn loss_reason(outcome: Result<TermOutcome, JoinError>, stop_reason: Option<LossReason>) -> LossReason {
    match (outcome, stop_reason) {
        (Ok(TermOutcome::TermBehind { seen }), None) => LossReason::TermBehind { seen },
        (Ok(TermOutcome::StepDown(reason)), None) => LossReason::WorkEnded(reason),
        (Ok(TermOutcome::Done), None) => LossReason::WorkEnded("without a stop signal".into()),
        (Err(error), None) if error.is_panic() => LossReason::WorkEnded("panicked".into()),
        (Err(_), None) => LossReason::WorkEnded("its runtime ended".into()),
        (_, Some(stop_reason)) => stop_reason,
    }
}

#[cfg(test)]
mod tests;
