//! The loop of one contender: follow until this pod holds the lease, lead until it does not.
//!
//! Obeys [`decide`]; the only thing it adds is waiting. Runs on a thread of its own (`candidate.rs`), where no work that is
//! led can starve it. The work runs elsewhere, as one task per term, and the lease goes back only after it has ended.
//! Never ends because MongoDB is away: a leader stops at its deadline, a standby keeps trying.

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

use crate::backoff::{Backoff, jittered};
use crate::clock::{Clock, Moment};
use crate::decide::{self, Contest, Follow, Lead, Me, Sighting, Tenure};
use crate::error::Error;
use crate::handle::{Desk, Status};
use crate::leadership::{Gate, Leadership, Loss, Outcome, Stop};
use crate::planted;
use crate::record::{Contender, Record, Statement, Term};
use crate::store::LeaseStore;
use crate::watch::Watch;

/// What is led: called once per term, in a task on the runtime the elector was started from.
pub(crate) type Work = Arc<dyn Fn(Leadership) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Who contends, for what, and by which rules.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) key: String,
    pub(crate) pod_id: String,
    pub(crate) contest: Contest,
    pub(crate) poll: Duration,
    pub(crate) watch: bool,
}

pub(crate) struct Elector<S> {
    store: Arc<S>,
    rules: Rules,
    clock: Clock,
    me: Me,
    sighting: Option<Sighting>,
    desk: Desk,
    work: Work,
    work_runtime: runtime::Handle,
    /// The work of a term that was lost, until it has ended: nobody leads twice at once, not even with himself.
    unfinished: Option<JoinHandle<Outcome>>,
    shutdown: CancellationToken,
    trouble: Option<Trouble>,
}

/// What was last said about the store, until it can be used again. Ordered by how much it concerns an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    OutOfReach,
    Unusable,
}

/// What became of a statement that was asked until there was an answer.
enum Answer {
    Applied(Applied),
    /// The lease is no longer this contender's in that term: an earlier try was applied after all, or another pod has it.
    Refused,
    /// There was none in time.
    None,
}

/// An acknowledged statement: the record it made, and when it was sent.
type Applied = (Record, Moment);

/// What a standby does next.
enum Next {
    Lead(Tenure, &'static str),
    LookAgainIn(Duration),
}

/// How holding a term came to its end.
enum End {
    /// The work has ended, and the lease is still ours to give back.
    Drained(Loss),
    Lost(Loss),
}

impl<S: LeaseStore> Elector<S> {
    pub(crate) fn new(
        store: S,
        rules: Rules,
        clock: Clock,
        desk: Desk,
        work: Work,
        work_runtime: runtime::Handle,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            store: Arc::new(store),
            rules,
            clock,
            me: Me::new(Contender::random()),
            sighting: None,
            desk,
            work,
            work_runtime,
            unfinished: None,
            shutdown,
            trouble: None,
        }
    }

