//! A declared read model: checked and compiled into update statements.
//!
//! Uses MongoDB's update language. A map is an update document in which we replace `$$event` paths by values, as data; a list is an update
//! pipeline that gets the event as a constant, which the server never evaluates. Adds no fields of its own to the documents.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawBsonRef, RawDocumentBuf};
use serde::{Deserialize, Serialize};

use super::delivered_event::DeliveredEvent;
use super::event_path::EventPath;
use super::memory_update::{FoldedDocument, MemoryUpdate, NeedsServer};
use super::projection::{Index, Projection, ProjectionError, ProjectionEvent, Statements};
use super::template::{TemplateError, TemplateNode};
use super::upcast::{Upcast, UpcastDeclaration};
use super::update_operators::compile_operand;
use crate::erasure::ERASED;
use crate::event::Operation;

/// The configuration of one read model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadModelDeclaration {
    /// Which document an event changes; by default that of the aggregate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Bson>,
    /// By event type: an update document, a pipeline, or `delete`.
    #[serde(default)]
    pub when: Document,
    /// Copies the source documents.
    #[serde(default)]
    pub mirror: bool,
    /// Only events of this collection, if the source has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Each with `keys`, and options as in `createIndexes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Document>,
    /// Of the event types that it handles: the configuration adds them from `source.upcast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upcast: Option<UpcastDeclaration>,
}

/// A problem in a declaration. `path` leads to it from the model's name on, so that the configuration can add file and line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read model `{model}`, `{}`: {problem}", path.join("."))]
pub struct ModelProblem {
    pub model: String,
    pub event_type: Option<String>,
    pub path: Vec<String>,
    pub problem: String,
}

/// Checked as far as possible without a server.
pub struct ReadModel {
    pub(super) name: Arc<str>,
    /// Usually of the same name.
    collection: Arc<str>,
    from: Option<String>,
    /// `None`: the id of the aggregate.
    key: Option<TemplateNode>,
    pub(super) clauses: HashMap<String, EventClause>,
    mirror: bool,
    is_absolute: bool,
    indexes: Vec<Index>,
    pub(super) upcasts: HashMap<String, Arc<Upcast>>,
}

/// What an event type does.
pub(super) enum EventClause {
    /// And the same for documents in memory, if it can be folded there.
    Update(TemplateNode, Option<MemoryUpdate>),
    Pipeline(RawArrayBuf),
    Delete,
}

/// Our own collections in the same database.
const RESERVED_COLLECTIONS: [&str; 3] = [super::CURSORS, super::PARKED_EVENTS, ERASED];
const DELETE: &str = "delete";

impl ReadModel {
    /// Returns all problems at once.
    pub fn compile(name: &str, declaration: &ReadModelDeclaration) -> Result<Self, Vec<ModelProblem>> {
        let mut problems = ProblemList { model: name, found: vec![] };
        problems.check_name();
        problems.check_kind(declaration);
        let key = declaration.key.as_ref().and_then(|key| problems.compile_key(key));
        let clauses =
            declaration.when.iter().filter_map(|(event, clause)| problems.compile_clause(event, clause)).collect();
        let indexes = declaration.indexes.iter().enumerate();
        let indexes = indexes.filter_map(|(at, index)| problems.compile_index(at, index)).collect();
        let upcasts = declaration.upcast.as_ref().map_or_else(|| Ok(HashMap::new()), UpcastDeclaration::compile);
        let upcasts = upcasts.map_err(|problem| problems.add(None, &["upcast"], TemplateError::new(problem)));
        if !problems.found.is_empty() {
            return Err(problems.found);
        }
        Ok(Self {
            name: name.into(),
            collection: name.into(),
            from: declaration.from.clone(),
            key,
            clauses,
            mirror: declaration.mirror,
            is_absolute: declaration.when.values().all(is_absolute_clause),
            indexes,
            upcasts: upcasts.unwrap_or_default(),
        })
    }

    /// A version of the read model that writes another collection, and whose aggregates are parked under another name.
    #[must_use]
    pub fn with_version(mut self, name: &str, collection: &str) -> Self {
        (self.name, self.collection) = (name.into(), collection.into());
        for index in &mut self.indexes {
            index.collection = collection.to_owned();
        }
        self
    }

    /// The collection that it writes.
    pub fn collection(&self) -> &str {
        &self.collection
    }

    /// Whether a build may apply the documents of a source in place of the changes that led to them: no clause adds to what is there.
    pub fn is_buildable_from_documents(&self) -> bool {
        self.mirror || self.is_absolute
    }

    fn clause_for(&self, event: &DeliveredEvent) -> Option<&EventClause> {
        let named = event.event_type.as_deref().and_then(|name| self.clauses.get(name));
        // A snapshot event stands for the insert of its document.
        let found = || (event.operation == Operation::Snapshot).then(|| self.clauses.get("insert")).flatten();
        named.or_else(found)
    }

