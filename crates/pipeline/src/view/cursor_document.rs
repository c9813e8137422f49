//! The cursor as stored in MongoDB: its `_id`, its fields, and checked reading.

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::bson_writer::BsonWriter;
use super::cursor::{BuildProgress, Cursor};
use super::delivered_event::PositionKey;
use super::error::Error;
use super::identity::Identity;
use super::model_set::{FIRST_GENERATION, ModelSet};
use super::parked::{parked_entries_document, read_parked_entries};
use crate::event::{AggregateId, Epoch, Namespace};
use crate::stored::cursors::DELETED_FIELD;
pub(super) use crate::stored::cursors::{FENCED_FORMAT, FORMAT};

const CURSOR: &str = "cursor";

/// How the `_id` of a cursor is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CursorIdScheme {
    pub(super) pipeline: String,
    /// In a source of documents, one key in two collections is two aggregates.
    pub(super) by_collection: bool,
}

impl CursorIdScheme {
    /// `{pipeline, aggregate}`, or `{pipeline, collection, aggregate}`. Fields may be appended.
    pub(super) fn id(&self, namespace: &Namespace, aggregate: &AggregateId) -> RawDocumentBuf {
        let mut id = RawDocumentBuf::new();
        id.append(cstr!("pipeline"), self.pipeline.as_str());
        if let Some(scope) = self.scope(namespace) {
            id.append(cstr!("collection"), scope);
        }
        id.append(cstr!("aggregate"), RawBson::try_from(aggregate.value().clone()).unwrap_or(RawBson::Null));
        id
    }

    pub(super) fn identity(&self, namespace: &Namespace, aggregate: &AggregateId) -> Identity {
        Identity::of_aggregate(self.scope(namespace), aggregate)
    }

    fn scope<'a>(&self, namespace: &'a Namespace) -> Option<&'a str> {
        self.by_collection.then_some(namespace.collection.as_str())
    }
}

/// The cursor and its aggregate.
pub(super) fn read_cursor(document: &RawDocument) -> Result<(Identity, Cursor), Error> {
    let fields = StoredDocument { what: CURSOR, document };
    fields.check_format()?;
    let id = document.get_document("_id").map_err(|_| fields.unreadable("_id", "is not a document"))?;
    let aggregate = AggregateId::new(StoredDocument { what: CURSOR, document: id }.value("aggregate")?);
    let aggregate = aggregate.ok_or_else(|| fields.unreadable("_id", "names no aggregate"))?;
    let identity = Identity::of_aggregate(id.get_str("collection").ok(), &aggregate);
    let position = match (fields.optional_number("epoch")?, document.get_str("position")) {
        (Some(epoch), Ok(key)) => Some(PositionKey::new(Epoch::new(epoch.unsigned_abs()), key)),
        (_, _) => None,
    };
    let parked = match document.get_document("parked") {
        Ok(parked) => read_parked_entries(parked)?,
        Err(_) => Default::default(),
    };
    let event_id = Some(fields.value("eventId")?).filter(|id| *id != Bson::Null);
    let document_deleted = document.get_bool(DELETED_FIELD).unwrap_or(false);
    let (sequence, first_sequence) = (fields.optional_number("sequence")?, fields.optional_number("firstSequence")?);
    let generation = stored_generation(fields.optional_number("generation")?);
    let holds = stored_generation(fields.optional_number("holds")?);
    let build = read_build(document)?;
    let cursor =
        Cursor { position, sequence, first_sequence, event_id, parked, document_deleted, generation, holds, build };
    Ok((identity, cursor))
}

/// Cursors of the first generation have no such field.
fn stored_generation(field: Option<i64>) -> u64 {
    field.map_or(FIRST_GENERATION, i64::unsigned_abs)
}

fn read_build(document: &RawDocument) -> Result<Option<BuildProgress>, Error> {
    let Ok(build) = document.get_document("build") else { return Ok(None) };
    let fields = StoredDocument { what: CURSOR, document: build };
    let generation = fields.number("generation")?.unsigned_abs();
    Ok(Some(BuildProgress { generation, sequence: fields.number("sequence")? }))
}

