//! Every metric, made to move on a real pod and read from its `/metrics`. The table of the runbook is the list; one that nothing here
//! moves fails the first test.

mod dead_letters;
mod event_flow;
mod leadership;
mod mongodb_faults;
mod service_bus_faults;

use std::collections::{BTreeMap, BTreeSet};

use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON};

/// Names of metrics, or of samples where each label has a story of its own.
type MetricNames = &'static [&'static str];

/// Who moves what.
const HERE: &[MetricNames] =
    &[event_flow::MOVED, service_bus_faults::MOVED, leadership::MOVED, mongodb_faults::MOVED, dead_letters::MOVED];

/// MetricNames by tests that are about something else: the metric, and where.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("headwater_loop_wedged", include_str!("stalled_loops.rs"), "a_wedged_capture_is_found"),
    (
        "headwater_insert_to_read_model_seconds",
        include_str!("latency.rs"),
        "the_time_from_insert_to_read_model_is_measured_to_the_millisecond",
    ),
    (
        "headwater_read_model_events_total",
        include_str!("read_model_age.rs"),
        "each_read_model_has_a_count_and_an_age_of_its_own",
    ),
    (
        "headwater_read_model_age_seconds",
        include_str!("read_model_age.rs"),
        "each_read_model_has_a_count_and_an_age_of_its_own",
    ),
];

#[test]
fn every_metric_of_the_runbook_is_moved_on_a_real_pod() {
    let runbook = include_str!("../../../../docs/operations.md");
    let rows = runbook.lines().filter_map(|line| line.strip_prefix("| `headwater_")?.split('`').next());
    let all: BTreeSet<String> = rows.map(|name| format!("headwater_{name}")).collect();
    let named = |sample: &str| sample.split('{').next().unwrap_or_default().to_owned();
    let mut moved: BTreeSet<String> = HERE.iter().copied().flatten().map(|sample| named(sample)).collect();
    for (metric, file, test) in ELSEWHERE {
        assert!(
            file.contains(&format!("async fn {test}(")) && file.contains(metric),
            "{metric} is not moved by {test}"
        );
        moved.insert((*metric).to_owned());
    }
    assert_eq!(moved, all);
}

/// One look at `/metrics`: values by name and labels.
#[derive(Debug)]
struct MetricsSnapshot(BTreeMap<String, f64>);

impl MetricsSnapshot {
    async fn of(fixture: &PodFixture) -> Self {
        Self::of_pod(fixture, 0).await
    }

    /// Whoever asks for the status has it gathered every second.
    async fn of_pod(fixture: &PodFixture, pod: usize) -> Self {
        fixture.get_of(pod, "/api/status").await;
        let page = fixture.get_of(pod, "/metrics").await.body;
        let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        Self(samples.map(|(sample, value)| (sample.to_owned(), value.parse().expect("a number"))).collect())
    }

    /// What is unknown has no sample.
    fn get(&self, sample: &str) -> Option<f64> {
        self.0.get(sample).copied()
    }

    /// What is not there yet counts as nothing.
    fn value(&self, sample: &str) -> f64 {
        self.get(sample).unwrap_or(0.0)
    }
}

/// Waits until all of these have risen since.
async fn rise(fixture: &PodFixture, before: &MetricsSnapshot, samples: &[&str]) -> MetricsSnapshot {
    wait_for("metrics to rise", SOON, async || {
        let now = MetricsSnapshot::of(fixture).await;
        let still = samples.iter().filter(|sample| now.value(sample) <= before.value(sample));
        let still: Vec<_> = still.map(|sample| format!("{sample}: {:?}", now.get(sample))).collect();
        if still.is_empty() { Ok(now) } else { Err(still) }
    })
    .await
}

/// Waits until this one has this value.
async fn becomes(fixture: &PodFixture, sample: &str, value: f64) {
    wait_for(sample, SOON, async || match MetricsSnapshot::of(fixture).await.get(sample) {
        Some(now) if now == value => Ok(()),
        other => Err(other),
    })
    .await;
}
