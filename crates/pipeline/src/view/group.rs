//! A group of events, until each of them has an answer.
//!
//! The usual case is one transaction. What the server refuses for good is taken apart: the culprit's aggregate alone, statement by
//! statement, and the others in halves, so that one bad event costs them a few more transactions and nothing else. What fails in passing
//! is run again as it is, with jitter, one group of this pod at a time: two that meet at a hot document would meet again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::counts::Counters;
use super::error::Error;
use super::identity::Identity;
use super::orphans::{self, Orphans};
use super::plan::{Answer, Candidate, Refusals, Rules};
use super::transaction::{Attempt, Failure, Store};
use crate::planted::Defect;

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
}

/// Soon for what was bad luck, and never so long that a recovered server waits for us.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl Groups {
    pub(super) async fn resolve(&self, candidates: &[Candidate]) -> Vec<Told> {
        let mut told: Vec<Option<Told>> = vec![None; candidates.len()];
        let mut parts = self.parts(candidates);
        while let Some(part) = parts.pop() {
            match self.settle(candidates, &part).await {
                Ok(answers) => {
                    for (at, answer) in answers {
                        told[at] = Some(Told::Answer(answer));
                    }
                }
                Err(Failure::Refused { culprit: None, error }) if part.strict => {
                    tell(&mut told, &part, &Told::Failed(Arc::new(error)));
                }
                Err(Failure::Refused { culprit, error }) => take_apart(candidates, part, culprit, &error, &mut parts),
                Err(Failure::Unknown) => {
                    self.counters.unknown.fetch_add(1, Relaxed);
                    tell(&mut told, &part, &Told::Unknown);
                }
                Err(Failure::Transient(error) | Failure::Fatal(error)) => {
                    tell(&mut told, &part, &Told::Failed(Arc::new(error)));
                }
            }
        }
        told.into_iter().map(|told| told.expect("every event is in one part, and every part is told")).collect()
    }

    /// One part, but for aggregates with an event that was delivered suspiciously often.
    fn parts(&self, candidates: &[Candidate]) -> Vec<Part> {
        let suspicious = |candidate: &&Candidate| candidate.event.delivery_count >= self.alone_at_delivery;
        let alone: HashSet<&Identity> = candidates.iter().filter(suspicious).map(|it| &it.identity).collect();
        let (apart, together): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|at| alone.contains(&candidates[*at].identity));
        let mut parts: Vec<Part> = by_aggregate(candidates, &apart).into_iter().map(Part::strict).collect();
        if !together.is_empty() {
            parts.push(Part { places: together, refusals: Refusals::new(), strict: false });
        }
        parts
    }

    /// Runs one part until it is committed, refused, or given up.
    async fn settle(&self, candidates: &[Candidate], part: &Part) -> Result<Vec<(usize, Answer)>, Failure> {
        let began = Instant::now();
        let deadline = began + self.retry_for;
        let mut pause = FIRST_PAUSE;
        let mut alone = None;
        loop {
            let Part { places, refusals, strict } = part;
            let attempt = Attempt { rules: &self.rules, candidates, part: places, refusals, strict: *strict };
            match self.store.attempt(attempt).await {
                Ok((answers, tally)) => {
                    self.counters.committed(tally);
                    return Ok(answers);
                }
                Err(Failure::Transient(error)) if Instant::now() + pause < deadline => {
                    tracing::debug!(error = %error, events = places.len(), "run a transaction again");
                    self.counters.conflicts.fetch_add(1, Relaxed);
                    // With the defect the lock would keep a batch's second half behind its first.
                    if alone.is_none() && !Defect::OverlappingTransactions.is_planted() {
                        alone = Some(self.again.lock().await);
                    }
                    if began.elapsed() > orphans::PATIENCE {
                        self.orphans.end(self.store.database.client()).await;
                    }
                    sleep(pause.mul_f64(rand::random_range(0.2..1.0))).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

impl Part {
    fn strict(places: Vec<usize>) -> Self {
        Self { places, refusals: Refusals::new(), strict: true }
    }
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
    parts.extend(guilty.into_iter().map(Part::strict));
    let half = others.len().div_ceil(2).max(1);
    let together = |aggregates: &[Vec<usize>]| {
        let mut places = aggregates.concat();
        places.sort_unstable();
        Part { places, refusals: Refusals::new(), strict: false }
    };
    parts.extend(others.chunks(half).map(together));
}

/// In the order of their first events.
fn by_aggregate(candidates: &[Candidate], places: &[usize]) -> Vec<Vec<usize>> {
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

fn tell(told: &mut [Option<Told>], part: &Part, what: &Told) {
    for at in &part.places {
        told[*at] = Some(what.clone());
    }
}
