//! The rounds: which pods get SIGTERM, what is awaited, and what is measured.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::checker::Checker;
use testkit::cluster::{CoordinationObserver, ProcessState, TestCluster};
use tokio::time::sleep;

use super::{DEADLINE, Error, LEADER_TIMEOUT, StopSoakOptions};
use crate::latency::LatencySummary;

/// The resolution of the measurements.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A pod that has not ended by then hangs.
const HUNG_AFTER: Duration = Duration::from_secs(60);
/// How long a round waits for an event in flight.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(2);
const STARTED: &str = "pod started";
/// One round in this many stops a leader that has just acquired the lease.
const IMMEDIATE_STOP_ONE_IN: u32 = 8;
/// One in this many of the other rounds also stops a standby.
const STANDBY_STOP_ONE_IN: u32 = 4;
const LINE_EVERY: u64 = 10;

/// The measurements.
#[derive(Clone, Debug, Default)]
pub struct StopTimings {
    pub rounds: u64,
    /// Leader stops while events were in flight.
    pub in_flight: u64,
    /// From SIGTERM to the end of the process.
    pub stops: LatencySummary,
    /// From SIGTERM until the next leader holds the lease.
    pub leases: LatencySummary,
    /// From SIGTERM to the next leader's first event on the topic.
    pub first_events: LatencySummary,
}

/// A leader got SIGTERM, and another pod acquired the lease.
#[derive(Clone, Copy)]
struct LeaseHandover {
    at: Instant,
    gained: Instant,
    term: i64,
}

pub(super) struct StopRounds<'a> {
    cluster: &'a mut TestCluster,
    observer: &'a CoordinationObserver,
    checker: &'a Checker,
    options: &'a StopSoakOptions,
    rng: StdRng,
    /// Pods that got SIGTERM, and when.
    stopping: Vec<(usize, Instant)>,
    stops: Vec<Duration>,
    handovers: Vec<LeaseHandover>,
    in_flight: u64,
}

impl<'a> StopRounds<'a> {
    pub(super) fn new(
        cluster: &'a mut TestCluster,
        observer: &'a CoordinationObserver,
        checker: &'a Checker,
        options: &'a StopSoakOptions,
    ) -> Self {
        let rng = StdRng::seed_from_u64(options.seed);
        let (stopping, stops, handovers) = (vec![], vec![], vec![]);
        Self { cluster, observer, checker, options, rng, stopping, stops, handovers, in_flight: 0 }
    }

    pub(super) async fn run(&mut self) -> Result<StopTimings, Error> {
        let began = Instant::now();
        for round in 1..=self.options.rounds {
            if round == 1 || !self.rng.random_ratio(1, IMMEDIATE_STOP_ONE_IN) {
                self.wait_until_all_ready().await?;
                let longest = self.options.pause.as_secs_f64();
                sleep(Duration::from_secs_f64(self.rng.random_range(0.0..longest))).await;
            }
            self.round().await?;
            if self.options.verbose && round.is_multiple_of(LINE_EVERY) {
                let (seconds, counts) = (began.elapsed().as_secs(), self.checker.counts());
                println!(
                    "{seconds:5} s: {round} rounds, {} stops, {} events acknowledged, {} outstanding",
                    self.stops.len(),
                    counts.acknowledged,
                    counts.outstanding
                );
            }
        }
        self.wait_until_all_ready().await?;
        Ok(self.timings())
    }

    fn timings(&self) -> StopTimings {
        let first = |handover: &LeaseHandover| {
            let first = self.checker.first_observed_in(u64::try_from(handover.term).ok()?)?;
            Some(first.saturating_duration_since(handover.at))
        };
        StopTimings {
            rounds: self.handovers.len() as u64,
            in_flight: self.in_flight,
            stops: self.stops.iter().copied().collect(),
            leases: self.handovers.iter().map(|it| it.gained.saturating_duration_since(it.at)).collect(),
            first_events: self.handovers.iter().filter_map(first).collect(),
        }
    }

