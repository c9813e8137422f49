//! The section `read_models`: compiles the declarations and finds the line of every problem, also of those that only the server detects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Bson, Document};
use pipeline::event::{Namespace, sha256_hex};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view::{ModelProblem, ReadModel, ReadModelDeclaration, UpcastDeclaration};
use serde_json::{Value as Json, json};

use super::load::{ResolvedSettings, most_similar, unknown_key};
use super::node::{ConfigNode, NodeValue, SettingOrigin};
use super::problem::{ConfigProblem, ConfigProblems};
use super::schema::READ_MODELS;
use super::{Config, Secret, reserved};
use crate::generations::ModelProposal;

/// The read models, and the database they are in.
#[derive(Debug)]
pub(crate) struct ReadModelsConfig {
    pub(crate) uri: Secret,
    pub(crate) database: String,
    pub(crate) on_change: OnModelChange,
    pub(crate) change_delay: Duration,
    pub(crate) models: Vec<Arc<ReadModel>>,
    pub(crate) declarations: BTreeMap<String, ReadModelDeclaration>,
    pub(crate) declared: ModelDeclarations,
}

/// What happens when all pods declare other read models than those that serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnModelChange {
    Rebuild,
    Wait,
}

/// The declarations as written, by read model.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelDeclarations {
    file: Option<String>,
    nodes: BTreeMap<String, ConfigNode>,
    /// By event type: the stages of `source.upcast`.
    upcasts: BTreeMap<String, ConfigNode>,
}

impl ReadModelsConfig {
    /// What this pod proposes to the others.
    pub(crate) fn proposal(&self) -> ModelProposal {
        ModelProposal { declarations: self.declarations.clone(), fingerprints: self.declared.fingerprints() }
    }

    /// A read model must not be a captured collection, because it would feed itself, nor a collection that pods write.
    pub(super) fn check_collections(
        &self,
        config: &Config,
        settings: &ResolvedSettings,
        problems: &mut Vec<ConfigProblem>,
    ) {
        let Config { source, source_uri, coordination, .. } = config;
        let captured = source.namespaces();
        let valid = |paths: &[&str]| {
            settings.are_valid(paths) && settings.are_valid(&["read_models.uri", "read_models.database"])
        };
        let with_source = valid(&["source.uri", "source.database", "source.collection", "source.collections"])
            && self.uri == *source_uri;
        let with_pods = valid(&["source.uri", "coordination.uri", "coordination.database"])
            && (&self.uri, &self.database) == (&coordination.uri, &coordination.database);
        for (name, node) in &self.declared.nodes {
            let mut report = |what: &str| {
                let what = format!("{what}; change `read_models.database`");
                problems.push(ConfigProblem::at(node.origin.clone(), format!("read_models.{name}"), what));
            };
            if with_source && captured.contains(&Namespace::new(&self.database, name)) {
                report("is a captured collection and would feed itself");
            }
            if with_pods && reserved::COORDINATION_COLLECTIONS.contains(&name.as_str()) {
                report("is a collection that pods write in the coordination database");
            }
        }
    }

    /// Reports event types and collections that can never occur.
    pub(super) fn check_event_types(
        &self,
        source: &SourceConfig,
        settings: &ResolvedSettings,
        problems: &mut Vec<ConfigProblem>,
    ) {
        let mut report = |node: &ConfigNode, path: String, what: String| {
            problems.push(ConfigProblem::at(node.origin.clone(), format!("read_models.{path}"), what));
        };
        let captured: Vec<_> = source.namespaces().into_iter().map(|namespace| namespace.collection).collect();
        for (model, node) in &self.declared.nodes {
            if settings.are_valid(&["source.kind"]) && source.kind == SourceKind::Documents {
                for (name, clause) in clauses(node).filter(|(name, _)| !OPERATIONS.contains(name)) {
                    let what =
                        format!("is not an operation; with `kind: documents` use one of `{}`", OPERATIONS.join("`, `"));
                    report(clause, format!("{model}.when.{name}"), what);
                }
            }
            for (_, from) in node.entries().filter(|(name, _)| *name == "from") {
                if let NodeValue::Text(name) = &from.value
                    && settings.are_valid(&["source.collection", "source.collections"])
                    && !captured.contains(name)
                {
                    let what = format!(
                        "is `{name}`, which is not a captured collection; use one of `{}`",
                        captured.join("`, `")
                    );
                    report(from, format!("{model}.from"), what);
                }
            }
        }
    }
}

/// The event types of a `documents` source.
const OPERATIONS: [&str; 4] = ["insert", "update", "replace", "delete"];

