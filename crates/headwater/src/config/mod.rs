//! The configuration of one pod: a YAML file, then the environment, then flags; checked as a whole, and every mistake told at once.
//!
//! Reading order: [`schema`] (every key), [`yaml`] and [`node`] (what was written, and where), [`load`] (by the table), this file (the
//! structs the parts take, and the rules between keys). [`read_models`] has the one section whose keys are the user's.

mod load;
mod node;
mod problem;
mod read_models;
mod reference;
mod schema;
mod units;
mod yaml;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use mongodb::bson::{Bson, Document};
use pipeline::consumer;
use pipeline::producer::{self, OnHistoryLost};
use pipeline::publish::{Body, Checkpointing, Sessions};
use pipeline::source::{FullDocument, Kind, Source};
use pipeline::view::{self, OnPoison};
use pipeline::{capture, publish, session};

use load::{Settings, Sources};
use node::Origin;
use problem::Problem;
pub(crate) use problem::Problems;
#[cfg(test)]
pub(crate) use read_models::declared_in;
pub(crate) use read_models::{Declared, EventValue, ReadModels};
pub(crate) use reference::{json_schema, reference_file};

use crate::exit::Exit;

/// Everything a pod needs to know, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) pipeline: String,
    pub(crate) pod_id: String,
    pub(crate) source_uri: Secret,
    pub(crate) source: Source,
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
    pub(crate) fn of_this_process(file: Option<&Path>, flags: &[String]) -> anyhow::Result<Self> {
        with_sources(file, flags, Self::load)
    }

    fn load(sources: &Sources<'_>, hostname: Option<&str>) -> Result<Self, Vec<Problem>> {
        let settings = sources.load()?;
        let mut problems = Vec::new();
        let source = source(&settings, &mut problems);
        let lease = lease_config(&settings, &mut problems);
        let producer = producer(&settings, &mut problems);
        let consumer = consumer(&settings, &mut problems);
        let admin = admin(&settings, &mut problems);
        let telemetry = telemetry(&settings, sources.environment, &mut problems);
        let (models, declared) = read_models::read(&settings, &mut problems);
        let secret = |path| settings.text(path).map(|text| Secret(text.to_owned()));
        let source_uri = secret("source.uri").expect("required");
        let read_models = ReadModels {
            uri: secret("read_models.uri").unwrap_or_else(|| source_uri.clone()),
            database: settings
                .text("read_models.database")
                .map_or_else(|| format!("{}_views", source.database), str::to_owned),
            models,
            declared: declared.in_file(sources.file_name.map(str::to_owned)),
        };
        read_models.keep_out_of(&source_uri, &source, &mut problems);
        if !problems.is_empty() {
            return Err(load::in_order(problems));
        }
        Ok(Self {
            pipeline: settings.given("pipeline").to_owned(),
            pod_id: lease::pod_id(settings.text("pod_id"), hostname),
            source,
            coordination: Coordination {
                uri: secret("coordination.uri").unwrap_or_else(|| source_uri.clone()),
                database: settings.given("coordination.database").to_owned(),
                lease,
            },
            source_uri,
            service_bus: ServiceBus {
                connection_string: secret("service_bus.connection_string").expect("required"),
                topic: settings.given("service_bus.topic").to_owned(),
                subscription: settings.given("service_bus.subscription").to_owned(),
                ca_file: settings.text("service_bus.ca_file").map(PathBuf::from),
            },
            producer,
            consumer,
            read_models,
            admin,
            telemetry,
        })
    }
}

/// Whether there is such a key.
pub(crate) fn knows(path: &str) -> bool {
    schema::key(path).is_some()
}

/// What a pod of this process would run with, as YAML, secrets masked.
pub(crate) fn effective(file: Option<&Path>, flags: &[String]) -> anyhow::Result<String> {
    with_sources(file, flags, |sources, hostname| {
        Config::load(sources, hostname)?;
        Ok(reference::effective(&sources.load()?))
    })
}

