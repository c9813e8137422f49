//! Applies the events of one aggregate from the source, page by page, in the way a gap is healed.
//!
//! The applier decides about every event by the cursor and writes the cursor with the read models, so a feed conflicts with a live event of the
//! aggregate instead of racing it. An event that was applied meanwhile is a duplicate.

use super::error::Error;
use crate::capture::SourceFilter;
use crate::event::{AggregateId, ResumeToken};
use crate::view::{self, ApplyOutcome, BatchEnd, DeliveredEvent, EventBody, SessionApplier, SourceEventReader};

/// Reads events of the source and submits them to the applier.
#[derive(Clone)]
pub struct Feed {
    applier: view::Handle,
    history: SourceEventReader,
    /// The capture filter, if there is one: it runs on documents of the source, too.
    filter: Option<SourceFilter>,
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
        Self { applier, history, filter }
    }

    pub fn is_filtered(&self) -> bool {
        self.filter.is_some()
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
            let (page, next) = self.read_page(aggregate, from, upto, now).await?;
            submit(&mut applier, page, &mut fed).await?;
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
            let (page, next) = self.read_page(aggregate, from, upto, now).await?;
            if !page.is_empty() {
                return Ok(true);
            }
            let Some(next) = next else { break };
            from = next;
        }
        Ok(false)
    }

    /// The events of one page that pass the filter, and where the next page starts; `None` after the last one.
    async fn read_page(
        &self,
        aggregate: &AggregateId,
        from: i64,
        upto: i64,
        now: &ResumeToken,
    ) -> Result<(Vec<DeliveredEvent>, Option<i64>), Error> {
        let page = self.history.read_range(aggregate, from, upto).await.map_err(Error::History)?;
        let next = page.last().and_then(|last| last.sequence).map(|last| last.saturating_add(1));
        match &self.filter {
            None => Ok((page, next)),
            Some(filter) => Ok((self.filter_page(filter, page, now).await?, next)),
        }
    }

    async fn filter_page(
        &self,
        filter: &SourceFilter,
        page: Vec<DeliveredEvent>,
        now: &ResumeToken,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        let mut passed = Vec::with_capacity(page.len());
        // One collection at a time: the filter sees the namespace.
        for events in page.chunk_by(|one, next| one.namespace == next.namespace) {
            let documents = events.iter().filter_map(|event| match &event.body {
                EventBody::Document(document) => Some(&**document),
                EventBody::Oversize(_) | EventBody::Marker(_) => None,
            });
            let documents: Vec<_> = documents.collect();
            for (at, document) in filter.apply(now, &events[0].namespace, &documents).await? {
                passed.extend(events.get(at).map(|event| self.history.with_document(event.clone(), document)));
            }
        }
        Ok(passed)
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
