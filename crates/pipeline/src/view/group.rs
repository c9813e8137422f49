//! A group of events, until each of them has an answer.
//!
//! The usual case is one transaction. What the server refuses for good is taken apart: the culprit's aggregate alone, statement by
//! statement, and the others in halves, so that one bad event costs them a few more transactions and nothing else. What fails in passing
//! is run again as it is, with jitter, one group of this pod at a time: two that meet at a hot document would meet again. A conflict that
//! lasts is somebody's who holds a document for long: the group is halved until those who want that document are alone, and they wait
//! apart while the others are answered; [next time](super::stuck) from the beginning.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::counts::Counters;
use super::error::Error;
use super::identity::Identity;
use super::orphans::{self, Orphans};
use super::plan::{Answer, Candidate, Outcome, Refusals, Rules};
use super::stuck::Stuck;
use super::transaction::{Attempt, Failure, Store};
use super::witness::{Lived, Witness};
use crate::failpoints::{Failpoint, LoopStall};
use crate::retry;
use crate::trace::wall_clock;

/// What runs groups; one per pod.
pub(super) struct Groups {
    pub(super) store: Store,
    pub(super) rules: Rules,
    pub(super) counters: Arc<Counters>,
    pub(super) retry_for: Duration,
    pub(super) alone_at_delivery: u32,
    pub(super) orphans: Orphans,
    /// Held by the one group that is run again after a conflict.
    pub(super) again: Mutex<()>,
    pub(super) stuck: Stuck,
    /// So many more groups take no event's word that it is its aggregate's first: some came again lately.
    pub(super) doubt: AtomicU32,
    /// Cancelled when the pod is about to stop: nothing is begun any more, and nothing tried again.
    pub(super) leaving: CancellationToken,
    /// Set before anything is applied, if at all.
    pub(super) witness: OnceLock<Arc<dyn Witness>>,
}

/// What a session is told of one event.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Answer(Answer),
    Failed(Arc<Error>),
    Unknown,
}

/// Some of a group's events, by their places; those of one aggregate are always together.
struct Part {
    places: Vec<usize>,
    refusals: Refusals,
    strict: bool,
    /// How long conflicts are bad luck.
    patience: Duration,
}

/// Answers by place, as far as they are known.
pub(super) type Answers = Vec<Option<Told>>;

/// Soon for what was bad luck, and never so long that a recovered server waits for us.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Live pods that meet at a hot document are done with it far sooner.
const BAD_LUCK: Duration = Duration::from_millis(300);
/// What is delivered again is seldom delivered alone.
const DOUBT: u32 = 100;
/// For the halves of a group that had more.
const AFTER_THAT: Duration = Duration::from_millis(50);

impl Groups {
    /// Tells all that can be had soon. Who is told nothing conflicts with somebody that holds on: see [`Self::wait_for`].
    pub(super) async fn resolve(&self, candidates: &[Candidate], told: &mut Answers) {
        LoopStall::Applier.block_if_enabled().await;
        self.settle(candidates, self.parts(candidates), told).await;
    }

    /// One aggregate that was told nothing, as long as it may take; what is not had then has failed.
    pub(super) async fn wait_for(&self, candidates: &[Candidate], places: Vec<usize>) -> Vec<(usize, Told)> {
        let mut told = vec![None; candidates.len()];
        let part = Part { patience: self.retry_for, ..Part::of(places) };
        self.settle(candidates, vec![part], &mut told).await;
        match told.iter().enumerate().find(|(_, told)| told.is_some()) {
            Some((at, Some(Told::Answer(_)))) => self.stuck.forget(&candidates[at].identity),
            Some((at, _)) => self.stuck.remember(&candidates[at].identity, Instant::now()),
            None => {}
        }
        told.into_iter().enumerate().filter_map(|(at, told)| Some((at, told?))).collect()
    }

