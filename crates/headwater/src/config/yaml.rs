//! YAML to [`Node`]s. Strict: one document, no key twice, no tags; anchors and aliases work.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::node::{Entry, Node, Origin, Value};
use super::problem::Problem;

pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new() };
    let mut root = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => break,
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing, _) => {}
            (_, span) if root.is_some() => {
                return Err(Problem::at(
                    origin(&span.start),
                    "",
                    "a second document begins here; one file holds one configuration",
                ));
            }
            (event, span) => root = Some(reader.node(event, span)?),
        }
    }
    let root = root.unwrap_or_else(|| Node::map(Origin::Nowhere));
    // An empty file, or one of comments alone, says nothing; that is not a mistake in itself.
    Ok(if root.value == Value::Null { Node::map(root.origin) } else { root })
}

struct Reader<'text> {
    parser: Parser<'text, StrInput<'text>>,
    anchors: HashMap<usize, Node>,
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
        let (value, anchor) = match event {
            Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                return Err(Problem::at(at, "", "tags are not used here; write the value plainly"));
            }
            Event::Scalar(text, style, anchor, None) => (scalar(&text, style), anchor),
            Event::SequenceStart(anchor, None) => (Value::List(self.list()?), anchor),
            Event::MappingStart(anchor, None) => (Value::Map(self.map()?), anchor),
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                return known.ok_or_else(|| Problem::at(at, "", "this alias names an anchor that contains it"));
            }
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
                (event, span) => nodes.push(self.node(event, span)?),
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
                _ => return Err(Problem::at(key_origin, "", "a key must be a plain name")),
            };
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let problem = format!("said before, {}; say it once", first.key_origin);
                return Err(Problem::at(key_origin, key, problem));
            }
            let (event, span) = self.next()?;
            let node = self.node(event, span)?;
            entries.push(Entry { key, key_origin, node });
        }
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
        assert!(parse("").unwrap().get("a").is_none());
        assert!(parse("# nothing\n").unwrap().get("a").is_none());
    }
}
