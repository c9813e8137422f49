//! How many tests ran, suite by suite, read from the reports the runners leave. A suite that ran none has failed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    passed: u32,
    failed: u32,
    skipped: u32,
}

pub(crate) struct Tally {
    suites: BTreeMap<String, Count>,
}

impl Tally {
    /// A tally in which these suites, and the ones in other languages, must each run at least one test.
    pub(crate) fn expecting(rust: Vec<String>) -> Self {
        let others = ["doctests", "python", "javascript"].map(str::to_owned);
        Self { suites: rust.into_iter().chain(others).map(|name| (name, Count::default())).collect() }
    }

    /// nextest names a test suite after crate and binary, `lease::races` or `xtask::bin/xtask`: counted per crate.
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

    /// cargo's closing lines: `test result: ok. 3 passed; 0 failed; 0 ignored; …`, one a crate.
    pub(crate) fn read_doctests(&mut self, printed: &str) {
        for line in printed.lines().filter(|line| line.starts_with("test result:")) {
            let number = |word: &str| {
                let before = line.split(word).next().unwrap_or_default();
                before.rsplit(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty()).and_then(|n| n.parse().ok())
            };
            let [passed, failed, skipped] =
                [" passed", " failed", " ignored"].map(|word| number(word).unwrap_or_default());
            self.add("doctests", Count { passed, failed, skipped });
        }
    }

    pub(crate) fn judge(&self) -> anyhow::Result<()> {
        let silent: Vec<_> = self.suites.iter().filter(|(_, count)| count.passed + count.failed == 0).collect();
        if !silent.is_empty() {
            let names: Vec<_> = silent.into_iter().map(|(name, _)| name.as_str()).collect();
            bail!("no test ran in: {}", names.join(", "));
        }
        let skipped: u32 = self.suites.values().map(|count| count.skipped).sum();
        if skipped > 0 {
            bail!("{skipped} tests were skipped; nothing here may be");
        }
        let failed: u32 = self.suites.values().map(|count| count.failed).sum();
        if failed > 0 {
            bail!("{failed} tests failed");
        }
        Ok(())
    }

    fn add(&mut self, name: &str, count: Count) {
        let sum = self.suites.entry(name.to_owned()).or_default();
        sum.passed += count.passed;
        sum.failed += count.failed;
        sum.skipped += count.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14} {:>7} {:>7}", "suite", "passed", "failed")?;
        let mut sum = Count::default();
        for (name, count) in &self.suites {
            writeln!(f, "{name:<14} {:>7} {:>7}", count.passed, count.failed)?;
            sum.passed += count.passed;
            sum.failed += count.failed;
        }
        write!(f, "{} passed, {} failed", sum.passed, sum.failed)
    }
}

/// The counts of a JUnit report, per `testsuite` (the innermost one around each `testcase`).
fn read(junit: &Path) -> anyhow::Result<Vec<(String, Count)>> {
    let text = std::fs::read_to_string(junit).with_context(|| format!("read the report `{}`", junit.display()))?;
    parse(&text).with_context(|| format!("parse the report `{}`", junit.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<(String, Count)>> {
    let mut reader = Reader::from_str(text);
    let (mut suites, mut nested, mut case) = (BTreeMap::<String, Count>::new(), Vec::new(), None);
    loop {
        match reader.read_event()? {
            Event::Start(tag) if tag.name().as_ref() == "testsuite" => nested.push(name(&tag)?),
            Event::End(tag) if tag.name().as_ref() == "testsuite" => drop(nested.pop()),
            Event::Start(tag) if tag.name().as_ref() == "testcase" => {
                case = Some(Count { passed: 1, ..Count::default() })
            }
            Event::Empty(tag) if tag.name().as_ref() == "testcase" => {
                suites.entry(nested.last().cloned().unwrap_or_default()).or_default().passed += 1;
            }
            Event::Start(tag) | Event::Empty(tag) if case.is_some() => match tag.name().as_ref() {
                "failure" | "error" => case = Some(Count { failed: 1, ..Count::default() }),
                "skipped" => case = Some(Count { skipped: 1, ..Count::default() }),
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
    use super::{Count, Tally, parse};

    const REPORT: &str = r#"<testsuites><testsuite name="lease::races" tests="3">
        <testcase name="a"/><testcase name="b"><failure>no <![CDATA[<testcase name="x"/>]]></failure></testcase>
        <testcase name="c"><skipped/></testcase><testcase name="d"><system-out>fine</system-out></testcase>
        </testsuite></testsuites>"#;

    #[test]
    fn a_report_is_counted_by_what_became_of_each_case() {
        let count = Count { passed: 2, failed: 1, skipped: 1 };
        assert_eq!(parse(REPORT).expect("parse"), [("lease::races".to_owned(), count)]);
    }

    #[test]
    fn a_suite_that_ran_nothing_fails_the_run() {
        let mut tally = Tally::expecting(vec!["lease".into()]);
        for name in ["doctests", "python", "javascript"] {
            tally.add(name, Count { passed: 1, ..Count::default() });
        }
        assert_eq!(tally.judge().unwrap_err().to_string(), "no test ran in: lease");
        tally.add("lease", Count { passed: 1, ..Count::default() });
        tally.judge().expect("every suite ran");
    }

    #[test]
    fn a_skipped_test_fails_the_run() {
        let mut tally = Tally::expecting(vec![]);
        for name in ["doctests", "python", "javascript"] {
            tally.add(name, Count { passed: 1, failed: 0, skipped: 1 });
        }
        assert_eq!(tally.judge().unwrap_err().to_string(), "3 tests were skipped; nothing here may be");
    }

    #[test]
    fn doctests_are_counted_from_cargos_closing_lines() {
        let mut tally = Tally::expecting(vec![]);
        tally.read_doctests("x\ntest result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out\n");
        assert_eq!(tally.suites["doctests"], Count { passed: 12, failed: 1, skipped: 2 });
    }
}
