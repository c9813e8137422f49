//! Prometheus' text format, as far as we need it.
//!
//! Written by hand: our numbers live in the parts that count them and are read when somebody asks, while the metrics crates want to own the
//! counters. What is left is sixty lines and a rule for escaping.

use std::fmt::{Display, Write};

use crate::latency::{BOUNDS, LatencyBuckets};
use crate::metrics::{Metric, MetricKind};

/// The page as it grows.
#[derive(Debug, Default)]
pub(crate) struct ExpositionPage(String);

/// One metric's samples. A metric without a sample is not known at the moment.
pub(crate) struct MetricFamily<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl ExpositionPage {
    pub(crate) fn family(&mut self, metric: &Metric) -> MetricFamily<'_> {
        self.described(metric.name, metric.kind, metric.help)
    }

    fn described(&mut self, name: &'static str, kind: MetricKind, help: &str) -> MetricFamily<'_> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        MetricFamily { page: &mut self.0, name }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

impl MetricFamily<'_> {
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, value);
    }

    /// LatencyBuckets add up from the lowest on; in seconds, as is the custom.
    pub(crate) fn histogram(&mut self, buckets: &LatencyBuckets) {
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(buckets.counts) {
            below += count;
            self.line("_bucket", &[("le", &(*bound as f64 / 1_000.0).to_string())], below);
        }
        self.line("_bucket", &[("le", "+Inf")], buckets.total());
        self.line("_sum", &[], buckets.micros as f64 / 1e6);
        self.line("_count", &[], buckets.total());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.page, "{}{suffix}", self.name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let _ = write!(self.page, "{open}{label}=\"{}\"", escaped(value));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.page, "{close} {value}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_described_once_and_names_cannot_break_out_of_a_label() {
        let mut page = ExpositionPage::default();
        let mut family = page.described("a_total", MetricKind::Counter, "all\nof \\ it");
        family.sample(&[("pod", "a\"} 7\n\\"), ("b", "c")], 3);
        family.sample(&[], 4.5);
        let expected = "# HELP a_total all\\nof \\\\ it\n# TYPE a_total counter\n\
                        a_total{pod=\"a\\\"} 7\\n\\\\\",b=\"c\"} 3\na_total 4.5\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let latency = crate::LatencyHistogram::default();
        for millis in [1, 2, 40, 900_000] {
            latency.record(std::time::Duration::from_millis(millis));
        }
        let mut page = ExpositionPage::default();
        page.described("h", MetricKind::Histogram, "").histogram(&latency.read());
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
