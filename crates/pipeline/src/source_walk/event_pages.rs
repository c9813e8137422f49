//! Reads the events of one aggregate from the source, page by page, as the pipeline gets them: after the capture filter. Applies nothing.

use mongodb::bson::Bson;

use super::error::Error;
use crate::capture::SourceFilter;
use crate::event::{AggregateId, ResumeToken};
use crate::view::{DeliveredEvent, EventBody, SourceEventReader};

/// The events of a source with a sequence.
#[derive(Clone, Debug)]
pub struct EventPages {
    history: SourceEventReader,
    /// The capture filter, if there is one: it runs on documents of the source, too.
    filter: Option<SourceFilter>,
}

/// A part of the events of one aggregate, in the order of their sequences.
#[derive(Debug)]
pub struct EventPage {
    /// Those that pass the filter.
    pub events: Vec<DeliveredEvent>,
    /// The sequences of all events of the page, also of those that the filter drops.
    pub sequences: Vec<i64>,
    /// The `_id` of the last event of the page.
    pub last_event_id: Option<Bson>,
}

impl EventPage {
    /// Where the next page starts; `None` after the last one.
    pub fn next(&self) -> Option<i64> {
        self.sequences.last().map(|last| last.saturating_add(1))
    }
}

impl EventPages {
    pub fn new(history: SourceEventReader, filter: Option<SourceFilter>) -> Self {
        Self { history, filter }
    }

    pub fn is_filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// The first page of events from `from` to `upto`, both included. `now`: any token of the stream; only a filter needs it.
    pub async fn read(
        &self,
        aggregate: &AggregateId,
        from: i64,
        upto: i64,
        now: Option<&ResumeToken>,
    ) -> Result<EventPage, Error> {
        let events = self.history.read_range(aggregate, from, upto).await.map_err(Error::History)?;
        let sequences = events.iter().filter_map(|event| event.sequence).collect();
        let last_event_id = events.last().map(|event| event.key.clone());
        Ok(EventPage { events: self.filter(events, now).await?, sequences, last_event_id })
    }

    /// The events that pass the filter, as it leaves them.
    pub(crate) async fn filter(
        &self,
        events: Vec<DeliveredEvent>,
        now: Option<&ResumeToken>,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        let Some(filter) = &self.filter else { return Ok(events) };
        let now = now.ok_or(Error::NoToken)?;
        let mut passed = Vec::with_capacity(events.len());
        // One collection at a time: the filter sees the namespace.
        for events in events.chunk_by(|one, next| one.namespace == next.namespace) {
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
