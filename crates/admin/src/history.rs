//! The last five minutes as points, so that a dashboard has data to plot as soon as it opens.

use std::collections::VecDeque;

use serde::Serialize;

use crate::status::PipelineStatus;
use crate::time::WallTime;

/// Five minutes at one point per second.
const MAX_POINTS: usize = 300;

/// The plotted figures of one status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryPoint {
    pub at: WallTime,
    pub term: Option<u64>,
    pub lag_seconds: Option<f64>,
    pub lag_events: Option<u64>,
    pub published_per_second: Option<f64>,
    pub applied_per_second: Option<f64>,
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct StatusHistory(VecDeque<HistoryPoint>);

impl StatusHistory {
    pub(crate) fn push(&mut self, status: &PipelineStatus) {
        if self.0.len() == MAX_POINTS {
            self.0.pop_front();
        }
        self.0.push_back(HistoryPoint::from_status(status));
    }

    pub(crate) fn points(&self) -> Vec<HistoryPoint> {
        self.0.iter().cloned().collect()
    }
}

impl HistoryPoint {
    pub fn from_status(status: &PipelineStatus) -> Self {
        Self {
            at: status.collected.at,
            term: status.leader.as_ref().map(|leader| leader.term),
            lag_seconds: status.lag.seconds,
            lag_events: status.lag.events,
            published_per_second: status.throughput.published_per_second,
            applied_per_second: status.throughput.applied_per_second,
            p50_seconds: status.latency.as_ref().map(|latency| latency.p50_seconds),
            p99_seconds: status.latency.as_ref().map(|latency| latency.p99_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::CollectionInfo;

    #[test]
    fn history_keeps_the_newest_points() {
        let mut history = StatusHistory::default();
        for millis in 0..(MAX_POINTS as i64 + 10) {
            let collected = CollectionInfo { at: WallTime::from_millis(millis), ..CollectionInfo::default() };
            history.push(&PipelineStatus::unknown("shop", collected));
        }
        let points = history.points();
        assert_eq!(points.len(), MAX_POINTS);
        assert_eq!((points[0].at.millis(), points[MAX_POINTS - 1].at.millis()), (10, MAX_POINTS as i64 + 9));
    }
}