/// The optional fields that a stored cursor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredCursorFields {
    parked: bool,
    document_deleted: bool,
    build: bool,
}

impl StoredCursorFields {
    /// Of a cursor as read.
    pub(super) fn of(cursor: &Cursor) -> Self {
        let build = cursor.build.is_some();
        Self { parked: !cursor.parked.is_empty(), document_deleted: cursor.document_deleted, build }
    }
}

/// A complete cursor, for an aggregate without one.
pub(super) fn cursor_document(id: &RawDocument, cursor: &Cursor, models: &ModelSet) -> RawDocumentBuf {
    BsonWriter::build(|out| {
        out.write_value(cstr!("_id"), RawBsonRef::Document(id));
        write_fields(cursor, models, out);
    })
}

/// An entry of an `update` command. `stored`: the optional fields it may find; the document may be missing if an [epoch
/// floor](super::epoch_floor) was used in its place. Fields of newer versions are kept.
pub(super) fn cursor_statement(
    id: &RawDocument,
    cursor: &Cursor,
    stored: StoredCursorFields,
    models: &ModelSet,
) -> RawDocumentBuf {
    let removed = StoredCursorFields {
        parked: stored.parked && cursor.parked.is_empty(),
        document_deleted: stored.document_deleted && !cursor.document_deleted,
        build: stored.build && cursor.build.is_none(),
    };
    BsonWriter::build(|out| {
        out.write_document(cstr!("q"), |out| out.write_value(cstr!("_id"), RawBsonRef::Document(id)));
        out.write_document(cstr!("u"), |out| {
            if removed.parked || removed.document_deleted || removed.build {
                out.write_document(cstr!("$unset"), |out| write_unset(removed, out));
            }
            out.write_document(cstr!("$set"), |out| write_fields(cursor, models, out));
        });
        // The cursor may be missing if the epoch floor stood in for it.
        out.write_value(cstr!("upsert"), RawBsonRef::Boolean(true));
    })
}

/// An entry of an `update` command: these cursors hold for the generation of a build. All must exist.
pub(super) fn built_cursors_statement(ids: &[RawDocumentBuf], generation: u64) -> RawDocumentBuf {
    let generation = RawBsonRef::Int64(to_i64(generation));
    BsonWriter::build(|out| {
        out.write_document(cstr!("q"), |out| {
            out.write_document(cstr!("_id"), |out| {
                out.write_array(cstr!("$in"), |out| {
                    for (at, id) in ids.iter().enumerate() {
                        out.write_value(&BsonWriter::index_name(at), RawBsonRef::Document(id));
                    }
                });
            });
        });
        out.write_document(cstr!("u"), |out| {
            out.write_document(cstr!("$unset"), |out| out.write_value(cstr!("build"), RawBsonRef::String("")));
            out.write_document(cstr!("$set"), |out| {
                out.write_value(cstr!("format"), RawBsonRef::Int64(FENCED_FORMAT));
                out.write_value(cstr!("generation"), generation);
                out.write_value(cstr!("holds"), generation);
            });
        });
        out.write_value(cstr!("multi"), RawBsonRef::Boolean(true));
    })
}

fn write_unset(removed: StoredCursorFields, out: &mut BsonWriter) {
    if removed.parked {
        out.write_value(cstr!("parked"), RawBsonRef::String(""));
    }
    if removed.document_deleted {
        out.write_value(cstr!("gone"), RawBsonRef::String(""));
    }
    if removed.build {
        out.write_value(cstr!("build"), RawBsonRef::String(""));
    }
}

