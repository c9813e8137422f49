//! Counts the executed tests of each suite from the JUnit reports, and compares them with the stored counts (`xtask/test-counts.toml`).
//!
//! A suite with fewer tests than stored has failed: tests that are no longer built or found would go unnoticed. `cargo xtask test
//! --accept-counts` stores the counts of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct SuiteCount {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl SuiteCount {
    fn executed(&self) -> u32 {
        self.passed + self.failed
    }
}

const STORED_HEAD: &str = "# Tests of each suite. The gate fails if one runs fewer; `cargo xtask test --accept-counts` stores the counts of a run.";

pub(crate) struct TestCounts {
    suites: BTreeMap<String, SuiteCount>,
    /// How many tests each suite had when the counts were last stored.
    stored: BTreeMap<String, u32>,
}

impl TestCounts {
    /// Each of these suites, and of those in other languages, must run at least one test.
    pub(crate) fn with_suites(rust: Vec<String>) -> Self {
        let others = ["doctests", "python", "javascript", "fuzz-targets"].map(str::to_owned);
        let suites = rust.into_iter().chain(others).map(|name| (name, SuiteCount::default())).collect();
        Self { suites, stored: BTreeMap::new() }
    }

    /// Reads the stored counts of this file.
    pub(crate) fn compare_with(&mut self, file: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("failed to read `{}`", file.display()))?;
        self.stored = toml::from_str(&text).with_context(|| format!("failed to parse `{}`", file.display()))?;
        Ok(())
    }

    /// Stores the counts of this run.
    pub(crate) fn store(&self, file: &Path) -> anyhow::Result<()> {
        let lines = self.suites.iter().map(|(name, count)| format!("{name} = {}\n", count.executed()));
        let text = lines.fold(format!("{STORED_HEAD}\n"), |text, line| text + &line);
        std::fs::write(file, text).with_context(|| format!("failed to write `{}`", file.display()))
    }

    /// nextest names a test suite after crate and binary, `lease::suite` or `xtask::bin/xtask`; counts are per crate.
    pub(crate) fn read_nextest(&mut self, junit: &Path) -> anyhow::Result<()> {
        for (suite, count) in read(junit)? {
            let name = suite.split("::").next().unwrap_or(&suite).to_owned();
            self.add(&name, count);
        }
        Ok(())
    }

    pub(crate) fn read_junit(&mut self, name: &str, junit: &Path) -> anyhow::Result<()> {
        for (_, count) in read(junit)? {
            self.add(name, count);
        }
        Ok(())
    }

    /// Reads the summary lines of cargo: `test result: ok. 3 passed; 0 failed; 0 ignored; …`, one per crate.
    pub(crate) fn read_doctests(&mut self, printed: &str) {
        for line in printed.lines().filter(|line| line.starts_with("test result:")) {
            let number = |word: &str| {
                let before = line.split(word).next().unwrap_or_default();
                before.rsplit(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty()).and_then(|n| n.parse().ok())
            };
            let [passed, failed, skipped] =
                [" passed", " failed", " ignored"].map(|word| number(word).unwrap_or_default());
            self.add("doctests", SuiteCount { passed, failed, skipped });
        }
    }

    /// Targets that ran to their end count as tests, so that a target that is no longer run is noticed.
    pub(crate) fn add_fuzz_targets(&mut self, targets: u32) {
        self.add("fuzz-targets", SuiteCount { passed: targets, ..SuiteCount::default() });
    }

    pub(crate) fn verify(&self) -> anyhow::Result<()> {
        let empty: Vec<_> = self.suites.iter().filter(|(_, count)| count.executed() == 0).collect();
        if !empty.is_empty() {
            let names: Vec<_> = empty.into_iter().map(|(name, _)| name.as_str()).collect();
            bail!("no test ran in: {}", names.join(", "));
        }
        let missing: Vec<_> = self.stored.iter().filter_map(|(name, stored)| self.missing(name, *stored)).collect();
        if !missing.is_empty() {
            bail!(
                "tests are missing: {}; if they were removed on purpose, run `cargo xtask test --accept-counts`",
                missing.join(", ")
            );
        }
        let skipped: u32 = self.suites.values().map(|count| count.skipped).sum();
        if skipped > 0 {
            bail!("{skipped} tests were skipped; no test may be skipped");
        }
        let failed: u32 = self.suites.values().map(|count| count.failed).sum();
        if failed > 0 {
            bail!("{failed} tests failed");
        }
        Ok(())
    }

    fn missing(&self, suite: &str, stored: u32) -> Option<String> {
        let executed = self.suites.get(suite).map_or(0, SuiteCount::executed);
        (executed < stored).then(|| format!("{suite} ran {executed} of {stored}"))
    }

    fn add(&mut self, name: &str, count: SuiteCount) {
        let sum = self.suites.entry(name.to_owned()).or_default();
        sum.passed += count.passed;
        sum.failed += count.failed;
        sum.skipped += count.skipped;
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14} {:>7} {:>7}", "suite", "passed", "failed")?;
        let mut sum = SuiteCount::default();
        for (name, count) in &self.suites {
            writeln!(f, "{name:<14} {:>7} {:>7}", count.passed, count.failed)?;
            sum.passed += count.passed;
            sum.failed += count.failed;
        }
        write!(f, "{} passed, {} failed", sum.passed, sum.failed)
    }
}