const UPCAST: &str = "source.upcast";

const NAMES: [&str; 5] = ["key", "when", "mirror", "from", "indexes"];

/// Compiles all valid read models, and reports the problems of the others.
pub(super) fn compile_models(
    settings: &ResolvedSettings,
    source: &SourceConfig,
    problems: &mut Vec<ConfigProblem>,
) -> (Vec<Arc<ReadModel>>, BTreeMap<String, ReadModelDeclaration>, ModelDeclarations) {
    let (mut models, mut declarations, mut declared) = (vec![], BTreeMap::new(), ModelDeclarations::default());
    let upcasts = settings.tree(UPCAST).into_iter().flat_map(ConfigNode::entries);
    declared.upcasts = upcasts.map(|(name, node)| (name.to_owned(), node.clone())).collect();
    check_upcasts(&declared.upcasts, source, problems);
    let Some(tree) = settings.tree(READ_MODELS) else { return (models, declarations, declared) };
    for (name, node) in tree.entries() {
        declared.nodes.insert(name.to_owned(), node.clone());
        // Compile only a declaration without problems: the compiler would report their consequences again.
        let found = problems.len();
        let mut declaration = read_declaration(name, node, problems);
        declaration.upcast = declared.upcast_of(node, source);
        if problems.len() > found {
            continue;
        }
        match ReadModel::compile(name, &declaration) {
            Ok(model) => {
                models.push(Arc::new(model));
                declarations.insert(name.to_owned(), declaration);
            }
            Err(mistakes) => problems.extend(mistakes.iter().map(|mistake| declared.problem(mistake))),
        }
    }
    (models, declarations, declared)
}

/// Reports upcasts that can never be applied, with their own lines.
fn check_upcasts(upcasts: &BTreeMap<String, ConfigNode>, source: &SourceConfig, problems: &mut Vec<ConfigProblem>) {
    for (name, node) in upcasts {
        let stages = [(name.clone(), node.to_bson().unwrap_or(Bson::Null))].into_iter().collect();
        let declaration = ReadModelDeclaration {
            when: [(name.clone(), Bson::from("delete"))].into_iter().collect(),
            upcast: Some(UpcastDeclaration { stages, keep: kept_paths(source) }),
            ..ReadModelDeclaration::default()
        };
        let what = match (source.kind, ReadModel::compile("upcast", &declaration)) {
            (SourceKind::Documents, _) => "needs `kind: events`: documents have no versions".to_owned(),
            (SourceKind::Events, Err(found)) => {
                found.iter().map(|it| it.problem.as_str()).collect::<Vec<_>>().join("; ")
            }
            (SourceKind::Events, Ok(_)) => continue,
        };
        problems.push(ConfigProblem::at(node.origin.clone(), format!("{UPCAST}.{name}"), what));
    }
}

/// What gives an event its place.
fn kept_paths(source: &SourceConfig) -> Vec<String> {
    let fields = [Some("_id"), Some(&*source.aggregate_id), Some(&*source.event_type), source.sequence.as_deref()];
    fields.into_iter().flatten().map(str::to_owned).collect()
}

fn read_declaration(name: &str, node: &ConfigNode, problems: &mut Vec<ConfigProblem>) -> ReadModelDeclaration {
    let mut declaration = ReadModelDeclaration::default();
    let mut report = |node: &ConfigNode, key: &str, rule: &str| {
        let path = format!("read_models.{name}{key}");
        problems.push(ConfigProblem::at(node.origin.clone(), path, format!("is {node}, but must be {rule}")));
    };
    let NodeValue::Map(entries) = &node.value else {
        report(node, "", "a map, such as `{ when: { OrderPlaced: { $set: { status: placed } } } }`");
        return declaration;
    };
    let mut unknown = vec![];
    for entry in entries {
        let node = &entry.node;
        match (entry.key.as_str(), node.to_bson()) {
            ("key", Some(key)) => declaration.key = Some(key),
            ("when", Some(Bson::Document(when))) => declaration.when = when,
            ("when", _) => {
                report(node, ".when", "a map of event types, such as `{ OrderPlaced: { $set: { status: placed } } }`");
            }
            ("mirror", Some(Bson::Boolean(mirror))) => declaration.mirror = mirror,
            ("mirror", _) => report(node, ".mirror", "`true` or `false`"),
            ("from", Some(Bson::String(from))) => declaration.from = Some(from),
            ("from", _) => report(node, ".from", "the name of a collection, such as `orders`"),
            ("indexes", Some(Bson::Array(indexes))) if as_documents(&indexes).is_some() => {
                declaration.indexes = as_documents(&indexes).unwrap_or_default();
            }
            ("indexes", _) => report(node, ".indexes", "a list of indexes, such as `[ { keys: { customer: 1 } } ]`"),
            ("key", None) => report(node, ".key", "a value of the event, such as `$$event.payload.customer`"),
            (name, _) => unknown.push((name, entry.key_origin.clone())),
        }
    }
    for (unknown, origin) in unknown {
        let what = if unknown == "on" {
            "is not a known key; write `when` (`on` means `true` in many YAML parsers)".to_owned()
        } else {
            unknown_key(most_similar(unknown, &NAMES, 2), &NAMES)
        };
        problems.push(ConfigProblem::at(origin, format!("read_models.{name}.{unknown}"), what));
    }
    declaration
}

