//! Checks declared read models against the server, so that it refuses nothing later.
//!
//! Explains each statement instead of running it: the server parses it and changes nothing. Tries operators one by one, so that a problem
//! has a path. The event values are unknown here: a statement passes if it is valid with a value of some type. Problems that depend on
//! data are for `headwater check --sample`.

use mongodb::Database;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, Document, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::error::Error;
use super::event_path::EventPathValue;
use super::read_model::{EventClause, ModelProblem, ReadModel};
use super::template::TemplateNode;
use crate::error_policy::{self, ErrorClass};

/// All problems of one model; an error only if the server could not be reached.
pub async fn validate(database: &Database, model: &ReadModel) -> Result<Vec<ModelProblem>, Error> {
    let check = ReadModelValidator { database, model };
    let mut problems = vec![];
    let mut clauses: Vec<_> = model.clauses.iter().collect();
    clauses.sort_by_key(|(event, _)| *event);
    for (event, clause) in clauses {
        match clause {
            EventClause::Update(update, _) => problems.extend(check.check_update(event, update).await?),
            EventClause::Pipeline(stages) => problems.extend(check.check_pipeline(event, stages).await?),
            EventClause::Delete => {}
        }
    }
    let mut upcasts: Vec<_> = model.upcasts.iter().collect();
    upcasts.sort_by_key(|(event, _)| *event);
    for (event, upcast) in upcasts {
        // Its stages are those of an update pipeline.
        for problem in check.check_pipeline(event, &upcast.raw_stages()).await? {
            problems.push(ModelProblem { path: vec!["upcast".to_owned(), event.clone()], ..problem });
        }
    }
    Ok(problems)
}

struct ReadModelValidator<'a> {
    database: &'a Database,
    model: &'a ReadModel,
}

/// A value of each type that an operator may need.
fn sample_values() -> [Option<RawBson>; 7] {
    [
        Some(RawBson::Int32(1)),
        Some(RawBson::Array(RawArrayBuf::new())),
        Some(RawBson::String("text".to_owned())),
        Some(RawBson::Document(RawDocumentBuf::new())),
        Some(RawBson::Boolean(true)),
        Some(RawBson::DateTime(DateTime::from_millis(0))),
        // Two values may need different types: then only the literal part can be checked.
        None,
    ]
}

impl ReadModelValidator<'_> {
    async fn check_update(&self, event: &str, update: &TemplateNode) -> Result<Vec<ModelProblem>, Error> {
        let (mut problems, mut accepted_update) = (vec![], Document::new());
        for (operator, fields) in operators_of(update) {
            let mut accepted = Document::new();
            for (field, node) in fields {
                match self.check_operator(&operator, &field, &node).await? {
                    Ok(Some(value)) => drop(accepted.insert(field, value)),
                    Ok(None) => {}
                    Err(problem) => problems.push(self.model_problem(event, &[&operator, &field], problem)),
                }
            }
            accepted_update.insert(operator, accepted);
        }
        if problems.is_empty()
            && let Some(problem) =
                self.explain(&Bson::Document(accepted_update).try_into().expect("it was BSON before")).await?
        {
            problems.push(self.model_problem(event, &[], problem));
        }
        Ok(problems)
    }

    /// The value with which the server accepts one operator on one field, or its first error.
    async fn check_operator(
        &self,
        operator: &str,
        field: &str,
        node: &TemplateNode,
    ) -> Result<Result<Option<Bson>, String>, Error> {
        let mut first_error = None;
        for sample in sample_values() {
            let filled = node.fill(&|_| sample.as_ref().map(|value| EventPathValue::Single(value.as_raw_bson_ref())));
            let value = match filled {
                Ok(value) => value.and_then(|value| Bson::try_from(value).ok()),
                Err(unusable) => {
                    first_error.get_or_insert(unusable.to_string());
                    continue;
                }
            };
            let fields = value.clone().map(|value| (field.to_owned(), value)).into_iter().collect::<Document>();
            let update: Document = [(operator.to_owned(), Bson::Document(fields))].into_iter().collect();
            let update = RawBson::try_from(Bson::Document(update)).expect("it was BSON before");
            match self.explain(&update).await? {
                None => return Ok(Ok(value)),
                Some(problem) => drop(first_error.get_or_insert(problem)),
            }
            if !node.uses_event() {
                break;
            }
        }
        Ok(Err(first_error.expect("there is at least one sample")))
    }

    async fn check_pipeline(&self, event: &str, stages: &RawArrayBuf) -> Result<Vec<ModelProblem>, Error> {
        let mut problems = vec![];
        for (at, stage) in stages.into_iter().flatten().enumerate() {
            let mut single_stage = RawArrayBuf::new();
            single_stage.push(stage);
            if let Some(problem) = self.explain(&RawBson::Array(single_stage)).await? {
                problems.push(self.model_problem(event, &[&at.to_string()], problem));
            }
        }
        Ok(problems)
    }

    /// The error of the server for an update.
    async fn explain(&self, update: &RawBson) -> Result<Option<String>, Error> {
        let reply = self.database.run_raw_command(explain_command(&self.model.name, update)).await;
        let Err(error) = reply else { return Ok(None) };
        match (error_policy::classify_mongo(&error), &*error.kind) {
            // The message quotes only the declaration.
            (ErrorClass::Permanent, mongodb::error::ErrorKind::Command(refused)) => {
                Ok(Some(format!("{} (error {})", refused.message, refused.code)))
            }
            _ => Err(Error::Store {
                action: "check read model",
                database: self.database.name().to_owned(),
                source: error.into(),
            }),
        }
    }

    fn model_problem(&self, event: &str, below: &[&str], problem: String) -> ModelProblem {
        let path = ["when", event].iter().chain(below).map(|part| (*part).to_owned()).collect();
        ModelProblem { model: self.model.name.to_string(), event_type: Some(event.to_owned()), path, problem }
    }
}

fn explain_command(collection: &str, update: &RawBson) -> RawDocumentBuf {
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

/// Operators with their fields, whether the update is literal or uses the event.
fn operators_of(update: &TemplateNode) -> Vec<(String, Vec<(String, TemplateNode)>)> {
    fields_of(update).into_iter().map(|(operator, node)| (operator, fields_of(&node))).collect()
}

fn fields_of(node: &TemplateNode) -> Vec<(String, TemplateNode)> {
    match node {
        TemplateNode::Document(fields) => fields.iter().map(|(name, node)| (name.to_string(), node.clone())).collect(),
        TemplateNode::Literal(RawBson::Document(document)) => literal_fields(document),
        TemplateNode::Literal(_) | TemplateNode::Event(..) | TemplateNode::Array(_) | TemplateNode::Requiring(..) => {
            vec![]
        }
    }
}

fn literal_fields(document: &RawDocument) -> Vec<(String, TemplateNode)> {
    let literal = |value: RawBsonRef<'_>| TemplateNode::Literal(value.into());
    document.into_iter().flatten().map(|(name, value)| (name.as_str().to_owned(), literal(value))).collect()
}
