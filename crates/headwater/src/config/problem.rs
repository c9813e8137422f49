//! A problem of the configuration: where it is, what is wrong, and what to write instead.

use std::fmt;

use serde_json::{Value as Json, json};

use super::node::SettingOrigin;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigProblem {
    pub(crate) origin: SettingOrigin,
    /// Dotted; empty if the problem concerns the whole file.
    pub(crate) path: String,
    pub(crate) what: String,
}

impl ConfigProblem {
    pub(crate) fn at(origin: SettingOrigin, path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { origin, path: path.into(), what: what.into() }
    }
}

/// All problems of one configuration, in the order of the file.
#[derive(Debug)]
pub(crate) struct ConfigProblems {
    /// The name of the file, if there is one.
    pub(crate) file: Option<String>,
    pub(crate) list: Vec<ConfigProblem>,
}

impl ConfigProblems {
    /// As findings of `check --json`.
    pub(crate) fn to_json(&self) -> Json {
        let findings = self.list.iter().map(|ConfigProblem { origin, path, what }| {
            let (line, column) = match origin {
                SettingOrigin::File { line, column } => (Some(line), Some(column)),
                SettingOrigin::Environment(_) | SettingOrigin::Flag | SettingOrigin::Unset => (None, None),
            };
            let mut finding = json!({ "level": "error", "about": "configuration", "path": path, "problem": what });
            finding["line"] = json!(line);
            finding["column"] = json!(column);
            if let SettingOrigin::Environment(name) = origin {
                finding["variable"] = json!(name);
            }
            finding
        });
        json!({ "ok": false, "file": self.file, "findings": findings.collect::<Vec<_>>() })
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { line, column } => write!(f, "line {line}, column {column}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag => f.write_str("--set"),
            Self::Unset => f.write_str("not set"),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.path.is_empty() {
            write!(f, "`{}` ", self.path)?;
        }
        f.write_str(&self.what)
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.list.len();
        let file = self.file.as_deref().map(|file| format!(" `{file}`")).unwrap_or_default();
        let problems = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
        write!(f, "the configuration{file} has {problems}")?;
        for problem in &self.list {
            write!(f, "\n  {problem}")?;
        }
        if self.file.is_none() && self.list.iter().any(|problem| problem.origin == SettingOrigin::Unset) {
            f.write_str(
                "\nno configuration file found: set `--config` or HEADWATER_CONFIG, or create `headwater.yaml` in the current folder; \
                 `headwater config reference > headwater.yaml` writes one to start from",
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}
