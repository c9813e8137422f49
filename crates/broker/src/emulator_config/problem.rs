//! Problems of a file, with their positions.

use std::fmt;

/// One problem to fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatorConfigProblem {
    /// Both count from 1; columns count characters.
    pub line: usize,
    pub column: usize,
    /// Such as `UserConfig.Namespaces[0].Queues[2].Name`; empty if the file is neither JSON nor YAML.
    pub path: String,
    /// Continues after the path: "is 5: expected a string".
    pub message: String,
}

impl fmt::Display for EmulatorConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.path.is_empty() { "" } else { " " };
        write!(f, "{}:{}: {}{separator}{}", self.line, self.column, self.path, self.message)
    }
}

/// All problems, in file order, one per line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct EmulatorConfigProblems(pub(super) Vec<EmulatorConfigProblem>);

impl EmulatorConfigProblems {
    pub fn iter(&self) -> impl Iterator<Item = &EmulatorConfigProblem> {
        self.0.iter()
    }

    pub(super) fn syntax(text: &str, offset: usize, message: &str) -> Self {
        let (line, column) = position(text, offset);
        let mut letters = message.chars();
        let lowered = letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default();
        Self(vec![EmulatorConfigProblem { line, column, path: String::new(), message: lowered }])
    }
}

impl fmt::Display for EmulatorConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// Line and column of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..offset];
    let line = before.rfind('\n').map_or(before, |end| &before[end + 1..]);
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}
