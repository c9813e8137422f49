//! Compiles the operands of update operators: which operator reads what, and so at which [`ValuePosition`] an event value stands.
//!
//! A template names fields and operators itself; an event only supplies values. Where an operator has no place for a plain value, such as
//! the new name under `$rename`, the declaration is refused.

use mongodb::bson::{Bson, Document};

use super::template::{TemplateError, TemplateNode};
use super::value_position::ValuePosition;

/// The operand of one operator for one field.
pub(super) fn compile_operand(operator: &str, operand: &Bson) -> Result<TemplateNode, TemplateError> {
    match operator {
        "$set" | "$setOnInsert" | "$unset" | "$min" | "$max" | "$inc" | "$mul" | "$pop" | "$pullAll" => {
            TemplateNode::compile(operand)
        }
        "$push" | "$addToSet" => compile_list_operand(operand),
        "$pull" => compile_pull(operand),
        "$bit" => match operand {
            Bson::Document(_) => TemplateNode::compile(operand).map(TemplateNode::whole),
            _ => compile_without_event(operand),
        },
        // `$rename` and `$currentDate`; MongoDB itself refuses unknown operators.
        _ => compile_without_event(operand),
    }
}

fn compile_list_operand(operand: &Bson) -> Result<TemplateNode, TemplateError> {
    match operand {
        Bson::Document(modifiers) if modifiers.contains_key(EACH) => compile_modifiers(modifiers),
        Bson::String(text) => TemplateNode::compile_text(text, ValuePosition::ListOperand),
        other => TemplateNode::compile(other),
    }
}

const EACH: &str = "$each";

fn compile_modifiers(modifiers: &Document) -> Result<TemplateNode, TemplateError> {
    let node = TemplateNode::compile_fields(modifiers, |name, value| match value {
        Bson::String(text) if name != EACH => TemplateNode::compile_text(text, ValuePosition::Number),
        other => TemplateNode::compile(other),
    })?;
    // Without `$each` MongoDB would store the other modifiers as a document.
    let each = modifiers.get(EACH).map(TemplateNode::compile).transpose()?;
    let needs = each.as_ref().and_then(TemplateNode::as_event_path).cloned();
    Ok(node.requiring(needs.into_iter().collect()))
}

/// A condition without one of its values would match more elements, so it is written whole or not at all.
fn compile_pull(operand: &Bson) -> Result<TemplateNode, TemplateError> {
    let node = match operand {
        Bson::Document(condition) => compile_condition(condition),
        Bson::String(text) => TemplateNode::compile_text(text, ValuePosition::ListCondition),
        other => TemplateNode::compile(other),
    };
    node.map(TemplateNode::whole)
}

/// Operators and fields of a query. MongoDB checks which of them may stand together.
fn compile_condition(condition: &Document) -> Result<TemplateNode, TemplateError> {
    TemplateNode::compile_fields(condition, |name, value| match (name, value) {
        ("$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte" | "$size" | "$mod", _) => TemplateNode::compile(value),
        ("$in" | "$nin" | "$all", _) => compile_candidates(value),
        ("$and" | "$or" | "$nor", Bson::Array(conditions)) => {
            TemplateNode::compile_elements(conditions, compile_nested_condition)
        }
        ("$not" | "$elemMatch", _) => compile_nested_condition(value),
        ("$expr", _) => TemplateNode::compile_at(value, ValuePosition::Expression),
        (name, _) if name.starts_with('$') => compile_without_event(value),
        (_, Bson::Document(nested)) if starts_with_operator(nested) => compile_condition(nested),
        (_, Bson::String(text)) => TemplateNode::compile_text(text, ValuePosition::FieldCondition),
        // A list or a document without operators is compared as a whole.
        _ => TemplateNode::compile(value),
    })
}

fn compile_nested_condition(value: &Bson) -> Result<TemplateNode, TemplateError> {
    match value {
        Bson::Document(condition) => compile_condition(condition),
        other => compile_without_event(other),
    }
}

fn compile_candidates(value: &Bson) -> Result<TemplateNode, TemplateError> {
    match value {
        Bson::String(text) => TemplateNode::compile_text(text, ValuePosition::CandidateList),
        Bson::Array(entries) => TemplateNode::compile_elements(entries, |entry| match entry {
            Bson::String(text) => TemplateNode::compile_text(text, ValuePosition::Candidate),
            Bson::Document(condition) if starts_with_operator(condition) => compile_condition(condition),
            other => TemplateNode::compile(other),
        }),
        other => compile_without_event(other),
    }
}

fn compile_without_event(value: &Bson) -> Result<TemplateNode, TemplateError> {
    let node = TemplateNode::compile(value)?;
    match node.uses_event() {
        true => Err(TemplateError::new("cannot be a value of the event: it would act as a name or an operator")),
        false => Ok(node),
    }
}

fn starts_with_operator(document: &Document) -> bool {
    document.keys().next().is_some_and(|name| name.starts_with('$'))
}
