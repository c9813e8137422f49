//! Actions: change the copy of a message for one rule.

use uuid::Uuid;

use super::evaluate::Evaluator;
use super::message::{ChangedMessage, MessageContext};
use super::syntax::{PropertyName, Statement};
use super::value::{EvaluationError, SqlValue};

/// The property that tells which rule made the copy.
const RULE_NAME: &str = "RuleName";

/// Runs the statements in order; each sees the changes of those before it.
pub(super) fn apply(
    statements: &[Statement],
    rule: &str,
    message: &MessageContext<'_>,
    new_id: &mut dyn FnMut() -> Uuid,
) -> Result<ChangedMessage, EvaluationError> {
    let mut copy = message.clone();
    copy.set(&PropertyName::User(RULE_NAME.into()), SqlValue::Text(rule.to_owned().into()))?;
    for statement in statements {
        match statement {
            Statement::Remove(property) => copy.remove(property)?,
            Statement::Set(property, expression) => {
                let mut evaluator = Evaluator { message: &copy, new_id: &mut *new_id };
                let value = evaluator.expression(expression)?.into_owned();
                copy.set(property, value)?;
            }
        }
    }
    Ok(copy.encode())
}
