//! One change to one read-model document: an encoded entry of an `update` or `delete` command.

use std::sync::Arc;

use mongodb::bson::raw::{CStr, cstr};
use mongodb::bson::{Bson, Document, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};

use super::bson_writer::BsonWriter;
use super::identity::Identity;
use super::value_position::starts_with_operator;

/// An entry of `updates` or `deletes`.
#[derive(Clone)]
pub(super) struct WriteStatement {
    pub(super) collection: Arc<str>,
    pub(super) kind: StatementKind,
    /// The document it changes; `None` if only the server knows.
    pub(super) document: Option<Identity>,
    pub(super) raw: RawDocumentBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementKind {
    Update,
    Delete,
    /// A whole document, which must not exist.
    Insert,
}

impl WriteStatement {
    /// The same change to a document of another collection.
    pub(super) fn retarget(mut self, collection: &Arc<str>) -> Self {
        self.collection = Arc::clone(collection);
        self
    }
}

impl AsRef<Self> for WriteStatement {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// The changes of one event, in order; executed in one transaction with the cursor of the aggregate.
#[derive(Default)]
pub struct Statements {
    pub(super) list: Vec<WriteStatement>,
}

/// A value that cannot be written as BSON: a field name with a zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value cannot be written as BSON")]
pub struct UnwritableValue;

impl Statements {
    /// Changes the document with this `_id` by update operators; creates it if missing. MongoDB reads all of `update`: under `$push`,
    /// `$addToSet` and `$pull` wrap a value of the event in `$each` or `$eq`, or a document in it acts as an operator.
    pub fn update(&mut self, collection: &str, id: impl Into<Bson>, update: Document) -> Result<(), UnwritableValue> {
        let update = RawDocumentBuf::try_from(&update).map_err(|_| UnwritableValue)?;
        self.upsert(
            &collection.into(),
            &id.into(),
            |name, out| out.write_value(name, RawBsonRef::Document(&update)),
            None,
        )
    }

    /// Changes it by an update pipeline. `constants` are its `$$name` variables and are never evaluated.
    pub fn update_by_pipeline(
        &mut self,
        collection: &str,
        id: impl Into<Bson>,
        stages: Vec<Document>,
        constants: Document,
    ) -> Result<(), UnwritableValue> {
        let stages = stages.into_iter().map(Bson::from).collect::<Vec<_>>();
        let stages = RawArrayBuf::try_from(stages).map_err(|_| UnwritableValue)?;
        let constants = RawDocumentBuf::try_from(&constants).map_err(|_| UnwritableValue)?;
        let write = |name: &CStr, out: &mut BsonWriter| out.write_value(name, RawBsonRef::Array(&stages));
        self.upsert(&collection.into(), &id.into(), write, Some(&constants))
    }

    /// Replaces the document with this `_id`; creates it if missing.
    pub fn replace(
        &mut self,
        collection: &str,
        id: impl Into<Bson>,
        document: &RawDocument,
    ) -> Result<(), UnwritableValue> {
        self.replace_raw(&collection.into(), &id.into(), document)
    }

    pub fn delete(&mut self, collection: &str, id: impl Into<Bson>) -> Result<(), UnwritableValue> {
        self.delete_raw(&collection.into(), &id.into())
    }

    /// `update` writes the update under the given name.
    pub(super) fn upsert(
        &mut self,
        collection: &Arc<str>,
        id: &Bson,
        update: impl FnOnce(&CStr, &mut BsonWriter),
        constants: Option<&RawDocument>,
    ) -> Result<(), UnwritableValue> {
        let mut written = Ok(());
        let raw = BsonWriter::build(|out| {
            out.write_document(cstr!("q"), |out| written = write_id(id, out));
            update(cstr!("u"), out);
            out.write_value(cstr!("upsert"), RawBsonRef::Boolean(true));
            if let Some(constants) = constants {
                out.write_value(cstr!("c"), RawBsonRef::Document(constants));
            }
        });
        written.map(|()| self.push(collection, StatementKind::Update, id, raw))
    }

    pub(super) fn replace_raw(
        &mut self,
        collection: &Arc<str>,
        id: &Bson,
        document: &RawDocument,
    ) -> Result<(), UnwritableValue> {
        // It would be parsed as update operators.
        if !starts_with_operator(document) {
            return self.upsert(
                collection,
                id,
                |name, out| out.write_value(name, RawBsonRef::Document(document)),
                None,
            );
        }
        let mut stage = RawDocumentBuf::new();
        stage.append(cstr!("$replaceWith"), "$$event");
        let mut stages = RawArrayBuf::new();
        stages.push(stage);
        let mut constants = RawDocumentBuf::new();
        constants.append(cstr!("event"), document);
        self.upsert(collection, id, |name, out| out.write_value(name, RawBsonRef::Array(&stages)), Some(&constants))
    }

    pub(super) fn delete_raw(&mut self, collection: &Arc<str>, id: &Bson) -> Result<(), UnwritableValue> {
        let mut written = Ok(());
        let raw = BsonWriter::build(|out| {
            out.write_document(cstr!("q"), |out| written = write_id(id, out));
            out.write_value(cstr!("limit"), RawBsonRef::Int32(1));
        });
        written.map(|()| self.push(collection, StatementKind::Delete, id, raw))
    }

    fn push(&mut self, collection: &Arc<str>, kind: StatementKind, id: &Bson, raw: RawDocumentBuf) {
        let document = Some(Identity::of(id));
        self.list.push(WriteStatement { collection: collection.clone(), kind, document, raw });
    }
}

/// A document id may contain operators, and a regular expression would match: both are compared with `$eq`.
fn write_id(id: &Bson, out: &mut BsonWriter) -> Result<(), UnwritableValue> {
    if !matches!(id, Bson::Document(_) | Bson::RegularExpression(_)) {
        return out.write_bson(cstr!("_id"), id);
    }
    out.write_document(cstr!("_id"), |out| out.write_bson(cstr!("$eq"), id))
}
