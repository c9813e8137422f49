//! Parses YAML into [`ConfigNode`]s. Strict: one document, no duplicate keys, no tags; anchors and aliases work. After a violation it reads on, so
//! that all problems are reported together.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::node::{ConfigNode, MapEntry, NodeValue, SettingOrigin};
use super::problem::ConfigProblem;

/// The tree, and the problems found in it. `Err` if the text is not YAML: then nothing is known about its content.
pub(crate) fn read(text: &str) -> Result<(ConfigNode, Vec<ConfigProblem>), ConfigProblem> {
    let mut reader = YamlReader {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        path: vec![],
        problems: vec![],
        depth: 0,
        nodes: 0,
    };
    let mut root = None;
    loop {
        match reader.next_event()? {
            (Event::StreamEnd, _) => break,
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing, _) => {}
            (_, span) if root.is_some() => {
                let what = "a second YAML document starts here; a file holds one configuration";
                reader.problems.push(ConfigProblem::at(origin_of(&span.start), "", what));
                break;
            }
            (event, span) => root = Some(reader.read_node(event, span)?),
        }
    }
    let root = root.unwrap_or_else(|| ConfigNode::map(SettingOrigin::Unset));
    // A file that is empty, or has only comments, is an empty map and not a problem.
    let root = if root.value == NodeValue::Null { ConfigNode::map(root.origin) } else { root };
    Ok((root, reader.problems))
}

/// As [`read`], but any problem is an error.
pub(crate) fn parse(text: &str) -> Result<ConfigNode, ConfigProblem> {
    let (node, problems) = read(text)?;
    problems.into_iter().next().map_or(Ok(node), Err)
}

struct YamlReader<'text> {
    parser: Parser<'text, StrInput<'text>>,
    anchors: HashMap<usize, ConfigNode>,
    /// The path of the node that is being read.
    path: Vec<String>,
    problems: Vec<ConfigProblem>,
    /// Levels above the node that is being read.
    depth: usize,
    /// Nodes so far, with those that aliases repeat.
    nodes: usize,
}

/// MongoDB's own limit for documents. Reading recurses, so it must be bounded.
const MAX_DEPTH: usize = 100;
/// Far more than any configuration has; aliases of aliases can make billions out of a few lines.
const MAX_NODES: usize = 100_000;

impl<'text> YamlReader<'text> {
    fn next_event(&mut self) -> Result<(Event<'text>, Span), ConfigProblem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                Err(ConfigProblem::at(origin_of(error.marker()), "", format!("not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn read_node(&mut self, event: Event<'text>, span: Span) -> Result<ConfigNode, ConfigProblem> {
        let at = origin_of(&span.start);
        self.count_nodes(&at, NodeExtent { nodes: 1, levels: 1 })?;
        self.depth += 1;
        let node = self.read_counted_node(event, at);
        self.depth -= 1;
        node
    }

    /// Refuses the file before it grows too deep or too large.
    fn count_nodes(&mut self, at: &SettingOrigin, added: NodeExtent) -> Result<(), ConfigProblem> {
        self.nodes += added.nodes;
        let what = if self.depth + added.levels > MAX_DEPTH {
            format!("nests deeper than {MAX_DEPTH} levels")
        } else if self.nodes > MAX_NODES {
            format!("the file has more than {MAX_NODES} values, counting those that aliases repeat")
        } else {
            return Ok(());
        };
        Err(ConfigProblem::at(at.clone(), "", what))
    }

    fn read_counted_node(&mut self, event: Event<'text>, at: SettingOrigin) -> Result<ConfigNode, ConfigProblem> {
        if let Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) =
            event
        {
            self.report(at.clone(), "has a YAML tag, which is not supported; remove the tag");
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => (parse_scalar(&text, style), anchor),
            Event::SequenceStart(anchor, _) => (NodeValue::List(self.read_list()?), anchor),
            Event::MappingStart(anchor, _) => (NodeValue::Map(self.read_map()?), anchor),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(known) => {
                    let known = known.clone();
                    self.count_nodes(&at, NodeExtent::of(&known))?;
                    return Ok(known);
                }
                None => {
                    self.report(at.clone(), "is a YAML alias of a node that contains it; write the value itself");
                    (NodeValue::Null, 0)
                }
            },
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(ConfigProblem::at(at, "", "not YAML: a value was expected here")),
        };
        let node = ConfigNode { value, origin: at };
        // The parser numbers anchors from 1; 0 means that the node has none.
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn read_list(&mut self) -> Result<Vec<ConfigNode>, ConfigProblem> {
        let mut nodes = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.read_child(nodes.len().to_string(), event, span)?),
            }
        }
    }

    fn read_map(&mut self) -> Result<Vec<MapEntry>, ConfigProblem> {
        let mut entries: Vec<MapEntry> = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            let key_origin = origin_of(&span.start);
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                // A key is always a string, even if it looks like another type (`1`, `true`).
                Event::Scalar(text, _, _, None) => text.into_owned(),
                other => {
                    self.report(key_origin, "has a key that is not a string; write, for example, `name: value`");
                    self.read_node(other, span)?;
                    let (event, span) = self.next_event()?;
                    self.read_node(event, span)?;
                    continue;
                }
            };
            let (event, span) = self.next_event()?;
            let node = self.read_child(key.clone(), event, span)?;
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let what = format!("is already set at {}; set it once", first.key_origin);
                let path = self.path.iter().chain([&key]).cloned().collect::<Vec<_>>().join(".");
                self.problems.push(ConfigProblem::at(key_origin.clone(), path, what));
            }
            // A duplicate is kept as well: problems inside its value are reported in the same run.
            entries.push(MapEntry { key, key_origin, node });
        }
    }

    fn read_child(&mut self, name: String, event: Event<'text>, span: Span) -> Result<ConfigNode, ConfigProblem> {
        self.path.push(name);
        let node = self.read_node(event, span);
        self.path.pop();
        node
    }

    fn report(&mut self, at: SettingOrigin, what: &str) {
        self.problems.push(ConfigProblem::at(at, self.path.join("."), what));
    }
}

