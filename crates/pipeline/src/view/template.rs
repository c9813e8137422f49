//! An update document with placeholders for event values.
//!
//! Values are inserted as data: text that starts with `$` stays text, and a document that MongoDB would read as an operator is wrapped
//! ([`ValuePosition`]). A value missing in the event is left out with its field; inside an array it becomes null, so that the other
//! elements keep their index.

use mongodb::bson::raw::{CStr, CString, cstr};
use mongodb::bson::{Bson, Document, RawBson, RawBsonRef, RawDocument};

use super::bson_writer::BsonWriter;
use super::event_path::{EventPath, EventPathValue};
use super::value_position::{UnusableValue, ValuePosition};

/// One value of the template.
#[derive(Clone, Debug)]
pub(super) enum TemplateNode {
    /// Contains no placeholder at any depth.
    Literal(RawBson),
    Event(EventPath, ValuePosition),
    Document(Vec<(CString, TemplateNode)>),
    Array(Vec<TemplateNode>),
    /// Left out unless the event has all of these values.
    Requiring(Vec<EventPath>, Box<TemplateNode>),
}

/// A problem, with its path inside the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateError {
    pub(super) path: Vec<String>,
    pub(super) problem: String,
}

impl TemplateError {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { path: vec![], problem: problem.into() }
    }

    pub(super) fn under(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }
}

impl TemplateNode {
    /// A value that is only stored.
    pub(super) fn compile(value: &Bson) -> Result<Self, TemplateError> {
        Self::compile_at(value, ValuePosition::Stored)
    }

    /// All event values in it, at any depth, stand at this position.
    pub(super) fn compile_at(value: &Bson, position: ValuePosition) -> Result<Self, TemplateError> {
        match value {
            Bson::String(text) => Self::compile_text(text, position),
            Bson::Document(document) => Self::compile_fields(document, |_, value| Self::compile_at(value, position)),
            Bson::Array(values) => Self::compile_elements(values, |value| Self::compile_at(value, position)),
            other => literal(other),
        }
    }

    pub(super) fn compile_fields(
        document: &Document,
        compile: impl Fn(&str, &Bson) -> Result<Self, TemplateError>,
    ) -> Result<Self, TemplateError> {
        let mut fields = Vec::with_capacity(document.len());
        for (name, value) in document {
            let node = compile(name, value).map_err(|error| error.under(name))?;
            let name = CString::try_from(name.as_str());
            fields.push((name.map_err(|_| TemplateError::new("has a field name with a zero byte"))?, node));
        }
        Ok(Self::Document(fields).fold_literals())
    }

    pub(super) fn compile_elements(
        values: &[Bson],
        compile: impl Fn(&Bson) -> Result<Self, TemplateError>,
    ) -> Result<Self, TemplateError> {
        let nodes = values.iter().enumerate();
        let nodes = nodes.map(|(at, value)| compile(value).map_err(|error| error.under(&at.to_string())));
        Ok(Self::Array(nodes.collect::<Result<_, _>>()?).fold_literals())
    }

    pub(super) fn compile_text(text: &str, position: ValuePosition) -> Result<Self, TemplateError> {
        match EventPath::parse(text) {
            Some(Ok(path)) => Ok(Self::Event(path, position)),
            Some(Err(problem)) => Err(TemplateError::new(format!("`{text}` {problem}"))),
            None if text.starts_with("$$") => Err(TemplateError::new(format!(
                "`{text}` is no value of the event; other variables are known in a pipeline, which is a list"
            ))),
            None => literal(&Bson::from(text)),
        }
    }

    /// Leaves the node out of an event that lacks one of these values.
    pub(super) fn requiring(self, paths: Vec<EventPath>) -> Self {
        if paths.is_empty() { self } else { Self::Requiring(paths, Box::new(self)) }
    }

    /// Leaves the node out of an event that lacks any value in it.
    pub(super) fn whole(self) -> Self {
        let mut paths = vec![];
        self.collect_paths(&mut paths);
        self.requiring(paths)
    }

    fn collect_paths(&self, paths: &mut Vec<EventPath>) {
        match self {
            Self::Literal(_) => {}
            Self::Event(path, _) => paths.push(path.clone()),
            Self::Document(fields) => fields.iter().for_each(|(_, node)| node.collect_paths(paths)),
            Self::Array(nodes) => nodes.iter().for_each(|node| node.collect_paths(paths)),
            Self::Requiring(_, node) => node.collect_paths(paths),
        }
    }

    /// The path, if the node is one event value.
    pub(super) fn as_event_path(&self) -> Option<&EventPath> {
        if let Self::Event(path, _) = self { Some(path) } else { None }
    }

