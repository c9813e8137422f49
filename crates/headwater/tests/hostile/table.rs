//! The rows of `docs/hostile-inputs.md`, compared with what happened.

use std::fmt::Write;
use std::path::Path;

/// Every input and its expected result. `cargo xtask hostile --accept` writes it. Tests run in the folder of their crate.
const EXPECTED: &str = "../../docs/hostile-inputs.md";
/// A folder for the observed results, for `cargo xtask hostile`.
const RESULTS_VARIABLE: &str = "HEADWATER_HOSTILE_RESULTS";
const ACCEPT_VARIABLE: &str = "HEADWATER_HOSTILE_ACCEPT";

/// One area of the table.
pub(crate) struct HostileTable {
    area: &'static str,
    rows: Vec<(String, Result<String, String>)>,
}

/// The most memory that a process used, and the most that it may use.
pub(crate) struct PeakMemory {
    pub(crate) process: &'static str,
    pub(crate) used_mb: f64,
    pub(crate) limit_mb: f64,
}

impl HostileTable {
    pub(crate) fn new(area: &'static str) -> Self {
        Self { area, rows: vec![] }
    }

    /// `result`: what happened, or the harm that was done.
    pub(crate) fn record(&mut self, input: &str, result: Result<String, String>) {
        self.rows.push((one_cell(input), result.map(|text| one_cell(&text)).map_err(|text| one_cell(&text))));
    }

    /// Fails if an input did harm, if a result is not the expected one, or if the process used too much memory.
    pub(crate) fn finish(self, memory: &PeakMemory) {
        let expected: Vec<_> = expected_rows().into_iter().filter(|row| row[0] == self.area).collect();
        let expected_of =
            |input: &str| expected.iter().find(|row| row[1] == input).map_or("not in the table", |row| row[2].as_str());
        let mut report = format!("{}\t{:.0}\t{:.0}\n", memory.process, memory.used_mb, memory.limit_mb);
        let mut wrong = vec![];
        for (input, result) in &self.rows {
            let observed = result.as_ref().map_or_else(|harm| format!("HARM: {harm}"), Clone::clone);
            let expected = expected_of(input);
            if observed != expected {
                wrong.push(format!("{input}: expected `{expected}`, observed `{observed}`"));
            }
            writeln!(report, "{input}\t{expected}\t{observed}").unwrap();
        }
        if let Some(folder) = std::env::var_os(RESULTS_VARIABLE) {
            std::fs::write(Path::new(&folder).join(format!("{}.tsv", self.area)), report).unwrap();
        }
        let harm: Vec<_> = self.rows.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(harm.is_empty(), "{}: {harm:#?}", self.area);
        assert!(memory.used_mb < memory.limit_mb, "{} uses {} MB", memory.process, memory.used_mb);
        if std::env::var_os(ACCEPT_VARIABLE).is_none() {
            assert!(wrong.is_empty(), "{}: {wrong:#?}", self.area);
            assert_eq!(self.rows.len(), expected.len(), "{}: rows of the table without an input", self.area);
        }
    }
}

/// Area, input and result.
fn expected_rows() -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(EXPECTED).unwrap();
    let row = |line: &str| {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::to_owned);
        cells.collect::<Vec<_>>().try_into().ok()
    };
    text.lines().filter_map(row).collect()
}

/// Text that does not break a Markdown table.
fn one_cell(text: &str) -> String {
    text.replace(['|', '\n', '\r', '\t'], " ").trim().to_owned()
}

/// Each area fails if its inputs are not exactly the rows of the table, so the rows are the inputs that ran.
#[test]
fn the_table_has_at_least_300_different_inputs() {
    let areas = crate::AREAS;
    let rows = expected_rows().into_iter().filter(|row| areas.contains(&row[0].as_str()));
    let mut inputs: Vec<_> = rows.map(|[area, input, _]| (area, input)).collect();
    let rows = inputs.len();
    inputs.sort_unstable();
    inputs.dedup();
    assert_eq!(inputs.len(), rows, "an input is in the table twice");
    assert!(rows >= 300, "{rows} inputs");
    for area in areas {
        assert!(inputs.iter().any(|(of, _)| of == area), "{area} has no input");
    }
}