    /// Stops the current leader and waits until there is another.
    async fn round(&mut self) -> Result<(), Error> {
        let (term, leader) = self.leader()?;
        let mut targets = vec![leader];
        // A standby must remain to take over.
        if self.stopping.is_empty() && self.rng.random_ratio(1, STANDBY_STOP_ONE_IN) {
            let pods = self.cluster.pods().len();
            let standby = (leader + self.rng.random_range(1..pods)) % pods;
            // A process that has just started has no signal handler yet, and SIGTERM would kill it.
            let has_begun = self.cluster.pod(standby).process().is_some_and(|it| it.find_line(STARTED).is_some());
            targets.extend(has_begun.then_some(standby));
        }
        self.wait_until_in_flight().await;
        self.in_flight += u64::from(self.checker.outstanding() > 0);
        let at = Instant::now();
        for target in targets {
            self.cluster.pod_mut(target).terminate();
            self.stopping.push((target, at));
        }
        let (term, gained) = self.next_term(term, at).await?;
        self.handovers.push(LeaseHandover { at, gained, term });
        Ok(())
    }

    /// A stop with nothing in flight proves nothing. The load is steady, so this takes milliseconds.
    async fn wait_until_in_flight(&self) {
        let since = Instant::now();
        while self.checker.outstanding() == 0 && since.elapsed() < IN_FLIGHT_TIMEOUT {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The current lease holder, which runs: only this soak takes the lease from a pod.
    fn leader(&self) -> Result<(i64, usize), Error> {
        let last = self.observer.read(|history| history.last_term().map(|(term, holder)| (term, holder.name.clone())));
        let (term, name) = last.ok_or("there was no leader yet")?;
        let leader = self.cluster.pods().iter().position(|pod| pod.name() == name);
        match leader.filter(|leader| self.cluster.pod(*leader).state() == ProcessState::Running) {
            Some(leader) => Ok((term, leader)),
            None => Err(format!("`{name}` holds the lease of term {term} and already got SIGTERM").into()),
        }
    }

    async fn next_term(&mut self, after: i64, since: Instant) -> Result<(i64, Instant), Error> {
        loop {
            let next =
                self.observer.read(|history| history.next_term(after).map(|(term, holder)| (term, holder.since)));
            if let Some(next) = next {
                return Ok(next);
            }
            self.restart_ended_pods().await?;
            if since.elapsed() > LEADER_TIMEOUT {
                return Err(format!("no pod acquired the lease within {LEADER_TIMEOUT:?} after term {after}").into());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until all stopping pods have ended, their replacements have started, and the leader has published.
    async fn wait_until_all_ready(&mut self) -> Result<(), Error> {
        while !self.stopping.is_empty() {
            self.restart_ended_pods().await?;
            sleep(POLL_INTERVAL).await;
        }
        for pod in self.cluster.pods() {
            pod.process().ok_or("a pod is down")?.wait_for_line(STARTED, LEADER_TIMEOUT).await;
        }
        let (term, since) = (self.leader()?.0, Instant::now());
        while self.checker.first_observed_in(u64::try_from(term)?).is_none() {
            if since.elapsed() > self.options.stall_timeout {
                return Err(format!("the leader of term {term} published nothing").into());
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn restart_ended_pods(&mut self) -> Result<(), Error> {
        let mut running = vec![];
        for (pod, since) in std::mem::take(&mut self.stopping) {
            let took = since.elapsed();
            let process = self.cluster.pod(pod).process().ok_or("a stopping pod has a process")?;
            match process.exit_status() {
                None if took > HUNG_AFTER => {
                    let name = self.cluster.pod(pod).name();
                    return Err(format!(
                        "`{name}` did not end within {DEADLINE:?}; its last lines:\n{}",
                        process.tail()
                    )
                    .into());
                }
                None => running.push((pod, since)),
                Some(_) => {
                    self.stops.push(took);
                    self.cluster.restart_pod(pod).await?;
                }
            }
        }
        self.stopping = running;
        Ok(())
    }
}
