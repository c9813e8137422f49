//! Declared read models, checked by the server that will run them: what it would refuse, before the first event.
//!
//! Each statement is explained, not run: the server reads it as it would to carry it out, and touches nothing. Operators are tried one
//! by one, so that a mistake has a place. An event's values are not known yet; a statement is accepted when it is fine with a value of
//! any type, and what depends on data is for `headwater check --sample`.

use mongodb::Database;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, Document, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::error::Error;
use super::model::{Clause, Mistake, Model};
use super::path::Found;
use super::template::Node;
use crate::retry::{self, ErrorClass};

/// All mistakes of one model; an error only when the server could not be asked.
pub async fn validate(database: &Database, model: &Model) -> Result<Vec<Mistake>, Error> {
    let check = Check { database, model };
    let mut mistakes = vec![];
    let mut clauses: Vec<_> = model.clauses.iter().collect();
    clauses.sort_by_key(|(event, _)| *event);
    for (event, clause) in clauses {
        match clause {
            Clause::Update(update) => mistakes.extend(check.update(event, update).await?),
            Clause::Pipeline(stages) => mistakes.extend(check.pipeline(event, stages).await?),
            Clause::Delete => {}
        }
    }
    Ok(mistakes)
}

struct Check<'a> {
    database: &'a Database,
    model: &'a Model,
}

/// A value of each type that an operator may want.
fn stand_ins() -> [Option<RawBson>; 7] {
    [
        None,
        Some(RawBson::Int32(1)),
        Some(RawBson::Array(RawArrayBuf::new())),
        Some(RawBson::String("text".to_owned())),
        Some(RawBson::Document(RawDocumentBuf::new())),
        Some(RawBson::Boolean(true)),
        Some(RawBson::DateTime(DateTime::from_millis(0))),
    ]
}

impl Check<'_> {
    async fn update(&self, event: &str, update: &Node) -> Result<Vec<Mistake>, Error> {
        let (mut mistakes, mut whole) = (vec![], Document::new());
        for (operator, fields) in operators(update) {
            let mut accepted = Document::new();
            for (field, node) in fields {
                match self.operator(&operator, &field, &node).await? {
                    Ok(Some(value)) => drop(accepted.insert(field, value)),
                    Ok(None) => {}
                    Err(problem) => mistakes.push(self.mistake(event, &[&operator, &field], problem)),
                }
            }
            whole.insert(operator, accepted);
        }
        if mistakes.is_empty()
            && let Some(problem) = self.explain(&Bson::Document(whole).try_into().expect("it was raw before")).await?
        {
            mistakes.push(self.mistake(event, &[], problem));
        }
        Ok(mistakes)
    }

    /// The value with which one operator on one field is accepted, or the server's first objection.
    async fn operator(&self, operator: &str, field: &str, node: &Node) -> Result<Result<Option<Bson>, String>, Error> {
        let mut objection = None;
        for stand_in in stand_ins() {
            let value = node.fill(&|_| stand_in.as_ref().map(|value| Found::There(value.as_raw_bson_ref())));
            let value = value.and_then(|value| Bson::try_from(value).ok());
            let fields = value.clone().map(|value| (field.to_owned(), value)).into_iter().collect::<Document>();
            let update: Document = [(operator.to_owned(), Bson::Document(fields))].into_iter().collect();
            let update = RawBson::try_from(Bson::Document(update)).expect("it was raw before");
            match self.explain(&update).await? {
                None => return Ok(Ok(value)),
                Some(problem) => drop(objection.get_or_insert(problem)),
            }
            if !node.speaks_of_the_event() {
                break;
            }
        }
        Ok(Err(objection.expect("there is a first stand-in")))
    }

    async fn pipeline(&self, event: &str, stages: &RawArrayBuf) -> Result<Vec<Mistake>, Error> {
        let mut mistakes = vec![];
        for (at, stage) in stages.into_iter().flatten().enumerate() {
            let mut alone = RawArrayBuf::new();
            alone.push(stage);
            if let Some(problem) = self.explain(&RawBson::Array(alone)).await? {
                mistakes.push(self.mistake(event, &[&at.to_string()], problem));
            }
        }
        Ok(mistakes)
    }

    /// The server's objection to an update.
    async fn explain(&self, update: &RawBson) -> Result<Option<String>, Error> {
        let answer = self.database.run_raw_command(explanation(&self.model.name, update)).await;
        let Err(error) = answer else { return Ok(None) };
        match (retry::classify_mongo(&error), &*error.kind) {
            // What it quotes is the declaration.
            (ErrorClass::Permanent, mongodb::error::ErrorKind::Command(refused)) => {
                Ok(Some(format!("{} (error {})", refused.message, refused.code)))
            }
            _ => Err(Error::Store {
                doing: "check a read model",
                database: self.database.name().to_owned(),
                source: error.into(),
            }),
        }
    }

    fn mistake(&self, event: &str, below: &[&str], problem: String) -> Mistake {
        let path = ["when", event].iter().chain(below).map(|part| (*part).to_owned()).collect();
        Mistake { model: self.model.name.to_string(), event_type: Some(event.to_owned()), path, problem }
    }
}

fn explanation(collection: &str, update: &RawBson) -> RawDocumentBuf {
    let mut filter = RawDocumentBuf::new();
    filter.append(cstr!("_id"), "headwater");
    let mut statement = RawDocumentBuf::new();
    statement.append(cstr!("q"), filter);
    statement.append(cstr!("u"), update);
    statement.append(cstr!("upsert"), true);
    if matches!(update, RawBson::Array(_)) {
        let mut constants = RawDocumentBuf::new();
        constants.append(cstr!("event"), RawDocumentBuf::new());
        statement.append(cstr!("c"), constants);
    }
    let mut statements = RawArrayBuf::new();
    statements.push(statement);
    let mut command = RawDocumentBuf::new();
    command.append(cstr!("update"), collection);
    command.append(cstr!("updates"), statements);
    let mut explain = RawDocumentBuf::new();
    explain.append(cstr!("explain"), command);
    explain.append(cstr!("verbosity"), "queryPlanner");
    explain
}

/// Operators with their fields, whether the update is a literal or speaks of the event.
fn operators(update: &Node) -> Vec<(String, Vec<(String, Node)>)> {
    fields(update).into_iter().map(|(operator, node)| (operator, fields(&node))).collect()
}

fn fields(node: &Node) -> Vec<(String, Node)> {
    match node {
        Node::Document(fields) => fields.iter().map(|(name, node)| (name.to_string(), node.clone())).collect(),
        Node::Literal(RawBson::Document(document)) => literal_fields(document),
        Node::Literal(_) | Node::Event(_) | Node::Array(_) => vec![],
    }
}

fn literal_fields(document: &RawDocument) -> Vec<(String, Node)> {
    let literal = |value: RawBsonRef<'_>| Node::Literal(value.into());
    document.into_iter().flatten().map(|(name, value)| (name.as_str().to_owned(), literal(value))).collect()
}
