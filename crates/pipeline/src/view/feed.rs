//! A session's way into the applier: one batch at a time, and none before the last is resolved.
//!
//! What only the source can say (a gap, an event seen before) is asked here, outside any transaction: only this session waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::applier::Shared;
use super::cursor::{Evidence, Question};
use super::delivered::Delivered;
use super::error::Error;
use super::gap::History;
use super::group::Told;
use super::identity::Identity;
use super::plan::{Answer, Candidate, Outcome};
use super::queue::Submission;
use crate::failpoints::Failpoint;
use crate::retry;

/// Takes `&mut` to apply, so that a session cannot have two transactions under way. A call that was dropped half-way is waited for by
/// the next.
pub struct Feed {
    shared: Arc<Shared>,
    /// Answers that a dropped call did not wait for.
    unresolved: Vec<oneshot::Receiver<Vec<Told>>>,
}

/// What became of a batch.
#[derive(Debug)]
pub struct Applied {
    /// Of the batch's first events, in order: these may be settled, each as its outcome says.
    pub outcomes: Vec<Outcome>,
    /// Of the rest.
    pub end: End,
}

/// How a batch ended.
#[derive(Clone, Debug)]
pub enum End {
    /// There is no rest.
    Complete,
    /// It is not known whether the rest was applied. Drop the session's buffer and accept it again: the cursor knows.
    Unknown,
    /// The rest was not applied. Drop the session's buffer and accept it again, at once or when an operator has acted: see
    /// [`Error::verdict`].
    Failed(Arc<Error>),
}

/// Pauses between looks for what is missing.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// An event with its place in the batch; none for one that was read from the source.
struct Placed {
    at: Option<usize>,
    candidate: Candidate,
}

