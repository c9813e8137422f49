//! One figure, measured several times: the median counts, and the spread says how far to trust it.

use std::fmt;

use serde_json::{Map, Value, json};

/// Sorted measurements of one figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements(Vec<f64>);

impl Measurements {
    /// Of an even number, the lower one of the two in the middle; 0 without a measurement.
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    /// The lowest and the highest; 0 without a measurement.
    pub fn spread(&self) -> [f64; 2] {
        [self.0.first(), self.0.last()].map(|end| end.copied().unwrap_or_default())
    }
}

impl FromIterator<f64> for Measurements {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        let mut figures: Vec<_> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }
}

/// The median, and in parentheses the spread.
impl fmt::Display for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        let [low, high] = self.spread();
        write!(f, "{:.digits$} ({low:.digits$} to {high:.digits$})", self.median())
    }
}

/// The last line of a bench: its figures as JSON.
#[derive(Clone, Debug)]
pub struct BenchReport(Map<String, Value>);

impl BenchReport {
    pub fn new(bench: &str) -> Self {
        Self(Map::from_iter([("bench".to_owned(), bench.into())]))
    }

    /// Adds a single figure.
    #[must_use]
    pub fn figure(mut self, name: &str, value: f64, digits: u32) -> Self {
        self.0.insert(name.to_owned(), rounded(value, digits));
        self
    }

    /// Adds the median as `name` and the spread as `name_spread`.
    #[must_use]
    pub fn measured(mut self, name: &str, measured: &Measurements, digits: u32) -> Self {
        self = self.figure(name, measured.median(), digits);
        self.0.insert(format!("{name}_spread"), json!(measured.spread().map(|end| rounded(end, digits))));
        self
    }

    /// Adds a value that is not a figure.
    #[must_use]
    pub fn value(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Value::Object(self.0.clone()))
    }
}

fn rounded(value: f64, digits: u32) -> Value {
    let scale = 10_f64.powi(digits.cast_signed());
    json!((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        let three: Measurements = [3.0, 1.0, 2.0].into_iter().collect();
        assert_eq!((three.median(), three.spread()), (2.0, [1.0, 3.0]));
        let four: Measurements = [4.0, 1.0, 2.0, 3.0].into_iter().collect();
        assert_eq!(four.median(), 2.0);
        assert_eq!(Measurements::default().median(), 0.0);
    }

    #[test]
    fn a_report_has_the_median_and_the_spread() {
        let rate: Measurements = [10.06, 9.0, 11.0].into_iter().collect();
        let report = BenchReport::new("walk").measured("rate", &rate, 1).to_string();
        assert_eq!(report, r#"{"bench":"walk","rate":10.1,"rate_spread":[9.0,11.0]}"#);
    }
}