    async fn settle(&self, candidates: &[Candidate], mut parts: Vec<Part>, told: &mut Answers) {
        while let Some(part) = parts.pop() {
            if self.leaving.is_cancelled() {
                tell(told, &part, &Told::Failed(Arc::new(Error::Stopped)));
                continue;
            }
            match self.run(candidates, &part).await {
                Ok(answers) => {
                    for (at, answer) in answers {
                        told[at] = Some(Told::Answer(answer));
                    }
                }
                Err(Failure::Refused { culprit: None, error }) if part.strict => {
                    tell(told, &part, &Told::Failed(Arc::new(error)));
                }
                Err(Failure::Refused { culprit, error }) => take_apart(candidates, part, culprit, &error, &mut parts),
                Err(Failure::Unknown) => {
                    self.counters.unknown.fetch_add(1, Relaxed);
                    tell(told, &part, &Told::Unknown);
                }
                Err(Failure::Transient(error)) if error.is_conflict() && part.patience < self.retry_for => {
                    match halves(candidates, &part) {
                        Some(halves) => parts.extend(halves),
                        None => self.stuck.remember(&candidates[part.places[0]].identity, Instant::now()),
                    }
                }
                Err(Failure::Transient(error) | Failure::Fatal(error)) => {
                    tell(told, &part, &Told::Failed(Arc::new(error)));
                }
            }
        }
    }

    /// One part, but for aggregates with an event that was delivered suspiciously often; without those that are stuck.
    fn parts(&self, candidates: &[Candidate]) -> Vec<Part> {
        let suspicious = |candidate: &&Candidate| candidate.event.delivery_count >= self.alone_at_delivery;
        let alone: HashSet<&Identity> = candidates.iter().filter(suspicious).map(|it| &it.identity).collect();
        let places = candidates.iter().map(|candidate| &candidate.identity).enumerate();
        let (apart, together): (Vec<usize>, Vec<usize>) = self
            .stuck
            .others(places, Instant::now())
            .into_iter()
            .partition(|at| alone.contains(&candidates[*at].identity));
        let mut parts: Vec<Part> = by_aggregate(candidates, &apart).into_iter().map(Part::strict).collect();
        if !together.is_empty() {
            parts.push(Part::of(together));
        }
        parts
    }

    /// Runs one part until it is committed, refused, or given up.
    async fn run(&self, candidates: &[Candidate], part: &Part) -> Result<Vec<(usize, Answer)>, Failure> {
        let began = Instant::now();
        let mut failures = 0;
        let mut alone = None;
        loop {
            let Part { places, refusals, strict, patience } = part;
            let trusting = failures == 0 && self.is_trusting();
            let attempt = Attempt { rules: &self.rules, candidates, part: places, refusals, strict: *strict, trusting };
            let attempted = wall_clock();
            let error = match self.store.attempt(attempt).await {
                Ok((answers, tally)) => {
                    self.counters.committed(&tally);
                    self.tell_witness(candidates, &answers, attempted);
                    return Ok(answers);
                }
                Err(Failure::Transient(error)) => error,
                Err(failure) => return Err(failure),
            };
            if trusting && error.is_taken_key() {
                self.doubt.store(DOUBT, Relaxed);
            }
            let pause = retry::exponential_delay(failures, FIRST_PAUSE, LONGEST_PAUSE);
            failures += 1;
            let patience = if error.is_conflict() { (*patience).min(self.retry_for) } else { self.retry_for };
            if began.elapsed() + pause >= patience {
                return Err(Failure::Transient(error));
            }
            tracing::debug!(error = %error, events = places.len(), "run a transaction again");
            self.counters.conflicts.fetch_add(1, Relaxed);
            // Who waits for long does not hold up those who may succeed. With the defect the lock would keep a batch's second half behind its first.
            let waits = part.patience >= self.retry_for;
            let calmly = async {
                if alone.is_none() && !waits && !Failpoint::OverlappingTransactions.is_enabled() {
                    alone = Some(self.again.lock().await);
                }
                if began.elapsed() > orphans::PATIENCE {
                    self.orphans.end(self.store.database.client()).await;
                }
                sleep(pause.mul_f64(rand::random_range(0.2..1.0))).await;
            };
            if self.leaving.run_until_cancelled(calmly).await.is_none() {
                return Err(Failure::Fatal(Error::Stopped));
            }
        }
    }