    /// Folds a node without placeholders into one literal.
    fn fold_literals(self) -> Self {
        if self.uses_event() {
            return self;
        }
        match self.fill(&|_| None) {
            Ok(Some(folded)) => Self::Literal(folded),
            Ok(None) | Err(_) => self,
        }
    }

    pub(super) fn uses_event(&self) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Event(..) | Self::Requiring(..) => true,
            Self::Document(fields) => fields.iter().any(|(_, node)| node.uses_event()),
            Self::Array(nodes) => nodes.iter().any(Self::uses_event),
        }
    }

    /// `None` if the event has no such value.
    pub(super) fn render(&self, event: &RawDocument) -> Result<Option<RawBson>, UnusableValue> {
        self.fill(&|path| path.find(event))
    }

    /// Renders with the values that `value` returns.
    pub(super) fn fill<'a>(&self, value: ValueLookup<'_, 'a>) -> Result<Option<RawBson>, UnusableValue> {
        const NAME: &CStr = cstr!("v");
        let mut written = Ok(());
        let document = BsonWriter::build(|out| written = self.write(NAME, value, out));
        written.map(|()| document.get(NAME.as_str()).ok().flatten().map(Into::into))
    }

    /// Writes nothing for a missing value; in an array it writes null, to keep the index.
    pub(super) fn write<'a>(
        &self,
        name: &CStr,
        value: ValueLookup<'_, 'a>,
        out: &mut BsonWriter,
    ) -> Result<(), UnusableValue> {
        match self {
            Self::Literal(literal) => out.write_value(name, literal.as_raw_bson_ref()),
            Self::Event(path, position) => {
                if let Some(found) = value(path) {
                    position.write(name, found.as_ref(), out)?;
                }
            }
            Self::Document(fields) => {
                out.write_document(name, |out| fields.iter().try_for_each(|(name, node)| node.write(name, value, out)))?
            }
            Self::Array(nodes) => out.write_array(name, |out| {
                nodes.iter().enumerate().try_for_each(|(at, node)| node.write_element(at, value, out))
            })?,
            Self::Requiring(paths, node) => {
                if paths.iter().all(|path| value(path).is_some()) {
                    node.write(name, value, out)?;
                }
            }
        }
        Ok(())
    }

    fn write_element<'a>(
        &self,
        at: usize,
        value: ValueLookup<'_, 'a>,
        out: &mut BsonWriter,
    ) -> Result<(), UnusableValue> {
        let (name, before) = (BsonWriter::index_name(at), out.len());
        self.write(&name, value, out)?;
        // Nothing was written: the value is missing.
        if out.len() == before {
            out.write_value(&name, RawBsonRef::Null);
        }
        Ok(())
    }
}

/// The event's value at a path.
pub(super) type ValueLookup<'f, 'a> = &'f dyn Fn(&EventPath) -> Option<EventPathValue<'a>>;

fn literal(value: &Bson) -> Result<TemplateNode, TemplateError> {
    let raw = RawBson::try_from(value.clone()).map_err(|_| TemplateError::new("cannot be written as BSON"))?;
    Ok(TemplateNode::Literal(raw))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;

    fn rendered(template: Document, event: Document) -> Bson {
        let node = TemplateNode::compile(&template.into()).unwrap();
        let event = RawDocumentBuf::try_from(&event).unwrap();
        Bson::try_from(node.render(&event).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn event_values_are_inserted_literally() {
        let template =
            doc! { "$set": { "a": "$$event.p.a", "b": "$5 off" }, "$push": { "l": { "x": ["$$event.p", 1] } } };
        let event = doc! { "p": { "a": "$total" } };
        let expected =
            doc! { "$set": { "a": "$total", "b": "$5 off" }, "$push": { "l": { "x": [{ "a": "$total" }, 1] } } };
        assert_eq!(rendered(template, event), expected.into());
    }

    #[test]
    fn values_missing_in_the_event_are_left_out() {
        let template = doc! { "$set": { "a": "$$event.a", "b": 1 }, "$inc": { "n": "$$event.n" }, "$push": { "l": ["$$event.x", 2] } };
        let expected = doc! { "$set": { "b": 1 }, "$inc": {}, "$push": { "l": [null, 2] } };
        assert_eq!(rendered(template, doc! {}), expected.into());
        let null = rendered(doc! { "$set": { "a": "$$event.a" } }, doc! { "a": null });
        assert_eq!(null, doc! { "$set": { "a": null } }.into());
    }

    #[test]
    fn a_template_error_names_its_path() {
        let found = TemplateNode::compile(&doc! { "$set": { "at": ["$$NOW"] } }.into()).unwrap_err();
        assert_eq!(found.path, ["$set", "at", "0"]);
        let found = TemplateNode::compile(&doc! { "$set": { "at": "$$event.a." } }.into()).unwrap_err();
        assert_eq!(found.path, ["$set", "at"]);
    }
}
