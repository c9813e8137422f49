//! A read model as declared: checked, and turned into update statements.
//!
//! In MongoDB's own update language. A map is an update document whose `$$event` values are put in by us, literally; a list is an update
//! pipeline that gets the event as a constant, which the server never evaluates. Nothing of ours is put in the documents.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawBsonRef, RawDocumentBuf};
use serde::{Deserialize, Serialize};

use super::delivered::Delivered;
use super::path::EventPath;
use super::projection::{Event, Index, Projection, Refused, Statements};
use super::template::{Malformed, Node};
use crate::event::Operation;

/// What the configuration says of one read model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// Which document an event changes; by default the aggregate's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Bson>,
    /// By event type: an update document, a pipeline, or `delete`.
    #[serde(default)]
    pub when: Document,
    /// Copies a source of documents.
    #[serde(default)]
    pub mirror: bool,
    /// Only events of this collection, where the source has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Each with `keys`, and options as `createIndexes` has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Document>,
}

/// Something in a declaration that cannot be meant. `path` leads to it from the model's name on, for whoever knows file and line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read model `{model}`, `{}`: {problem}", path.join("."))]
pub struct Mistake {
    pub model: String,
    pub event_type: Option<String>,
    pub path: Vec<String>,
    pub problem: String,
}

/// Checked as far as it can be without a server.
pub struct Model {
    pub(super) name: Arc<str>,
    from: Option<String>,
    /// `None`: the aggregate.
    key: Option<Node>,
    pub(super) clauses: HashMap<String, Clause>,
    mirror: bool,
    indexes: Vec<Index>,
}

/// What an event type does.
pub(super) enum Clause {
    Update(Node),
    Pipeline(RawArrayBuf),
    Delete,
}

/// What we keep beside the read models.
const OURS: [&str; 2] = [super::CURSORS, super::PARKED_EVENTS];
const DELETE: &str = "delete";

impl Model {
    /// All that is wrong at once.
    pub fn compile(name: &str, declaration: &Declaration) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = Mistakes { model: name, found: vec![] };
        mistakes.name();
        mistakes.kind(declaration);
        let key = declaration.key.as_ref().and_then(|key| mistakes.key(key));
        let clauses = declaration.when.iter().filter_map(|(event, clause)| mistakes.clause(event, clause)).collect();
        let indexes = declaration.indexes.iter().enumerate();
        let indexes = indexes.filter_map(|(at, index)| mistakes.index(at, index)).collect();
        if !mistakes.found.is_empty() {
            return Err(mistakes.found);
        }
        Ok(Self {
            name: name.into(),
            from: declaration.from.clone(),
            key,
            clauses,
            mirror: declaration.mirror,
            indexes,
        })
    }

    fn clause(&self, event: &Delivered) -> Option<&Clause> {
        let named = event.event_type.as_deref().and_then(|name| self.clauses.get(name));
        // A snapshot finds what was inserted once.
        let found = || (event.operation == Operation::Snapshot).then(|| self.clauses.get("insert")).flatten();
        named.or_else(found)
    }

    fn is_from_here(&self, event: &Delivered) -> bool {
        self.from.as_ref().is_none_or(|from| *from == event.namespace.collection)
    }

    fn key_of<'e>(&self, event: &Event<'e>) -> Result<Cow<'e, Bson>, Refused> {
        let Some(node) = &self.key else { return Ok(Cow::Borrowed(event.delivered.aggregate.value())) };
        match node.render(event.document).map(Bson::try_from) {
            Some(Ok(Bson::Null)) | None => Err(Refused::because("the event has no value for the read model's key")),
            Some(Ok(key)) => Ok(Cow::Owned(key)),
            Some(Err(_)) => Err(Refused::because("the event's value for the read model's key is not BSON")),
        }
    }

    fn copy(&self, event: &Event<'_>, writes: &mut Statements) -> Result<(), Refused> {
        match event.operation {
            Operation::Insert | Operation::Update | Operation::Replace | Operation::Snapshot => {
                writes.put(&self.name, &event.key, event.document)?;
            }
            Operation::Delete => writes.remove(&self.name, &event.key)?,
        }
        Ok(())
    }
}

impl Projection for Model {
    fn name(&self) -> &str {
        &self.name
    }

    fn indexes(&self) -> Vec<Index> {
        self.indexes.clone()
    }

    fn handles(&self, event: &Delivered) -> bool {
        self.is_from_here(event) && (self.mirror || self.clause(event).is_some())
    }

    fn apply(&self, event: &Event<'_>, writes: &mut Statements) -> Result<(), Refused> {
        if !self.is_from_here(event) {
            return Ok(());
        }
        if self.mirror {
            return self.copy(event, writes);
        }
        let Some(clause) = self.clause(event) else { return Ok(()) };
        let key = self.key_of(event)?;
        match clause {
            Clause::Update(update) => {
                let values = |path: &EventPath| path.find(event.document);
                writes.upsert(&self.name, &key, |name, out| update.write(name, &values, out), None)?;
            }
            Clause::Pipeline(stages) => {
                let mut constants = RawDocumentBuf::new();
                constants.append(cstr!("event"), event.document);
                let stages = RawBsonRef::Array(stages);
                writes.upsert(&self.name, &key, |name, out| out.value(name, stages), Some(&constants))?;
            }
            Clause::Delete => writes.remove(&self.name, &key)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.name)
    }
}

