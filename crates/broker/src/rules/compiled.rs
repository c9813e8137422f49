//! A checked rule, ready to be evaluated.

use atom_xml::duration;
use uuid::Uuid;

use super::description::{PropertyValue, RuleDescription, RuleFilter, SqlExpression};
use super::evaluate::Evaluator;
use super::message::{ChangedMessage, MessageContext};
use super::parser::{self, Parameters};
use super::syntax::*;
use super::value::{EvaluationError, SqlValue};
use super::{action, correlation};
use crate::core::Timestamp;

/// The service's limits.
const MAX_NAME: usize = 50;
const MAX_EXPRESSION: usize = 1024;
/// Not documented; bounds what a rule costs. A property name and its value are each at most as long as an expression.
const MAX_PROPERTIES: usize = 100;

/// Why a rule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("a rule's name has 1 to {MAX_NAME} characters and none of / \\ ? # @ *")]
    Name,
    #[error("the {part} has {length} characters: at most {MAX_EXPRESSION} are allowed")]
    TooLong { part: &'static str, length: usize },
    #[error("the {part} has an error at character {position}: {text}")]
    Syntax { part: &'static str, position: usize, text: String },
    #[error("the value of `{name}` is not valid for its type")]
    Value { name: String },
    #[error("a correlation filter needs at least one property")]
    EmptyCorrelation,
    #[error("a rule has at most {MAX_PROPERTIES} properties or parameters")]
    TooManyProperties,
}

/// What the parser refuses, and where. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) position: usize,
    pub(super) text: String,
}

