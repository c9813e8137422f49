//! Several pipelines in one configuration: `pipelines` maps names to settings, and the top level holds what they have in common.
//!
//! Each entry is merged over the top level before any value is read. So every pipeline is read by the same table and the same rules as a single one, and
//! every problem has the line of the value that causes it. [`check_together`] refuses pipelines that would disturb each other.

use pipeline::erasure::ERASED;
use pipeline::event::Namespace;
use pipeline::view::{self, Projection};
use servicebus::ConnectionString;

use super::load::ResolvedSettings;
use super::node::{ConfigNode, MapEntry, NodeValue, SettingOrigin};
use super::problem::ConfigProblem;
use super::{BusAccess, Config, schema};

pub(super) const PIPELINES: &str = "pipelines";

/// Settings of the process: its pipelines share one election, one HTTP server and one exporter of traces.
const OF_THE_PROCESS: [&str; 6] = ["format", "pipeline", "pod_id", "coordination", "admin", "telemetry"];

/// Keys of one section that exclude each other. An entry that sets one of them replaces the other one of the top level.
const ALTERNATIVES: [[&str; 2]; 2] =
    [["collection", "collections"], ["connection_string", "fully_qualified_namespace"]];

/// The settings of one pipeline as written, with those of the top level.
pub(super) struct PipelineTree {
    /// `None`: the configuration has no `pipelines`.
    pub(super) entry: Option<PipelineEntry>,
    pub(super) root: ConfigNode,
}

/// Where a pipeline is declared.
pub(super) struct PipelineEntry {
    pub(super) name: String,
    origin: SettingOrigin,
    /// Where the values of the entry were set.
    origins: Vec<SettingOrigin>,
}

/// A pipeline that was read, for the rules between pipelines.
pub(super) struct ReadPipeline {
    pub(super) entry: Option<PipelineEntry>,
    pub(super) settings: ResolvedSettings,
    pub(super) config: Config,
}

/// Whether a section of the top level belongs to the process and not to a pipeline.
pub(super) fn is_of_the_process(section: &str) -> bool {
    OF_THE_PROCESS.contains(&section)
}

/// One tree per pipeline. Without `pipelines`, the tree as it is.
pub(super) fn split(mut root: ConfigNode, problems: &mut Vec<ConfigProblem>) -> Vec<PipelineTree> {
    let Some(declared) = take_entry(&mut root, PIPELINES) else { return vec![PipelineTree { entry: None, root }] };
    if let Some(single) = take_entry(&mut root, "pipeline") {
        let what = format!("is set together with `{PIPELINES}`; remove it: the names are the keys of `{PIPELINES}`");
        problems.push(ConfigProblem::at(single.key_origin, "pipeline", what));
    }
    let ConfigNode { value: NodeValue::Map(entries), .. } = declared.node else {
        let what = format!("is {}, but must be a map from names to settings, such as {EXAMPLE}", declared.node);
        problems.push(ConfigProblem::at(declared.node.origin, PIPELINES, what));
        return vec![];
    };
    if entries.is_empty() {
        let what = format!("has no pipeline; write, for example, {EXAMPLE}");
        problems.push(ConfigProblem::at(declared.key_origin, PIPELINES, what));
    }
    entries.into_iter().filter_map(|entry| merge_entry(&root, entry, problems)).collect()
}

const EXAMPLE: &str = "`orders: { source: { database: shop, collection: orders } }`";

fn merge_entry(
    root: &ConfigNode,
    MapEntry { key: name, key_origin: origin, mut node }: MapEntry,
    problems: &mut Vec<ConfigProblem>,
) -> Option<PipelineTree> {
    if !matches!(node.value, NodeValue::Map(_) | NodeValue::Null) || name.trim().is_empty() {
        let what = format!("is {node}, but must be a map of settings under a name, such as {EXAMPLE}");
        problems.push(ConfigProblem::at(node.origin, format!("{PIPELINES}.{name}"), what));
        return None;
    }
    for section in OF_THE_PROCESS.into_iter().chain([PIPELINES]) {
        if let Some(entry) = take_entry(&mut node, section) {
            let what = "applies to the whole deployment; set it at the top level";
            problems.push(ConfigProblem::at(entry.key_origin, format!("{PIPELINES}.{name}.{section}"), what));
        }
    }
    let mut origins = vec![origin.clone()];
    collect_origins(&node, &mut origins);
    let mut merged = root.clone();
    merge(&mut merged, node);
    merged.set(&["pipeline".to_owned()], ConfigNode::text(&name, origin.clone()));
    Some(PipelineTree { entry: Some(PipelineEntry { name, origin, origins }), root: merged })
}

