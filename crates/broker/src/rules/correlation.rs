//! Correlation filters: all given properties equal the values.

use super::compiled::{RuleError, constant};
use super::description::CorrelationFilter;
use super::message::MessageContext;
use super::syntax::{Comparison, Constant, PropertyName, SystemProperty};
use super::value::SqlValue;

/// One property and the value that it must have.
pub(super) type Condition = (PropertyName, Constant);

pub(super) fn compile(filter: &CorrelationFilter) -> Result<Vec<Condition>, RuleError> {
    let system = [
        (SystemProperty::CorrelationId, &filter.correlation_id),
        (SystemProperty::MessageId, &filter.message_id),
        (SystemProperty::To, &filter.to),
        (SystemProperty::ReplyTo, &filter.reply_to),
        (SystemProperty::Label, &filter.label),
        (SystemProperty::SessionId, &filter.session_id),
        (SystemProperty::ReplyToSessionId, &filter.reply_to_session_id),
        (SystemProperty::ContentType, &filter.content_type),
    ];
    let given = system.into_iter().filter_map(|(property, value)| Some((property, value.clone()?)));
    let mut conditions: Vec<Condition> =
        given.map(|(property, value)| (PropertyName::System(property), SqlValue::Text(value.into()))).collect();
    for (name, value) in &filter.properties {
        conditions.push((PropertyName::User(name.as_str().into()), constant(name, value)?));
    }
    match conditions.is_empty() {
        true => Err(RuleError::EmptyCorrelation),
        false => Ok(conditions),
    }
}

pub(super) fn matches(conditions: &[Condition], message: &MessageContext<'_>) -> bool {
    conditions
        .iter()
        .all(|(property, value)| message.get(property).compare(Comparison::Equal, &value.borrow()) == Some(true))
}