/// The counts of a JUnit report, per `testsuite` (the innermost one around each `testcase`).
fn read(junit: &Path) -> anyhow::Result<Vec<(String, SuiteCount)>> {
    let text =
        std::fs::read_to_string(junit).with_context(|| format!("failed to read the report `{}`", junit.display()))?;
    parse(&text).with_context(|| format!("failed to parse the report `{}`", junit.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<(String, SuiteCount)>> {
    let mut reader = Reader::from_str(text);
    let (mut suites, mut nested, mut case) = (BTreeMap::<String, SuiteCount>::new(), Vec::new(), None);
    loop {
        match reader.read_event()? {
            Event::Start(tag) if tag.name().as_ref() == "testsuite" => nested.push(name(&tag)?),
            Event::End(tag) if tag.name().as_ref() == "testsuite" => drop(nested.pop()),
            Event::Start(tag) if tag.name().as_ref() == "testcase" => {
                case = Some(SuiteCount { passed: 1, ..SuiteCount::default() })
            }
            Event::Empty(tag) if tag.name().as_ref() == "testcase" => {
                suites.entry(nested.last().cloned().unwrap_or_default()).or_default().passed += 1;
            }
            Event::Start(tag) | Event::Empty(tag) if case.is_some() => match tag.name().as_ref() {
                "failure" | "error" => case = Some(SuiteCount { failed: 1, ..SuiteCount::default() }),
                "skipped" => case = Some(SuiteCount { skipped: 1, ..SuiteCount::default() }),
                _ => {}
            },
            Event::End(tag) if tag.name().as_ref() == "testcase" => {
                let count = case.take().unwrap_or_default();
                let sum = suites.entry(nested.last().cloned().unwrap_or_default()).or_default();
                sum.passed += count.passed;
                sum.failed += count.failed;
                sum.skipped += count.skipped;
            }
            Event::Eof => return Ok(suites.into_iter().collect()),
            _ => {}
        }
    }
}

fn name(tag: &BytesStart<'_>) -> anyhow::Result<String> {
    let attribute = tag.try_get_attribute("name")?;
    Ok(attribute.map(|attribute| attribute.value.into_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{SuiteCount, TestCounts, parse};

    const REPORT: &str = r#"<testsuites><testsuite name="lease::suite" tests="3">
        <testcase name="a"/><testcase name="b"><failure>no <![CDATA[<testcase name="x"/>]]></failure></testcase>
        <testcase name="c"><skipped/></testcase><testcase name="d"><system-out>fine</system-out></testcase>
        </testsuite></testsuites>"#;

    #[test]
    fn a_report_is_counted_by_the_result_of_each_case() {
        let count = SuiteCount { passed: 2, failed: 1, skipped: 1 };
        assert_eq!(parse(REPORT).expect("parse"), [("lease::suite".to_owned(), count)]);
    }

    #[test]
    fn a_suite_without_tests_fails_the_run() {
        let mut counts = TestCounts::with_suites(vec!["lease".into()]);
        for name in ["doctests", "python", "javascript", "fuzz-targets"] {
            counts.add(name, SuiteCount { passed: 1, ..SuiteCount::default() });
        }
        assert_eq!(counts.verify().unwrap_err().to_string(), "no test ran in: lease");
        counts.add("lease", SuiteCount { passed: 1, ..SuiteCount::default() });
        counts.verify().expect("every suite ran");
    }

    #[test]
    fn a_suite_with_fewer_tests_than_stored_fails_the_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("counts.toml");
        let counts = |python| {
            let mut counts = TestCounts::with_suites(vec![]);
            for (name, passed) in [("doctests", 1), ("python", python), ("javascript", 1), ("fuzz-targets", 1)] {
                counts.add(name, SuiteCount { passed, ..SuiteCount::default() });
            }
            counts
        };
        counts(3).store(&file).expect("stored");

        let mut fewer = counts(2);
        fewer.compare_with(&file).expect("read");
        assert!(fewer.verify().unwrap_err().to_string().starts_with("tests are missing: python ran 2 of 3;"));
        let mut more = counts(4);
        more.compare_with(&file).expect("read");
        more.verify().expect("more tests are welcome");
    }

    #[test]
    fn a_skipped_test_fails_the_run() {
        let mut counts = TestCounts::with_suites(vec![]);
        for name in ["doctests", "python", "javascript", "fuzz-targets"] {
            counts.add(name, SuiteCount { passed: 1, failed: 0, skipped: 1 });
        }
        assert_eq!(counts.verify().unwrap_err().to_string(), "4 tests were skipped; no test may be skipped");
    }

    #[test]
    fn doctests_are_counted_from_the_summary_lines() {
        let mut counts = TestCounts::with_suites(vec![]);
        counts.read_doctests("x\ntest result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out\n");
        assert_eq!(counts.suites["doctests"], SuiteCount { passed: 12, failed: 1, skipped: 2 });
    }
}
