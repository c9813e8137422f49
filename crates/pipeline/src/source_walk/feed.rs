//! Applies the events of one aggregate from the source, page by page, in the way a gap is healed.
//!
//! The applier decides about every event by the cursor and writes the cursor with the read models, so a feed conflicts with a live event of the
//! aggregate instead of racing it. An event that was applied meanwhile is a duplicate.

use super::error::Error;
use super::event_pages::EventPages;
use crate::capture::SourceFilter;
use crate::event::{AggregateId, ResumeToken};
use crate::view::{self, ApplyOutcome, BatchEnd, DeliveredEvent, SessionApplier, SourceEventReader};

/// Reads events of the source and submits them to the applier.
#[derive(Clone)]
pub struct Feed {
    applier: view::Handle,
    pages: EventPages,
}

/// What became of the events of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedEvents {
    pub applied: u64,
    /// Applied in no read model, or not in all: the aggregate is parked now.
    pub parked: u64,
    pub duplicates: u64,
}

impl FedEvents {
    /// Events that the read models did not have.
    pub fn changed(self) -> u64 {
        self.applied + self.parked
    }

    fn record(&mut self, outcome: ApplyOutcome) {
        match outcome {
            ApplyOutcome::Applied => self.applied += 1,
            ApplyOutcome::Duplicate => self.duplicates += 1,
            ApplyOutcome::Parked | ApplyOutcome::DeadLetter => self.parked += 1,
        }
    }
}

impl Feed {
    pub fn new(applier: view::Handle, history: SourceEventReader, filter: Option<SourceFilter>) -> Self {
        Self { applier, pages: EventPages::new(history, filter) }
    }

    /// Whether the events of this aggregate are ignored.
    pub fn is_erased(&self, aggregate: &AggregateId) -> bool {
        self.applier.is_erased(aggregate)
    }

    pub fn is_filtered(&self) -> bool {
        self.pages.is_filtered()
    }

    /// Applies the events above `after` (all, if `None`) up to `upto`. `now`: any token of the stream, for the filter.
    pub async fn apply(
        &self,
        aggregate: &AggregateId,
        after: Option<i64>,
        upto: i64,
        now: &ResumeToken,
    ) -> Result<FedEvents, Error> {
        let (mut fed, mut applier) = (FedEvents::default(), self.applier.session_applier());
        let mut from = first_after(after);
        while from <= upto {
            let page = self.pages.read(aggregate, from, upto, Some(now)).await?;
            let next = page.next();
            submit(&mut applier, page.events, &mut fed).await?;
            let Some(next) = next else { break };
            from = next;
        }
        Ok(fed)
    }

    /// Whether the source has an event above `after`, up to `upto`, that passes the filter.
    pub async fn has_events(
        &self,
        aggregate: &AggregateId,
        after: Option<i64>,
        upto: i64,
        now: &ResumeToken,
    ) -> Result<bool, Error> {
        let mut from = first_after(after);
        while from <= upto {
            let page = self.pages.read(aggregate, from, upto, Some(now)).await?;
            if !page.events.is_empty() {
                return Ok(true);
            }
            let Some(next) = page.next() else { break };
            from = next;
        }
        Ok(false)
    }
}

fn first_after(after: Option<i64>) -> i64 {
    after.map_or(i64::MIN, |after| after.saturating_add(1))
}

async fn submit(applier: &mut SessionApplier, page: Vec<DeliveredEvent>, fed: &mut FedEvents) -> Result<(), Error> {
    if page.is_empty() {
        return Ok(());
    }
    let applied = applier.apply(page).await;
    applied.outcomes.iter().for_each(|outcome| fed.record(*outcome));
    match applied.end {
        BatchEnd::Complete => Ok(()),
        BatchEnd::Unknown => Err(Error::UnknownCommit),
        BatchEnd::Failed(error) => Err(Error::Apply(error)),
    }
}