    fn is_from_own_collection(&self, event: &DeliveredEvent) -> bool {
        self.from.as_ref().is_none_or(|from| *from == event.namespace.collection)
    }

    fn document_id<'e>(&self, event: &ProjectionEvent<'e>) -> Result<Cow<'e, Bson>, ProjectionError> {
        let Some(node) = &self.key else { return Ok(Cow::Borrowed(event.delivered.aggregate.value())) };
        match node.render(event.document)?.map(Bson::try_from) {
            Some(Ok(Bson::Null)) | None => Err(ProjectionError::new("the event has no value for the read model's key")),
            Some(Ok(key)) => Ok(Cow::Owned(key)),
            Some(Err(_)) => Err(ProjectionError::new("the event's value for the read model's key is not BSON")),
        }
    }

    /// Whether every aggregate writes the document of its own id, and no other.
    pub(super) fn is_keyed_by_aggregate(&self) -> bool {
        self.key.is_none() && !self.mirror
    }

    /// Whether every clause can be applied to a document in memory.
    pub(super) fn folds_in_memory(&self) -> bool {
        let folds = |clause: &EventClause| matches!(clause, EventClause::Update(_, Some(_)) | EventClause::Delete);
        self.is_keyed_by_aggregate() && self.clauses.values().all(folds)
    }

    /// As above, or the document that it copies.
    pub(super) fn writes_own_document(&self) -> bool {
        self.key.is_none()
    }

    pub(super) fn shared_collection(&self) -> &Arc<str> {
        &self.collection
    }

    /// Applies an event to the document of its aggregate in memory. Only for models [keyed by the aggregate](Self::is_keyed_by_aggregate).
    pub(super) fn apply_in_memory(
        &self,
        event: &ProjectionEvent<'_>,
        folded: &mut FoldedDocument,
    ) -> Result<(), NeedsServer> {
        if !self.is_from_own_collection(event) {
            return Ok(());
        }
        match self.clause_for(event) {
            None => Ok(()),
            Some(EventClause::Update(_, Some(update))) => {
                update.apply(folded, event.delivered.aggregate.value(), event.document)
            }
            Some(EventClause::Update(_, None) | EventClause::Pipeline(_)) => Err(NeedsServer),
            Some(EventClause::Delete) => {
                folded.delete();
                Ok(())
            }
        }
    }

    fn copy(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError> {
        match event.operation {
            Operation::Insert | Operation::Update | Operation::Replace | Operation::Snapshot => {
                writes.replace_raw(&self.collection, &event.key, event.document)?;
            }
            Operation::Delete => writes.delete_raw(&self.collection, &event.key)?,
        }
        Ok(())
    }
}

impl Projection for ReadModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn collections(&self) -> Vec<String> {
        vec![self.collection.to_string()]
    }

    fn as_read_model(&self) -> Option<&ReadModel> {
        Some(self)
    }

    fn indexes(&self) -> Vec<Index> {
        self.indexes.clone()
    }

    fn handles(&self, event: &DeliveredEvent) -> bool {
        self.is_from_own_collection(event) && (self.mirror || self.clause_for(event).is_some())
    }

    fn upcast(&self, event: &DeliveredEvent) -> Option<&Arc<Upcast>> {
        if self.upcasts.is_empty() {
            return None;
        }
        self.upcasts.get(event.event_type.as_deref()?).filter(|_| self.handles(event))
    }

    fn apply(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError> {
        if !self.is_from_own_collection(event) {
            return Ok(());
        }
        if self.mirror {
            return self.copy(event, writes);
        }
        let Some(clause) = self.clause_for(event) else { return Ok(()) };
        let key = self.document_id(event)?;
        match clause {
            EventClause::Update(update, _) => {
                let values = |path: &EventPath| path.find(event.document);
                let mut written = Ok(());
                writes.upsert(&self.collection, &key, |name, out| written = update.write(name, &values, out), None)?;
                // An error discards the statement with all others of this event.
                written?;
            }
            EventClause::Pipeline(stages) => {
                let mut constants = RawDocumentBuf::new();
                // A constant is never evaluated, so event text that looks like an expression stays text.
                constants.append(cstr!("event"), event.document);
                let stages = RawBsonRef::Array(stages);
                writes.upsert(&self.collection, &key, |name, out| out.write_value(name, stages), Some(&constants))?;
            }
            EventClause::Delete => writes.delete_raw(&self.collection, &key)?,
        }
        Ok(())
    }
}

impl fmt::Debug for ReadModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.name)
    }
}

/// Problems found so far.
struct ProblemList<'a> {
    model: &'a str,
    found: Vec<ModelProblem>,
}

