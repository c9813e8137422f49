//! Settings to the structs that the parts take. Every setting has a value by now, if only a stand-in; what is wrong is told by others.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use mongodb::bson::{Bson, Document};
use pipeline::producer::{self, OnHistoryLost};
use pipeline::publish::BodyFormat;
use pipeline::source::{FullDocument, SourceConfig, SourceKind};
use pipeline::view::{self, OnPoison};
use pipeline::{capture, consumer, publish, session};

use super::load::{Settings, Sources};
use super::node::{self, Origin};
use super::problem::Problem;
use super::{Admin, Config, Coordination, ReadModels, Secret, ServiceBus, Telemetry, read_models, schema, texts};

pub(super) fn assemble(
    settings: &Settings,
    sources: &Sources<'_>,
    hostname: Option<&str>,
    problems: &mut Vec<Problem>,
) -> Config {
    let source = source(settings);
    let (models, declared) = read_models::read(settings, problems);
    let secret = |path| settings.text(path).map(|text| Secret(text.to_owned()));
    let source_uri = secret("source.uri").expect("required");
    let views = || format!("{}_views", source.database);
    Config {
        pipeline: settings.given("pipeline").to_owned(),
        pod_id: lease::pod_id(settings.text("pod_id"), hostname),
        coordination: Coordination {
            uri: secret("coordination.uri").unwrap_or_else(|| source_uri.clone()),
            database: settings.given("coordination.database").to_owned(),
            lease: lease_config(settings),
        },
        service_bus: ServiceBus {
            connection_string: secret("service_bus.connection_string").expect("required"),
            topic: settings.given("service_bus.topic").to_owned(),
            subscription: settings.given("service_bus.subscription").to_owned(),
            ca_file: settings.text("service_bus.ca_file").map(PathBuf::from),
        },
        producer: producer(settings, problems),
        consumer: consumer(settings),
        read_models: ReadModels {
            uri: secret("read_models.uri").unwrap_or_else(|| source_uri.clone()),
            database: settings.text("read_models.database").map_or_else(views, str::to_owned),
            models,
            declared: declared.in_file(sources.file_name.map(str::to_owned)),
        },
        admin: Admin { listen: optional(settings, "admin.listen", texts::listen), token: secret("admin.token") },
        telemetry: telemetry(settings, sources.environment, problems),
        source,
        source_uri,
    }
}

fn source(settings: &Settings) -> SourceConfig {
    SourceConfig {
        database: settings.given("source.database").to_owned(),
        collection: settings.text("source.collection").map(str::to_owned),
        collections: settings.texts("source.collections"),
        kind: if settings.given("source.kind") == "documents" { SourceKind::Documents } else { SourceKind::Events },
        aggregate_id: settings.given("source.aggregate_id").to_owned(),
        event_type: settings.given("source.event_type").to_owned(),
        sequence: settings.text("source.sequence").map(str::to_owned),
        full_document: if settings.given("source.full_document") == "post_image" {
            FullDocument::PostImage
        } else {
            FullDocument::Lookup
        },
    }
}

fn lease_config(settings: &Settings) -> lease::Config {
    let duration = |name: &str| settings.duration(&format!("coordination.lease.{name}"));
    lease::Config {
        ttl: duration("ttl").expect("has a default"),
        renew_deadline: duration("renew_deadline").expect("has a default"),
        heartbeat: duration("heartbeat").expect("has a default"),
        poll: duration("poll"),
        watch: settings.flag("coordination.lease.watch"),
        max_clock_skew: duration("max_clock_skew"),
    }
}

fn producer(settings: &Settings, problems: &mut Vec<Problem>) -> producer::Config {
    producer::Config {
        start: given(settings, "producer.start", texts::start),
        on_history_lost: match settings.given("producer.on_history_lost") {
            "snapshot" => OnHistoryLost::Snapshot,
            _ => OnHistoryLost::Halt,
        },
        capture: capture::Config {
            filter: settings.tree("producer.filter").map(|node| documents(node, problems)).unwrap_or_default(),
            read_ahead_events: number(settings, "producer.read_ahead.events"),
            read_ahead_bytes: number(settings, "producer.read_ahead.bytes"),
            ..capture::Config::default()
        },
        publish: publish::Config {
            body: if settings.given("producer.body") == "json" { BodyFormat::Json } else { BodyFormat::Bson },
            sessions: given(settings, "producer.sessions", texts::sessions),
            checkpoint: given(settings, "producer.checkpoint", texts::checkpoint),
            window_events: size(settings, "producer.window.events"),
            window_bytes: size(settings, "producer.window.bytes"),
            drain: duration(settings, "producer.drain"),
            ..publish::Config::default()
        },
    }
}

