//! Moves every metric on a real pod and reads it from `/metrics`. The runbook lists all metrics; one that no test moves fails the first test.

mod audit;
mod dead_letters;
mod event_flow;
mod leadership;
mod mongodb_faults;
mod service_bus_faults;
mod signatures;

use std::collections::{BTreeMap, BTreeSet};

use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON};

/// Names of metrics, or of samples if each label value moves separately.
type MetricNames = &'static [&'static str];

/// The metrics that each file moves.
const MOVED_HERE: &[MetricNames] = &[
    audit::MOVED,
    event_flow::MOVED,
    service_bus_faults::MOVED,
    leadership::MOVED,
    mongodb_faults::MOVED,
    dead_letters::MOVED,
    signatures::MOVED,
];

/// Healing fails only while MongoDB does, and then the status is unknown: the suite of `admin` moves it.
const MOVED_IN_ADMIN: MetricNames = &["headwater_audit_missing_aggregates"];

/// Moved by tests of other behaviour: the metric, the file, the test.
const MOVED_ELSEWHERE: &[(&str, &str, &str)] = &[
    ("headwater_entra_tokens_total", include_str!("entra.rs"), "an_issuer_that_is_away_is_reported_and_loses_nothing"),
    (
        "headwater_entra_token_failures_total",
        include_str!("entra.rs"),
        "an_issuer_that_is_away_is_reported_and_loses_nothing",
    ),
    (
        "headwater_entra_token_expires_in_seconds",
        include_str!("entra.rs"),
        "an_issuer_that_is_away_is_reported_and_loses_nothing",
    ),
    ("headwater_pipeline_failures_total", include_str!("pipelines.rs"), "a_failed_pipeline_starts_again_by_itself"),
    ("headwater_loop_stalled", include_str!("stalled_loops.rs"), "a_stalled_capture_is_reported"),
    (
        "headwater_insert_to_read_model_seconds",
        include_str!("latency.rs"),
        "insert_to_read_model_is_measured_to_the_millisecond",
    ),
    (
        "headwater_read_model_events_total",
        include_str!("read_model_age.rs"),
        "each_read_model_has_its_own_count_and_age",
    ),
    (
        "headwater_read_model_age_seconds",
        include_str!("read_model_age.rs"),
        "each_read_model_has_its_own_count_and_age",
    ),
    (
        "headwater_read_model_incomplete",
        include_str!("read_model_age.rs"),
        "without_a_sequence_a_change_leaves_it_incomplete",
    ),
];

#[test]
fn every_runbook_metric_is_moved_on_a_real_pod() {
    let runbook = include_str!("../../../../docs/operations.md");
    let rows = runbook.lines().filter_map(|line| line.strip_prefix("| `headwater_")?.split('`').next());
    let all: BTreeSet<String> = rows.map(|name| format!("headwater_{name}")).collect();
    let named = |sample: &str| sample.split('{').next().unwrap_or_default().to_owned();
    let mut moved: BTreeSet<String> =
        MOVED_HERE.iter().copied().chain([MOVED_IN_ADMIN]).flatten().map(|sample| named(sample)).collect();
    for (metric, file, test) in MOVED_ELSEWHERE {
        assert!(
            file.contains(&format!("async fn {test}(")) && file.contains(metric),
            "{metric} is not moved by {test}"
        );
        moved.insert((*metric).to_owned());
    }
    assert_eq!(moved, all);
}

/// The values of `/metrics` at one moment, by name and labels.
#[derive(Debug)]
struct MetricsSnapshot(BTreeMap<String, f64>);

impl MetricsSnapshot {
    async fn read(fixture: &PodFixture) -> Self {
        Self::read_pod(fixture, 0).await
    }

    /// Requests the status too, so that it is collected every second.
    async fn read_pod(fixture: &PodFixture, pod: usize) -> Self {
        fixture.get_of(pod, "/api/status").await;
        let page = fixture.get_of(pod, "/metrics").await.body;
        let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        Self(samples.map(|(sample, value)| (sample.to_owned(), value.parse().expect("a number"))).collect())
    }

    /// An unknown value has no sample.
    fn get(&self, sample: &str) -> Option<f64> {
        self.0.get(sample).copied()
    }

    /// A missing sample counts as 0.
    fn value(&self, sample: &str) -> f64 {
        self.get(sample).unwrap_or(0.0)
    }
}

/// Waits until all samples are above their value in `before`.
async fn wait_for_rise(fixture: &PodFixture, before: &MetricsSnapshot, samples: &[&str]) -> MetricsSnapshot {
    wait_for("metrics to rise", SOON, async || {
        let now = MetricsSnapshot::read(fixture).await;
        let still = samples.iter().filter(|sample| now.value(sample) <= before.value(sample));
        let still: Vec<_> = still.map(|sample| format!("{sample}: {:?}", now.get(sample))).collect();
        if still.is_empty() { Ok(now) } else { Err(still) }
    })
    .await
}

/// Waits until the sample has this value.
pub(crate) async fn wait_for_value(fixture: &PodFixture, sample: &str, value: f64) {
    wait_for(sample, SOON, async || match MetricsSnapshot::read(fixture).await.get(sample) {
        Some(now) if now == value => Ok(()),
        other => Err(other),
    })
    .await;
}