    fn is_trusting(&self) -> bool {
        self.doubt.fetch_update(Relaxed, Relaxed, |groups| groups.checked_sub(1)).is_err()
    }
}

impl Groups {
    fn tell_witness(&self, candidates: &[Candidate], answers: &[(usize, Answer)], began: SystemTime) {
        let Some(witness) = self.witness.get() else { return };
        let committed = wall_clock();
        for (at, answer) in answers {
            if let Answer::Done(Outcome::Applied) = answer {
                let Candidate { event, handed_in, .. } = &candidates[*at];
                witness.applied(event, Lived { handed_in: *handed_in, began, committed });
            }
        }
    }
}

impl Part {
    fn of(places: Vec<usize>) -> Self {
        Self { places, refusals: Refusals::new(), strict: false, patience: BAD_LUCK }
    }

    fn strict(places: Vec<usize>) -> Self {
        Self { strict: true, ..Self::of(places) }
    }
}

/// By aggregates; one alone has none.
fn halves(candidates: &[Candidate], part: &Part) -> Option<[Part; 2]> {
    let aggregates = by_aggregate(candidates, &part.places);
    let (first, second) = aggregates.split_at(aggregates.len() / 2);
    let half = |aggregates| Part { patience: AFTER_THAT, ..together(aggregates) };
    (!first.is_empty()).then(|| [first, second].map(half))
}

fn together(aggregates: &[Vec<usize>]) -> Part {
    let mut places = aggregates.concat();
    places.sort_unstable();
    Part::of(places)
}

/// What to run instead of a part that was refused.
fn take_apart(
    candidates: &[Candidate],
    mut part: Part,
    culprit: Option<(usize, usize)>,
    error: &Error,
    parts: &mut Vec<Part>,
) {
    let aggregates = by_aggregate(candidates, &part.places);
    if let ([_], Some(culprit), true) = (&aggregates[..], culprit, part.strict) {
        // Refused twice, and alone the second time: it is parked in the next run.
        let aggregate = &candidates[culprit.0].event.aggregate;
        tracing::warn!(?aggregate, model = culprit.1, error = %error.detail(), "an event cannot be applied");
        part.refusals.insert(culprit, error.detail());
        return parts.push(part);
    }
    let blamed = culprit.map(|(at, _)| &candidates[at].identity);
    let is_blamed = |places: &Vec<usize>| blamed == Some(&candidates[places[0]].identity);
    let (guilty, others): (Vec<_>, Vec<_>) = aggregates.into_iter().partition(is_blamed);
    // One that is left is tried alone, whoever was blamed.
    let (guilty, others) = if others.len() == 1 && guilty.is_empty() { (others, vec![]) } else { (guilty, others) };
    let patience = part.patience;
    parts.extend(guilty.into_iter().map(|places| Part { patience, ..Part::strict(places) }));
    let half = others.len().div_ceil(2).max(1);
    parts.extend(others.chunks(half).map(|half| Part { patience, ..together(half) }));
}

/// In the order of their first events.
pub(super) fn by_aggregate(candidates: &[Candidate], places: &[usize]) -> Vec<Vec<usize>> {
    let mut found: std::collections::HashMap<&Identity, usize> = std::collections::HashMap::new();
    let mut aggregates: Vec<Vec<usize>> = vec![];
    for at in places {
        let number = *found.entry(&candidates[*at].identity).or_insert_with(|| {
            aggregates.push(vec![]);
            aggregates.len() - 1
        });
        aggregates[number].push(*at);
    }
    aggregates
}

fn tell(told: &mut Answers, part: &Part, what: &Told) {
    for at in &part.places {
        told[*at] = Some(what.clone());
    }
}
