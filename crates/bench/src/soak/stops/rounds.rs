//! The rounds: whom SIGTERM meets, what is waited for, and what the clock said.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::checker::Checker;
use testkit::cluster::{House, Standing, Witness};
use tokio::time::sleep;

use super::{DEADLINE, Error, LED_WITHIN, Options};
use crate::figures::Figures;

/// How closely the clock is read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// One that has not ended by then never will.
const HUNG: Duration = Duration::from_secs(60);
const STARTED: &str = "pod started";
/// One round in so many meets a leader that has only just gained the lease.
const HASTY: u32 = 8;
/// One in so many of the others ends a standby too.
const WITH_A_STANDBY: u32 = 4;
const LINE_EVERY: u64 = 10;

/// What the clock said.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub rounds: u64,
    /// Ends of leaders while events were under way.
    pub in_flight: u64,
    /// From SIGTERM to the end of the process.
    pub stops: Figures,
    /// From SIGTERM to the lease in the next leader's hands.
    pub leases: Figures,
    /// From SIGTERM to the first event of the next leader, seen on the topic.
    pub first_events: Figures,
}

/// A leader was told to end, and another one gained the lease.
#[derive(Clone, Copy)]
struct Handover {
    at: Instant,
    gained: Instant,
    term: i64,
}

pub(super) struct Rounds<'a> {
    house: &'a mut House,
    witness: &'a Witness,
    checker: &'a Checker,
    options: &'a Options,
    dice: StdRng,
    /// Pods that were told to end, and when.
    ending: Vec<(usize, Instant)>,
    stops: Vec<Duration>,
    handovers: Vec<Handover>,
    in_flight: u64,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(house: &'a mut House, witness: &'a Witness, checker: &'a Checker, options: &'a Options) -> Self {
        let dice = StdRng::seed_from_u64(options.seed);
        let (ending, stops, handovers) = (vec![], vec![], vec![]);
        Self { house, witness, checker, options, dice, ending, stops, handovers, in_flight: 0 }
    }

    pub(super) async fn run(&mut self) -> Result<Told, Error> {
        let began = Instant::now();
        for round in 1..=self.options.rounds {
            if round == 1 || !self.dice.random_ratio(1, HASTY) {
                self.everybody_at_work().await?;
                let longest = self.options.pause.as_secs_f64();
                sleep(Duration::from_secs_f64(self.dice.random_range(0.0..longest))).await;
            }
            self.round().await?;
            if self.options.talkative && round.is_multiple_of(LINE_EVERY) {
                let (seconds, tally) = (began.elapsed().as_secs(), self.checker.tally());
                println!(
                    "{seconds:5} s: {round} rounds, {} stops, {} events acknowledged, {} outstanding",
                    self.stops.len(),
                    tally.acknowledged,
                    tally.outstanding
                );
            }
        }
        self.everybody_at_work().await?;
        Ok(self.told())
    }

    fn told(&self) -> Told {
        let first = |handover: &Handover| {
            let first = self.checker.first_of(u64::try_from(handover.term).ok()?)?;
            Some(first.saturating_duration_since(handover.at))
        };
        Told {
            rounds: self.handovers.len() as u64,
            in_flight: self.in_flight,
            stops: self.stops.iter().copied().collect(),
            leases: self.handovers.iter().map(|it| it.gained.saturating_duration_since(it.at)).collect(),
            first_events: self.handovers.iter().filter_map(first).collect(),
        }
    }

    /// Ends the leader of this moment, and waits until there is another.
    async fn round(&mut self) -> Result<(), Error> {
        let (term, leader) = self.leader()?;
        let mut victims = vec![leader];
        // Somebody must be there to take over.
        if self.ending.is_empty() && self.dice.random_ratio(1, WITH_A_STANDBY) {
            let pods = self.house.pods().len();
            let standby = (leader + self.dice.random_range(1..pods)) % pods;
            // A process that has hardly begun has yet to hear signals, and dies of one.
            let has_begun = self.house.pod(standby).process().is_some_and(|it| it.find_line(STARTED).is_some());
            victims.extend(has_begun.then_some(standby));
        }
        self.in_flight += u64::from(self.checker.outstanding() > 0);
        let at = Instant::now();
        for victim in victims {
            self.house.pod_mut(victim).terminate();
            self.ending.push((victim, at));
        }
        let (term, gained) = self.next_term(term, at).await?;
        self.handovers.push(Handover { at, gained, term });
        Ok(())
    }

    /// The last to gain the lease, which is up: nobody loses it but by our hand.
    fn leader(&self) -> Result<(i64, usize), Error> {
        let last = self.witness.read(|book| book.last_term().map(|(term, holder)| (term, holder.name.clone())));
        let (term, name) = last.ok_or("nobody has led yet")?;
        let leader = self.house.pods().iter().position(|pod| pod.name() == name);
        match leader.filter(|leader| self.house.pod(*leader).standing() == Standing::Up) {
            Some(leader) => Ok((term, leader)),
            None => Err(format!("`{name}` has the lease of term {term}, and was told to end").into()),
        }
    }

    async fn next_term(&mut self, after: i64, since: Instant) -> Result<(i64, Instant), Error> {
        loop {
            let next = self.witness.read(|book| book.next_term(after).map(|(term, holder)| (term, holder.since)));
            if let Some(next) = next {
                return Ok(next);
            }
            self.replace_the_ended().await?;
            if since.elapsed() > LED_WITHIN {
                return Err(format!("nobody gained the lease within {LED_WITHIN:?} after term {after}").into());
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// All that were told to end have ended, all that replace them have started, and the leader has published.
    async fn everybody_at_work(&mut self) -> Result<(), Error> {
        while !self.ending.is_empty() {
            self.replace_the_ended().await?;
            sleep(LOOK_EVERY).await;
        }
        for pod in self.house.pods() {
            pod.process().ok_or("a pod is down")?.wait_for_line(STARTED, LED_WITHIN).await;
        }
        let (term, since) = (self.leader()?.0, Instant::now());
        while self.checker.first_of(u64::try_from(term)?).is_none() {
            if since.elapsed() > self.options.patience {
                return Err(format!("the leader of term {term} publishes nothing").into());
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn replace_the_ended(&mut self) -> Result<(), Error> {
        let mut running = vec![];
        for (pod, since) in std::mem::take(&mut self.ending) {
            let took = since.elapsed();
            let process = self.house.pod(pod).process().ok_or("what was told to end was started once")?;
            match process.exit_status() {
                None if took > HUNG => {
                    let name = self.house.pod(pod).name();
                    return Err(format!(
                        "`{name}` did not end, {DEADLINE:?} were allowed; it said\n{}",
                        process.tail()
                    )
                    .into());
                }
                None => running.push((pod, since)),
                Some(_) => {
                    self.stops.push(took);
                    self.house.restart_pod(pod).await?;
                }
            }
        }
        self.ending = running;
        Ok(())
    }
}
