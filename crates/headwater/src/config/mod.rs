//! The configuration of one pod: a YAML file, then the environment, then flags; checked as a whole, and every mistake told at once.
//!
//! SettingsReader order: [`schema`] (every key), [`yaml`] and [`node`] (what was written, and where), [`load`] (by the table), this file and [`assemble`] (the
//! structs the parts take), [`rules`] (between keys). [`read_models`] has the one section whose keys are the user's. A mistake of any of them hides
//! none of another: what was said wrongly is left out of the rules that would ask about it, and everything else is asked.

mod assemble;
mod formats;
mod load;
mod node;
mod problem;
mod read_models;
mod redact;
mod reference;
pub(crate) mod reserved;
mod rules;
mod schema;
mod units;
mod yaml;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pipeline::source::SourceConfig;
use pipeline::{consumer, producer};

use load::ConfigSources;
use problem::ConfigProblem;
pub(crate) use problem::ConfigProblems;
#[cfg(test)]
pub(crate) use read_models::parse_declarations;
pub(crate) use read_models::{EventReference, ModelDeclarations, ReadModels};
pub(crate) use reference::{EffectiveConfig, json_schema, reference_file};

use crate::exit::ExitReason;

/// Everything a pod needs to know, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) pipeline: String,
    pub(crate) pod_id: String,
    pub(crate) source_uri: Secret,
    pub(crate) source: SourceConfig,
    pub(crate) coordination: Coordination,
    pub(crate) service_bus: ServiceBus,
    pub(crate) producer: producer::Config,
    pub(crate) consumer: consumer::Config,
    pub(crate) read_models: ReadModels,
    pub(crate) admin: Admin,
    pub(crate) telemetry: Telemetry,
}

#[derive(Debug)]
pub(crate) struct Coordination {
    pub(crate) uri: Secret,
    pub(crate) database: String,
    pub(crate) lease: lease::Config,
}

#[derive(Debug)]
pub(crate) struct ServiceBus {
    pub(crate) connection_string: Secret,
    pub(crate) topic: String,
    pub(crate) subscription: String,
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct Admin {
    /// Left out: the usual port, or any that is free.
    pub(crate) listen: Option<SocketAddr>,
    /// Whoever shows it may act. Left out: nobody may.
    pub(crate) token: Option<Secret>,
}

#[derive(Debug)]
pub(crate) struct Telemetry {
    /// Left out: nothing is traced.
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) trace_one_in: NonZeroU32,
}

/// What must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Where a configuration is looked for when no flag names it.
const FILE: &str = "headwater.yaml";
const FILE_VARIABLE: &str = "HEADWATER_CONFIG";

impl Config {
    /// Of this process: `--config`, else `HEADWATER_CONFIG`, else `./headwater.yaml` where there is one.
    pub(crate) fn from_process(file: Option<&Path>, flags: &[String]) -> anyhow::Result<Self> {
        with_sources(file, flags, Self::load)
    }

    fn load(sources: &ConfigSources<'_>, hostname: Option<&str>) -> Result<Self, Vec<ConfigProblem>> {
        let (settings, mut problems) = sources.read();
        let config = assemble::build_config(&settings, sources, hostname, &mut problems);
        rules::check(&config, &settings, sources.read_file, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(load::sort_problems(problems)) }
    }
}

/// Whether there is such a key.
pub(crate) fn has_key(path: &str) -> bool {
    schema::key(path).is_some()
}

/// What a pod of this process would run with, and nothing by which anybody could come in.
pub(crate) fn effective_config(file: Option<&Path>, flags: &[String]) -> anyhow::Result<EffectiveConfig> {
    with_sources(file, flags, |sources, hostname| {
        Config::load(sources, hostname)?;
        Ok(EffectiveConfig::new(sources.read().0))
    })
}

/// Variables that are text; and the names of those that would set a key and are none. What else a shell has is not ours to judge.
fn read_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> (Vec<(String, String)>, Vec<String>) {
    let (mut texts, mut unreadable) = (vec![], vec![]);
    for (name, value) in variables {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => texts.push((name, value)),
            (name, _) => unreadable.push(name.unwrap_or_else(|name| name.to_string_lossy().into_owned())),
        }
    }
    unreadable.retain(|name| name.starts_with(load::PREFIX));
    (texts, unreadable)
}

/// Gathers what this process was given, and names the file in what is wrong with it.
fn with_sources<T>(
    file: Option<&Path>,
    flags: &[String],
    load: impl FnOnce(&ConfigSources<'_>, Option<&str>) -> Result<T, Vec<ConfigProblem>>,
) -> anyhow::Result<T> {
    let (environment, unreadable) = read_environment(std::env::vars_os());
    let variable = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let asked = file.map(Path::to_path_buf).or_else(|| std::env::var_os(FILE_VARIABLE).map(PathBuf::from));
    let path = asked.or_else(|| Path::new(FILE).exists().then(|| PathBuf::from(FILE)));
    let name = path.as_ref().map(|path| path.display().to_string());
    let text = path.as_ref().map(std::fs::read_to_string).transpose();
    let unread = || {
        ExitReason::Misconfigured
            .with_message(format!("read the configuration `{}`", name.as_deref().unwrap_or_default()))
    };
    let text = text.with_context(unread)?;
    let read_file = |file: &str| std::fs::read_to_string(file);
    let sources = ConfigSources {
        file: text.as_deref(),
        file_name: name.as_deref(),
        environment: &environment,
        unreadable: &unreadable,
        flags,
        read_file: &read_file,
    };
    load(&sources, variable("HOSTNAME")).map_err(|list| ConfigProblems { file: name.clone(), list }.into())
}

#[cfg(test)]
mod tests;
