//! `headwater check`: problems of configuration, MongoDB and Service Bus, each with a fix.
//!
//! Changes nothing: the right to update is tested with a statement that matches no document; the rights to insert, remove and create are read
//! from the server's list.

mod admin;
mod databases;
mod event_sample;
mod privileges;
mod service_bus;
mod source;

use std::fmt;

use serde_json::{Value as Json, json};

use crate::config::Config;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FindingLevel {
    /// Worth knowing.
    Note,
    /// Pods run, but will have problems later.
    Warning,
    /// Pods do not run, or break a guarantee.
    Error,
}

/// One result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckFinding {
    pub(crate) level: FindingLevel,
    /// The section of the configuration.
    pub(crate) about: &'static str,
    pub(crate) problem: String,
    pub(crate) fix: String,
}

impl FindingLevel {
    fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl CheckFinding {
    fn new(level: FindingLevel, about: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level, about, problem: problem.into(), fix: fix.into() }
    }

    fn error(about: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Error, about, problem, fix)
    }

    fn warning(about: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Warning, about, problem, fix)
    }

    fn note(about: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Note, about, problem, fix)
    }

    pub(crate) fn to_json(&self) -> Json {
        let Self { level, about, problem, fix } = self;
        json!({ "level": level.as_str(), "about": about, "problem": problem, "fix": fix })
    }
}

/// One line for users.
impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, about, problem, fix } = self;
        write!(f, "{}: {about}: {problem}; {fix}", level.as_str())
    }
}

/// The findings of several pipelines. A finding that all of them share is reported once; any other one names its pipeline.
pub(crate) fn with_pipeline_names(found: Vec<(String, Vec<CheckFinding>)>) -> Vec<CheckFinding> {
    let is_shared = |finding: &CheckFinding| found.iter().all(|(_, findings)| findings.contains(finding));
    let mut named: Vec<CheckFinding> = vec![];
    for (pipeline, findings) in &found {
        for finding in findings {
            let mut finding = finding.clone();
            if !is_shared(&finding) {
                finding.problem = format!("pipeline `{pipeline}`: {}", finding.problem);
            }
            if !named.contains(&finding) {
                named.push(finding);
            }
        }
    }
    named.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    named
}

/// Checks the configuration alone.
pub(crate) fn check_offline(config: &Config) -> Vec<CheckFinding> {
    let mut findings = source::check_configuration(config);
    findings.extend(admin::check_configuration(&config.admin));
    findings
}

/// Also checks MongoDB, Service Bus and, if `sample` is set, that many of the newest events. The most serious findings come first.
pub(crate) async fn check_online(config: &Config, sample: Option<u32>) -> anyhow::Result<Vec<CheckFinding>> {
    let mut findings = check_offline(config);
    // Concurrently: several unreachable servers then cost one timeout, not several.
    let asked = (
        source::check_source(config),
        databases::check_coordination(config),
        databases::check_read_models(config),
        service_bus::check_service_bus(config),
    );
    let (source, coordination, views, bus) =
        futures_util::future::try_join4(asked.0, asked.1, asked.2, asked.3).await?;
    findings.extend([source, coordination, views, bus].into_iter().flatten());
    if let Some(count) = sample {
        findings.extend(event_sample::check_events(config, count).await?);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Ok(findings)
}
