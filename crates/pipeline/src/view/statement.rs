//! One change of one read model: an entry of an `update` or `delete` command, ready for the wire.

use std::sync::Arc;

use mongodb::bson::raw::{CStr, cstr};
use mongodb::bson::{Bson, Document, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};

use super::identity::Identity;
use super::writer::Writer;

/// An entry of `updates`, or of `deletes`.
#[derive(Clone)]
pub(super) struct Statement {
    pub(super) collection: Arc<str>,
    pub(super) kind: Kind,
    /// Which document; `None` when only the server can tell.
    pub(super) document: Option<Identity>,
    pub(super) raw: RawDocumentBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Update,
    Delete,
}

/// What an event changes: written down here, and carried out in one transaction with the aggregate's cursor. In the order written.
#[derive(Default)]
pub struct Statements {
    pub(super) written: Vec<Statement>,
}

/// A value that cannot be written as BSON: a field name with a zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value cannot be written as BSON")]
pub struct Unwritable;

impl Statements {
    /// Changes the document with this `_id` by update operators; makes it when it is not there.
    pub fn update(&mut self, collection: &str, id: impl Into<Bson>, update: Document) -> Result<(), Unwritable> {
        let update = RawDocumentBuf::try_from(&update).map_err(|_| Unwritable)?;
        self.upsert(&collection.into(), &id.into(), |name, out| out.value(name, RawBsonRef::Document(&update)), None)
    }

    /// Changes it by an update pipeline. `constants` are its variables, `$$name`, and are never evaluated.
    pub fn update_by_pipeline(
        &mut self,
        collection: &str,
        id: impl Into<Bson>,
        stages: Vec<Document>,
        constants: Document,
    ) -> Result<(), Unwritable> {
        let stages = stages.into_iter().map(Bson::from).collect::<Vec<_>>();
        let stages = RawArrayBuf::try_from(stages).map_err(|_| Unwritable)?;
        let constants = RawDocumentBuf::try_from(&constants).map_err(|_| Unwritable)?;
        let write = |name: &CStr, out: &mut Writer| out.value(name, RawBsonRef::Array(&stages));
        self.upsert(&collection.into(), &id.into(), write, Some(&constants))
    }

    /// Puts this document in the place of the one with this `_id`; makes it when it is not there.
    pub fn replace(&mut self, collection: &str, id: impl Into<Bson>, document: &RawDocument) -> Result<(), Unwritable> {
        self.put(&collection.into(), &id.into(), document)
    }

    pub fn delete(&mut self, collection: &str, id: impl Into<Bson>) -> Result<(), Unwritable> {
        self.remove(&collection.into(), &id.into())
    }

    /// `update` writes the update under the name it is given.
    pub(super) fn upsert(
        &mut self,
        collection: &Arc<str>,
        id: &Bson,
        update: impl FnOnce(&CStr, &mut Writer),
        constants: Option<&RawDocument>,
    ) -> Result<(), Unwritable> {
        let mut written = Ok(());
        let raw = Writer::whole(|out| {
            out.document(cstr!("q"), |out| written = write_id(id, out));
            update(cstr!("u"), out);
            out.value(cstr!("upsert"), RawBsonRef::Boolean(true));
            if let Some(constants) = constants {
                out.value(cstr!("c"), RawBsonRef::Document(constants));
            }
        });
        written.map(|()| self.push(collection, Kind::Update, id, raw))
    }

    pub(super) fn put(&mut self, collection: &Arc<str>, id: &Bson, document: &RawDocument) -> Result<(), Unwritable> {
        let first = document.iter_elements().next();
        let looks_like_operators = matches!(first, Some(Ok(element)) if element.key().as_str().starts_with('$'));
        if !looks_like_operators {
            return self.upsert(collection, id, |name, out| out.value(name, RawBsonRef::Document(document)), None);
        }
        let mut stage = RawDocumentBuf::new();
        stage.append(cstr!("$replaceWith"), "$$event");
        let mut stages = RawArrayBuf::new();
        stages.push(stage);
        let mut constants = RawDocumentBuf::new();
        constants.append(cstr!("event"), document);
        self.upsert(collection, id, |name, out| out.value(name, RawBsonRef::Array(&stages)), Some(&constants))
    }

    pub(super) fn remove(&mut self, collection: &Arc<str>, id: &Bson) -> Result<(), Unwritable> {
        let mut written = Ok(());
        let raw = Writer::whole(|out| {
            out.document(cstr!("q"), |out| written = write_id(id, out));
            out.value(cstr!("limit"), RawBsonRef::Int32(1));
        });
        written.map(|()| self.push(collection, Kind::Delete, id, raw))
    }

    fn push(&mut self, collection: &Arc<str>, kind: Kind, id: &Bson, raw: RawDocumentBuf) {
        let document = Some(Identity::of(id));
        self.written.push(Statement { collection: collection.clone(), kind, document, raw });
    }
}

/// A document as an id may hold operators, and a regular expression would match; those are compared as what they are.
fn write_id(id: &Bson, out: &mut Writer) -> Result<(), Unwritable> {
    if !matches!(id, Bson::Document(_) | Bson::RegularExpression(_)) {
        return out.bson(cstr!("_id"), id);
    }
    let mut written = Ok(());
    out.document(cstr!("_id"), |out| written = out.bson(cstr!("$eq"), id));
    written
}
