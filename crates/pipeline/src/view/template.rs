//! An update document with placeholders for event values.
//!
//! Values are inserted literally: text that starts with `$` stays text. A value missing in the event is left out with its field; inside
//! an array it becomes null, so that the other elements keep their index.

use mongodb::bson::raw::{CStr, CString, cstr};
use mongodb::bson::{Bson, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::bson_writer::BsonWriter;
use super::event_path::{EventPath, EventPathValue};

/// One value of the template.
#[derive(Clone, Debug)]
pub(super) enum TemplateNode {
    /// Contains no placeholder at any depth.
    Literal(RawBson),
    Event(EventPath),
    Document(Vec<(CString, TemplateNode)>),
    Array(Vec<TemplateNode>),
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
    pub(super) fn compile(value: &Bson) -> Result<Self, TemplateError> {
        match value {
            Bson::String(text) => Self::text(text),
            Bson::Document(document) => {
                let mut fields = Vec::with_capacity(document.len());
                for (name, value) in document {
                    let node = Self::compile(value).map_err(|error| error.under(name))?;
                    let name = CString::try_from(name.as_str());
                    fields.push((name.map_err(|_| TemplateError::new("has a field name with a zero byte"))?, node));
                }
                Ok(Self::Document(fields).fold_literals())
            }
            Bson::Array(values) => {
                let nodes = values.iter().enumerate();
                let nodes = nodes.map(|(at, value)| Self::compile(value).map_err(|error| error.under(&at.to_string())));
                Ok(Self::Array(nodes.collect::<Result<_, _>>()?).fold_literals())
            }
            other => literal(other),
        }
    }

    fn text(text: &str) -> Result<Self, TemplateError> {
        match EventPath::parse(text) {
            Some(Ok(path)) => Ok(Self::Event(path)),
            Some(Err(problem)) => Err(TemplateError::new(format!("`{text}` {problem}"))),
            None if text.starts_with("$$") => Err(TemplateError::new(format!(
                "`{text}` is no value of the event; other variables are known in a pipeline, which is a list"
            ))),
            None => literal(&Bson::from(text)),
        }
    }

    /// Folds a node without placeholders into one literal.
    fn fold_literals(self) -> Self {
        if self.uses_event() {
            return self;
        }
        let nothing = RawDocumentBuf::new();
        self.render(&nothing).map_or(self, Self::Literal)
    }

    pub(super) fn uses_event(&self) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Event(_) => true,
            Self::Document(fields) => fields.iter().any(|(_, node)| node.uses_event()),
            Self::Array(nodes) => nodes.iter().any(Self::uses_event),
        }
    }

    /// `None` if the event has no such value.
    pub(super) fn render(&self, event: &RawDocument) -> Option<RawBson> {
        self.fill(&|path| path.find(event))
    }

    /// Renders with the values that `value` returns.
    pub(super) fn fill<'a>(&self, value: ValueLookup<'_, 'a>) -> Option<RawBson> {
        const NAME: &CStr = cstr!("v");
        let document = BsonWriter::build(|out| self.write(NAME, value, out));
        document.get(NAME.as_str()).ok().flatten().map(Into::into)
    }

    /// Writes nothing for a missing value; in an array it writes null, to keep the index.
    pub(super) fn write<'a>(&self, name: &CStr, value: ValueLookup<'_, 'a>, out: &mut BsonWriter) {
        match self {
            Self::Literal(literal) => out.write_value(name, literal.as_raw_bson_ref()),
            Self::Event(path) => {
                if let Some(found) = value(path) {
                    out.write_value(name, found.as_ref());
                }
            }
            Self::Document(fields) => out.write_document(name, |out| {
                for (name, node) in fields {
                    node.write(name, value, out);
                }
            }),
            Self::Array(nodes) => out.write_array(name, |out| {
                for (at, node) in nodes.iter().enumerate() {
                    let (name, before) = (BsonWriter::index_name(at), out.len());
                    node.write(&name, value, out);
                    // Nothing was written: the value is missing.
                    if out.len() == before {
                        out.write_value(&name, RawBsonRef::Null);
                    }
                }
            }),
        }
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
    use mongodb::bson::{Document, doc};

    use super::*;

    fn rendered(template: Document, event: Document) -> Bson {
        let node = TemplateNode::compile(&template.into()).unwrap();
        let event = RawDocumentBuf::try_from(&event).unwrap();
        Bson::try_from(node.render(&event).unwrap()).unwrap()
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