/// Gathers what this process was given, and names the file in what is wrong with it.
fn with_sources<T>(
    file: Option<&Path>,
    flags: &[String],
    load: impl FnOnce(&Sources<'_>, Option<&str>) -> Result<T, Vec<Problem>>,
) -> anyhow::Result<T> {
    let environment: Vec<(String, String)> = std::env::vars().collect();
    let variable = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let asked = file.map(Path::to_path_buf).or_else(|| variable(FILE_VARIABLE).map(PathBuf::from));
    let path = asked.or_else(|| Path::new(FILE).exists().then(|| PathBuf::from(FILE)));
    let name = path.as_ref().map(|path| path.display().to_string());
    let text = path.as_ref().map(std::fs::read_to_string).transpose();
    let unread =
        || Exit::Misconfigured.because(format!("read the configuration `{}`", name.as_deref().unwrap_or_default()));
    let text = text.with_context(unread)?;
    let read_file = |file: &str| std::fs::read_to_string(file);
    let sources = Sources {
        file: text.as_deref(),
        file_name: name.as_deref(),
        environment: &environment,
        flags,
        read_file: &read_file,
    };
    load(&sources, variable("HOSTNAME")).map_err(|list| Problems { file: name.clone(), list }.into())
}

fn source(settings: &Settings, problems: &mut Vec<Problem>) -> Source {
    let source = Source {
        database: settings.given("source.database").to_owned(),
        collection: settings.text("source.collection").map(str::to_owned),
        collections: settings.texts("source.collections"),
        kind: if settings.given("source.kind") == "documents" { Kind::Documents } else { Kind::Events },
        aggregate_id: settings.given("source.aggregate_id").to_owned(),
        event_type: settings.given("source.event_type").to_owned(),
        sequence: settings.text("source.sequence").map(str::to_owned),
        full_document: if settings.given("source.full_document") == "post_image" {
            FullDocument::PostImage
        } else {
            FullDocument::Lookup
        },
    };
    if let Err(invalid) = source.validate() {
        let written = ["source.collections", "source.collection"].map(|path| settings.origin(path));
        let origin =
            written.into_iter().find(|origin| *origin != node::Origin::Nowhere).unwrap_or(node::Origin::Nowhere);
        let what = format!("cannot be used: {invalid}; write, for example, `collection: events`");
        problems.push(Problem::at(origin, "source", what));
    }
    source
}

fn lease_config(settings: &Settings, problems: &mut Vec<Problem>) -> lease::Config {
    let duration = |name: &str| settings.duration(&format!("coordination.lease.{name}"));
    let lease = lease::Config {
        ttl: duration("ttl").expect("has a default"),
        renew_deadline: duration("renew_deadline").expect("has a default"),
        heartbeat: duration("heartbeat").expect("has a default"),
        poll: duration("poll"),
        watch: settings.flag("coordination.lease.watch"),
        max_clock_skew: duration("max_clock_skew"),
    };
    if let Err(invalid) = lease.validate() {
        // Of the keys that were set, the one to look at first.
        let named = ["ttl", "renew_deadline", "heartbeat", "poll"].map(|name| format!("coordination.lease.{name}"));
        let set = named.iter().find(|path| settings.origin(path) != node::Origin::Nowhere);
        let path = set.map_or("coordination.lease", String::as_str);
        let origin = set.map_or(node::Origin::Nowhere, |path| settings.origin(path));
        let what = format!(
            "does not go with its neighbours: {invalid}; the defaults are ttl 15s, renew_deadline 10s, heartbeat 5s"
        );
        problems.push(Problem::at(origin, path, what));
    }
    lease
}

fn producer(settings: &Settings, problems: &mut Vec<Problem>) -> producer::Config {
    let start = pattern(settings, "producer.start", problems, |text| text.parse().ok());
    let sessions = pattern(settings, "producer.sessions", problems, read_sessions);
    let checkpoint = pattern(settings, "producer.checkpoint", problems, read_checkpoint);
    let filter = settings.tree("producer.filter").map(|node| documents(node, problems)).unwrap_or_default();
    let number =
        |path| u32::try_from(settings.number(path)).ok().and_then(NonZeroU32::new).expect("within the table's bounds");
    let size = |path| {
        usize::try_from(settings.number(path)).ok().and_then(NonZeroUsize::new).expect("within the table's bounds")
    };
    producer::Config {
        start: start.unwrap_or_default(),
        on_history_lost: match settings.given("producer.on_history_lost") {
            "snapshot" => OnHistoryLost::Snapshot,
            _ => OnHistoryLost::Halt,
        },
        capture: capture::Config {
            filter,
            read_ahead_events: number("producer.read_ahead.events"),
            read_ahead_bytes: number("producer.read_ahead.bytes"),
            ..capture::Config::default()
        },
        publish: publish::Config {
            body: if settings.given("producer.body") == "json" { Body::Json } else { Body::Bson },
            sessions: sessions.unwrap_or_default(),
            checkpoint: checkpoint.unwrap_or(Checkpointing::Each),
            window_events: size("producer.window.events"),
            window_bytes: size("producer.window.bytes"),
            drain: settings.duration("producer.drain").expect("has a default"),
            ..publish::Config::default()
        },
    }
}

fn consumer(settings: &Settings, problems: &mut Vec<Problem>) -> consumer::Config {
    let size = |name: &str| {
        let number = usize::try_from(settings.number(&format!("consumer.{name}"))).ok();
        number.and_then(NonZeroUsize::new).expect("within the table's bounds")
    };
    let duration = |name: &str| settings.duration(&format!("consumer.{name}")).expect("has a default");
    let session = session::Config {
        max_concurrent_sessions: size("max_concurrent_sessions"),
        connections: size("connections"),
        idle: duration("idle"),
        longest_hold: duration("longest_hold"),
        most_events: size("most_events"),
        credit: u32::try_from(size("credit").get()).ok().and_then(NonZeroU32::new).expect("within the table's bounds"),
        bytes_in_flight: size("bytes_in_flight"),
        lock_duration: duration("lock_duration"),
        drain_within: duration("drain"),
    };
    if let Err(invalid) = session.validate() {
        let written = ["consumer.connections", "consumer.max_concurrent_sessions"];
        let path =
            written.into_iter().find(|path| settings.origin(path) != node::Origin::Nowhere).unwrap_or("consumer");
        let origin = if path == "consumer" { node::Origin::Nowhere } else { settings.origin(path) };
        let what = format!("does not go with its neighbours: {invalid}; the defaults are 2 and 256");
        problems.push(Problem::at(origin, path, what));
    }
    let view = view::Config {
        connections: size("transactions"),
        unhealable_after: duration("unhealable_after"),
        on_poison: if settings.given("consumer.on_poison") == "park" { OnPoison::Park } else { OnPoison::DeadLetter },
        first_sequence: i64::try_from(settings.number("consumer.first_sequence")).expect("within the table's bounds"),
        ..view::Config::default()
    };
    consumer::Config { session, view }
}

fn admin(settings: &Settings, problems: &mut Vec<Problem>) -> Admin {
    let path = "admin.listen";
    let listen = settings.text(path).and_then(|_| pattern(settings, path, problems, |text| text.parse().ok()));
    Admin { listen, token: token(settings, problems) }
}

/// Fewer can be guessed by whoever reaches the port.
const SHORTEST_TOKEN: usize = 16;

fn token(settings: &Settings, problems: &mut Vec<Problem>) -> Option<Secret> {
    let path = "admin.token";
    let text = settings.text(path)?;
    let told = if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        // A header carries it.
        "has signs that cannot be sent".to_owned()
    } else if text.len() < SHORTEST_TOKEN {
        format!("is {} signs long", text.len())
    } else {
        return Some(Secret(text.to_owned()));
    };
    let rule = format!("must be at least {SHORTEST_TOKEN} letters, digits and signs without spaces");
    let what = format!("{told}, and {rule}, such as what `openssl rand -hex 16` prints");
    problems.push(Problem::at(settings.origin(path), path, what));
    None
}