    /// Returns after a shutdown, or when the store is unfit for leases.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let ended = self.contend().await;
        if let Some(work) = self.unfinished.take() {
            drop(work.await);
        }
        self.desk.status.send_replace(Status::Stopped);
        // The driver says good-bye to servers that may not answer: that must not hold up a stop.
        let _ = timeout(self.rules.contest.timing.attempt(), self.store.close()).await;
        ended
    }

    async fn contend(&mut self) -> Result<(), Error> {
        self.inspect().await?;
        while let Some((mut tenure, mut why)) = self.follow().await {
            while let Some(raised) = self.lead(tenure, why).await {
                (tenure, why) = (raised, "term raised above what it guards");
            }
        }
        Ok(())
    }

    /// Waits for the store, and refuses one that would lose leases.
    async fn inspect(&mut self) -> Result<(), Error> {
        let mut backoff = self.backoff();
        let shutdown = self.shutdown.clone();
        while !shutdown.is_cancelled() {
            self.desk.went_round();
            match self.answered("inspect", self.rules.contest.timing.attempt(), self.store.inspect()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => self.trouble(&error),
                Err(error) => return Err(error),
            }
            shutdown.run_until_cancelled(sleep(backoff.failed())).await;
        }
        Ok(())
    }

    /// A standby's life. Returns the tenure it gained and why, or `None` at shutdown.
    async fn follow(&mut self) -> Option<(Tenure, &'static str)> {
        let changed = Notify::new();
        let store = Arc::clone(&self.store);
        let watch = Watch { pod_id: self.rules.pod_id.clone(), backoff: self.backoff(), failures: 0 };
        let mut watching = pin!(watch.run(&*store, self.rules.watch, &changed));
        let mut backoff = self.backoff();
        let shutdown = self.shutdown.clone();
        while !shutdown.is_cancelled() {
            self.desk.went_round();
            let pause = match self.look().await {
                Ok(Next::Lead(tenure, why)) => return Some((tenure, why)),
                Ok(Next::LookAgainIn(pause)) => pause,
                Err(error) => {
                    self.trouble(&error);
                    // A change does not cut this pause short: it may be our own, by a statement whose answer was lost.
                    shutdown.run_until_cancelled(sleep(backoff.failed())).await;
                    continue;
                }
            };
            backoff.succeeded();
            // every arm is cancel-safe: a permit that was not taken stays, and `watching` lives on outside
            tokio::select! {
                () = sleep(pause) => {}
                () = changed.notified() => {}
                never = &mut watching => match never {},
                () = ended(&mut self.unfinished) => self.unfinished = None,
                () = shutdown.cancelled() => {}
            }
        }
        None
    }

    /// One look at the lease, and one try if it may be taken.
    async fn look(&mut self) -> Result<Next, Error> {
        let record = self.answered("read", self.rules.contest.timing.attempt(), self.store.read()).await?;
        self.out_of_trouble();
        let now = self.clock.now();
        let sighting = self.saw(record, now);
        let pause = jittered(self.rules.poll);
        match decide::follow(&self.me, &sighting, &self.rules.contest, now) {
            Follow::Wait { until } => {
                planted::hold_standby().await;
                Ok(Next::LookAgainIn(until.since(now).min(pause)))
            }
            Follow::Try { .. } if self.unfinished.is_some() => Ok(Next::LookAgainIn(pause)),
            Follow::Try { statement, why } => match self.submit(&statement, self.rules.contest.timing.attempt()).await?
            {
                Some(applied) => Ok(self.gained(applied, why.as_str())),
                None => Ok(Next::LookAgainIn(pause)),
            },
        }
    }

    fn gained(&mut self, (record, sent): Applied, why: &'static str) -> Next {
        let now = self.clock.now();
        self.saw(Some(record), now);
        let tenure = Tenure::granted(record.version.term, sent, &self.rules.contest.timing);
        // An answer that took longer than the deadline grants nothing; the record names us, so it can be taken anew.
        if tenure.is_valid(now) { Next::Lead(tenure, why) } else { Next::LookAgainIn(Duration::ZERO) }
    }

    /// A leader's life. Returns a new tenure if the term was raised, and `None` when it is over.
    async fn lead(&mut self, mut tenure: Tenure, why: &str) -> Option<Tenure> {
        let term = tenure.term();
        let gate = Gate::open(term, tenure.valid_until(), self.clock);
        let (stop, told) = watch::channel(None);
        let leadership = Leadership { contender: self.me.contender(), gate: gate.clone(), stop: told };
        let work = Arc::clone(&self.work);
        let mut work = self.work_runtime.spawn(async move { work(leadership).await });
        self.desk.status.send_replace(Status::Leading { gate: gate.clone() });
        info!(pod_id = self.rules.pod_id, lease = self.rules.key, %term, reason = why, "gained leadership");

        let end = self.hold(&mut tenure, &gate, &stop, &mut work).await;

        gate.shut();
        let highest = self.sighting.map_or(term, |sighting| sighting.highest());
        self.desk.status.send_replace(Status::Following { highest });
        match end {
            End::Drained(Loss::TermBehind { seen }) => self.raise(tenure, seen).await,
            End::Drained(loss) => {
                self.release(&tenure, &loss).await;
                None
            }
            End::Lost(loss) => {
                stop.send_replace(Some(Stop::Lost));
                self.unfinished = Some(work);
                self.lost(term, &loss);
                None
            }
        }
    }

    /// Renews until the work has ended, the term is lost, or its deadline passes.
    async fn hold(
        &mut self,
        tenure: &mut Tenure,
        gate: &Gate,
        stop: &watch::Sender<Option<Stop>>,
        work: &mut JoinHandle<Outcome>,
    ) -> End {
        let term = tenure.term();
        let mut asked = self.desk.step_down.clone();
        let mut asked_by: Option<Loss> = None;
        loop {
            self.desk.went_round();
            let now = self.clock.now();
            match decide::lead(tenure, now) {
                Lead::Expired => return End::Lost(Loss::Deadline),
                Lead::Renew => {
                    if !self.renew(tenure, gate, now).await {
                        return End::Lost(Loss::Deposed);
                    }
                }
                // every arm is cancel-safe: the work's handle is only borrowed
                Lead::Wait { until } => tokio::select! {
                    () = sleep(until.since(now)) => {}
                    outcome = &mut *work => return End::Drained(how_it_ended(outcome, asked_by)),
                    () = self.shutdown.cancelled(), if asked_by.is_none() => {
                        asked_by = Some(Loss::ShuttingDown);
                        stop.send_replace(Some(Stop::Drain));
                    }
                    // Nobody left who could ask is not somebody asking.
                    Ok(_) = asked.wait_for(|asked| *asked == Some(term)), if asked_by.is_none() => {
                        asked_by = Some(Loss::SteppedDown);
                        stop.send_replace(Some(Stop::Drain));
                    }
                },
            }
        }
    }

    /// Asks for one renewal. False when the store refused it.
    async fn renew(&mut self, tenure: &mut Tenure, gate: &Gate, now: Moment) -> bool {
        planted::hold_elector().await;
        let timing = self.rules.contest.timing;
        let within = timing.attempt().min(tenure.valid_until().since(now));
        match self.submit(&self.me.renewal(tenure.term()), within).await {
            Ok(Some((record, sent))) => {
                self.out_of_trouble();
                let now = self.clock.now();
                self.saw(Some(record), now);
                // An answer that comes after the deadline changes nothing: the gate was shut, and stays so.
                if tenure.is_valid(now) {
                    *tenure = tenure.renewed(sent, &timing);
                    gate.extend(tenure.valid_until());
                    self.desk.status.send_replace(Status::Leading { gate: gate.clone() });
                }
            }
            Ok(None) => return false,
            Err(error) => {
                self.trouble(&error);
                *tenure = tenure.not_renewed(self.clock.now(), &timing);
            }
        }
        true
    }

    /// The work says that this term was seen before: takes a higher one, while still holding the lease.
    async fn raise(&mut self, tenure: Tenure, seen: Term) -> Option<Tenure> {
        self.lost(tenure.term(), &Loss::TermBehind { seen });
        let statement = |me: &Me| me.raise(tenure.term(), seen);
        // Refused: it is taken anew, as any lease that names us.
        let Answer::Applied(applied) = self.insist(statement, tenure.valid_until()).await else { return None };
        match self.gained(applied, "") {
            Next::Lead(raised, _) => Some(raised),
            Next::LookAgainIn(_) => None,
        }
    }

    /// The gate is shut and the work has ended: lets another pod have the lease at once.
    async fn release(&mut self, tenure: &Tenure, loss: &Loss) {
        let term = tenure.term();
        self.lost(term, loss);
        if *loss != Loss::ShuttingDown {
            self.me.stand_down(term, self.clock.now(), &self.rules.contest.timing);
        }
        let Rules { pod_id, key: lease, .. } = &self.rules;
        let (pod_id, lease) = (pod_id.clone(), lease.clone());
        match self.insist(|me| me.release(term), tenure.valid_until()).await {
            Answer::Applied(_) => {}
            Answer::Refused => debug!(pod_id, lease, %term, "the lease was given back, or taken, before"),
            Answer::None => warn!(pod_id, lease, %term, "the lease could not be given back; it runs out by itself"),
        }
    }

    /// Asks until there is an answer, or `until`.
    async fn insist(&mut self, statement: impl Fn(&Me) -> Statement, until: Moment) -> Answer {
        let timing = self.rules.contest.timing;
        loop {
            let left = until.since(self.clock.now());
            if left.is_zero() {
                return Answer::None;
            }
            match self.submit(&statement(&self.me), timing.attempt().min(left)).await {
                Ok(answer) => {
                    self.out_of_trouble();
                    return answer.map_or(Answer::Refused, Answer::Applied);
                }
                Err(error) => self.trouble(&error),
            }
            sleep(timing.retry().min(left)).await;
        }
    }

    /// Sends one statement. `None`: refused. After an error it may have been applied, or may be yet, or never.
    async fn submit(&mut self, statement: &Statement, within: Duration) -> Result<Option<Applied>, Error> {
        self.me.sending(statement);
        let sent = self.clock.now();
        let applied = self.answered("write", within, self.store.submit(statement)).await?;
        Ok(applied.map(|record| (record, sent)))
    }

    async fn answered<T>(
        &self,
        doing: &'static str,
        within: Duration,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let silence = |_| Err(Error::NoAnswer { doing, key: self.rules.key.clone(), within });
        timeout(within, asked).await.unwrap_or_else(silence)
    }

    fn saw(&mut self, record: Option<Record>, at: Moment) -> Sighting {
        let sighting = self.sighting.map_or_else(|| Sighting::first(record, at), |seen| seen.observe(record, at));
        self.sighting = Some(sighting);
        let highest = sighting.highest();
        self.desk.status.send_if_modified(|status| match status {
            Status::Following { highest: known } if *known == highest => false,
            Status::Leading { .. } => false,
            Status::Starting | Status::Following { .. } | Status::Stopped => {
                *status = Status::Following { highest };
                true
            }
        });
        sighting
    }

    fn lost(&self, term: Term, loss: &Loss) {
        let Rules { pod_id, key: lease, .. } = &self.rules;
        match loss {
            Loss::ShuttingDown | Loss::SteppedDown => info!(pod_id, lease, %term, reason = %loss, "lost leadership"),
            Loss::Deposed | Loss::Deadline | Loss::WorkEnded(_) | Loss::TermBehind { .. } => {
                warn!(pod_id, lease, %term, reason = %loss, "lost leadership");
            }
        }
    }

    /// Says once that the store cannot be used, and what it said, and once more if it comes to what cannot heal by itself; the
    /// rest is for those who debug.
    fn trouble(&mut self, problem: &Error) {
        let pod_id = &self.rules.pod_id;
        let now = if problem.is_transient() { Trouble::OutOfReach } else { Trouble::Unusable };
        let worse = self.trouble.is_none_or(|said| said < now);
        match now {
            _ if !worse => debug!(pod_id, error = %ErrorChain(problem), "lease still out of reach"),
            Trouble::OutOfReach => warn!(pod_id, error = %ErrorChain(problem), "lease out of reach; trying on"),
            Trouble::Unusable => error!(pod_id, error = %ErrorChain(problem), "lease cannot be used; trying on"),
        }
        self.trouble = self.trouble.max(Some(now));
    }

    fn out_of_trouble(&mut self) {
        if self.trouble.take().is_some() {
            info!(pod_id = self.rules.pod_id, "lease within reach again");
        }
    }

    /// Fast enough to be there when a new primary is, and no load on it while there is none.
    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(50), (self.rules.contest.timing.ttl() / 4).min(Duration::from_secs(1)))
    }
}

/// Resolves when the work has ended; never, if there is none.
async fn ended(unfinished: &mut Option<JoinHandle<Outcome>>) {
    match unfinished {
        Some(work) => drop(work.await),
        None => std::future::pending().await,
    }
}

/// A work that ends unasked, or panics, cannot lead here.
fn how_it_ended(outcome: Result<Outcome, JoinError>, asked_by: Option<Loss>) -> Loss {
    match (outcome, asked_by) {
        (Ok(Outcome::TermBehind { seen }), None) => Loss::TermBehind { seen },
        (Ok(Outcome::StepDown(why)), None) => Loss::WorkEnded(why),
        (Ok(Outcome::Done), None) => Loss::WorkEnded("without being asked".into()),
        (Err(error), None) if error.is_panic() => Loss::WorkEnded("by a panic".into()),
        (Err(_), None) => Loss::WorkEnded("its runtime ended".into()),
        (_, Some(asked_by)) => asked_by,
    }
}

#[cfg(test)]
mod tests;
