//! Reads the tree of nodes into settings, by the table in [`super::schema`]. Finds all problems, not only the first: after a problem it reads on, so
//! that the rules between the other keys can be checked too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::node::{ConfigNode, MapEntry, NodeValue, SettingOrigin};
use super::pipelines::PIPELINES;
use super::problem::ConfigProblem;
use super::schema::{self, ConfigKey, KEYS, KeyDefault, ValueKind};
use super::{units, yaml};

/// The value of every key.
#[derive(Debug)]
pub(crate) struct ResolvedSettings {
    set: BTreeMap<&'static str, ResolvedSetting>,
    /// Keys that are invalid or missing. They have a default or an example as value, and rules that need them are skipped.
    invalid: BTreeSet<&'static str>,
    from_file: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ResolvedSetting {
    pub(crate) value: TypedValue,
    pub(crate) origin: SettingOrigin,
}

/// A value of the type that its key asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TypedValue {
    Text(String),
    Flag(bool),
    Count(u64),
    Duration(Duration),
    Size(u64),
    Texts(Vec<String>),
    Tree(ConfigNode),
}

/// Reads a file with a secret. Tests replace it, so that loading a configuration touches no other files.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&str) -> std::io::Result<String>;

/// The sources of a configuration, lowest precedence first.
pub(crate) struct ConfigSources<'a> {
    /// The text of the file.
    pub(crate) file: Option<&'a str>,
    pub(crate) file_name: Option<&'a str>,
    pub(crate) environment: &'a [(String, String)],
    /// Names of `HEADWATER__` variables that are not UTF-8.
    pub(crate) unreadable: &'a [String],
    /// `path=value`, from `--set`.
    pub(crate) flags: &'a [String],
    pub(crate) read_file: ReadFile<'a>,
}

pub(super) const PREFIX: &str = "HEADWATER__";

/// The settings as written, and the problems found so far.
pub(super) struct SettingsTree {
    pub(super) root: ConfigNode,
    pub(super) problems: Vec<ConfigProblem>,
    /// The file is not YAML.
    pub(super) is_broken: bool,
}

impl ConfigSources<'_> {
    /// The settings as written: the file, with variables and flags over it.
    pub(super) fn read_tree(&self) -> SettingsTree {
        let (mut root, mut problems, is_broken) = match self.file.map(yaml::read) {
            Some(Ok((root, problems))) => (root, problems, false),
            Some(Err(problem)) => (ConfigNode::map(SettingOrigin::Unset), vec![problem], true),
            None => (ConfigNode::map(SettingOrigin::Unset), vec![], false),
        };
        self.overlay(&mut root, &mut problems);
        SettingsTree { root, problems, is_broken }
    }

    /// All settings of one pipeline, and all problems found while reading them. `is_broken`: the file could not be read.
    pub(super) fn resolve(&self, root: &ConfigNode, is_broken: bool) -> (ResolvedSettings, Vec<ConfigProblem>) {
        let (set, invalid, from_file) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut reading = SettingsReader { set, invalid, from_file, problems: vec![], read_file: self.read_file };
        reading.read_section("", root);
        reading.fill_defaults();
        let SettingsReader { set, mut invalid, mut problems, from_file, .. } = reading;
        if is_broken {
            // The content of the file is unknown, so no key can be reported as missing.
            invalid.extend(KEYS.iter().map(|key| key.path));
            problems.retain(|problem| problem.origin != SettingOrigin::Unset);
        }
        (ResolvedSettings { set, invalid, from_file }, problems)
    }

    fn overlay(&self, root: &mut ConfigNode, problems: &mut Vec<ConfigProblem>) {
        for (name, value) in self.environment {
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            let path: Vec<String> = path.split("__").map(str::to_lowercase).collect();
            let node = parse_override(&path, value, SettingOrigin::Environment(name.clone()));
            root.set(&path, node);
        }
        for name in self.unreadable {
            let what = "is not valid UTF-8; set it again, or unset it";
            problems.push(ConfigProblem::at(SettingOrigin::Environment(name.clone()), "", what));
        }
        for flag in self.flags {
            match flag.split_once('=') {
                Some((path, value)) if !path.is_empty() => {
                    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
                    let node = parse_override(&path, value, SettingOrigin::Flag);
                    root.set(&path, node);
                }
                _ => problems.push(ConfigProblem::at(
                    SettingOrigin::Flag,
                    "",
                    format!("`{flag}` is not KEY=VALUE; write, for example, `--set producer.body=json`"),
                )),
            }
        }
    }
}

