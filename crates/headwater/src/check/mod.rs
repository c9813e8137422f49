//! What stands in the way of running well, each with what to do about it.
//!
//! Looks and changes nothing: a right to write is tried with an update that matches no document.

mod admin;
mod bus;
mod sample;
mod source;
mod stores;

use std::fmt;

use serde_json::{Value as Json, json};

use crate::config::Config;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Worth knowing.
    Note,
    /// It runs, and will hurt some day.
    Warning,
    /// It does not run, or loses what it promises.
    Error,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The part of the configuration it is about.
    pub(crate) about: &'static str,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Finding {
    fn new(level: Level, about: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level, about, problem: problem.into(), remedy: remedy.into() }
    }

    fn error(about: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Error, about, problem, remedy)
    }

    fn warning(about: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Warning, about, problem, remedy)
    }

    fn note(about: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Note, about, problem, remedy)
    }

    pub(crate) fn to_json(&self) -> Json {
        let Self { level, about, problem, remedy } = self;
        json!({ "level": level.as_str(), "about": about, "problem": problem, "remedy": remedy })
    }
}

/// One line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, about, problem, remedy } = self;
        write!(f, "{}: {about}: {problem}; {remedy}", level.as_str())
    }
}

/// What the configuration alone says.
pub(crate) fn offline(config: &Config) -> Vec<Finding> {
    let mut findings = source::declared(config);
    findings.extend(admin::declared(config.admin.listen, config.admin.token.is_some()));
    findings
}

/// What MongoDB and the bus say besides, and so many of the newest events; the worst first.
pub(crate) async fn online(config: &Config, sample: Option<u32>) -> anyhow::Result<Vec<Finding>> {
    let mut findings = offline(config);
    // Side by side: whoever waits for a server that is away waits once.
    let asked = (source::ask(config), stores::coordination(config), stores::views(config), bus::ask(config));
    let (source, coordination, views, bus) =
        futures_util::future::try_join4(asked.0, asked.1, asked.2, asked.3).await?;
    findings.extend([source, coordination, views, bus].into_iter().flatten());
    if let Some(count) = sample {
        findings.extend(sample::ask(config, count).await?);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Ok(findings)
}
