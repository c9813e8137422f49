//! Builds the configuration structs of the services from the settings. Every setting has a value here, even an invalid one; problems are reported by others.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Bson, Document};
use pipeline::producer::{self, OnHistoryLost};
use pipeline::publish::BodyFormat;
use pipeline::signing::MessageKeys;
use pipeline::source::{FullDocument, SourceConfig, SourceKind};
use pipeline::view::{self, OnPoison};
use pipeline::{audit, capture, consumer, publish, session};

use super::load::{ConfigSources, ResolvedSettings};
use super::node::{self, SettingOrigin};
use super::problem::ConfigProblem;
use super::read_models::OnModelChange;
use super::{
    AdminConfig, Config, CoordinationConfig, ReadModelsConfig, Secret, TelemetryConfig, formats, read_models, schema,
    service_bus,
};

pub(super) fn build_config(
    settings: &ResolvedSettings,
    sources: &ConfigSources<'_>,
    hostname: Option<&str>,
    problems: &mut Vec<ConfigProblem>,
) -> Config {
    let source = build_source(settings);
    let (models, declarations, declared) = read_models::compile_models(settings, &source, problems);
    let secret = |path| settings.text(path).map(|text| Secret(text.to_owned()));
    let source_uri = secret("source.uri").expect("required");
    let views = || format!("{}_views", source.database);
    Config {
        pipeline: settings.required_text("pipeline").to_owned(),
        pod_id: lease::pod_id(settings.text("pod_id"), hostname),
        coordination: CoordinationConfig {
            uri: secret("coordination.uri").unwrap_or_else(|| source_uri.clone()),
            database: settings.required_text("coordination.database").to_owned(),
            lease: build_lease(settings),
            balance_interval: read_duration(settings, "coordination.balance_interval"),
        },
        service_bus: service_bus::build(settings),
        message_keys: build_message_keys(settings),
        producer: build_producer(settings, problems),
        consumer: build_consumer(settings),
        read_models: ReadModelsConfig {
            uri: secret("read_models.uri").unwrap_or_else(|| source_uri.clone()),
            database: settings.text("read_models.database").map_or_else(views, str::to_owned),
            on_change: match settings.required_text("read_models.on_change") {
                "wait" => OnModelChange::Wait,
                _ => OnModelChange::Rebuild,
            },
            change_delay: settings.duration("read_models.change_delay").expect("the table gives it a value"),
            models,
            declarations,
            declared: declared.with_file(sources.file_name.map(str::to_owned)),
        },
        audit: build_audit(settings),
        admin: build_admin(settings),
        telemetry: build_telemetry(settings, sources.environment, problems),
        clients: Arc::default(),
        secret_files: settings.secret_files().map(PathBuf::from).chain(certificate_files(settings)).collect(),
        source,
        source_uri,
    }
}

/// The certificates that MongoDB URIs name. A client reads them only once, so a new one needs a new client.
fn certificate_files(settings: &ResolvedSettings) -> impl Iterator<Item = PathBuf> {
    const OPTIONS: [&str; 2] = ["tlscertificatekeyfile", "tlscafile"];
    let uris = ["source.uri", "coordination.uri", "read_models.uri"].into_iter().filter_map(|path| settings.text(path));
    let options = uris.filter_map(|uri| uri.split_once('?')).flat_map(|(_, options)| options.split('&'));
    let files = options.filter_map(|option| option.split_once('='));
    let files = files.filter(|(name, _)| OPTIONS.contains(&name.to_lowercase().as_str()));
    files.filter_map(|(_, file)| percent_decode(file)).map(PathBuf::from)
}

