//! The metrics page of a pod.

/// One scrape of `/metrics`.
#[derive(Clone, Debug)]
pub struct PodMetrics {
    page: String,
}

impl PodMetrics {
    pub(super) fn new(page: String) -> Self {
        Self { page }
    }

    pub fn page(&self) -> &str {
        &self.page
    }

    /// The value of one sample, named with its labels; 0 when the page has no such sample.
    pub fn value(&self, sample: &str) -> u64 {
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
        let metrics = PodMetrics::new(page.to_owned());
        assert_eq!(["held", "held_by{pod=\"b\"}", "held_by", "hel"].map(|name| metrics.value(name)), [3, 5, 0, 0]);
    }
}