fn as_documents(values: &[Bson]) -> Option<Vec<Document>> {
    values.iter().map(|value| value.as_document().cloned()).collect()
}

/// A value of the event that a declaration uses, such as `$$event.payload.price`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventReference {
    model: String,
    /// The path of the reference in the declaration, below the name of the model.
    location: Vec<String>,
    /// The event types whose events must have the value.
    pub(crate) event_types: Vec<String>,
    pub(crate) is_key: bool,
    /// Dotted, without `$$event`.
    pub(crate) path: String,
}

impl EventReference {
    pub(crate) fn mistake(&self, problem: String) -> ModelProblem {
        let event_type = self.event_types.first().cloned();
        ModelProblem { model: self.model.clone(), event_type, path: self.location.clone(), problem }
    }
}

impl ModelDeclarations {
    /// The event types that any model handles.
    pub(crate) fn event_types(&self) -> impl Iterator<Item = String> {
        let models = self.nodes.values().flat_map(clauses);
        models.map(|(name, _)| name.to_owned())
    }

    /// All references to values of the event.
    pub(crate) fn event_references(&self) -> Vec<EventReference> {
        let mut values = vec![];
        for (model, node) in &self.nodes {
            let all: Vec<String> = clauses(node).map(|(name, _)| name.to_owned()).collect();
            let mut add = |location: Vec<String>, event_types: &[String], is_key, path| {
                values.push(EventReference {
                    model: model.clone(),
                    location,
                    event_types: event_types.to_vec(),
                    is_key,
                    path,
                });
            };
            for (name, node) in node.entries().filter(|(name, _)| *name == "key") {
                find_references(node, &mut vec![name.to_owned()], &mut |location, path| {
                    add(location, &all, true, path)
                });
            }
            for (name, clause) in clauses(node) {
                let mut location = vec!["when".to_owned(), name.to_owned()];
                find_references(clause, &mut location, &mut |location, path| {
                    add(location, &[name.to_owned()], false, path)
                });
            }
        }
        values
    }

    /// The upcasts of the event types that the model handles.
    fn upcast_of(&self, node: &ConfigNode, source: &SourceConfig) -> Option<UpcastDeclaration> {
        let stages: Document =
            self.upcasts_of(node).filter_map(|(name, node)| Some((name.clone(), node.to_bson()?))).collect();
        (!stages.is_empty()).then(|| UpcastDeclaration { stages, keep: kept_paths(source) })
    }