/// Values of variables and flags are parsed as YAML, so that numbers and lists work; anything else is a string. A secret is always taken as
/// it is, because its characters may look like YAML.
fn parse_override(path: &[String], value: &str, origin: SettingOrigin) -> ConfigNode {
    let path = match path {
        [pipelines, _, path @ ..] if pipelines == PIPELINES => path,
        path => path,
    };
    let secret = schema::key(&path.join(".")).is_some_and(ConfigKey::is_secret);
    if secret && !value.is_empty() {
        return ConfigNode::text(value, origin);
    }
    let mut node = yaml::parse(value).unwrap_or_else(|_| ConfigNode::text(value, origin.clone()));
    if matches!(node.value, NodeValue::Map(_)) {
        // `Endpoint=…;Key: x` parses as a map by accident. No variable or flag sets a map, so take it as a string.
        node = ConfigNode::text(value, origin.clone());
    }
    node.origin = origin;
    node
}

struct SettingsReader<'a> {
    set: BTreeMap<&'static str, ResolvedSetting>,
    invalid: BTreeSet<&'static str>,
    /// Secrets that were read from a file, and the file.
    from_file: BTreeMap<&'static str, String>,
    problems: Vec<ConfigProblem>,
    read_file: ReadFile<'a>,
}

impl SettingsReader<'_> {
    fn read_section(&mut self, prefix: &str, node: &ConfigNode) {
        let entries = match &node.value {
            NodeValue::Map(entries) => entries,
            // An empty section, `producer:` alone, sets nothing.
            NodeValue::Null => return,
            _ => {
                let names = schema::child_names(prefix).join("`, `");
                return self.report(node, prefix, format!("is {node}, but must be a map with keys such as `{names}`"));
            }
        };
        for entry in entries {
            self.read_entry(prefix, entry);
        }
    }

    fn read_entry(&mut self, prefix: &str, entry: &MapEntry) {
        let path = schema::join_path(prefix, &entry.key);
        // `*` is the wildcard of the table, never a name that a user may write.
        if let Some(key) = schema::key(&path).filter(|_| entry.key != "*") {
            self.read_key(key, &entry.node);
        } else if schema::is_section(&path) {
            self.read_section(&path, &entry.node);
        } else if let Some(key) = path.strip_suffix("_file").and_then(schema::key).filter(|key| key.is_secret()) {
            self.read_secret_file(key, &path, &entry.node);
        } else if let Some(key) = schema::renamed_key(&path) {
            self.report_renamed(key, &path, entry);
        } else if let Some(key) = schema::wildcard_key(prefix) {
            self.read_wildcard(key, entry);
        } else {
            self.report_unknown(prefix, &path, entry);
        }
    }

    /// An entry of a section that accepts any name. Collected in the order of the file.
    fn read_wildcard(&mut self, key: &'static ConfigKey, entry: &MapEntry) {
        let origin = entry.key_origin.clone();
        let gathered = self
            .set
            .entry(key.path)
            .or_insert_with(|| ResolvedSetting { value: TypedValue::Tree(ConfigNode::map(origin.clone())), origin });
        if let TypedValue::Tree(ConfigNode { value: NodeValue::Map(entries), .. }) = &mut gathered.value {
            entries.push(entry.clone());
        }
    }

    fn read_key(&mut self, key: &'static ConfigKey, node: &ConfigNode) {
        // An empty key counts as not set.
        if node.value == NodeValue::Null {
            return;
        }
        match parse_value(key, node) {
            Ok(value) => self.store(key, key.path, value, node),
            Err(what) => self.report(node, key.path, what),
        }
    }

    fn read_secret_file(&mut self, key: &'static ConfigKey, path: &str, node: &ConfigNode) {
        let NodeValue::Text(file) = &node.value else {
            return self.report(node, path, format!("is {node}, but must name a file, such as `/run/secrets/uri`"));
        };
        match (self.read_file)(file) {
            Ok(text) => {
                let inside = ConfigNode::text(text.trim_end_matches(['\r', '\n']), node.origin.clone());
                match parse_value(key, &inside) {
                    Ok(value) => self.store(key, path, value, node),
                    Err(what) => self.report(node, path, format!("is {node}, and the content of that file {what}")),
                }
            }
            Err(error) => {
                self.report(node, path, format!("is {node}, which cannot be read ({error}); name a readable file"))
            }
        }
    }

    /// A secret can be set directly or as a file. The source with the higher precedence wins; setting both in one source is a problem.
    fn store(&mut self, key: &'static ConfigKey, path: &str, value: TypedValue, node: &ConfigNode) {
        let origin = node.origin.clone();
        let as_file = path != key.path;
        let from_other_form = |_: &&ResolvedSetting| self.from_file.contains_key(key.path) != as_file;
        if let Some(previous) = self.set.get(key.path).filter(from_other_form) {
            match previous.origin.strength().cmp(&origin.strength()) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Greater => return,
                std::cmp::Ordering::Equal => {
                    let what =
                        format!("sets the same secret as {}; set either the secret or its file", previous.origin);
                    return self.report(node, path, what);
                }
            }
        }
        match &node.value {
            NodeValue::Text(file) if as_file => self.from_file.insert(key.path, file.clone()),
            _ => self.from_file.remove(key.path),
        };
        self.set.insert(key.path, ResolvedSetting { value, origin });
    }

    /// An old name is refused, and its value is checked under the new name: one run reports both.
    fn report_renamed(&mut self, key: &'static ConfigKey, path: &str, entry: &MapEntry) {
        self.problems.push(ConfigProblem::at(entry.key_origin.clone(), path, format!("is now `{}`", key.path)));
        if !self.set.contains_key(key.path) {
            self.read_key(key, &entry.node);
        }
    }

    /// Reports an unknown key, and reads its value as that of the most similar key, to find problems in the value too.
    fn report_unknown(&mut self, prefix: &str, path: &str, entry: &MapEntry) {
        let name = entry.key.as_str();
        let known = schema::child_names(prefix);
        // A longer name may contain more typing errors.
        let intended = most_similar(name, &known, 1 + name.len() / 3);
        let what = unknown_key(intended, &known);
        self.problems.push(ConfigProblem::at(entry.key_origin.clone(), path, what));
        let Some(intended) = intended.map(|intended| schema::join_path(prefix, intended)) else { return };
        match schema::key(&intended) {
            Some(key) if !self.set.contains_key(key.path) => self.read_key(key, &entry.node),
            Some(_) => {}
            None => self.read_section(&intended, &entry.node),
        }
    }

    /// Sets defaults, and reports required keys that are missing.
    fn fill_defaults(&mut self) {
        for key in KEYS {
            if self.set.contains_key(key.path) {
                continue;
            }
            let required = matches!(key.default, KeyDefault::Required(_));
            if !required && !key.has_default() {
                continue;
            }
            // A required key gets its example as value, so that the configuration can be built and the rules for other keys checked.
            let text = key.example();
            let node = yaml::parse(&text).expect("defaults and examples are YAML");
            let value = parse_value(key, &node).expect("defaults and examples have the type of their key");
            self.set.insert(key.path, ResolvedSetting { value, origin: SettingOrigin::Unset });
            // If it was set to an invalid value, that is reported already.
            if required && self.invalid.insert(key.path) {
                let what = format!("is missing; write, for example, `{text}`");
                self.problems.push(ConfigProblem::at(SettingOrigin::Unset, key.path, what));
            }
        }
    }

    /// Reports a problem. If the path is a section, all its keys become invalid.
    fn report(&mut self, node: &ConfigNode, path: &str, what: impl Into<String>) {
        // A problem with `uri_file` makes `uri` invalid: that is the key that rules ask for.
        let key_path = path.strip_suffix("_file").filter(|path| schema::key(path).is_some()).unwrap_or(path);
        let inside = |key: &&ConfigKey| {
            key.path.strip_prefix(key_path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.invalid.extend(KEYS.iter().filter(inside).map(|key| key.path));
        self.problems.push(ConfigProblem::at(node.origin.clone(), path, what));
    }
}

/// Parses a value, or returns what is wrong with it and what to write instead.
fn parse_value(key: &ConfigKey, node: &ConfigNode) -> Result<TypedValue, String> {
    match (key.kind, &node.value) {
        // An empty secret, as from an empty variable, has its own message below.
        (ValueKind::Secret { check }, NodeValue::Text(text)) if !text.trim().is_empty() => {
            let refused = |why| format!("{why}; write, for example, `{}`", key.example());
            check(text).map(|()| TypedValue::Text(text.clone())).map_err(refused)
        }
        (ValueKind::Secret { .. }, NodeValue::Text(_)) => {
            Err(format!("is empty; write, for example, `{}`", key.example()))
        }
        (ValueKind::Secret { .. }, _) => Err(format!("is not a string; write, for example, `{}`", key.example())),
        _ => parse_plain_value(key, node).map_err(|rule| format!("is {node}, but {rule}")),
    }
}

/// Parses a value that may be quoted in messages, or returns the rule that it breaks, with an example.
fn parse_plain_value(key: &ConfigKey, node: &ConfigNode) -> Result<TypedValue, String> {
    match (key.kind, &node.value) {
        (ValueKind::Text, NodeValue::Text(text)) if !text.trim().is_empty() => Ok(TypedValue::Text(text.clone())),
        // YAML reads `pipeline: 2024` as a number.
        (ValueKind::Text, NodeValue::Integer(number)) => Ok(TypedValue::Text(number.to_string())),
        (ValueKind::Text, _) => Err(format!("must be a string, such as `{}`", key.example())),
        (ValueKind::Flag, NodeValue::Flag(flag)) => Ok(TypedValue::Flag(*flag)),
        (ValueKind::Flag, _) => Err("must be `true` or `false`".to_owned()),
        (ValueKind::Count { least, most }, value) => {
            as_count(value).filter(|number| (least..=most).contains(number)).map(TypedValue::Count).ok_or_else(|| {
                if least == most {
                    format!("must be `{least}`")
                } else {
                    format!("must be a whole number from {least} to {most}, such as `{}`", key.example())
                }
            })
        }
        (ValueKind::Duration { least, most }, value) => {
            let duration = if let NodeValue::Text(text) = value { units::parse_duration(text) } else { None };
            duration.filter(|duration| (least..=most).contains(duration)).map(TypedValue::Duration).ok_or_else(|| {
                let unit = as_count(value).map_or_else(|| key.example().into_owned(), |number| format!("{number}s"));
                let (least, most) = (units::format_duration(least), units::format_duration(most));
                format!("must be a duration from {least} to {most}, such as `{unit}`")
            })
        }
        (ValueKind::Size { least, most }, value) => {
            let size = if let NodeValue::Text(text) = value { units::parse_size(text) } else { None };
            size.filter(|size| (least..=most).contains(size)).map(TypedValue::Size).ok_or_else(|| {
                format!(
                    "must be a size from {} to {}, such as `{}`",
                    units::format_size(least),
                    units::format_size(most),
                    key.example()
                )
            })
        }
        (ValueKind::Choice(words), NodeValue::Text(text)) if words.contains(&text.as_str()) => {
            Ok(TypedValue::Text(text.clone()))
        }
        (ValueKind::Choice(words), _) => Err(format!("must be `{}`", words.join("` or `"))),
        (ValueKind::Pattern { rule, example: shown, fits }, value) => {
            let text = match value {
                NodeValue::Text(text) => Some(text.clone()),
                // YAML reads `database: 2024` as a number.
                NodeValue::Integer(number) => Some(number.to_string()),
                _ => None,
            };
            let shown = if shown.is_empty() { key.example() } else { shown.into() };
            let refused = || format!("must be {rule}, such as `{shown}`");
            text.filter(|text| fits(text)).map(TypedValue::Text).ok_or_else(refused)
        }
        (ValueKind::Texts, NodeValue::List(nodes)) => {
            let texts = nodes
                .iter()
                .map(|node| if let NodeValue::Text(text) = &node.value { Some(text.clone()) } else { None });
            texts
                .collect::<Option<Vec<_>>>()
                .map(TypedValue::Texts)
                .ok_or_else(|| format!("must be a list of strings, such as `{}`", key.example()))
        }
        (ValueKind::Texts, _) => Err(format!("must be a list of strings, such as `{}`", key.example())),
        (ValueKind::Documents, NodeValue::List(nodes))
            if nodes.iter().all(|node| matches!(node.value, NodeValue::Map(_))) =>
        {
            Ok(TypedValue::Tree(node.clone()))
        }
        (ValueKind::NamedDocuments, NodeValue::Map(entries))
            if entries.iter().all(|entry| matches!(entry.node.value, NodeValue::List(_))) =>
        {
            Ok(TypedValue::Tree(node.clone()))
        }
        (ValueKind::NamedDocuments, _) => Err(
            "must be a map from event types to lists of stages, such as `{ OrderPlaced: [ { $set: { payload.currency: EUR } } ] }`"
                .to_owned(),
        ),
        (ValueKind::Secret { .. }, _) => unreachable!("is never shown"),
        (ValueKind::ReadModels, _) => unreachable!("read models are collected by read_wildcard"),
        (ValueKind::Documents, _) => {
            Err("must be a list of stages, such as `[ { $match: { fullDocument.region: eu } } ]`".to_owned())
        }
    }
}

fn as_count(value: &NodeValue) -> Option<u64> {
    match value {
        NodeValue::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Sorts problems: by their position in the file, then variables, then flags, then missing keys.
pub(super) fn sort_problems(mut problems: Vec<ConfigProblem>) -> Vec<ConfigProblem> {
    problems.sort_by_key(|problem| match &problem.origin {
        SettingOrigin::File { line, column } => (0, *line, *column),
        SettingOrigin::Environment(_) => (1, 0, 0),
        SettingOrigin::Flag => (2, 0, 0),
        SettingOrigin::Unset => (3, 0, 0),
    });
    // Two rules may report the same problem.
    problems.dedup();
    problems
}

/// The known name that is at most `max_distance` edits away, if any.
pub(super) fn most_similar<'k>(name: &str, known: &[&'k str], max_distance: usize) -> Option<&'k str> {
    let nearest = known.iter().map(|known| (edit_distance(name, known), *known)).min();
    nearest.filter(|(distance, _)| *distance <= max_distance).map(|(_, nearest)| nearest)
}