/// As every program that exports by OTLP reads it.
const OTLP_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

fn telemetry(settings: &Settings, environment: &[(String, String)], problems: &mut Vec<Problem>) -> Telemetry {
    let path = "telemetry.otlp_endpoint";
    let otlp_endpoint = match settings.text(path) {
        Some(_) => pattern(settings, path, problems, read_endpoint),
        None => {
            let variable = environment.iter().find(|(name, value)| name == OTLP_VARIABLE && !value.is_empty());
            variable.and_then(|(name, value)| {
                let read = read_endpoint(value);
                if read.is_none() {
                    let what = format!("must be {}", schema::OTLP_ENDPOINT);
                    problems.push(Problem::at(Origin::Environment(name.clone()), "", what));
                }
                read
            })
        }
    };
    let number = settings.number("telemetry.trace_one_in");
    let trace_one_in = u32::try_from(number).ok().and_then(NonZeroU32::new).expect("within the bounds of its key");
    Telemetry { otlp_endpoint, trace_one_in }
}

/// Without the slash at its end. A user in it would be a secret that is shown.
fn read_endpoint(text: &str) -> Option<String> {
    let address = text.trim_end_matches('/');
    let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"))?;
    let fits = !rest.is_empty() && !rest.contains(['@', '/', '?', '#', ' ']) && address.parse::<hyper::Uri>().is_ok();
    fits.then(|| address.to_owned())
}

/// A text that must be one of a few words, or follow a rule.
fn pattern<T>(
    settings: &Settings,
    path: &str,
    problems: &mut Vec<Problem>,
    read: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let text = settings.given(path);
    let read = read(text);
    if read.is_none()
        && let Some(schema::Kind::Pattern { rule, example }) = schema::key(path).map(|key| key.kind)
    {
        let what = format!("is `{text}`, and must be {rule}, such as `{example}`");
        problems.push(Problem::at(settings.origin(path), path, what));
    }
    read
}

fn read_sessions(text: &str) -> Option<Sessions> {
    if text == "aggregate" {
        return Some(Sessions::Aggregate);
    }
    let number = text.strip_prefix("buckets(")?.strip_suffix(')')?.trim().parse().ok()?;
    NonZeroU32::new(number).map(Sessions::Buckets)
}

fn read_checkpoint(text: &str) -> Option<Checkpointing> {
    if text == "each" {
        return Some(Checkpointing::Each);
    }
    let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
    units::duration(text).filter(|every| allowed.contains(every)).map(Checkpointing::Every)
}

/// Documents in MongoDB's language, Extended JSON included.
fn documents(node: &node::Node, problems: &mut Vec<Problem>) -> Vec<Document> {
    let node::Value::List(nodes) = &node.value else { return Vec::new() };
    let read = nodes.iter().filter_map(|node| match node.to_bson() {
        Some(Bson::Document(document)) => Some(document),
        Some(_) | None => {
            let what = "is not a stage; write, for example, `- $match: { fullDocument.region: eu }`";
            problems.push(Problem::at(node.origin.clone(), "producer.filter", what));
            None
        }
    });
    read.collect()
}

#[cfg(test)]
mod tests;
