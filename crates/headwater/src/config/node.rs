//! The configuration as written: a tree in which every node knows where it was set.

use std::fmt;

use mongodb::bson::{Bson, Document};

/// One value, and where it was set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConfigNode {
    pub(crate) value: NodeValue,
    pub(crate) origin: SettingOrigin,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeValue {
    Null,
    Flag(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<ConfigNode>),
    /// In the order of the file. A key that is set twice is here twice, and is reported as a problem.
    Map(Vec<MapEntry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MapEntry {
    pub(crate) key: String,
    pub(crate) key_origin: SettingOrigin,
    pub(crate) node: ConfigNode,
}

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    /// In the file; line and column start at 1.
    File { line: usize, column: usize },
    /// In the environment variable of this name.
    Environment(String),
    /// By `--set`.
    Flag,
    /// Not set by the user: the default applies, or the key is missing.
    Unset,
}

impl SettingOrigin {
    /// Flags override the environment, and the environment overrides the file.
    pub(crate) fn strength(&self) -> u8 {
        match self {
            Self::Unset => 0,
            Self::File { .. } => 1,
            Self::Environment(_) => 2,
            Self::Flag => 3,
        }
    }
}

/// The type wrappers of Extended JSON. None of them is also an operator.
const EXTENDED: [&str; 13] = [
    "$oid",
    "$date",
    "$uuid",
    "$binary",
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$timestamp",
    "$regularExpression",
    "$code",
    "$minKey",
    "$maxKey",
];

impl ConfigNode {
    pub(crate) fn text(text: impl Into<String>, origin: SettingOrigin) -> Self {
        Self { value: NodeValue::Text(text.into()), origin }
    }

    pub(crate) fn map(origin: SettingOrigin) -> Self {
        Self { value: NodeValue::Map(Vec::new()), origin }
    }

    #[cfg(test)]
    pub(crate) fn get(&self, key: &str) -> Option<&ConfigNode> {
        match &self.value {
            NodeValue::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            _ => None,
        }
    }

    /// The entries of a map, in the order of the file; none for other values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &ConfigNode)> {
        let entries = if let NodeValue::Map(entries) = &self.value { entries.as_slice() } else { &[] };
        entries.iter().map(|entry| (entry.key.as_str(), &entry.node))
    }

    /// Replaces the value at this path, and records where the new value was set.
    pub(crate) fn set(&mut self, path: &[String], node: ConfigNode) {
        let Some((first, rest)) = path.split_first() else {
            *self = node;
            return;
        };
        if !matches!(self.value, NodeValue::Map(_)) {
            self.value = NodeValue::Map(Vec::new());
        }
        let NodeValue::Map(entries) = &mut self.value else { unreachable!("made a map just above") };
        // Creates missing sections on the way, as in `--set producer.window.events=100` without a file.
        let at = entries.iter().position(|entry| entry.key == *first).unwrap_or_else(|| {
            let origin = node.origin.clone();
            entries.push(MapEntry { key: first.clone(), key_origin: origin.clone(), node: Self::map(origin) });
            entries.len() - 1
        });
        entries[at].node.set(rest, node);
    }

    /// As BSON, with fields in the order of the file and Extended JSON types (`{ $oid: … }`) resolved. `None` if such a type is malformed.
    pub(crate) fn to_bson(&self) -> Option<Bson> {
        Some(match &self.value {
            NodeValue::Null => Bson::Null,
            NodeValue::Flag(flag) => Bson::Boolean(*flag),
            NodeValue::Integer(number) => i32::try_from(*number).map_or(Bson::Int64(*number), Bson::Int32),
            NodeValue::Float(number) => Bson::Double(*number),
            NodeValue::Text(text) => Bson::String(text.clone()),
            NodeValue::List(nodes) => Bson::Array(nodes.iter().map(Self::to_bson).collect::<Option<_>>()?),
            NodeValue::Map(entries) if entries.iter().any(|entry| EXTENDED.contains(&entry.key.as_str())) => {
                Bson::try_from(self.to_json()).ok()?
            }
            NodeValue::Map(entries) => {
                let fields = entries.iter().map(|entry| Some((entry.key.clone(), entry.node.to_bson()?)));
                Bson::Document(fields.collect::<Option<Document>>()?)
            }
        })
    }

    /// The deepest node on this path (list items by index), and the rest of the path.
    pub(crate) fn nearest<'a>(&self, path: &'a [String]) -> (&Self, &'a [String]) {
        let Some((first, rest)) = path.split_first() else { return (self, path) };
        let below = match &self.value {
            NodeValue::Map(entries) => entries.iter().find(|entry| entry.key == *first).map(|entry| &entry.node),
            NodeValue::List(nodes) => first.parse().ok().and_then(|at: usize| nodes.get(at)),
            _ => None,
        };
        below.map_or((self, path), |node| node.nearest(rest))
    }

    /// As Extended JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            NodeValue::Null => serde_json::Value::Null,
            NodeValue::Flag(flag) => (*flag).into(),
            NodeValue::Integer(number) => (*number).into(),
            NodeValue::Float(number) => (*number).into(),
            NodeValue::Text(text) => text.clone().into(),
            NodeValue::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            NodeValue::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }
}

/// Whether a text may be a secret. A user can put a secret under any key by mistake.
fn looks_secret(text: &str) -> bool {
    (text.contains("://") && text.contains('@')) || text.to_ascii_lowercase().contains("sharedaccess")
}

/// The value for a message: short, and never a possible secret.
impl fmt::Display for ConfigNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            NodeValue::Null => f.write_str("nothing"),
            NodeValue::Flag(flag) => write!(f, "`{flag}`"),
            NodeValue::Integer(number) => write!(f, "`{number}`"),
            NodeValue::Float(number) => write!(f, "`{number}`"),
            NodeValue::Text(text) if looks_secret(text) => f.write_str("a value that looks like a secret"),
            NodeValue::Text(text) if text.chars().count() > 60 => {
                write!(f, "`{}…`", text.chars().take(59).collect::<String>())
            }
            NodeValue::Text(text) => write!(f, "`{text}`"),
            NodeValue::List(_) => f.write_str("a list"),
            NodeValue::Map(_) => f.write_str("a map"),
        }
    }
}
