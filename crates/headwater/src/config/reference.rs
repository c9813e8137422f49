//! Renders the table of keys: the reference file, the effective configuration, and the JSON schema.

use serde_json::{Map, Value as Json, json};

use super::load::{ResolvedSettings, TypedValue};
use super::schema::{self, ConfigKey, KeyDefault, ValueKind};
use super::{node, pipelines, read_models, redact, units};

const ABOUT_PIPELINES: &str = "Several pipelines in one deployment, by name, instead of `pipeline`. Each has the settings of the top level, and overrides them key by key. `pod_id`, `coordination`, `admin` and `telemetry` are shared. Each pipeline needs a topic and read models of its own; pods share the leaders among themselves.";

/// Maximum width of a comment.
const WIDTH: usize = 110;

/// `config/headwater.yaml`: every key with its default and description. Optional keys without a default are commented out.
pub(crate) fn reference_file() -> String {
    let mut text = String::from("# Every key of the Headwater configuration, with its default and a description.\n");
    text.push_str("# Environment variables override the file (HEADWATER__SERVICE_BUS__TOPIC), and `--set service_bus.topic=…` overrides both.\n");
    text.push_str(
        "# Secrets can be read from files: `uri_file`, `connection_string_file`, `client_secret_file`, `keys_file`, `token_file`.\n",
    );
    write_section(&mut text, "", true, &mut |text, key, name, indent| {
        write_comment(text, key.about, indent);
        let off = if matches!(key.default, KeyDefault::Optional(_)) { "# " } else { "" };
        text.push_str(&format!("{indent}{off}{name}: {}\n", quote(key, &key.example())));
    });
    text.push('\n');
    write_comment(&mut text, ABOUT_PIPELINES, "");
    text.push_str(
        "# pipelines:\n#   orders:\n#     source: { collection: orders }\n#     service_bus: { topic: orders }\n#     read_models: { database: order_views }\n#   customers:\n#     source: { collection: customers }\n#     service_bus: { topic: customers }\n#     read_models: { database: customer_views }\n",
    );
    text
}

/// The settings that a pod would run with, secrets masked: those of each pipeline, with its name if `pipelines` declares it.
pub(crate) struct EffectiveConfig(Vec<(Option<String>, ResolvedSettings)>);

impl EffectiveConfig {
    pub(super) fn new(pipelines: Vec<(Option<String>, ResolvedSettings)>) -> Self {
        Self(pipelines)
    }