/// Maps are merged key by key; any other value replaces the one of the top level.
fn merge(base: &mut ConfigNode, over: ConfigNode) {
    let entries = match over.value {
        // An empty section sets nothing.
        NodeValue::Null => return,
        NodeValue::Map(entries) if matches!(base.value, NodeValue::Map(_)) => entries,
        _ => return *base = over,
    };
    for entry in entries {
        for other in alternatives(&entry.key) {
            take_entry(base, &other);
        }
        let NodeValue::Map(known) = &mut base.value else { unreachable!("checked above") };
        match known.iter_mut().find(|known| known.key == entry.key) {
            Some(known) => merge(&mut known.node, entry.node),
            None => known.push(entry),
        }
    }
}

/// The keys that this one replaces: another form of the same setting.
fn alternatives(key: &str) -> Vec<String> {
    // A secret and the file that holds it.
    let other_form = key.strip_suffix("_file").map_or_else(|| format!("{key}_file"), str::to_owned);
    let pairs = ALTERNATIVES.iter().flat_map(|[one, other]| [(one, other), (other, one)]);
    let replaced = pairs.filter(|(one, _)| key.strip_suffix("_file").unwrap_or(key) == **one);
    replaced.flat_map(|(_, other)| [(*other).to_owned(), format!("{other}_file")]).chain([other_form]).collect()
}

fn take_entry(node: &mut ConfigNode, key: &str) -> Option<MapEntry> {
    let NodeValue::Map(entries) = &mut node.value else { return None };
    let at = entries.iter().position(|entry| entry.key == key)?;
    Some(entries.remove(at))
}

fn collect_origins(node: &ConfigNode, origins: &mut Vec<SettingOrigin>) {
    origins.push(node.origin.clone());
    match &node.value {
        NodeValue::Map(entries) => entries.iter().for_each(|entry| {
            origins.push(entry.key_origin.clone());
            collect_origins(&entry.node, origins);
        }),
        NodeValue::List(nodes) => nodes.iter().for_each(|node| collect_origins(node, origins)),
        _ => {}
    }
}

/// The problems of all pipelines, each with the path under which a user finds it. What all pipelines lack is reported once.
pub(super) fn label_problems(found: Vec<(Option<&PipelineEntry>, Vec<ConfigProblem>)>) -> Vec<ConfigProblem> {
    let is_everywhere = |problem: &ConfigProblem| found.iter().all(|(_, problems)| problems.contains(problem));
    let mut labelled = vec![];
    for (entry, problems) in &found {
        for problem in problems {
            let mut problem = problem.clone();
            if let Some(entry) = entry
                && (entry.origins.contains(&problem.origin)
                    || (problem.origin == SettingOrigin::Unset && !is_everywhere(&problem)))
            {
                problem.path = schema::join_path(&format!("{PIPELINES}.{}", entry.name), &problem.path);
                problem.path.truncate(problem.path.trim_end_matches('.').len());
            }
            if !labelled.contains(&problem) {
                labelled.push(problem);
            }
        }
    }
    labelled
}

/// Rules between pipelines.
pub(super) fn check_together(pipelines: &[ReadPipeline], problems: &mut Vec<ConfigProblem>) {
    for (at, one) in pipelines.iter().enumerate() {
        for other in &pipelines[..at] {
            check_pair(other, one, problems);
        }
    }
    let sources = |pipeline: &ReadPipeline| pipeline.config.source_uri.clone();
    let valid = pipelines.iter().all(|pipeline| pipeline.settings.are_valid(&["source.uri", "coordination.uri"]));
    if let [first, rest @ ..] = pipelines
        && valid
        && first.settings.text("coordination.uri").is_none()
        && rest.iter().any(|pipeline| sources(pipeline) != sources(first))
    {
        let what = "is missing, but pipelines with different sources need it: all of them use the same leases";
        problems.push(ConfigProblem::at(SettingOrigin::Unset, "coordination.uri", what));
    }
}