impl Feed {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, unresolved: vec![] }
    }

    /// Applies a batch of one session, in order. Returns when every event is resolved, or none of the rest can be.
    pub async fn apply(&mut self, events: Vec<Delivered>) -> Applied {
        self.resolve_what_was_left().await;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; events.len()];
        let rules = &self.shared.groups.rules;
        let placed = events.into_iter().enumerate();
        let mut waiting: VecDeque<Placed> =
            placed.map(|(at, event)| Placed { at: Some(at), candidate: Candidate::new(event, rules) }).collect();
        let mut healing = Healing::default();
        while !waiting.is_empty() {
            let batch = self.take(&mut waiting);
            let end = match self.submit(&batch).await {
                Ok(told) => self.digest(batch, told, &mut outcomes, &mut waiting, &mut healing).await,
                Err(end) => Some(end),
            };
            if let Some(end) = end {
                return applied(outcomes, end);
            }
        }
        applied(outcomes, End::Complete)
    }

    /// As many as one transaction takes.
    fn take(&self, waiting: &mut VecDeque<Placed>) -> Vec<Placed> {
        let (mut bytes, mut statements) = (0, 0);
        let mut batch: Vec<Placed> = vec![];
        while let Some(next) = waiting.front() {
            bytes += next.candidate.event.body.len();
            statements += next.candidate.weight;
            let fits = statements <= self.shared.queue.room() && bytes <= self.shared.config.group_bytes;
            if !fits && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.pop_front());
        }
        batch
    }

    async fn submit(&mut self, batch: &[Placed]) -> Result<Vec<Told>, End> {
        let candidates: Vec<Candidate> = batch.iter().map(|placed| placed.candidate.clone()).collect();
        let mut pieces = vec![candidates];
        if Failpoint::OverlappingTransactions.is_enabled() {
            let half = pieces[0].len() / 2;
            let second = pieces[0].split_off(half);
            pieces.push(second);
        }
        for candidates in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let (answer, told) = oneshot::channel();
            self.unresolved.push(told);
            self.shared.queue.submit(Submission { candidates, answer, handed_in: Instant::now() });
        }
        let mut told = vec![];
        while let Some(receiver) = self.unresolved.first_mut() {
            let received = receiver.await;
            self.unresolved.remove(0);
            told.extend(received.map_err(|_| End::Failed(Arc::new(Error::Stopped)))?);
        }
        Ok(told)
    }

    async fn resolve_what_was_left(&mut self) {
        while let Some(receiver) = self.unresolved.first_mut() {
            let _ = receiver.await;
            self.unresolved.remove(0);
        }
    }

    /// Writes down what is done, and puts what is held back in front of what waits, with what the source says of it.
    async fn digest(
        &self,
        batch: Vec<Placed>,
        told: Vec<Told>,
        outcomes: &mut [Option<Outcome>],
        waiting: &mut VecDeque<Placed>,
        healing: &mut Healing,
    ) -> Option<End> {
        let mut again: Vec<Placed> = vec![];
        let mut end = None;
        for (placed, told) in batch.into_iter().zip(told) {
            match told {
                Told::Answer(Answer::Done(outcome)) => {
                    if let Some(at) = placed.at {
                        outcomes[at] = Some(outcome);
                    }
                }
                Told::Answer(Answer::Behind) => again.push(placed),
                // Boxed, as they are seldom: every session would carry the room for them.
                Told::Answer(Answer::Gap { from, to }) => match Box::pin(self.heal(&placed, from, to, healing)).await {
                    Ok(Healed { missing, held }) => again.extend(missing.into_iter().chain([held])),
                    Err(error) => end = end.or(Some(End::Failed(Arc::new(error)))),
                },
                Told::Answer(Answer::Ask(question)) => match Box::pin(self.ask(&placed, question)).await {
                    Ok(Healed { missing, held }) => again.extend(missing.into_iter().chain([held])),
                    Err(error) => end = end.or(Some(End::Failed(Arc::new(error)))),
                },
                Told::Failed(error) => end = end.or(Some(End::Failed(error))),
                // What may have been applied weighs more than what was not.
                Told::Unknown => end = Some(End::Unknown),
            }
        }
        for placed in again.into_iter().rev() {
            waiting.push_front(placed);
        }
        end
    }

    fn history(&self) -> Result<&History, Error> {
        self.shared.history.as_ref().ok_or(Error::Unreadable {
            what: "source",
            field: "sequence",
            problem: "cannot be asked for: the applier was given no history",
        })
    }

    /// Reads what is missing; when the source does not have it, waits, and at last lets the event be parked.
    async fn heal(&self, held: &Placed, from: i64, to: i64, healing: &mut Healing) -> Result<Healed, Error> {
        let event = &held.candidate.event;
        let found = self.history()?.between(&event.aggregate, from, to).await?;
        if found.first().is_some_and(|first| first.sequence == Some(from)) {
            if healing.aggregate.as_ref() != Some(&held.candidate.identity) {
                self.shared.counters.gaps_healed.fetch_add(1, Relaxed);
                tracing::info!(aggregate = ?event.aggregate, from, to, "a gap is healed from the source");
            }
            healing.aggregate = Some(held.candidate.identity.clone());
            return Ok(Healed { missing: self.placed(found, None), held: held.again() });
        }
        let vain = healing.look(&held.candidate.identity, from);
        if vain.since.elapsed() < self.shared.config.gap_timeout {
            sleep(vain.pause()).await;
            return Ok(Healed { missing: vec![], held: held.again() });
        }
        tracing::warn!(aggregate = ?event.aggregate, from, to, "the source does not have what is missing");
        let mut parked = held.again();
        parked.candidate.unhealable = true;
        Ok(Healed { missing: vec![], held: parked })
    }

    async fn ask(&self, held: &Placed, question: Question) -> Result<Healed, Error> {
        let event = &held.candidate.event;
        let mut held = held.again();
        let mut missing = vec![];
        match question {
            Question::IsFirst { sequence } => {
                let below = self.history()?.below(&event.aggregate, sequence).await?;
                if below.is_empty() {
                    held.candidate.evidence = Some(Evidence::First);
                }
                missing = self.placed(below, Some(Evidence::First));
            }
            Question::SeenBefore { sequence, cursor, cursor_event } => {
                let history = self.history()?;
                let theirs = history.ids_at(&event.aggregate, sequence).await?;
                let ours = history.ids_at(&event.aggregate, cursor).await?;
                let holds = |ids: &[Identity], id: &Identity| ids == [id.clone()];
                let same = holds(&theirs, &Identity::of(&event.key))
                    && cursor_event.is_some_and(|id| holds(&ours, &Identity::of(&id)));
                held.candidate.evidence =
                    Some(if same { Evidence::Same { cursor } } else { Evidence::Different { cursor } });
            }
        }
        Ok(Healed { missing, held })
    }

    /// Events from the source; `of_first` is known of the first of them.
    fn placed(&self, events: Vec<Delivered>, of_first: Option<Evidence>) -> Vec<Placed> {
        let rules = &self.shared.groups.rules;
        let candidates = events.into_iter().map(|event| Candidate::new(event, rules));
        let mut placed: Vec<Placed> = candidates.map(|candidate| Placed { at: None, candidate }).collect();
        if let Some(first) = placed.first_mut() {
            first.candidate.evidence = of_first;
        }
        placed
    }
}

impl Placed {
    fn again(&self) -> Self {
        Self { at: self.at, candidate: self.candidate.clone() }
    }
}

/// An event that was held back, and what is to be applied before it.
struct Healed {
    missing: Vec<Placed>,
    held: Placed,
}

/// Since when a gap is looked at in vain.
#[derive(Default)]
struct Healing {
    /// Whose gap is being filled page by page: counted once.
    aggregate: Option<Identity>,
    vain: HashMap<Identity, Vain>,
}

/// A gap that the source does not fill.
struct Vain {
    from: i64,
    since: Instant,
    looks: u32,
}

impl Healing {
    fn look(&mut self, identity: &Identity, from: i64) -> &mut Vain {
        let fresh = || Vain { from, since: Instant::now(), looks: 0 };
        let vain = self.vain.entry(identity.clone()).or_insert_with(fresh);
        if vain.from != from {
            *vain = fresh();
        }
        vain
    }
}

impl Vain {
    fn pause(&mut self) -> Duration {
        self.looks += 1;
        retry::exponential_delay(self.looks, FIRST_LOOK, LONGEST_LOOK)
    }
}

/// The batch's first events that are resolved.
fn applied(outcomes: Vec<Option<Outcome>>, end: End) -> Applied {
    Applied { outcomes: outcomes.into_iter().map_while(|outcome| outcome).collect(), end }
}
