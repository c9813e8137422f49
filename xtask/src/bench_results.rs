//! The stored results of benches: one JSON file each, and the comparison of two of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

/// The last line of every bench is stored below the target folder.
pub(crate) const FOLDER: &str = "target/bench";

/// Stores the last line of a bench's output.
pub(crate) fn store(root: &Path, name: &str, output: &str) -> anyhow::Result<()> {
    // A part of a bench prints no JSON.
    let Some(result) = output.lines().last().filter(|line| line.starts_with('{')) else { return Ok(()) };
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).context("failed to create the folder for results")?;
    fs::write(folder.join(format!("{name}.json")), format!("{result}\n")).context("failed to store the result")
}

#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// A result, or a folder of results
    before: PathBuf,
    /// The results to compare with them
    after: PathBuf,
    /// How much worse a figure may be: 0.1 is a tenth
    #[arg(long, default_value_t = 0.1)]
    tolerance: f64,
}

/// Prints the ratio of every figure; an error if one is worse by more than the tolerance.
pub(crate) fn compare(arguments: &CompareArgs) -> anyhow::Result<()> {
    let (before, after) = (figures(&arguments.before)?, figures(&arguments.after)?);
    let rows = compare_figures(&before, &after, arguments.tolerance);
    if rows.is_empty() {
        bail!("the results have no figure in common");
    }
    println!("{:<44} {:>12} {:>12} {:>7}", "figure", "before", "after", "ratio");
    for row in &rows {
        let note = if row.is_worse { "  worse" } else { "" };
        println!("{:<44} {:>12} {:>12} {:>7.3}{note}", row.name, row.before, row.after, row.ratio);
    }
    let worse = rows.iter().filter(|row| row.is_worse).count();
    if worse > 0 {
        bail!("{worse} of {} figures are worse by more than {}", rows.len(), arguments.tolerance);
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct ComparedFigure {
    name: String,
    before: f64,
    after: f64,
    ratio: f64,
    is_worse: bool,
}

fn compare_figures(
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    tolerance: f64,
) -> Vec<ComparedFigure> {
    let common = before.iter().filter_map(|(name, before)| Some((name, *before, *after.get(name)?)));
    common
        .map(|(name, before, after)| {
            let ratio = if before == after { 1.0 } else { after / before };
            let is_worse = match direction(name) {
                Direction::HigherIsBetter => ratio < 1.0 - tolerance,
                Direction::LowerIsBetter => ratio > 1.0 + tolerance,
                Direction::Setting => false,
            };
            ComparedFigure { name: name.clone(), before, after, ratio, is_worse }
        })
        .collect()
}

enum Direction {
    HigherIsBetter,
    LowerIsBetter,
    /// Part of the set-up, for example the number of events.
    Setting,
}

fn direction(name: &str) -> Direction {
    let figure = name.rsplit('.').next().unwrap_or(name);
    let contains = |parts: &[&str]| parts.iter().any(|part| figure.contains(part));
    if contains(&["_ms", "rss", "cpu_us", "factor", "cpu_s", "_mb", "round_s", "recovery_s", "crash_s", "stop_s"]) {
        Direction::LowerIsBetter
    } else if contains(&["ratio", "rate", "per_s", "vs_"]) {
        Direction::HigherIsBetter
    } else {
        Direction::Setting
    }
}

/// All figures of a result or of a folder of results, as `bench.figure`.
fn figures(path: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for (_, result) in read(path)? {
        let bench = result.get("bench").and_then(Value::as_str).context("the result has no `bench`")?;
        let object = result.as_object().context("the result is not an object")?;
        found.extend(object.iter().filter_map(|(name, value)| Some((format!("{bench}.{name}"), value.as_f64()?))));
    }
    Ok(found)
}

/// A result, or the results in a folder, by file name.
pub(crate) fn read(path: &Path) -> anyhow::Result<BTreeMap<String, Value>> {
    let files = if path.is_dir() {
        let entries = fs::read_dir(path).with_context(|| format!("failed to list `{}`", path.display()))?;
        let files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect()
    } else {
        vec![path.to_owned()]
    };
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).with_context(|| format!("failed to read `{}`", file.display()))?;
        // A whole log is accepted too: its last line is the result.
        let line = text.lines().last().unwrap_or_default();
        let result = serde_json::from_str(line).with_context(|| format!("`{}` is not a result", file.display()))?;
        let name = file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((name, result))
    };
    files.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(name: &str, before: f64, after: f64) -> bool {
        let figure = |value| BTreeMap::from([(name.to_owned(), value)]);
        compare_figures(&figure(before), &figure(after), 0.1)[0].is_worse
    }

    #[test]
    fn a_lower_rate_and_a_higher_latency_are_worse() {
        assert!(compared("end-to-end.rate", 100.0, 89.0));
        assert!(!compared("end-to-end.rate", 100.0, 91.0));
        assert!(!compared("end-to-end.rate", 100.0, 200.0));
        assert!(compared("end-to-end.p99_ms", 10.0, 11.5));
        assert!(!compared("end-to-end.p99_ms", 10.0, 5.0));
        assert!(compared("end-to-end.cpu_us_pod", 10.0, 12.0));
        assert!(!compared("end-to-end.events", 10.0, 1.0), "the number of events is no figure");
    }

    #[test]
    fn a_folder_of_results_has_the_figures_of_every_bench() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("one.json"), "{\"bench\":\"one\",\"ratio\":0.5,\"ratio_spread\":[0.4,0.6]}\n")
            .expect("written");
        fs::write(folder.path().join("two.json"), "some text\n{\"bench\":\"two\",\"p50_ms\":3}\n").expect("written");
        fs::write(folder.path().join("notes.md"), "no result").expect("written");
        let found = figures(folder.path()).expect("results");
        assert_eq!(found, BTreeMap::from([("one.ratio".to_owned(), 0.5), ("two.p50_ms".to_owned(), 3.0)]));
    }
}