    pub(crate) fn to_yaml(&self) -> String {
        let mut text = String::new();
        for (at, (name, settings)) in self.0.iter().enumerate() {
            let Some(name) = name else {
                write_settings(&mut text, settings, |_| true);
                continue;
            };
            if at == 0 {
                write_settings(&mut text, settings, |section| {
                    pipelines::is_of_the_process(section) && section != "pipeline"
                });
                text.push_str(&format!("{}:\n", pipelines::PIPELINES));
            }
            let mut own = String::new();
            write_settings(&mut own, settings, |section| !pipelines::is_of_the_process(section));
            text.push_str(&format!("  {}:\n", Json::from(name.as_str())));
            own.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        text
    }

    /// The same as JSON.
    pub(crate) fn to_json(&self) -> Json {
        super::yaml::parse(&self.to_yaml()).expect("what is printed can be read").to_json()
    }
}

/// Writes the sections and keys of the top level that `is_wanted`.
fn write_settings(text: &mut String, settings: &ResolvedSettings, is_wanted: impl Fn(&str) -> bool) {
    write_section(text, "", false, &mut |text, key, name, indent| {
        if !is_wanted(key.path.split('.').next().unwrap_or_default()) {
            return;
        }
        if let (ValueKind::ReadModels, Some(models)) = (key.kind, settings.tree(key.path)) {
            for (name, model) in models.entries() {
                // JSON is valid YAML.
                text.push_str(&format!("{indent}{}: {}\n", Json::from(name), model.to_json()));
            }
        } else if let Some(setting) = settings.get(key.path) {
            text.push_str(&format!("{indent}{name}: {}\n", format_value(key, &setting.value)));
        }
    });
}

/// `commented`: write the description of each section above it.
fn write_section(
    text: &mut String,
    path: &str,
    commented: bool,
    write: &mut impl FnMut(&mut String, &ConfigKey, &str, &str),
) {
    let depth = if path.is_empty() { 0 } else { path.split('.').count() };
    let indent = "  ".repeat(depth);
    for name in schema::child_names(path) {
        let below = schema::join_path(path, name);
        match schema::key(&below) {
            Some(key) => write(text, key, name, &indent),
            None => {
                let mut inner = String::new();
                write_section(&mut inner, &below, commented, write);
                if inner.is_empty() {
                    continue;
                }
                if commented {
                    if depth == 0 {
                        text.push('\n');
                    }
                    write_comment(text, schema::describe_section(&below), &indent);
                }
                text.push_str(&format!("{indent}{name}:\n{inner}"));
            }
        }
    }
    if let Some(key) = schema::wildcard_key(path) {
        write(text, key, schema::EXAMPLE_READ_MODEL, &indent);
    }
}

fn write_comment(text: &mut String, about: &str, indent: &str) {
    let mut line = String::new();
    for word in about.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + word.len() > WIDTH {
            text.push_str(&format!("{indent}#{line}\n"));
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    if !line.is_empty() {
        text.push_str(&format!("{indent}#{line}\n"));
    }
}

fn quote(key: &ConfigKey, value: &str) -> String {
    match key.kind {
        ValueKind::Secret { .. } => format!("\"{value}\""),
        _ => value.to_owned(),
    }
}

fn format_value(key: &ConfigKey, value: &TypedValue) -> String {
    match value {
        TypedValue::Text(secret) if key.is_secret() => Json::from(redact_secret(key, secret)).to_string(),
        _ if key.is_secret() => Json::from(redact::MASK).to_string(),
        TypedValue::Text(text) => Json::from(text.as_str()).to_string(),
        TypedValue::Flag(flag) => flag.to_string(),
        TypedValue::Count(number) => number.to_string(),
        TypedValue::Duration(duration) => units::format_duration(*duration),
        TypedValue::Size(bytes) => units::format_size(*bytes),
        TypedValue::Texts(texts) => Json::from(texts.clone()).to_string(),
        // JSON is valid YAML.
        TypedValue::Tree(node) => node::ConfigNode::to_json(node).to_string(),
    }
}

fn redact_secret(key: &ConfigKey, secret: &str) -> String {
    match key.path.rsplit('.').next() {
        Some("uri") => redact::redact_mongodb_uri(secret),
        Some("connection_string") => redact::redact_connection_string(secret),
        _ => redact::MASK.to_owned(),
    }
}

/// The JSON schema for editors that validate YAML.
pub(crate) fn json_schema() -> Json {
    let mut root = object_schema("");
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Headwater configuration".into();
    // Required keys of a section may be set by each pipeline instead.
    let mut required = Map::new();
    for (name, section) in root["properties"].as_object_mut().expect("an object schema has properties") {
        if let Some(names) = section.as_object_mut().and_then(|section| section.remove("required")) {
            required.insert(name.clone(), json!({ "required": names }));
        }
    }
    let several = several_schema(&root["properties"]);
    root["properties"][pipelines::PIPELINES] = several;
    root["if"] = json!({ "required": [pipelines::PIPELINES] });
    root["else"] = json!({ "properties": required });
    root
}

/// `pipelines`: names, each with the sections that belong to a pipeline.
fn several_schema(sections: &Json) -> Json {
    let own = sections.as_object().into_iter().flatten().filter(|(name, _)| !pipelines::is_of_the_process(name));
    let own: Map<_, _> = own.map(|(name, section)| (name.clone(), section.clone())).collect();
    let entry = json!({ "type": ["object", "null"], "additionalProperties": false, "properties": own });
    json!({ "type": "object", "description": ABOUT_PIPELINES, "additionalProperties": entry })
}

fn object_schema(path: &str) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in schema::child_names(path) {
        let below = schema::join_path(path, name);
        match schema::key(&below) {
            Some(key) => {
                if matches!(key.default, KeyDefault::Required(_)) && !key.is_secret() {
                    required.push(name);
                }
                properties.insert(name.to_owned(), property_schema(key));
                if key.is_secret() {
                    let about = format!("A file that contains `{name}`.");
                    properties.insert(format!("{name}_file"), json!({ "type": "string", "description": about }));
                }
            }
            None => drop(properties.insert(name.to_owned(), object_schema(&below))),
        }
    }
    let about = schema::describe_section(path);
    let others = schema::wildcard_key(path).map_or(Json::Bool(false), property_schema);
    // An empty section is allowed, and parses as null.
    let kind = if path.is_empty() { json!("object") } else { json!(["object", "null"]) };
    json!({ "type": kind, "description": about, "additionalProperties": others, "properties": properties, "required": required })
}

fn property_schema(key: &ConfigKey) -> Json {
    let mut property = match key.kind {
        ValueKind::Text | ValueKind::Secret { .. } | ValueKind::Pattern { .. } => json!({ "type": "string" }),
        ValueKind::Duration { .. } => json!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|days))+$" }),
        ValueKind::Size { .. } => json!({ "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|kB|KB|MB|GB)$" }),
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Count { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueKind::Choice(words) => json!({ "enum": words }),
        ValueKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        ValueKind::Documents => json!({ "type": "array", "items": { "type": "object" } }),
        ValueKind::NamedDocuments => json!({
            "type": "object", "additionalProperties": { "type": "array", "items": { "type": "object" } },
        }),
        ValueKind::ReadModels => read_models::json_schema(),
    };
    property["description"] = key.about.into();
    if key.has_default() {
        property["default"] = super::yaml::parse(&key.example()).expect("a default is YAML").to_json();
    }
    property
}