/// `None` if it is not valid; the driver then refuses the URI.
fn percent_decode(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

fn build_source(settings: &ResolvedSettings) -> SourceConfig {
    SourceConfig {
        database: settings.required_text("source.database").to_owned(),
        collection: settings.text("source.collection").map(str::to_owned),
        collections: settings.texts("source.collections"),
        kind: if settings.required_text("source.kind") == "documents" {
            SourceKind::Documents
        } else {
            SourceKind::Events
        },
        aggregate_id: settings.required_text("source.aggregate_id").to_owned(),
        event_type: settings.required_text("source.event_type").to_owned(),
        sequence: settings.text("source.sequence").map(str::to_owned),
        full_document: if settings.required_text("source.full_document") == "post_image" {
            FullDocument::PostImage
        } else {
            FullDocument::Lookup
        },
    }
}

fn build_lease(settings: &ResolvedSettings) -> lease::Config {
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

fn build_message_keys(settings: &ResolvedSettings) -> Option<Arc<MessageKeys>> {
    let keys = MessageKeys::parse(settings.text("message_signing.keys")?).expect("its check has passed");
    // A rule reports an id that is not among the keys.
    let signer = settings.text("message_signing.sign_with");
    let keys = signer.and_then(|id| keys.clone().signing_with(id)).unwrap_or(keys);
    let until = parse_optional(settings, "message_signing.accept_unsigned_until", formats::parse_time);
    Some(Arc::new(match until {
        Some(until) => keys.accepting_unsigned_until(until),
        None => keys,
    }))
}

fn build_producer(settings: &ResolvedSettings, problems: &mut Vec<ConfigProblem>) -> producer::Config {
    producer::Config {
        start: parse_required(settings, "producer.start", formats::parse_start),
        on_history_lost: match settings.required_text("producer.on_history_lost") {
            "snapshot" => OnHistoryLost::Snapshot,
            _ => OnHistoryLost::Halt,
        },
        capture: capture::Config {
            filter: settings.tree("producer.filter").map(|node| parse_stages(node, problems)).unwrap_or_default(),
            read_ahead_events: read_u32(settings, "producer.read_ahead.events"),
            read_ahead_bytes: read_u32(settings, "producer.read_ahead.bytes"),
            ..capture::Config::default()
        },
        publish: publish::Config {
            body: if settings.required_text("producer.body") == "json" { BodyFormat::Json } else { BodyFormat::Bson },
            sessions: parse_required(settings, "producer.sessions", formats::parse_sessions),
            checkpoint: parse_required(settings, "producer.checkpoint", formats::parse_checkpoint),
            window_events: read_usize(settings, "producer.window.events"),
            window_bytes: read_usize(settings, "producer.window.bytes"),
            drain: read_duration(settings, "producer.drain"),
            ..publish::Config::default()
        },
    }
}

fn build_consumer(settings: &ResolvedSettings) -> consumer::Config {
    let session = session::Config {
        max_concurrent_sessions: read_usize(settings, "consumer.max_concurrent_sessions"),
        connections: read_usize(settings, "consumer.connections"),
        session_idle_timeout: read_duration(settings, "consumer.session_idle_timeout"),
        max_session_duration: read_duration(settings, "consumer.max_session_duration"),
        max_session_events: read_usize(settings, "consumer.max_session_events"),
        credit: read_u32(settings, "consumer.credit"),
        bytes_in_flight: read_usize(settings, "consumer.bytes_in_flight"),
        lock_duration: read_duration(settings, "consumer.lock_duration"),
        drain_within: read_duration(settings, "consumer.drain"),
    };
    let view = view::Config {
        connections: read_usize(settings, "consumer.transactions"),
        gap_timeout: read_duration(settings, "consumer.gap_timeout"),
        on_poison: if settings.required_text("consumer.on_poison") == "park" {
            OnPoison::Park
        } else {
            OnPoison::DeadLetter
        },
        first_sequence: i64::try_from(settings.number("consumer.first_sequence")).expect("within the table's bounds"),
        ..view::Config::default()
    };
    consumer::Config { session, view }
}

fn build_audit(settings: &ResolvedSettings) -> audit::Config {
    audit::Config {
        enabled: settings.flag("audit.enabled"),
        period: read_duration(settings, "audit.period"),
        budget_percent: read_u32(settings, "audit.budget_percent").get(),
        // An auditor is replaced as late as a leader.
        takeover: build_lease(settings).ttl,
    }
}

fn build_admin(settings: &ResolvedSettings) -> AdminConfig {
    let file = |path| settings.text(path).map(PathBuf::from);
    let files = file("admin.certificate_file").zip(file("admin.key_file"));
    AdminConfig {
        listen: parse_optional(settings, "admin.listen", formats::parse_listen),
        token: settings.text("admin.token").map(|text| Secret(text.to_owned())),
        tls: files.map(|(certificate, key)| admin::AdminTlsFiles { certificate, key }),
        hosts: settings.texts("admin.hosts"),
    }
}

/// The standard variable of OTLP exporters.
const OTLP_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

fn build_telemetry(
    settings: &ResolvedSettings,
    environment: &[(String, String)],
    problems: &mut Vec<ConfigProblem>,
) -> TelemetryConfig {
    let variable = || {
        let (name, value) = environment.iter().find(|(name, value)| name == OTLP_VARIABLE && !value.is_empty())?;
        let read = formats::parse_endpoint(value);
        if read.is_none() {
            let what = format!("must be {}, such as `http://127.0.0.1:4318`", schema::OTLP_ENDPOINT);
            problems.push(ConfigProblem::at(SettingOrigin::Environment(name.clone()), "", what));
        }
        read
    };
    TelemetryConfig {
        otlp_endpoint: parse_optional(settings, "telemetry.otlp_endpoint", formats::parse_endpoint).or_else(variable),
        trace_one_in: read_u32(settings, "telemetry.trace_one_in"),
    }
}

/// The table has checked the format already, so parsing cannot fail.
fn parse_required<T>(settings: &ResolvedSettings, path: &str, read: impl Fn(&str) -> Option<T>) -> T {
    read(settings.required_text(path)).expect("its pattern fits")
}

fn parse_optional<T>(settings: &ResolvedSettings, path: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    settings.text(path).map(|text| read(text).expect("its pattern fits"))
}

fn read_duration(settings: &ResolvedSettings, path: &str) -> Duration {
    settings.duration(path).expect("has a default")
}

fn read_u32(settings: &ResolvedSettings, path: &str) -> NonZeroU32 {
    u32::try_from(settings.number(path)).ok().and_then(NonZeroU32::new).expect("within the table's bounds")
}

fn read_usize(settings: &ResolvedSettings, path: &str) -> NonZeroUsize {
    usize::try_from(settings.number(path)).ok().and_then(NonZeroUsize::new).expect("within the table's bounds")
}

/// The stages that MongoDB allows after `$changeStream`.
const STAGES: [&str; 8] =
    ["$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact"];

/// Parses aggregation stages, including Extended JSON.
fn parse_stages(node: &node::ConfigNode, problems: &mut Vec<ConfigProblem>) -> Vec<Document> {
    let node::NodeValue::List(nodes) = &node.value else { return Vec::new() };
    let read = nodes.iter().enumerate().filter_map(|(at, node)| {
        let wrong = match node.to_bson() {
            Some(Bson::Document(stage)) => match (stage.len(), stage.keys().next()) {
                (1, Some(name)) if STAGES.contains(&name.as_str()) => return Some(stage),
                (1, Some(name)) => {
                    format!("is the stage `{name}`, but a change stream accepts only `{}`", STAGES.join("`, `"))
                }
                (number, _) => format!("has {number} operators, but a stage has one"),
            },
            Some(_) | None => format!("is {node}, not a stage"),
        };
        let what = format!("{wrong}; write, for example, `$match: {{ fullDocument.region: eu }}`");
        problems.push(ConfigProblem::at(node.origin.clone(), format!("producer.filter.{at}"), what));
        None
    });
    read.collect()
}