fn write_fields(cursor: &Cursor, models: &ModelSet, out: &mut BsonWriter) {
    if let Some(position) = &cursor.position {
        out.write_value(cstr!("epoch"), RawBsonRef::Int64(to_i64(position.epoch.get())));
        out.write_value(cstr!("position"), RawBsonRef::String(&position.key));
    }
    if let Some(sequence) = cursor.sequence {
        out.write_value(cstr!("sequence"), RawBsonRef::Int64(sequence));
    }
    if let Some(first) = cursor.first_sequence {
        out.write_value(cstr!("firstSequence"), RawBsonRef::Int64(first));
    }
    let event_id = cursor.event_id.as_ref().unwrap_or(&Bson::Null);
    // Only compared for identity, so a value that BSON cannot hold may be null.
    if out.write_bson(cstr!("eventId"), event_id).is_err() {
        out.write_value(cstr!("eventId"), RawBsonRef::Null);
    }
    // Pods of versions without generations write the lower format, and the fence of later generations refuses it.
    let is_first = models.generation == FIRST_GENERATION;
    out.write_value(cstr!("format"), RawBsonRef::Int64(if is_first { FORMAT } else { FENCED_FORMAT }));
    if !is_first {
        out.write_value(cstr!("generation"), RawBsonRef::Int64(to_i64(models.generation)));
        out.write_value(cstr!("holds"), RawBsonRef::Int64(to_i64(cursor.holds)));
    }
    if let Some(BuildProgress { generation, sequence }) = cursor.build {
        out.write_document(cstr!("build"), |out| {
            out.write_value(cstr!("generation"), RawBsonRef::Int64(to_i64(generation)));
            out.write_value(cstr!("sequence"), RawBsonRef::Int64(sequence));
        });
    }
    if !cursor.parked.is_empty() {
        out.write_value(cstr!("parked"), RawBsonRef::Document(&parked_entries_document(&cursor.parked)));
    }
    if cursor.document_deleted {
        out.write_value(cstr!("gone"), RawBsonRef::Boolean(true));
    }
}

/// BSON has no unsigned 64-bit integer.
pub(super) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reads a document field by field. Errors name the field and never show its value.
#[derive(Clone, Copy)]
pub(super) struct StoredDocument<'a> {
    pub(super) what: &'static str,
    pub(super) document: &'a RawDocument,
}

impl<'a> StoredDocument<'a> {
    pub(super) fn check_format(&self) -> Result<(), Error> {
        match self.number("format")? {
            FORMAT..=FENCED_FORMAT => Ok(()),
            found => Err(Error::Format { what: self.what, found, known: FENCED_FORMAT }),
        }
    }

    fn get(&self, field: &'static str) -> Result<Option<RawBsonRef<'a>>, Error> {
        self.document.get(field).map_err(|_| self.unreadable(field, "is not BSON"))
    }

    pub(super) fn optional_number(&self, field: &'static str) -> Result<Option<i64>, Error> {
        match self.get(field)? {
            Some(RawBsonRef::Int64(number)) => Ok(Some(number)),
            Some(RawBsonRef::Int32(number)) => Ok(Some(i64::from(number))),
            None | Some(RawBsonRef::Null) => Ok(None),
            Some(_) => Err(self.unreadable(field, "is not a whole number")),
        }
    }

    pub(super) fn number(&self, field: &'static str) -> Result<i64, Error> {
        self.optional_number(field)?.ok_or_else(|| self.unreadable(field, "is missing"))
    }

    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, Error> {
        self.get(field)?.and_then(RawBsonRef::as_str).ok_or_else(|| self.unreadable(field, "is not a string"))
    }

    pub(super) fn date(&self, field: &'static str) -> Result<DateTime, Error> {
        self.get(field)?.and_then(RawBsonRef::as_datetime).ok_or_else(|| self.unreadable(field, "is not a date"))
    }

    pub(super) fn value(&self, field: &'static str) -> Result<Bson, Error> {
        let value = self.get(field)?.ok_or_else(|| self.unreadable(field, "is missing"))?;
        Bson::try_from(value).map_err(|_| self.unreadable(field, "is not BSON"))
    }

    pub(super) fn unreadable(&self, field: &'static str, problem: &'static str) -> Error {
        Error::Unreadable { what: self.what, field, problem }
    }
}
