//! Parses YAML into the tree that the JSON parser makes, so that one reader checks both formats and reports positions.
//!
//! One document, without tags, anchors and aliases: a list of entities needs none of them.

use jsonc_parser::ast::{
    Array, BooleanLit, NullKeyword, NumberLit, Object, ObjectProp, ObjectPropName, StringLit, Value,
};
use jsonc_parser::common::{Range, Ranged};
use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

/// Entities nest eight levels deep. Parsing recurses, so it must be bounded.
const MAX_DEPTH: usize = 32;

/// Why a text is not a YAML document that we read.
pub(super) struct YamlError {
    /// In bytes.
    pub(super) offset: usize,
    pub(super) message: String,
}

/// `None` if the document is empty.
pub(super) fn parse(text: &str) -> Result<Option<Value<'_>>, YamlError> {
    let offsets = text.char_indices().map(|(offset, _)| offset).chain([text.len()]).collect();
    let mut parser = YamlParser { text, parser: Parser::new_from_str(text), offsets, depth: 0 };
    let mut root = None;
    loop {
        match parser.next_event()? {
            (Event::StreamEnd, _) => return Ok(root.filter(|root| !matches!(root, Value::NullKeyword(_)))),
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing, _) => {}
            (_, at) if root.is_some() => return Err(error(at, "A second YAML document starts here")),
            (event, at) => root = Some(parser.value(event, at)?),
        }
    }
}

struct YamlParser<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    /// Byte offsets of all characters: the parser counts characters.
    offsets: Vec<usize>,
    depth: usize,
}

impl<'t> YamlParser<'t> {
    fn next_event(&mut self) -> Result<(Event<'t>, Range), YamlError> {
        match self.parser.next_event() {
            None => Ok((Event::StreamEnd, Range::from_byte_index(self.text.len()))),
            Some(Ok((event, span))) => Ok((event, self.range(span))),
            Some(Err(problem)) => Err(YamlError {
                offset: self.offset(problem.marker().index()),
                message: format!("Not YAML: {}", problem.info()),
            }),
        }
    }

    fn range(&self, span: Span) -> Range {
        Range::new(self.offset(span.start.index()), self.offset(span.end.index()))
    }

    fn offset(&self, character: usize) -> usize {
        self.offsets.get(character).copied().unwrap_or(self.text.len())
    }

    fn value(&mut self, event: Event<'t>, at: Range) -> Result<Value<'t>, YamlError> {
        if self.depth == MAX_DEPTH {
            return Err(error(at, &format!("Nests deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let value = match event {
            Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                Err(error(at, "Tags are not supported: write the value itself"))
            }
            Event::Alias(_) => Err(error(at, "Aliases are not supported: write the value itself")),
            Event::Scalar(text, ScalarStyle::Plain, _, _) => Ok(self.plain(&text, at)),
            Event::Scalar(value, _, _, _) => Ok(Value::StringLit(StringLit { range: at, value })),
            Event::SequenceStart(_, _) => self.array(at),
            Event::MappingStart(_, _) => self.object(at),
            _ => Err(error(at, "A value was expected here")),
        };
        self.depth -= 1;
        value
    }

    fn array(&mut self, start: Range) -> Result<Value<'t>, YamlError> {
        let mut elements = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, end) => {
                    return Ok(Value::Array(Array { range: Range::new(start.start, end.end), elements }));
                }
                (event, at) => elements.push(self.value(event, at)?),
            }
        }
    }

    fn object(&mut self, start: Range) -> Result<Value<'t>, YamlError> {
        let mut properties = Vec::new();
        loop {
            let (event, at) = self.next_event()?;
            let name = match event {
                Event::MappingEnd => {
                    return Ok(Value::Object(Object { range: Range::new(start.start, at.end), properties }));
                }
                Event::Scalar(value, _, _, None) => StringLit { range: at, value },
                _ => return Err(error(at, "A key must be a string")),
            };
            let (event, value_at) = self.next_event()?;
            let value = self.value(event, value_at)?;
            let range = Range::new(at.start, value.end());
            properties.push(ObjectProp { range, name: ObjectPropName::String(name), value });
        }
    }

    /// The core schema of YAML 1.2: what is neither null, a truth value nor a decimal number is a string.
    fn plain(&self, text: &str, range: Range) -> Value<'t> {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Value::NullKeyword(NullKeyword { range }),
            "true" | "True" | "TRUE" => Value::BooleanLit(BooleanLit { range, value: true }),
            "false" | "False" | "FALSE" => Value::BooleanLit(BooleanLit { range, value: false }),
            _ => match &self.text[range.start..range.end] {
                written if written == text && is_number(text) => Value::NumberLit(NumberLit { range, value: written }),
                _ => Value::StringLit(StringLit { range, value: text.to_owned().into() }),
            },
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.starts_with(|first: char| first.is_ascii_digit()) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

fn error(at: Range, message: &str) -> YamlError {
    YamlError { offset: at.start, message: message.to_owned() }
}