fn consumer(settings: &Settings) -> consumer::Config {
    let session = session::Config {
        max_concurrent_sessions: size(settings, "consumer.max_concurrent_sessions"),
        connections: size(settings, "consumer.connections"),
        session_idle_timeout: duration(settings, "consumer.session_idle_timeout"),
        max_session_duration: duration(settings, "consumer.max_session_duration"),
        max_session_events: size(settings, "consumer.max_session_events"),
        credit: number(settings, "consumer.credit"),
        bytes_in_flight: size(settings, "consumer.bytes_in_flight"),
        lock_duration: duration(settings, "consumer.lock_duration"),
        drain_within: duration(settings, "consumer.drain"),
    };
    let view = view::Config {
        connections: size(settings, "consumer.transactions"),
        gap_timeout: duration(settings, "consumer.gap_timeout"),
        on_poison: if settings.given("consumer.on_poison") == "park" { OnPoison::Park } else { OnPoison::DeadLetter },
        first_sequence: i64::try_from(settings.number("consumer.first_sequence")).expect("within the table's bounds"),
        ..view::Config::default()
    };
    consumer::Config { session, view }
}

/// As every program that exports by OTLP reads it.
const OTLP_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

fn telemetry(settings: &Settings, environment: &[(String, String)], problems: &mut Vec<Problem>) -> Telemetry {
    let variable = || {
        let (name, value) = environment.iter().find(|(name, value)| name == OTLP_VARIABLE && !value.is_empty())?;
        let read = texts::endpoint(value);
        if read.is_none() {
            let what = format!("must be {}, such as `http://127.0.0.1:4318`", schema::OTLP_ENDPOINT);
            problems.push(Problem::at(Origin::Environment(name.clone()), "", what));
        }
        read
    };
    Telemetry {
        otlp_endpoint: optional(settings, "telemetry.otlp_endpoint", texts::endpoint).or_else(variable),
        trace_one_in: number(settings, "telemetry.trace_one_in"),
    }
}

/// Of a key whose pattern the table has seen to.
fn given<T>(settings: &Settings, path: &str, read: impl Fn(&str) -> Option<T>) -> T {
    read(settings.given(path)).expect("its pattern fits")
}

fn optional<T>(settings: &Settings, path: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    settings.text(path).map(|text| read(text).expect("its pattern fits"))
}

fn duration(settings: &Settings, path: &str) -> Duration {
    settings.duration(path).expect("has a default")
}

fn number(settings: &Settings, path: &str) -> NonZeroU32 {
    u32::try_from(settings.number(path)).ok().and_then(NonZeroU32::new).expect("within the table's bounds")
}

fn size(settings: &Settings, path: &str) -> NonZeroUsize {
    usize::try_from(settings.number(path)).ok().and_then(NonZeroUsize::new).expect("within the table's bounds")
}

/// What a change stream takes behind its first stage.
const STAGES: [&str; 8] =
    ["$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact"];

/// Stages in MongoDB's language, Extended JSON included.
fn documents(node: &node::Node, problems: &mut Vec<Problem>) -> Vec<Document> {
    let node::Value::List(nodes) = &node.value else { return Vec::new() };
    let read = nodes.iter().enumerate().filter_map(|(at, node)| {
        let wrong = match node.to_bson() {
            Some(Bson::Document(stage)) => match (stage.len(), stage.keys().next()) {
                (1, Some(name)) if STAGES.contains(&name.as_str()) => return Some(stage),
                (1, Some(name)) => format!("is a stage `{name}`, and a change stream takes `{}`", STAGES.join("`, `")),
                (number, _) => format!("has {number} operators, and a stage has one"),
            },
            Some(_) | None => format!("is {node}, and no stage"),
        };
        let what = format!("{wrong}; write, for example, `$match: {{ fullDocument.region: eu }}`");
        problems.push(Problem::at(node.origin.clone(), format!("producer.filter.{at}"), what));
        None
    });
    read.collect()
}
