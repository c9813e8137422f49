//! Measures the latency of every applied event from insert to read model, and exports its spans if it is traced.

use std::sync::Arc;
use std::time::Duration;

use admin::LatencyHistogram;
use pipeline::view::{self, ApplyTimestamps, DeliveredEvent};

use crate::event_traces::EventTraces;

pub(crate) struct LatencyObserver {
    pub(crate) latency: LatencyHistogram,
    pub(crate) traces: Option<Arc<EventTraces>>,
}

impl view::ApplyObserver for LatencyObserver {
    fn needs_trace(&self) -> bool {
        self.traces.is_some()
    }

    /// Events from a snapshot, or read to fill a gap, carry no commit time.
    fn record_applied(&self, event: &DeliveredEvent, timings: ApplyTimestamps) {
        if let Some(inserted) = event.committed {
            // Two clocks, the source's and this pod's: clamp a negative difference.
            let took = timings.committed_at.duration_since(inserted.to_system_time()).unwrap_or(Duration::ZERO);
            self.latency.record(took);
        }
        if let Some(traces) = &self.traces {
            traces.export_applied(event, timings);
        }
    }
}
