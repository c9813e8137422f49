//! Declares the counters of a station: one entry is the field, its metric name and its help text.
//!
//! A station adds to relaxed atomics, and readers take a snapshot. `/metrics` shows [`MetricSample`]s of the snapshot, so that no other place has to
//! name a counter.

/// One value for `/metrics`. By Prometheus convention a name that ends with `_total` is a counter, and any other a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSample {
    pub name: &'static str,
    pub help: &'static str,
    /// Name and value. Samples of one name follow each other, and the help of the first counts.
    pub label: Option<(&'static str, &'static str)>,
    pub value: u64,
}

/// Generates a struct of atomics, a struct with their values at one moment, and the samples of the latter.
///
/// The first line of a field's documentation is the help text. A field without a metric name is not exported.
macro_rules! counters {
    ($counters:ident => $snapshot:ident {
        $(
            #[doc = $help:literal]
            $(#[doc = $more:literal])*
            $field:ident $(: $name:literal $({ $label:literal = $value:literal })?)?
        ),* $(,)?
    }) => {
        #[derive(Debug, Default)]
        pub(super) struct $counters {
            $(pub(super) $field: std::sync::atomic::AtomicU64,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $(#[doc = $help] $(#[doc = $more])* pub $field: u64,)*
        }

        impl $counters {
            pub(super) fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.load(std::sync::atomic::Ordering::Relaxed),)* }
            }
        }

        impl $snapshot {
            pub fn samples(&self) -> Vec<$crate::counters::MetricSample> {
                vec![$($($crate::counters::MetricSample {
                    name: $name,
                    help: $help.trim_ascii(),
                    label: None$(.or(Some(($label, $value))))?,
                    value: self.$field,
                },)?)*]
            }
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro is for modules that export their snapshot")]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::MetricSample;

    counters! {
        TestCounters => TestCounts {
            /// Lines read.
            /// Including empty ones.
            read: "lines_total" { "result" = "read" },
            /// Lines skipped.
            skipped: "lines_total" { "result" = "skipped" },
            /// Lines held now.
            held: "lines_held",
            /// Not exported.
            polls,
        }
    }

    #[test]
    fn an_entry_declares_the_counter_and_its_sample() {
        let counters = TestCounters::default();
        counters.read.fetch_add(2, Relaxed);
        counters.skipped.fetch_add(1, Relaxed);
        counters.held.store(3, Relaxed);
        counters.polls.fetch_add(4, Relaxed);
        let counts = counters.snapshot();
        assert_eq!(counts, TestCounts { read: 2, skipped: 1, held: 3, polls: 4 });
        let sample = |name, help, label, value| MetricSample { name, help, label, value };
        let expected = [
            sample("lines_total", "Lines read.", Some(("result", "read")), 2),
            sample("lines_total", "Lines skipped.", Some(("result", "skipped")), 1),
            sample("lines_held", "Lines held now.", None, 3),
        ];
        assert_eq!(counts.samples(), expected);
    }
}