/// The size of a node with everything below it.
#[derive(Clone, Copy)]
struct NodeExtent {
    nodes: usize,
    levels: usize,
}

impl NodeExtent {
    fn of(node: &ConfigNode) -> Self {
        let children: Vec<Self> = match &node.value {
            NodeValue::List(nodes) => nodes.iter().map(Self::of).collect(),
            NodeValue::Map(entries) => entries.iter().map(|entry| Self::of(&entry.node)).collect(),
            _ => vec![],
        };
        Self {
            nodes: 1 + children.iter().map(|child| child.nodes).sum::<usize>(),
            levels: 1 + children.iter().map(|child| child.levels).max().unwrap_or(0),
        }
    }
}

fn origin_of(marker: &Marker) -> SettingOrigin {
    SettingOrigin::File { line: marker.line(), column: marker.col() + 1 }
}

/// The core schema of YAML 1.2, without octal and hexadecimal numbers.
fn parse_scalar(text: &str, style: ScalarStyle) -> NodeValue {
    if style != ScalarStyle::Plain {
        return NodeValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return NodeValue::Null,
        "true" | "True" | "TRUE" => return NodeValue::Flag(true),
        "false" | "False" | "FALSE" => return NodeValue::Flag(false),
        _ => {}
    }
    if let Ok(number) = text.parse() {
        return NodeValue::Integer(number);
    }
    let numeric = text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    match text.parse::<f64>() {
        Ok(number) if numeric && number.is_finite() => NodeValue::Float(number),
        _ => NodeValue::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_its_line() {
        let root = parse("# a comment\nsource:\n  database: shop\n  list: [1, 2.5, yes, ~]\n").unwrap();
        let source = root.get("source").unwrap();
        assert_eq!(source.get("database").unwrap().origin, SettingOrigin::File { line: 3, column: 13 });
        let NodeValue::List(list) = &source.get("list").unwrap().value else { panic!("a list") };
        let values: Vec<_> = list.iter().map(|node| node.value.clone()).collect();
        assert_eq!(
            values,
            [NodeValue::Integer(1), NodeValue::Float(2.5), NodeValue::Text("yes".into()), NodeValue::Null]
        );
    }

    #[test]
    fn anchors_can_be_reused() {
        let root = parse("a: &x { b: 1 }\nc: *x\n").unwrap();
        assert_eq!(root.get("c").unwrap().get("b").unwrap().value, NodeValue::Integer(1));
    }

    #[test]
    fn depth_and_size_are_limited_also_by_aliases() {
        let levels = |count: usize| (0..count).map(|at| format!("{}a:\n", " ".repeat(at))).collect::<String>();
        assert!(parse(&levels(90)).is_ok());
        assert!(parse(&levels(5_000)).unwrap_err().to_string().contains("deeper than 100 levels"));
        let nested = |anchor: usize, inner: String| {
            format!("a{anchor}: &a{anchor} {}{inner}{}\n", "[".repeat(60), "]".repeat(60))
        };
        let chain: String =
            (0..2).map(|at| nested(at, if at == 0 { "1".into() } else { format!("*a{}", at - 1) })).collect();
        assert!(parse(&chain).unwrap_err().to_string().contains("deeper than 100 levels"));
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            laughs += &format!("a{level}: &a{level} [{}]\n", [format!("*a{}", level - 1).as_str(); 9].join(", "));
        }
        assert!(parse(&laughs).unwrap_err().to_string().contains("more than 100000 values"));
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_line() {
        for (text, line) in [("a: 1\nb: [\n", 3), ("a: 1\na: 2\n", 2), ("a: !!str 1\n", 1), ("a: 1\n---\nb: 2\n", 3)] {
            let problem = parse(text).unwrap_err();
            assert!(problem.to_string().starts_with(&format!("line {line}")), "{problem}");
        }
        let (root, problems) = read("a: !!str 1\nb: { c: 1, c: 2, ? [d] : 3, e: 4 }\n").unwrap();
        let text: Vec<_> = problems.iter().map(|problem| (problem.path.as_str(), &problem.origin)).collect();
        let at = |line, column| SettingOrigin::File { line, column };
        assert_eq!(text, [("a", &at(1, 4)), ("b.c", &at(2, 12)), ("b", &at(2, 20))], "{problems:#?}");
        assert!(root.get("b").unwrap().get("e").is_some(), "what is behind a mistake is read");
        assert!(parse("").unwrap().get("a").is_none());
        assert!(parse("# nothing\n").unwrap().get("a").is_none());
    }
}