impl ProblemList<'_> {
    fn add(&mut self, event_type: Option<&str>, path: &[&str], error: TemplateError) {
        let path = path.iter().map(|part| (*part).to_owned()).chain(error.path).collect();
        let event_type = event_type.map(str::to_owned);
        self.found.push(ModelProblem { model: self.model.to_owned(), event_type, path, problem: error.problem });
    }

    fn check_name(&mut self) {
        let model = self.model;
        if model.is_empty() || model.contains(['$', '\0']) || model.starts_with("system.") {
            self.add(None, &[], TemplateError::new("cannot be the name of a collection"));
        }
        if RESERVED_COLLECTIONS.contains(&model) {
            self.add(None, &[], TemplateError::new("is the name of a collection that Headwater uses itself"));
        }
    }

    fn check_kind(&mut self, declaration: &ReadModelDeclaration) {
        match (declaration.mirror, declaration.when.is_empty()) {
            (true, false) => self.add(None, &["mirror"], TemplateError::new("a mirror copies, and has no `when`")),
            (false, true) => {
                self.add(None, &["when"], TemplateError::new("names no event type, so nothing would be written"))
            }
            (true, true) if declaration.key.is_some() => {
                self.add(None, &["key"], TemplateError::new("a mirror keeps the keys of its source"));
            }
            (true, true) | (false, false) => {}
        }
    }

    fn compile_key(&mut self, key: &Bson) -> Option<TemplateNode> {
        let compiled = TemplateNode::compile(key).and_then(|node| match node.uses_event() {
            true => Ok(node),
            false => Err(TemplateError::new("names no value of the event, such as `$$event.customerId`")),
        });
        compiled.map_err(|error| self.add(None, &["key"], error)).ok()
    }

    fn compile_clause(&mut self, event: &str, clause: &Bson) -> Option<(String, EventClause)> {
        let compiled = match clause {
            Bson::String(word) if word == DELETE => Ok(EventClause::Delete),
            Bson::Document(update) => compile_update(update).map(|update| {
                let in_memory = MemoryUpdate::compile(&update);
                EventClause::Update(update, in_memory)
            }),
            Bson::Array(stages) => compile_pipeline(stages).map(EventClause::Pipeline),
            _ => Err(TemplateError::new("must be a map (an update document), a list (a pipeline) or `delete`")),
        };
        let compiled = compiled.map_err(|error| self.add(Some(event), &["when", event], error));
        Some((event.to_owned(), compiled.ok()?))
    }

    fn compile_index(&mut self, at: usize, index: &Document) -> Option<Index> {
        let mut options = index.clone();
        match options.remove("keys") {
            Some(Bson::Document(keys)) if !keys.is_empty() => {
                Some(Index { collection: self.model.to_owned(), keys, options })
            }
            Some(_) | None => {
                let problem = TemplateError::new("an index needs `keys`, such as `{ customer: 1 }`");
                self.add(None, &["indexes", &at.to_string()], problem);
                None
            }
        }
    }
}

/// Whether its result does not depend on the document as it was. A pipeline may read it.
fn is_absolute_clause(clause: &Bson) -> bool {
    match clause {
        Bson::Document(update) => update.keys().all(|operator| matches!(operator.as_str(), "$set" | "$unset")),
        Bson::String(word) => word == DELETE,
        _ => false,
    }
}

fn compile_update(update: &Document) -> Result<TemplateNode, TemplateError> {
    if update.is_empty() {
        return Err(TemplateError::new("has no operator, such as `$set`"));
    }
    for (operator, fields) in update {
        if !operator.starts_with('$') {
            let problem =
                "is not an operator; write `{ $set: { … } }`, or `[ { $replaceWith: … } ]` for the whole document";
            return Err(TemplateError::new(problem).under(operator));
        }
        let Bson::Document(fields) = fields else {
            return Err(TemplateError::new("must be a map from fields to values").under(operator));
        };
        if let Some(field) = fields.keys().find(|field| *field == "_id" || field.starts_with("_id.")) {
            return Err(TemplateError::new("the key of a read model cannot be changed").under(field).under(operator));
        }
    }
    TemplateNode::compile_fields(update, |operator, fields| match fields {
        Bson::Document(fields) => TemplateNode::compile_fields(fields, |_, operand| compile_operand(operator, operand)),
        other => TemplateNode::compile(other),
    })
}

fn compile_pipeline(stages: &[Bson]) -> Result<RawArrayBuf, TemplateError> {
    if stages.is_empty() {
        return Err(TemplateError::new("has no stage, such as `$set`"));
    }
    let mut raw = RawArrayBuf::new();
    for (at, stage) in stages.iter().enumerate() {
        let unwritable = || TemplateError::new("cannot be written as BSON").under(&at.to_string());
        let Bson::Document(stage) = stage else {
            return Err(TemplateError::new("a stage of a pipeline is a map").under(&at.to_string()));
        };
        raw.push(RawDocumentBuf::try_from(stage).map_err(|_| unwritable())?);
    }
    Ok(raw)
}
