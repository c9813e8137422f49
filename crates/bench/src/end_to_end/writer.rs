//! The writers of a load: inserts with majority, at most a window of events ahead of the read model.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{RawDocumentBuf, rawdoc};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The stored document without the text of the payload.
const OVERHEAD: usize = 126;
const WRITERS: u64 = 2;

/// Events over aggregates that take turns, each of about `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct EventShape {
    pub aggregates: u64,
    pub bytes: usize,
}

impl EventShape {
    /// The event with this number, counted from 0.
    pub fn document(&self, number: u64) -> RawDocumentBuf {
        let version = (number / self.aggregates + 1).cast_signed();
        let text = "x".repeat(self.bytes.saturating_sub(OVERHEAD));
        rawdoc! {
            "aggregateId": Self::aggregate_id(number % self.aggregates), "version": version, "type": "ItemAdded",
            "payload": { "price": 7, "text": text },
        }
    }

    pub fn aggregate_id(aggregate: u64) -> String {
        format!("order-{aggregate:07}")
    }
}

/// Writes until it is stopped or has written enough.
#[derive(Clone)]
pub struct LoadWriter {
    pub events: Collection<RawDocumentBuf>,
    pub shape: EventShape,
    /// The number of the first event: the events before it were written.
    pub first: u64,
    /// The last event, exclusive.
    pub end: u64,
    /// Events in an insert.
    pub batch: u64,
    /// Written and not yet applied at most.
    pub window: u64,
    /// Written so far, those before `first` included.
    pub written: Arc<AtomicU64>,
    /// Applied so far, by the last poll.
    pub applied: Arc<AtomicU64>,
    pub stop: CancellationToken,
}

impl LoadWriter {
    /// Returns when all writers have ended. An aggregate has one writer, so its sequence is committed in order.
    ///
    /// # Panics
    /// When MongoDB refuses an insert.
    pub async fn run(&self) {
        let writers = if self.shape.aggregates.is_multiple_of(WRITERS) { WRITERS } else { 1 };
        let mut tasks: JoinSet<_> = (0..writers).map(|writer| self.clone().write_share(writer, writers)).collect();
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a writer ends");
        }
    }

    async fn write_share(self, writer: u64, writers: u64) {
        let mut numbers = (self.first..self.end).filter(|number| number % writers == writer).peekable();
        while numbers.peek().is_some() && !self.stop.is_cancelled() {
            if self.written.load(Relaxed).saturating_sub(self.applied.load(Relaxed)) >= self.window {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            let size = usize::try_from(self.batch).expect("a small number");
            let documents: Vec<_> = numbers.by_ref().take(size).map(|number| self.shape.document(number)).collect();
            let count = documents.len() as u64;
            self.events.insert_many(documents).await.expect("events are written");
            self.written.fetch_add(count, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_size_asked_for() {
        for bytes in [150, 1024, 100_000] {
            let document = EventShape { aggregates: 10, bytes }.document(123);
            // The `_id` that the driver adds.
            let stored = document.as_bytes().len() + 17;
            assert_eq!(stored, bytes);
        }
    }

    #[test]
    fn versions_of_an_aggregate_are_contiguous() {
        let shape = EventShape { aggregates: 10, bytes: 0 };
        let versions = [3, 13, 23].map(|number| shape.document(number).get_i64("version").expect("a version"));
        assert_eq!(versions, [1, 2, 3]);
    }
}
