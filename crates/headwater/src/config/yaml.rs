//! YAML to [`Node`]s. Strict: one document, no key twice, no tags; anchors and aliases work. What is against these rules is told and read
//! past, so that the mistakes behind it are told as well.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::node::{Entry, Node, Origin, Value};
use super::problem::Problem;

/// All that can be read, and what is wrong with it; `Err` for what is no YAML, behind which nothing is known.
pub(crate) fn read(text: &str) -> Result<(Node, Vec<Problem>), Problem> {
    let mut reader =
        Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), path: vec![], problems: vec![] };
    let mut root = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => break,
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing, _) => {}
            (_, span) if root.is_some() => {
                let what = "a second document begins here; one file holds one configuration";
                reader.problems.push(Problem::at(origin(&span.start), "", what));
                break;
            }
            (event, span) => root = Some(reader.node(event, span)?),
        }
    }
    let root = root.unwrap_or_else(|| Node::map(Origin::Nowhere));
    // An empty file, or one of comments alone, says nothing; that is not a mistake in itself.
    let root = if root.value == Value::Null { Node::map(root.origin) } else { root };
    Ok((root, reader.problems))
}

/// What has nothing wrong with it.
pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    let (node, problems) = read(text)?;
    problems.into_iter().next().map_or(Ok(node), Err)
}

struct Reader<'text> {
    parser: Parser<'text, StrInput<'text>>,
    anchors: HashMap<usize, Node>,
    /// To what is read just now.
    path: Vec<String>,
    problems: Vec<Problem>,
}

impl<'text> Reader<'text> {
    fn next(&mut self) -> Result<(Event<'text>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(Problem::at(origin(error.marker()), "", format!("not YAML: {}", error.info()))),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'text>, span: Span) -> Result<Node, Problem> {
        let at = origin(&span.start);
        if let Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) =
            event
        {
            self.wrong(at.clone(), "has a tag, and tags are not used here; write the value plainly");
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => (scalar(&text, style), anchor),
            Event::SequenceStart(anchor, _) => (Value::List(self.list()?), anchor),
            Event::MappingStart(anchor, _) => (Value::Map(self.map()?), anchor),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(known) => return Ok(known.clone()),
                None => {
                    self.wrong(at.clone(), "is an alias of what contains it; write the value out");
                    (Value::Null, 0)
                }
            },
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(Problem::at(at, "", "not YAML: a value was expected here")),
        };
        let node = Node { value, origin: at };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<Node>, Problem> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.below(nodes.len().to_string(), event, span)?),
            }
        }
    }

    fn map(&mut self) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let key_origin = origin(&span.start);
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                // Whatever a key looks like (`1`, `true`), it is a name.
                Event::Scalar(text, _, _, None) => text.into_owned(),
                other => {
                    self.wrong(key_origin, "has a key that is not a plain name; write, for example, `name: value`");
                    self.node(other, span)?;
                    let (event, span) = self.next()?;
                    self.node(event, span)?;
                    continue;
                }
            };
            let (event, span) = self.next()?;
            let node = self.below(key.clone(), event, span)?;
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let what = format!("is said before, {}; say it once", first.key_origin);
                let path = self.path.iter().chain([&key]).cloned().collect::<Vec<_>>().join(".");
                self.problems.push(Problem::at(key_origin.clone(), path, what));
            }
            entries.push(Entry { key, key_origin, node });
        }
    }

    fn below(&mut self, name: String, event: Event<'text>, span: Span) -> Result<Node, Problem> {
        self.path.push(name);
        let node = self.node(event, span);
        self.path.pop();
        node
    }

    fn wrong(&mut self, at: Origin, what: &str) {
        self.problems.push(Problem::at(at, self.path.join("."), what));
    }
}

fn origin(marker: &Marker) -> Origin {
    Origin::File { line: marker.line(), column: marker.col() + 1 }
}

/// YAML 1.2's core schema, without its octal and hexadecimal numbers.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Flag(true),
        "false" | "False" | "FALSE" => return Value::Flag(false),
        _ => {}
    }
    if let Ok(number) = text.parse() {
        return Value::Integer(number);
    }
    let numeric = text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    match text.parse::<f64>() {
        Ok(number) if numeric && number.is_finite() => Value::Float(number),
        _ => Value::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_knows_its_line() {
        let root = parse("# a comment\nsource:\n  database: shop\n  list: [1, 2.5, yes, ~]\n").unwrap();
        let source = root.get("source").unwrap();
        assert_eq!(source.get("database").unwrap().origin, Origin::File { line: 3, column: 13 });
        let Value::List(list) = &source.get("list").unwrap().value else { panic!("a list") };
        let values: Vec<_> = list.iter().map(|node| node.value.clone()).collect();
        assert_eq!(values, [Value::Integer(1), Value::Float(2.5), Value::Text("yes".into()), Value::Null]);
    }

    #[test]
    fn an_anchor_can_be_used_again() {
        let root = parse("a: &x { b: 1 }\nc: *x\n").unwrap();
        assert_eq!(root.get("c").unwrap().get("b").unwrap().value, Value::Integer(1));
    }

    #[test]
    fn what_is_not_yaml_is_refused_with_its_line() {
        for (text, line) in [("a: 1\nb: [\n", 3), ("a: 1\na: 2\n", 2), ("a: !!str 1\n", 1), ("a: 1\n---\nb: 2\n", 3)] {
            let problem = parse(text).unwrap_err();
            assert!(problem.to_string().starts_with(&format!("line {line}")), "{problem}");
        }
        let (root, problems) = read("a: !!str 1\nb: { c: 1, c: 2, ? [d] : 3, e: 4 }\n").unwrap();
        let told: Vec<_> = problems.iter().map(|problem| (problem.path.as_str(), &problem.origin)).collect();
        let at = |line, column| Origin::File { line, column };
        assert_eq!(told, [("a", &at(1, 4)), ("b.c", &at(2, 12)), ("b", &at(2, 20))], "{problems:#?}");
        assert!(root.get("b").unwrap().get("e").is_some(), "what is behind a mistake is read");
        assert!(parse("").unwrap().get("a").is_none());
        assert!(parse("# nothing\n").unwrap().get("a").is_none());
    }
}