impl SyntaxError {
    fn within(self, part: &'static str) -> RuleError {
        RuleError::Syntax { part, position: self.position, text: self.text }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct CompiledRule {
    pub description: RuleDescription,
    pub created_at: Timestamp,
    pub(super) filter: CompiledFilter,
    pub(super) statements: Option<Vec<Statement>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum CompiledFilter {
    Constant(bool),
    Sql(Predicate),
    Correlation(Vec<correlation::Condition>),
}

impl CompiledRule {
    /// Checks and compiles a rule.
    pub fn compile(description: RuleDescription, created_at: Timestamp) -> Result<Self, RuleError> {
        check_name(&description.name)?;
        let filter = match &description.filter {
            RuleFilter::True => CompiledFilter::Constant(true),
            RuleFilter::False => CompiledFilter::Constant(false),
            RuleFilter::Sql(sql) => {
                let predicate = parser::parse_filter(check_expression(sql, "filter")?, &parameters(sql)?);
                fold_constant(predicate.map_err(|error| error.within("filter"))?)
            }
            RuleFilter::Correlation(filter) => {
                check_count(filter.properties.len())?;
                CompiledFilter::Correlation(correlation::compile(filter)?)
            }
        };
        let statements = description.action.as_ref().map(|action| {
            let statements = parser::parse_action(check_expression(&action.0, "action")?, &parameters(&action.0)?);
            statements.map_err(|error| error.within("action"))
        });
        Ok(Self { filter, statements: statements.transpose()?, description, created_at })
    }

    /// True if it selects every message and changes none.
    pub(super) fn is_unconditional(&self) -> bool {
        self.filter == CompiledFilter::Constant(true) && self.statements.is_none()
    }

    pub(super) fn has_action(&self) -> bool {
        self.statements.is_some()
    }

    pub(super) fn matches(
        &self,
        message: &MessageContext<'_>,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<bool, EvaluationError> {
        match &self.filter {
            CompiledFilter::Constant(truth) => Ok(*truth),
            // Unknown is not selected.
            CompiledFilter::Sql(predicate) => {
                Ok(Evaluator { message, new_id }.predicate(predicate)?.unwrap_or_default())
            }
            CompiledFilter::Correlation(conditions) => Ok(correlation::matches(conditions, message)),
        }
    }

    pub(super) fn change(
        &self,
        message: &MessageContext<'_>,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<Result<ChangedMessage, EvaluationError>> {
        Some(action::apply(self.statements.as_ref()?, &self.description.name, message, new_id))
    }

    /// Conditions without which the rule cannot match: a property equals a constant.
    pub(super) fn required_values(&self) -> Vec<(&PropertyName, &Constant)> {
        match &self.filter {
            CompiledFilter::Constant(_) => Vec::new(),
            CompiledFilter::Correlation(conditions) => {
                conditions.iter().map(|(property, value)| (property, value)).collect()
            }
            CompiledFilter::Sql(Predicate::And(operands)) => operands.iter().filter_map(required_value).collect(),
            CompiledFilter::Sql(predicate) => required_value(predicate).into_iter().collect(),
        }
    }
}

fn required_value(predicate: &Predicate) -> Option<(&PropertyName, &Constant)> {
    let Predicate::Compare(Comparison::Equal, left, right) = predicate else { return None };
    match (&**left, &**right) {
        (Expression::Property(property), Expression::Constant(value))
        | (Expression::Constant(value), Expression::Property(property)) => Some((property, value)),
        _ => None,
    }
}

/// `1=1` needs no message.
fn fold_constant(predicate: Predicate) -> CompiledFilter {
    if let Predicate::Compare(comparison, left, right) = &predicate
        && let (Expression::Constant(left), Expression::Constant(right)) = (&**left, &**right)
    {
        return CompiledFilter::Constant(left.compare(*comparison, right) == Some(true));
    }
    CompiledFilter::Sql(predicate)
}

fn check_name(name: &str) -> Result<(), RuleError> {
    let length = name.chars().count();
    let invalid = |character: char| character.is_control() || "/\\?#@*".contains(character);
    if length == 0 || length > MAX_NAME || name.contains(invalid) { Err(RuleError::Name) } else { Ok(()) }
}

fn check_expression<'a>(sql: &'a SqlExpression, part: &'static str) -> Result<&'a str, RuleError> {
    check_count(sql.parameters.len())?;
    match sql.expression.chars().count() {
        length if length > MAX_EXPRESSION => Err(RuleError::TooLong { part, length }),
        _ => Ok(&sql.expression),
    }
}

fn check_count(properties: usize) -> Result<(), RuleError> {
    if properties > MAX_PROPERTIES { Err(RuleError::TooManyProperties) } else { Ok(()) }
}

fn parameters(sql: &SqlExpression) -> Result<Parameters, RuleError> {
    sql.parameters.iter().map(|(name, value)| Ok((name.clone(), constant(name, value)?))).collect()
}

/// The value of a parameter or of a correlated property.
pub(super) fn constant(name: &str, value: &PropertyValue) -> Result<Constant, RuleError> {
    let invalid = || RuleError::Value { name: name.to_owned() };
    match value {
        PropertyValue::String(text) if text.chars().count() > MAX_EXPRESSION => {
            Err(RuleError::TooLong { part: "value of a property", length: text.chars().count() })
        }
        PropertyValue::String(text) => Ok(SqlValue::Text(text.clone().into())),
        PropertyValue::Int(number) => Ok(SqlValue::Long((*number).into())),
        PropertyValue::Long(number) => Ok(SqlValue::Long(*number)),
        PropertyValue::Double(number) => Ok(SqlValue::Double(*number)),
        PropertyValue::Boolean(truth) => Ok(SqlValue::Boolean(*truth)),
        PropertyValue::DateTime(text) => parse_time(text).map(SqlValue::Time).ok_or_else(invalid),
        PropertyValue::Duration(text) => {
            let span = duration::parse(text).map_err(|_| invalid())?;
            i64::try_from(span.as_nanos() / 100).map(SqlValue::Span).map_err(|_| invalid())
        }
    }
}

/// Milliseconds since the Unix epoch of an ISO 8601 time, such as `2026-01-02T03:04:05.678Z`. Without a zone it is UTC.
pub(crate) fn parse_time(text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone_at = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone_at);
    let mut clock = clock.splitn(3, ':');
    let hours: i64 = clock.next()?.parse().ok()?;
    let minutes: i64 = clock.next()?.parse().ok()?;
    let seconds: f64 = clock.next().unwrap_or("0").parse().ok()?;
    let valid = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let valid = valid && (0..24).contains(&hours) && (0..60).contains(&minutes) && (0.0..60.0).contains(&seconds);
    if !valid {
        return None;
    }
    let minutes = hours * 60 + minutes - zone_minutes(zone)?;
    let days = days_since_epoch(year, month, day);
    Some((days * 1440 + minutes) * 60_000 + (seconds * 1000.0).round() as i64)
}

fn zone_minutes(zone: &str) -> Option<i64> {
    if zone.is_empty() || zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone[1..].split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    Some(sign * (hours * 60 + minutes))
}

/// Howard Hinnant's algorithm: years begin in March, so that the leap day is their last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}
