//! Latency of single events at a fixed rate: from the insert to the moment a change stream on the read model shows it.
//!
//! The change stream shows committed majority writes only, and itself takes a little time, so the latencies are upper bounds. One process reads all clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use mongodb::bson::{Document, RawDocumentBuf};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{EventShape, PipelineNames};
use crate::latency::LatencySummary;
use crate::source_events::events_collection;

const WAIT: Duration = Duration::from_secs(60);

/// Of the same events, from two moments on.
pub struct EventLatencies {
    /// From the moment the insert was sent.
    pub from_send: LatencySummary,
    /// From the moment the insert was acknowledged with majority.
    pub from_acknowledgement: LatencySummary,
}

/// Inserts events one by one, this many per second; they are the first ones of the source.
///
/// # Panics
/// When an insert fails, or an event is not visible a minute after the last insert.
pub async fn measure_latency(names: &PipelineNames, shape: EventShape, rate: u32, seconds: u64) -> EventLatencies {
    let count = u64::from(rate) * seconds;
    let model = names.views().collection::<Document>("totals");
    let stream = model.watch().await.expect("a change stream");
    let observer = tokio::spawn(observe(stream, shape, count));
    let events = events_collection(&names.source).clone_with_type::<RawDocumentBuf>();
    let events = Arc::new(events);
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut inserts = vec![];
    for number in 0..count {
        ticks.tick().await;
        let (events, document) = (Arc::clone(&events), shape.document(number));
        inserts.push(tokio::spawn(async move {
            let sent = Instant::now();
            events.insert_one(document).await.expect("an event is written");
            (sent, Instant::now())
        }));
    }
    let mut written = vec![];
    for insert in inserts {
        written.push(insert.await.expect("an insert ends"));
    }
    let visible = timeout(WAIT, observer).await.expect("all events become visible in time");
    let visible = visible.expect("the observer ends");
    let since = |begin: fn(&(Instant, Instant)) -> Instant| {
        let pairs = written.iter().zip(&visible);
        pairs.map(|(written, visible)| visible.saturating_duration_since(begin(written))).collect()
    };
    EventLatencies { from_send: since(|written| written.0), from_acknowledgement: since(|written| written.1) }
}

/// When each event became visible.
async fn observe(mut stream: ChangeStream<ChangeStreamEvent<Document>>, shape: EventShape, count: u64) -> Vec<Instant> {
    let mut visible = vec![None; usize::try_from(count).expect("few")];
    let mut missing = count;
    while missing > 0 {
        let change = stream.next().await.expect("the stream goes on").expect("a change");
        let now = Instant::now();
        let Some((aggregate, last)) = last_version(&change) else { continue };
        // One write may apply several events of an aggregate.
        for version in (1..=last).rev() {
            let number = (version - 1) * shape.aggregates + aggregate;
            match visible.get_mut(usize::try_from(number).expect("few")) {
                Some(seen @ None) => {
                    *seen = Some(now);
                    missing -= 1;
                }
                _ => break,
            }
        }
    }
    visible.into_iter().flatten().collect()
}

/// Aggregate and version that a change of the read model shows.
fn last_version(change: &ChangeStreamEvent<Document>) -> Option<(u64, u64)> {
    let id = change.document_key.as_ref()?.get_str("_id").ok()?;
    let updated = change.update_description.as_ref().map(|update| &update.updated_fields);
    let fields = updated.or(change.full_document.as_ref())?;
    let last = fields.get("last")?.as_i64()?;
    Some((id.strip_prefix("order-")?.parse().ok()?, u64::try_from(last).ok()?))
}
