//! An update document with the event's values to be put in.
//!
//! Values are put in as they are: a text that begins with `$` stays a text. What the event does not have is left out, as if the
//! line that names it had not been written; inside an array it is null, so that the others keep their places.

use mongodb::bson::raw::{CStr, CString, cstr};
use mongodb::bson::{Bson, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::path::{EventPath, Found};
use super::writer::Writer;

/// One value of the declaration.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Holds nothing of the event, however deep.
    Literal(RawBson),
    Event(EventPath),
    Document(Vec<(CString, Node)>),
    Array(Vec<Node>),
}

/// What is wrong, and where below the value that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) path: Vec<String>,
    pub(super) problem: String,
}

impl Malformed {
    pub(super) fn here(problem: impl Into<String>) -> Self {
        Self { path: vec![], problem: problem.into() }
    }

    pub(super) fn below(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }
}

impl Node {
    pub(super) fn compile(value: &Bson) -> Result<Self, Malformed> {
        match value {
            Bson::String(text) => Self::text(text),
            Bson::Document(document) => {
                let mut fields = Vec::with_capacity(document.len());
                for (name, value) in document {
                    let node = Self::compile(value).map_err(|error| error.below(name))?;
                    let name = CString::try_from(name.as_str());
                    fields.push((name.map_err(|_| Malformed::here("has a field name with a zero byte"))?, node));
                }
                Ok(Self::Document(fields).folded())
            }
            Bson::Array(values) => {
                let nodes = values.iter().enumerate();
                let nodes = nodes.map(|(at, value)| Self::compile(value).map_err(|error| error.below(&at.to_string())));
                Ok(Self::Array(nodes.collect::<Result<_, _>>()?).folded())
            }
            other => literal(other),
        }
    }

    fn text(text: &str) -> Result<Self, Malformed> {
        match EventPath::parse(text) {
            Some(Ok(path)) => Ok(Self::Event(path)),
            Some(Err(problem)) => Err(Malformed::here(format!("`{text}` {problem}"))),
            None if text.starts_with("$$") => Err(Malformed::here(format!(
                "`{text}` is no value of the event; other variables are known in a pipeline, which is a list"
            ))),
            None => literal(&Bson::from(text)),
        }
    }

    /// Values that are all literal are one literal.
    fn folded(self) -> Self {
        if self.speaks_of_the_event() {
            return self;
        }
        let nothing = RawDocumentBuf::new();
        self.render(&nothing).map_or(self, Self::Literal)
    }

    pub(super) fn speaks_of_the_event(&self) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Event(_) => true,
            Self::Document(fields) => fields.iter().any(|(_, node)| node.speaks_of_the_event()),
            Self::Array(nodes) => nodes.iter().any(Self::speaks_of_the_event),
        }
    }

    /// `None` when it is a value the event does not have.
    pub(super) fn render(&self, event: &RawDocument) -> Option<RawBson> {
        self.fill(&|path| path.find(event))
    }

    /// With the values given by `value`.
    pub(super) fn fill<'a>(&self, value: Values<'_, 'a>) -> Option<RawBson> {
        const NAME: &CStr = cstr!("v");
        let document = Writer::whole(|out| self.write(NAME, value, out));
        document.get(NAME.as_str()).ok().flatten().map(Into::into)
    }

    /// Nothing is written for a value that is not there; in an array, where it has a place, it is null.
    pub(super) fn write<'a>(&self, name: &CStr, value: Values<'_, 'a>, out: &mut Writer) {
        match self {
            Self::Literal(literal) => out.value(name, literal.as_raw_bson_ref()),
            Self::Event(path) => {
                if let Some(found) = value(path) {
                    out.value(name, found.as_ref());
                }
            }
            Self::Document(fields) => out.document(name, |out| {
                for (name, node) in fields {
                    node.write(name, value, out);
                }
            }),
            Self::Array(nodes) => out.array(name, |out| {
                for (at, node) in nodes.iter().enumerate() {
                    let (name, before) = (Writer::index(at), out.len());
                    node.write(&name, value, out);
                    if out.len() == before {
                        out.value(&name, RawBsonRef::Null);
                    }
                }
            }),
        }
    }
}

/// The event's value at a path.
pub(super) type Values<'f, 'a> = &'f dyn Fn(&EventPath) -> Option<Found<'a>>;

fn literal(value: &Bson) -> Result<Node, Malformed> {
    let raw = RawBson::try_from(value.clone()).map_err(|_| Malformed::here("cannot be written as BSON"))?;
    Ok(Node::Literal(raw))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Document, doc};

    use super::*;

    fn rendered(template: Document, event: Document) -> Bson {
        let node = Node::compile(&template.into()).unwrap();
        let event = RawDocumentBuf::try_from(&event).unwrap();
        Bson::try_from(node.render(&event).unwrap()).unwrap()
    }

    #[test]
    fn values_are_put_in_as_they_are() {
        let template =
            doc! { "$set": { "a": "$$event.p.a", "b": "$5 off" }, "$push": { "l": { "x": ["$$event.p", 1] } } };
        let event = doc! { "p": { "a": "$total" } };
        let expected =
            doc! { "$set": { "a": "$total", "b": "$5 off" }, "$push": { "l": { "x": [{ "a": "$total" }, 1] } } };
        assert_eq!(rendered(template, event), expected.into());
    }

    #[test]
    fn what_the_event_lacks_is_left_out() {
        let template = doc! { "$set": { "a": "$$event.a", "b": 1 }, "$inc": { "n": "$$event.n" }, "$push": { "l": ["$$event.x", 2] } };
        let expected = doc! { "$set": { "b": 1 }, "$inc": {}, "$push": { "l": [null, 2] } };
        assert_eq!(rendered(template, doc! {}), expected.into());
        let null = rendered(doc! { "$set": { "a": "$$event.a" } }, doc! { "a": null });
        assert_eq!(null, doc! { "$set": { "a": null } }.into());
    }

    #[test]
    fn a_mistake_is_found_with_its_place() {
        let found = Node::compile(&doc! { "$set": { "at": ["$$NOW"] } }.into()).unwrap_err();
        assert_eq!(found.path, ["$set", "at", "0"]);
        let found = Node::compile(&doc! { "$set": { "at": "$$event.a." } }.into()).unwrap_err();
        assert_eq!(found.path, ["$set", "at"]);
    }
}