/// What was found wrong so far.
struct Mistakes<'a> {
    model: &'a str,
    found: Vec<Mistake>,
}

impl Mistakes<'_> {
    fn add(&mut self, event_type: Option<&str>, path: &[&str], malformed: Malformed) {
        let path = path.iter().map(|part| (*part).to_owned()).chain(malformed.path).collect();
        let event_type = event_type.map(str::to_owned);
        self.found.push(Mistake { model: self.model.to_owned(), event_type, path, problem: malformed.problem });
    }

    fn name(&mut self) {
        let model = self.model;
        if model.is_empty() || model.contains(['$', '\0']) || model.starts_with("system.") {
            self.add(None, &[], Malformed::here("cannot be the name of a collection"));
        }
        if OURS.contains(&model) {
            self.add(None, &[], Malformed::here("is the name of a collection Headwater keeps for itself"));
        }
    }

    fn kind(&mut self, declaration: &Declaration) {
        match (declaration.mirror, declaration.when.is_empty()) {
            (true, false) => self.add(None, &["mirror"], Malformed::here("a mirror copies, and has no `when`")),
            (false, true) => {
                self.add(None, &["when"], Malformed::here("names no event type, so nothing would be written"))
            }
            (true, true) if declaration.key.is_some() => {
                self.add(None, &["key"], Malformed::here("a mirror keeps the keys of its source"));
            }
            (true, true) | (false, false) => {}
        }
    }

    fn key(&mut self, key: &Bson) -> Option<Node> {
        let compiled = Node::compile(key).and_then(|node| match node.speaks_of_the_event() {
            true => Ok(node),
            false => Err(Malformed::here("names no value of the event, such as `$$event.customerId`")),
        });
        compiled.map_err(|malformed| self.add(None, &["key"], malformed)).ok()
    }

    fn clause(&mut self, event: &str, clause: &Bson) -> Option<(String, Clause)> {
        let compiled = match clause {
            Bson::String(word) if word == DELETE => Ok(Clause::Delete),
            Bson::Document(update) => compile_update(update).map(Clause::Update),
            Bson::Array(stages) => compile_pipeline(stages).map(Clause::Pipeline),
            _ => Err(Malformed::here("must be a map (an update document), a list (a pipeline) or `delete`")),
        };
        let compiled = compiled.map_err(|malformed| self.add(Some(event), &["when", event], malformed));
        Some((event.to_owned(), compiled.ok()?))
    }

    fn index(&mut self, at: usize, index: &Document) -> Option<Index> {
        let mut options = index.clone();
        match options.remove("keys") {
            Some(Bson::Document(keys)) if !keys.is_empty() => {
                Some(Index { collection: self.model.to_owned(), keys, options })
            }
            Some(_) | None => {
                let problem = Malformed::here("an index needs `keys`, such as `{ customer: 1 }`");
                self.add(None, &["indexes", &at.to_string()], problem);
                None
            }
        }
    }
}

fn compile_update(update: &Document) -> Result<Node, Malformed> {
    if update.is_empty() {
        return Err(Malformed::here("has no operator, such as `$set`"));
    }
    for (operator, fields) in update {
        if !operator.starts_with('$') {
            let problem =
                "is not an operator; write `{ $set: { … } }`, or `[ { $replaceWith: … } ]` for the whole document";
            return Err(Malformed::here(problem).below(operator));
        }
        let Bson::Document(fields) = fields else {
            return Err(Malformed::here("must be a map from fields to values").below(operator));
        };
        if let Some(field) = fields.keys().find(|field| *field == "_id" || field.starts_with("_id.")) {
            return Err(Malformed::here("the key of a read model cannot be changed").below(field).below(operator));
        }
    }
    // Kept as a document even when all of it is literal: what is rendered is then always one.
    Node::compile(&Bson::Document(update.clone()))
}

fn compile_pipeline(stages: &[Bson]) -> Result<RawArrayBuf, Malformed> {
    if stages.is_empty() {
        return Err(Malformed::here("has no stage, such as `$set`"));
    }
    let mut raw = RawArrayBuf::new();
    for (at, stage) in stages.iter().enumerate() {
        let unwritable = || Malformed::here("cannot be written as BSON").below(&at.to_string());
        let Bson::Document(stage) = stage else {
            return Err(Malformed::here("a stage of a pipeline is a map").below(&at.to_string()));
        };
        raw.push(RawDocumentBuf::try_from(stage).map_err(|_| unwritable())?);
    }
    Ok(raw)
}