    fn upcasts_of<'a>(&'a self, node: &'a ConfigNode) -> impl Iterator<Item = (&'a String, &'a ConfigNode)> {
        self.upcasts.iter().filter(move |(name, _)| clauses(node).any(|(clause, _)| clause == *name))
    }

    /// An id of this set of declarations: pods with different sets show different ids.
    pub(crate) fn generation(&self) -> Option<String> {
        let text = |(name, node): (&String, &ConfigNode)| format!("{name}\0{}\0", node.to_json());
        // The nodes are sorted by name, so the order in the file does not change the id.
        let all: String = self.nodes.iter().map(text).chain(self.upcasts.iter().map(text)).collect();
        (!self.nodes.is_empty()).then(|| sha256_hex(&[all.as_bytes()])[..8].to_owned())
    }

    /// An id of each declaration, without what leaves its documents as they are.
    pub(crate) fn fingerprints(&self) -> BTreeMap<String, String> {
        let fingerprint = |node: &ConfigNode| {
            let mut declaration = node.to_json();
            if let Json::Object(declaration) = &mut declaration {
                declaration.remove("indexes");
                let upcasts: serde_json::Map<_, _> =
                    self.upcasts_of(node).map(|(name, stages)| (name.clone(), stages.to_json())).collect();
                if !upcasts.is_empty() {
                    declaration.insert("upcast".to_owned(), Json::Object(upcasts));
                }
            }
            declaration.sort_all_objects();
            sha256_hex(&[declaration.to_string().as_bytes()])[..16].to_owned()
        };
        self.nodes.iter().map(|(name, node)| (name.clone(), fingerprint(node))).collect()
    }

    pub(super) fn with_file(mut self, file: Option<String>) -> Self {
        self.file = file;
        self
    }

    /// Adds file, line, model and event type to the problems that the server found.
    pub(crate) fn explain(&self, mistakes: &[ModelProblem]) -> ConfigProblems {
        ConfigProblems { file: self.file.clone(), list: mistakes.iter().map(|mistake| self.problem(mistake)).collect() }
    }

    fn problem(&self, mistake: &ModelProblem) -> ConfigProblem {
        let path = format!("read_models.{}", mistake.model);
        let path = mistake.path.iter().fold(path, |path, part| format!("{path}.{part}"));
        let Some(node) = self.nodes.get(&mistake.model) else {
            return ConfigProblem::at(SettingOrigin::Unset, path, mistake.problem.clone());
        };
        let (nearest, rest) = node.nearest(&mistake.path);
        let what = match &nearest.value {
            NodeValue::List(_) | NodeValue::Map(_) => mistake.problem.clone(),
            _ if rest.is_empty() => format!("is {nearest}: {}", mistake.problem),
            _ => mistake.problem.clone(),
        };
        ConfigProblem::at(nearest.origin.clone(), path, what)
    }
}

/// The clauses of a model, by event type.
fn clauses(model: &ConfigNode) -> impl Iterator<Item = (&str, &ConfigNode)> {
    model.entries().filter(|(name, _)| *name == "when").flat_map(|(_, node)| node.entries())
}

/// Finds references to the event below a node. Texts inside `$literal` are not references.
fn find_references(node: &ConfigNode, location: &mut Vec<String>, found: &mut impl FnMut(Vec<String>, String)) {
    match &node.value {
        NodeValue::Text(text) => {
            if let Some(path) = text.strip_prefix("$$event.") {
                found(location.clone(), path.to_owned());
            }
        }
        NodeValue::List(nodes) => {
            for (at, node) in nodes.iter().enumerate() {
                location.push(at.to_string());
                find_references(node, location, found);
                location.pop();
            }
        }
        NodeValue::Map(entries) => {
            for entry in entries.iter().filter(|entry| entry.key != "$literal") {
                location.push(entry.key.clone());
                find_references(&entry.node, location, found);
                location.pop();
            }
        }
        NodeValue::Null | NodeValue::Flag(_) | NodeValue::Integer(_) | NodeValue::Float(_) => {}
    }
}

/// The JSON schema of one declaration.
pub(super) fn json_schema() -> Json {
    let clause = json!({ "oneOf": [
        { "type": "object", "description": "An update document; `$$event.path` is a value of the event." },
        { "type": "array", "items": { "type": "object" }, "description": "An update pipeline, with the event as `$$event`." },
        { "const": "delete" },
    ] });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "key": { "description": "The `_id` of the document that an event changes. Default: `$$event.aggregateId`." },
            "when": { "type": "object", "additionalProperties": clause, "description": "What each event type does." },
            "mirror": { "type": "boolean", "description": "The read model is a copy of the documents of a `documents` source." },
            "from": { "type": "string", "description": "Only events of this collection." },
            "indexes": { "type": "array", "items": { "type": "object", "required": ["keys"] } },
        },
    })
}

/// Parses the declarations below `read_models`.
#[cfg(test)]
pub(crate) fn parse_declarations(text: &str) -> ModelDeclarations {
    let tree = super::yaml::parse(text).expect("YAML");
    ModelDeclarations {
        file: None,
        nodes: tree.entries().map(|(name, node)| (name.to_owned(), node.clone())).collect(),
        upcasts: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_declarations;

    #[test]
    fn other_declarations_have_another_generation() {
        let generation = |text| parse_declarations(text).generation();
        let first = generation("a: { when: { X: delete } }\nb: { when: { Y: delete } }\n");
        assert!(first.as_ref().is_some_and(|name| name.len() == 8), "{first:?}");
        // The same declarations, written differently.
        assert_eq!(first, generation("# as before\nb:\n  when: { Y: delete }\na: { when: { X: delete } }\n"));
        assert_ne!(first, generation("a: { when: { X: delete } }\nb: { when: { Z: delete } }\n"));
        assert_eq!(generation("{}\n"), None);
    }
}
