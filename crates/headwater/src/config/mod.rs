//! The configuration of one pod, of one pipeline or several, from a YAML file, the environment and flags, in this order. It is checked as a whole, and all problems are reported together.
//!
//! Reading order: [`schema`] (the table of keys), [`yaml`] and [`node`] (the values as written, with their position), [`load`] (values by the table),
//! [`pipelines`] (one tree per pipeline), this file and [`assemble`] (the structs of the services), [`rules`] (rules between keys). [`read_models`] handles the one section with user-defined keys.
//! A problem never hides another one: a rule is skipped if a key it needs is invalid, and all other rules are checked.

mod assemble;
mod formats;
mod load;
mod node;
mod pipelines;
mod problem;
mod read_models;
mod redact;
mod reference;
pub(crate) mod reserved;
mod rules;
mod schema;
mod service_bus;
mod units;
mod yaml;

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pipeline::signing::MessageKeys;
use pipeline::source::SourceConfig;
use pipeline::{audit, consumer, producer};

use load::ConfigSources;
pub(crate) use node::{ConfigNode, NodeValue, SettingOrigin};
use problem::ConfigProblem;
pub(crate) use problem::ConfigProblems;
#[cfg(test)]
pub(crate) use read_models::parse_declarations;
pub(crate) use read_models::{EventReference, ModelDeclarations, OnModelChange, ReadModelsConfig};
pub(crate) use service_bus::{BusAccess, EntraAccess};

pub(crate) use pipelines::read_model_namespaces;
pub(crate) use reference::{EffectiveConfig, json_schema, reference_file};

pub(crate) use yaml::parse as parse_yaml;

use crate::connect::SharedClients;
use crate::exit::ExitReason;

/// The checked configuration of a pod: its pipelines, at least one. They have the same `pod_id`, `coordination`, `admin` and `telemetry`.
#[derive(Debug)]
pub(crate) struct Deployment {
    pub(crate) pipelines: Vec<Config>,
    /// Whether they are declared under `pipelines`.
    pub(crate) is_list: bool,
}

/// The configuration of one pipeline in a pod.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) pipeline: String,
    pub(crate) pod_id: String,
    pub(crate) source_uri: Secret,
    pub(crate) source: SourceConfig,
    pub(crate) coordination: CoordinationConfig,
    pub(crate) service_bus: ServiceBusConfig,
    /// `None`: messages are neither signed nor verified.
    pub(crate) message_keys: Option<Arc<MessageKeys>>,
    pub(crate) producer: producer::Config,
    pub(crate) consumer: consumer::Config,
    pub(crate) read_models: ReadModelsConfig,
    pub(crate) audit: audit::Config,
    pub(crate) admin: AdminConfig,
    pub(crate) telemetry: TelemetryConfig,
    /// Clients that the pipelines of the process share.
    pub(crate) clients: Arc<SharedClients>,
    /// The files that secrets were read from.
    pub(crate) secret_files: Vec<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct CoordinationConfig {
    pub(crate) uri: Secret,
    pub(crate) database: String,
    pub(crate) lease: lease::Config,
    /// How often a pod that leads more pipelines than others gives one up.
    pub(crate) balance_interval: Duration,
}

#[derive(Debug)]
pub(crate) struct ServiceBusConfig {
    pub(crate) access: BusAccess,
    pub(crate) topic: String,
    pub(crate) subscription: String,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) transport: servicebus::Transport,
}

#[derive(Debug)]
pub(crate) struct AdminConfig {
    /// `None`: the default port, or any free port.
    pub(crate) listen: Option<SocketAddr>,
    /// The operator token. `None`: the HTTP server is read-only.
    pub(crate) token: Option<Secret>,
    pub(crate) tls: Option<admin::AdminTlsFiles>,
    /// Host names that requests may use, besides local ones.
    pub(crate) hosts: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct TelemetryConfig {
    /// `None`: nothing is traced.
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) trace_one_in: NonZeroU32,
}

/// A value that is never printed or logged.
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

/// The file that is used if no flag and no variable names one.
const FILE: &str = "headwater.yaml";
const FILE_VARIABLE: &str = "HEADWATER_CONFIG";

impl Config {
    /// The only pipeline of the configuration, or the one of this name.
    pub(crate) fn from_process(file: Option<&Path>, flags: &[String], name: Option<&str>) -> anyhow::Result<Self> {
        Deployment::from_process(file, flags)?.select(name)
    }
}

impl Deployment {
    /// Loads `--config`, or `HEADWATER_CONFIG`, or `./headwater.yaml` if it exists.
    pub(crate) fn from_process(file: Option<&Path>, flags: &[String]) -> anyhow::Result<Self> {
        with_sources(file, flags, |sources, hostname| Ok(Self::read(sources, hostname)?.0))
    }