fn check_pair(first: &ReadPipeline, second: &ReadPipeline, problems: &mut Vec<ConfigProblem>) {
    let (Some(one), Some(two)) = (&first.entry, &second.entry) else { return };
    let valid = |paths: &[&str]| first.settings.are_valid(paths) && second.settings.are_valid(paths);
    let mut report = |path: &str, what: String| {
        // The line of the key, if the entry sets it, else that of the entry.
        let origin = schema::key(path).map(|key| second.settings.origin(key.path));
        let origin = origin.filter(|origin| two.origins.contains(origin));
        let origin = origin.unwrap_or_else(|| two.origin.clone());
        problems.push(ConfigProblem::at(origin, format!("{PIPELINES}.{}.{path}", two.name), what));
    };
    if valid(&["service_bus.connection_string", "service_bus.fully_qualified_namespace", "service_bus.topic"])
        && let (Some(host), true) =
            (bus_host(&first.config), first.config.service_bus.topic == second.config.service_bus.topic)
        && bus_host(&second.config) == Some(host)
    {
        let topic = &second.config.service_bus.topic;
        let what = format!(
            "is `{topic}`, as in pipeline `{}`: each would apply the events of the other; give each pipeline its own topic",
            one.name
        );
        report("service_bus.topic", what);
    }
    if !valid(&["source.uri", "source.database", "source.collection", "source.collections"])
        || !valid(&["read_models.uri", "read_models.database"])
    {
        return;
    }
    let (models, others) = (&second.config.read_models, &first.config.read_models);
    if (&models.uri, &models.database) == (&others.uri, &others.database) {
        let names = models.models.iter().map(|model| model.name());
        for name in names.filter(|name| others.models.iter().any(|other| other.name() == *name)) {
            let what = format!(
                "writes the collection `{name}` in database `{}`, as pipeline `{}` does; rename the read model, or change `read_models.database`",
                models.database, one.name
            );
            report("read_models", what);
        }
    }
    if let Some(namespace) = captured_output(&second.config, &first.config) {
        let what = format!("captures `{namespace}`, which pipeline `{}` writes", one.name);
        report("source", what);
    }
    if let Some(namespace) = captured_output(&first.config, &second.config) {
        let what =
            format!("writes `{namespace}`, which pipeline `{}` captures; change `read_models.database`", one.name);
        report("read_models", what);
    }
}

/// A collection that `writer` writes beside its source, and `reader` captures.
fn captured_output(reader: &Config, writer: &Config) -> Option<String> {
    if reader.source_uri != writer.read_models.uri || writer.read_models.models.is_empty() {
        return None;
    }
    let captured = reader.source.namespaces();
    read_model_namespaces(writer)
        .into_iter()
        .find(|written| captured.contains(written))
        .map(|Namespace { database, collection }| format!("{database}.{collection}"))
}

/// The collections that a pipeline writes in the database of its read models.
pub(crate) fn read_model_namespaces(config: &Config) -> Vec<Namespace> {
    let views = &config.read_models;
    let models = views.models.iter().map(|model| model.name()).chain([view::CURSORS, view::PARKED_EVENTS, ERASED]);
    models.map(|name| Namespace::new(&views.database, name)).collect()
}

/// The host and port of Service Bus; `None` if the connection string is not valid.
fn bus_host(config: &Config) -> Option<String> {
    match &config.service_bus.access {
        BusAccess::ConnectionString(text) => {
            let at = ConnectionString::parse(text.reveal()).ok()?;
            Some(host_and_port(&at.host, at.port))
        }
        BusAccess::Entra(access) => {
            let (host, port) = access.namespace.rsplit_once(':').unwrap_or((&access.namespace, "5671"));
            Some(host_and_port(host, port.parse().ok()?))
        }
    }
}

fn host_and_port(host: &str, port: u16) -> String {
    format!("{}:{port}", host.to_ascii_lowercase())
}