pub(super) fn unknown_key(intended: Option<&str>, known: &[&str]) -> String {
    match intended {
        Some(intended) => format!("is not a known key; did you mean `{intended}`?"),
        None => format!("is not a known key; known keys: `{}`", known.join("`, `")),
    }
}

/// The Levenshtein distance of two words.
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        // Only one row of the matrix is kept; `diagonal` is the cell that the row has just overwritten.
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, same) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(letter != *same);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

impl ResolvedSettings {
    pub(crate) fn get(&self, path: &str) -> Option<&ResolvedSetting> {
        debug_assert!(schema::key(path).is_some(), "`{path}` is in the table");
        self.set.get(path)
    }

    /// The file that a secret was read from.
    pub(crate) fn secret_file(&self, path: &str) -> Option<&str> {
        self.from_file.get(path).map(String::as_str)
    }

    pub(crate) fn secret_files(&self) -> impl Iterator<Item = &str> {
        self.from_file.values().map(String::as_str)
    }

    /// Whether all these keys are valid. Rules check this first.
    pub(crate) fn are_valid(&self, paths: &[&str]) -> bool {
        !paths.iter().any(|path| self.invalid.contains(path))
    }

    /// The first of these keys that the user has set.
    pub(crate) fn first_set<'p>(&self, paths: &[&'p str]) -> Option<&'p str> {
        paths.iter().copied().find(|path| self.origin(path) != SettingOrigin::Unset)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match &self.get(path)?.value {
            TypedValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a key that is required or has a default.
    pub(crate) fn required_text(&self, path: &str) -> &str {
        self.text(path).expect("the table gives it a value")
    }

    pub(crate) fn flag(&self, path: &str) -> bool {
        matches!(self.get(path).map(|setting| &setting.value), Some(TypedValue::Flag(true)))
    }

    pub(crate) fn duration(&self, path: &str) -> Option<Duration> {
        match self.get(path)?.value {
            TypedValue::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    pub(crate) fn number(&self, path: &str) -> u64 {
        match self.get(path).map(|setting| &setting.value) {
            Some(TypedValue::Count(number) | TypedValue::Size(number)) => *number,
            _ => unreachable!("the table gives `{path}` a number"),
        }
    }

    pub(crate) fn texts(&self, path: &str) -> Vec<String> {
        match self.get(path).map(|setting| &setting.value) {
            Some(TypedValue::Texts(texts)) => texts.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn tree(&self, path: &str) -> Option<&ConfigNode> {
        match &self.get(path)?.value {
            TypedValue::Tree(node) => Some(node),
            _ => None,
        }
    }

    /// Where a key was set, for problems that are found later.
    pub(crate) fn origin(&self, path: &str) -> SettingOrigin {
        self.get(path).map_or(SettingOrigin::Unset, |setting| setting.origin.clone())
    }
}