    /// The pipeline of this name; without a name, the only one.
    pub(crate) fn select(self, name: Option<&str>) -> anyhow::Result<Config> {
        let names = self.pipelines.iter().map(|config| config.pipeline.clone()).collect::<Vec<_>>().join("`, `");
        let usage = |what: String| ExitReason::Usage.with_message(what).into();
        let is_single = self.pipelines.len() == 1;
        let mut found = self.pipelines.into_iter().filter(|config| name.is_none_or(|name| config.pipeline == name));
        match (found.next(), name) {
            (Some(config), Some(_)) => Ok(config),
            (Some(config), None) if is_single => Ok(config),
            (None, Some(name)) => Err(usage(format!("there is no pipeline `{name}`; the configuration has `{names}`"))),
            (_, None) => {
                Err(usage(format!("the configuration has several pipelines; add --pipeline with one of `{names}`")))
            }
        }
    }

    /// Only the pipeline of this name, if there is one.
    pub(crate) fn only(self, name: Option<&str>) -> anyhow::Result<Self> {
        let Some(name) = name else { return Ok(self) };
        let is_list = self.is_list;
        Ok(Self { pipelines: vec![self.select(Some(name))?], is_list })
    }

    /// The files that secrets were read from.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        self.pipelines.iter().flat_map(|config| &config.secret_files).cloned().collect()
    }

    fn read(
        sources: &ConfigSources<'_>,
        hostname: Option<&str>,
    ) -> Result<(Self, EffectiveConfig), Vec<ConfigProblem>> {
        let load::SettingsTree { root, mut problems, is_broken } = sources.read_tree();
        let mut read = vec![];
        let mut found = vec![];
        for pipelines::PipelineTree { entry, root } in pipelines::split(root, &mut problems) {
            let (settings, mut problems) = sources.resolve(&root, is_broken);
            let config = assemble::build_config(&settings, sources, hostname, &mut problems);
            rules::check(&config, &settings, sources.read_file, &mut problems);
            read.push(pipelines::ReadPipeline { entry, settings, config });
            found.push(problems);
        }
        let entries = read.iter().map(|pipeline| pipeline.entry.as_ref());
        problems.extend(pipelines::label_problems(entries.zip(found).collect()));
        pipelines::check_together(&read, &mut problems);
        if !problems.is_empty() {
            return Err(load::sort_problems(problems));
        }
        let is_list = read.iter().any(|pipeline| pipeline.entry.is_some());
        let (mut configs, mut printed) = (vec![], vec![]);
        for pipelines::ReadPipeline { entry, settings, config } in read {
            configs.push(config);
            printed.push((entry.map(|entry| entry.name), settings));
        }
        // Without a configured name it is random: one for the whole process.
        let pod_id = configs[0].pod_id.clone();
        let clients = Arc::new(SharedClients::for_pipelines(configs.len()));
        for config in &mut configs {
            config.pod_id.clone_from(&pod_id);
            config.clients = Arc::clone(&clients);
        }
        Ok((Self { pipelines: configs, is_list }, EffectiveConfig::new(printed)))
    }
}

/// Whether the table has this key.
pub(crate) fn has_key(path: &str) -> bool {
    schema::key(path).is_some()
}

/// The settings that a pod of this process would run with, secrets masked.
pub(crate) fn effective_config(file: Option<&Path>, flags: &[String]) -> anyhow::Result<EffectiveConfig> {
    with_sources(file, flags, |sources, hostname| Ok(Deployment::read(sources, hostname)?.1))
}

/// The environment variables that are UTF-8, and the names of `HEADWATER__` variables that are not. Other variables are ignored.
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

/// Collects the sources of this process; a problem is reported with the name of the file.
fn with_sources<T>(
    file: Option<&Path>,
    flags: &[String],
    load: impl FnOnce(&ConfigSources<'_>, Option<&str>) -> Result<T, Vec<ConfigProblem>>,
) -> anyhow::Result<T> {
    // `vars()` would panic on a variable that is not UTF-8, even if it is none of ours.
    let (environment, unreadable) = read_environment(std::env::vars_os());
    let variable = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let named = file.map(Path::to_path_buf).or_else(|| std::env::var_os(FILE_VARIABLE).map(PathBuf::from));
    let path = named.or_else(|| Path::new(FILE).exists().then(|| PathBuf::from(FILE)));
    let name = path.as_ref().map(|path| path.display().to_string());
    let text = path.as_ref().map(|path| read_limited(path)).transpose();
    let unread = || {
        ExitReason::Misconfigured
            .with_message(format!("read the configuration `{}`", name.as_deref().unwrap_or_default()))
    };
    let text = text.with_context(unread)?;
    let read_file = |file: &str| read_limited(Path::new(file));
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

/// More than any configuration or secret needs.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A device such as `/dev/zero` has no end.
fn read_limited(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "larger than 4 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
