//! Aggregates of one batch that wait for missing events: from the session, which is about to bring them, or from the source.
//!
//! A source may commit sequences out of order: two writers, or one that does not wait for its first batch. Then the missing event follows
//! within milliseconds, and reading the source for each of them would be many times slower than waiting.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::session_applier::BatchEvent;
use crate::retry;
use crate::view::cursor::SourceQuestion;
use crate::view::delivered_event::DeliveredEvent;
use crate::view::identity::Identity;

/// Delays between polls of the source for missing events.
const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_millis(500);

/// More events of the session whose batch is being applied.
pub trait Arrivals: Send {
    /// How long a gap waits for an arrival before the source is asked.
    fn gap_wait(&self) -> Duration;

    /// The events that arrive next. Empty: none arrived within the time. `None`: none will arrive.
    fn next(&mut self, within: Duration) -> impl Future<Output = Option<Vec<DeliveredEvent>>> + Send;
}

/// For a batch that stands alone.
pub(in crate::view) struct NoArrivals;

impl Arrivals for NoArrivals {
    fn gap_wait(&self) -> Duration {
        Duration::ZERO
    }

    async fn next(&mut self, within: Duration) -> Option<Vec<DeliveredEvent>> {
        tokio::time::sleep(within).await;
        Some(vec![])
    }
}

/// What the first event of a waiting aggregate needs.
#[derive(Clone)]
pub(super) enum MissingEvents {
    /// These sequences, both included.
    Range { from: i64, to: i64 },
    /// All events below this sequence, if there are any; the first is expected to be `first`.
    Below { sequence: i64, first: i64 },
}

impl MissingEvents {
    /// The sequence that ends the wait.
    pub(super) const fn from(&self) -> i64 {
        match self {
            Self::Range { from, .. } => *from,
            Self::Below { first, .. } => *first,
        }
    }

    /// `None` for a question that events of the session cannot answer.
    pub(super) const fn of_question(question: &SourceQuestion, first: i64) -> Option<Self> {
        match question {
            SourceQuestion::IsFirst { sequence } => Some(Self::Below { sequence: *sequence, first }),
            SourceQuestion::SeenBefore { .. } => None,
        }
    }
}

/// An aggregate that waits.
pub(super) struct WaitingAggregate {
    pub(super) missing: MissingEvents,
    /// In order; the first is the one that found the gap.
    pub(super) events: Vec<BatchEvent>,
    pub(super) deadline: Instant,
    since: Instant,
    polls: u32,
}

/// The gaps of one batch.
#[derive(Default)]
pub(super) struct Gaps {
    waiting: HashMap<Identity, WaitingAggregate>,
    /// The aggregate whose gap is healed page by page: counted once.
    pub(super) being_healed: Option<Identity>,
}

impl Gaps {
    pub(super) fn wait(&mut self, missing: MissingEvents, events: Vec<BatchEvent>, within: Duration) {
        let since = Instant::now();
        self.insert(WaitingAggregate { missing, deadline: since + within, since, polls: 0, events });
    }

    /// Waits for the next poll of the source.
    pub(super) fn wait_again(&mut self, mut aggregate: WaitingAggregate) {
        aggregate.polls += 1;
        aggregate.deadline = Instant::now() + retry::exponential_delay(aggregate.polls, FIRST_POLL, MAX_POLL);
        self.insert(aggregate);
    }

    fn insert(&mut self, aggregate: WaitingAggregate) {
        let Some(first) = aggregate.events.first() else { return };
        self.waiting.insert(first.pending.identity.clone(), aggregate);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|aggregate| aggregate.deadline).min()
    }

    /// Gives an arrived event to its aggregate if that waits, else returns it.
    pub(super) fn add(&mut self, event: BatchEvent) -> Option<BatchEvent> {
        match self.waiting.get_mut(&event.pending.identity) {
            Some(aggregate) => {
                aggregate.events.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// The events of aggregates that wait no longer, in the order in which they can be applied.
    pub(super) fn take_filled(&mut self) -> Vec<BatchEvent> {
        let filled = |(_, aggregate): (&Identity, &WaitingAggregate)| {
            let from = aggregate.missing.from();
            aggregate.events.iter().any(|event| event.pending.event.sequence == Some(from))
        };
        let filled: Vec<Identity> =
            self.waiting.iter().filter(|entry| filled(*entry)).map(|(identity, _)| identity.clone()).collect();
        let aggregates = filled.iter().filter_map(|identity| self.waiting.remove(identity));
        aggregates.flat_map(|aggregate| arrange(aggregate.events, aggregate.missing.from())).collect()
    }

    /// Aggregates whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<WaitingAggregate> {
        let expired = self.waiting.iter().filter(|(_, aggregate)| aggregate.deadline <= now);
        let expired: Vec<Identity> = expired.map(|(identity, _)| identity.clone()).collect();
        expired.iter().filter_map(|identity| self.waiting.remove(identity)).collect()
    }
}

impl WaitingAggregate {
    pub(super) fn has_waited_for(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Takes all events of an aggregate out of the queue, in order.
pub(super) fn take_aggregate(queue: &mut VecDeque<BatchEvent>, aggregate: &Identity) -> Vec<BatchEvent> {
    let (taken, rest): (Vec<_>, Vec<_>) =
        std::mem::take(queue).into_iter().partition(|event| event.pending.identity == *aggregate);
    *queue = rest.into();
    taken
}

/// Brings the events of one aggregate into the order of their sequence as far as that closes gaps from `expected` on; otherwise their order
/// stays. An event that is brought forward loses its position, like one that is read from the source: the events it passes have lower ones,
/// and would else seem to be late.
pub(super) fn arrange(events: Vec<BatchEvent>, mut expected: i64) -> Vec<BatchEvent> {
    let sequence_of = |event: &BatchEvent| event.pending.event.sequence;
    let mut by_sequence: HashMap<i64, VecDeque<usize>> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        if let Some(sequence) = sequence_of(event) {
            by_sequence.entry(sequence).or_default().push_back(index);
        }
    }
    let mut slots: Vec<Option<BatchEvent>> = events.into_iter().map(Some).collect();
    let mut arranged = Vec::with_capacity(slots.len());
    let mut next = 0;
    while next < slots.len() {
        let Some(head) = &slots[next] else {
            next += 1;
            continue;
        };
        let is_ahead = sequence_of(head).is_some_and(|sequence| sequence > expected);
        let later = is_ahead.then(|| by_sequence.get_mut(&expected)).flatten().and_then(VecDeque::pop_front);
        let taken = match later.and_then(|index| slots[index].take()) {
            Some(event) => event.without_position(),
            None => {
                let event = slots[next].take().expect("checked above");
                if let Some(indices) = sequence_of(&event).and_then(|sequence| by_sequence.get_mut(&sequence)) {
                    indices.retain(|index| *index != next);
                }
                event
            }
        };
        if sequence_of(&taken) == Some(expected) {
            expected = expected.saturating_add(1);
        }
        arranged.push(taken);
    }
    arranged
}
