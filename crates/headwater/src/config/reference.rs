//! The table told to people and editors: the commented reference file, the effective configuration, the JSON schema.

use serde_json::{Map, Value as Json, json};

use super::load::{Settings, Typed};
use super::schema::{self, Default, Key, Kind, SECTIONS};
use super::{masked, node, read_models, units};

/// How wide a comment may grow.
const WIDTH: usize = 110;

/// `config/headwater.yaml`: every key with its default and its reason. What is optional and has none is commented out.
pub(crate) fn reference_file() -> String {
    let mut text = String::from("# Every key of Headwater's configuration, with its default and its reason.\n");
    text.push_str("# A variable overrides the file (HEADWATER__SERVICE_BUS__TOPIC), and `--set service_bus.topic=…` overrides both.\n");
    text.push_str("# A secret can be given as a file: `uri_file`, `connection_string_file`, `token_file`.\n");
    write_section(&mut text, "", true, &mut |text, key, name, indent| {
        comment(text, key.about, indent);
        let (off, value) = match key.default {
            Default::Required(value) | Default::Usual(value) | Default::Is(value) => ("", value),
            Default::Absent(value) => ("# ", value),
        };
        text.push_str(&format!("{indent}{off}{name}: {}\n", quoted(key, value)));
    });
    text
}

/// What a pod would run with; of a secret, only what is none.
pub(crate) struct Effective(Settings);

impl Effective {
    pub(super) fn of(settings: Settings) -> Self {
        Self(settings)
    }

    pub(crate) fn to_yaml(&self) -> String {
        let mut text = String::new();
        write_section(&mut text, "", false, &mut |text, key, name, indent| {
            if let (Kind::ReadModels, Some(models)) = (key.kind, self.0.tree(key.path)) {
                for (name, model) in models.entries() {
                    // JSON is YAML.
                    text.push_str(&format!("{indent}{}: {}\n", Json::from(name), model.to_json()));
                }
            } else if let Some(setting) = self.0.get(key.path) {
                text.push_str(&format!("{indent}{name}: {}\n", shown(key, &setting.value)));
            }
        });
        text
    }

    /// The same, key by key.
    pub(crate) fn to_json(&self) -> Json {
        super::yaml::parse(&self.to_yaml()).expect("what is printed can be read").to_json()
    }
}

/// `commented`: what a section is for stands above it.
fn write_section(
    text: &mut String,
    path: &str,
    commented: bool,
    write: &mut impl FnMut(&mut String, &Key, &str, &str),
) {
    let depth = if path.is_empty() { 0 } else { path.split('.').count() };
    let indent = "  ".repeat(depth);
    for name in schema::names_below(path) {
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
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
                    let about = SECTIONS.iter().find(|(section, _)| *section == below).map_or("", |(_, about)| about);
                    comment(text, about, &indent);
                }
                text.push_str(&format!("{indent}{name}:\n{inner}"));
            }
        }
    }
    if let Some(key) = schema::any_key(path) {
        write(text, key, schema::A_READ_MODEL, &indent);
    }
}

fn comment(text: &mut String, about: &str, indent: &str) {
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

fn quoted(key: &Key, value: &str) -> String {
    match key.kind {
        Kind::Secret { .. } => format!("\"{value}\""),
        _ => value.to_owned(),
    }
}

fn shown(key: &Key, value: &Typed) -> String {
    match value {
        Typed::Text(secret) if key.is_secret() => Json::from(secret_shown(key, secret)).to_string(),
        _ if key.is_secret() => Json::from(masked::MASK).to_string(),
        Typed::Text(text) => Json::from(text.as_str()).to_string(),
        Typed::Flag(flag) => flag.to_string(),
        Typed::Count(number) => number.to_string(),
        Typed::Duration(duration) => units::duration_text(*duration),
        Typed::Size(bytes) => units::size_text(*bytes),
        Typed::Texts(texts) => Json::from(texts.clone()).to_string(),
        // JSON is YAML.
        Typed::Tree(node) => node::Node::to_json(node).to_string(),
    }
}

fn secret_shown(key: &Key, secret: &str) -> String {
    match key.path.rsplit('.').next() {
        Some("uri") => masked::mongodb_uri(secret),
        Some("connection_string") => masked::connection_string(secret),
        _ => masked::MASK.to_owned(),
    }
}

/// For editors that check YAML as it is written.
pub(crate) fn json_schema() -> Json {
    let mut root = object("");
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Headwater's configuration".into();
    root
}

fn object(path: &str) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in schema::names_below(path) {
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match schema::key(&below) {
            Some(key) => {
                if matches!(key.default, Default::Required(_)) && !key.is_secret() {
                    required.push(name);
                }
                properties.insert(name.to_owned(), property(key));
                if key.is_secret() {
                    let about = format!("A file that holds `{name}`.");
                    properties.insert(format!("{name}_file"), json!({ "type": "string", "description": about }));
                }
            }
            None => drop(properties.insert(name.to_owned(), object(&below))),
        }
    }
    let about = SECTIONS.iter().find(|(section, _)| *section == path).map_or("", |(_, about)| about);
    let others = schema::any_key(path).map_or(Json::Bool(false), property);
    // A section with nothing below it says nothing, and is as good as left out.
    let kind = if path.is_empty() { json!("object") } else { json!(["object", "null"]) };
    json!({ "type": kind, "description": about, "additionalProperties": others, "properties": properties, "required": required })
}

fn property(key: &Key) -> Json {
    let mut property = match key.kind {
        Kind::Text | Kind::Secret { .. } | Kind::Pattern { .. } => json!({ "type": "string" }),
        Kind::Duration { .. } => json!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|days))+$" }),
        Kind::Size { .. } => json!({ "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|kB|KB|MB|GB)$" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Documents => json!({ "type": "array", "items": { "type": "object" } }),
        Kind::ReadModels => read_models::json_schema(),
    };
    property["description"] = key.about.into();
    if let Default::Is(value) = key.default {
        property["default"] = super::yaml::parse(value).expect("a default is YAML").to_json();
    }
    property
}
