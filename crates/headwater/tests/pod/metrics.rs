//! Every metric, made to move on a real pod and read from its `/metrics`. The table of the runbook is the list; one that nothing here
//! moves fails the first test.

mod bus;
mod leadership;
mod letters;
mod store;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use testkit::wait::wait_for;

use crate::house::{House, SOON};

/// Names of metrics, or of samples where each label has a story of its own.
type Moved = &'static [&'static str];

/// Who moves what.
const HERE: &[Moved] = &[walk::MOVED, bus::MOVED, leadership::MOVED, store::MOVED, letters::MOVED];

/// Moved by tests that are about something else: the metric, and where.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("headwater_loop_wedged", include_str!("wedged.rs"), "a_wedged_capture_is_found"),
    (
        "headwater_insert_to_read_model_seconds",
        include_str!("latency.rs"),
        "the_time_from_insert_to_read_model_is_measured_to_the_millisecond",
    ),
    (
        "headwater_read_model_events_total",
        include_str!("read_models.rs"),
        "each_read_model_has_a_count_and_an_age_of_its_own",
    ),
    (
        "headwater_read_model_age_seconds",
        include_str!("read_models.rs"),
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
struct Reading(BTreeMap<String, f64>);

impl Reading {
    async fn of(house: &House) -> Self {
        Self::of_pod(house, 0).await
    }

    /// Whoever asks for the status has it gathered every second.
    async fn of_pod(house: &House, pod: usize) -> Self {
        house.get_of(pod, "/api/status").await;
        let page = house.get_of(pod, "/metrics").await.body;
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
async fn rise(house: &House, before: &Reading, samples: &[&str]) -> Reading {
    wait_for("metrics to rise", SOON, async || {
        let now = Reading::of(house).await;
        let still = samples.iter().filter(|sample| now.value(sample) <= before.value(sample));
        let still: Vec<_> = still.map(|sample| format!("{sample}: {:?}", now.get(sample))).collect();
        if still.is_empty() { Ok(now) } else { Err(still) }
    })
    .await
}

/// Waits until this one has this value.
async fn becomes(house: &House, sample: &str, value: f64) {
    wait_for(sample, SOON, async || match Reading::of(house).await.get(sample) {
        Some(now) if now == value => Ok(()),
        other => Err(other),
    })
    .await;
}
