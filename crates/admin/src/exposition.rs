//! Writes the Prometheus text format, as far as this crate needs it.
//!
//! Not a metrics crate, because those own their counters, while ours live in the components that count and are read per request.

use std::fmt::{Display, Write};

use crate::latency::{BOUNDS, LatencyBuckets};
use crate::metrics::{Metric, MetricKind};

/// The text of `/metrics`, one family after the other.
#[derive(Debug, Default)]
pub(crate) struct ExpositionPage(String);

/// Adds the samples of one metric. A metric without a sample is unknown at the moment.
pub(crate) struct MetricFamily<'a> {
    page: &'a mut String,
    name: &'static str,
    /// The label `pipeline` of the next samples.
    pipeline: Option<String>,
}

impl ExpositionPage {
    pub(crate) fn family(&mut self, metric: &Metric) -> MetricFamily<'_> {
        self.start_family(metric.name, metric.kind, metric.help)
    }

    pub(crate) fn start_family(&mut self, name: &'static str, kind: MetricKind, help: &str) -> MetricFamily<'_> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        MetricFamily { page: &mut self.0, name, pipeline: None }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

impl MetricFamily<'_> {
    /// The next samples are of this pipeline; `None` if the process has no list of pipelines.
    pub(crate) fn set_pipeline(&mut self, pipeline: Option<&str>) {
        self.pipeline = pipeline.map(str::to_owned);
    }

    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.write_sample("", labels, value);
    }

    /// Prometheus buckets are cumulative, with bounds in seconds.
    pub(crate) fn histogram(&mut self, buckets: &LatencyBuckets) {
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(buckets.counts) {
            below += count;
            self.write_sample("_bucket", &[("le", &(*bound as f64 / 1_000.0).to_string())], below);
        }
        self.write_sample("_bucket", &[("le", "+Inf")], buckets.total());
        self.write_sample("_sum", &[], buckets.micros as f64 / 1e6);
        self.write_sample("_count", &[], buckets.total());
    }

    fn write_sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.page, "{}{suffix}", self.name);
        let pipeline = self.pipeline.as_deref().map(|name| ("pipeline", name));
        let labels: Vec<_> = pipeline.into_iter().chain(labels.iter().copied()).collect();
        for (index, (label, value)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.page, "{open}{label}=\"{}\"", escape_label(value));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.page, "{close} {value}");
    }
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_label_values_are_escaped() {
        let mut page = ExpositionPage::default();
        let mut family = page.start_family("a_total", MetricKind::Counter, "all\nof \\ it");
        family.sample(&[("pod", "a\"} 7\n\\"), ("b", "c")], 3);
        family.sample(&[], 4.5);
        let expected = "# HELP a_total all\\nof \\\\ it\n# TYPE a_total counter\n\
                        a_total{pod=\"a\\\"} 7\\n\\\\\",b=\"c\"} 3\na_total 4.5\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let latency = crate::LatencyHistogram::default();
        for millis in [1, 2, 40, 900_000] {
            latency.record(std::time::Duration::from_millis(millis));
        }
        let mut page = ExpositionPage::default();
        page.start_family("h", MetricKind::Histogram, "").histogram(&latency.snapshot());
        let text = page.into_text();
        for line in [
            "h_bucket{le=\"0.001\"} 1",
            "h_bucket{le=\"0.05\"} 3",
            "h_bucket{le=\"+Inf\"} 4",
            "h_sum 900.043",
            "h_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
