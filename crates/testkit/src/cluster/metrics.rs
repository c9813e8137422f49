//! What a pod counts, as its `/metrics` says.

/// One look at them.
#[derive(Clone, Debug)]
pub struct Metrics {
    page: String,
}

impl Metrics {
    pub(super) fn of(page: String) -> Self {
        Self { page }
    }

    /// One sample, named with its labels; 0 when the page has none such.
    pub fn count(&self, sample: &str) -> u64 {
        let value = |line: &str| line.strip_prefix(sample)?.strip_prefix(' ')?.parse::<f64>().ok();
        self.page.lines().find_map(value).map_or(0, |value| value as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let page = "# TYPE held gauge\nheld 3\nheld_by{pod=\"a\"} 4\nheld_by{pod=\"b\"} 5\n";
        let metrics = Metrics::of(page.to_owned());
        assert_eq!(["held", "held_by{pod=\"b\"}", "held_by", "hel"].map(|name| metrics.count(name)), [3, 5, 0, 0]);
    }
}
