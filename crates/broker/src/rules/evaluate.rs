//! Evaluates filters and expressions on a message, with three-valued logic.

use uuid::Uuid;

use super::like::LikePattern;
use super::message::MessageContext;
use super::parser::escape_character;
use super::syntax::*;
use super::value::{EvaluationError, SqlValue};

/// `None` is unknown.
type Truth = Result<Option<bool>, EvaluationError>;

/// One evaluation on one message.
pub(super) struct Evaluator<'e, 'm> {
    pub(super) message: &'e MessageContext<'m>,
    /// For `newid()`.
    pub(super) new_id: &'e mut dyn FnMut() -> Uuid,
}

impl<'e> Evaluator<'e, '_> {
    pub(super) fn predicate(&mut self, predicate: &'e Predicate) -> Truth {
        match predicate {
            Predicate::Not(inner) => Ok(self.predicate(inner)?.map(|truth| !truth)),
            Predicate::And(operands) => self.chain(operands, false),
            Predicate::Or(operands) => self.chain(operands, true),
            Predicate::Compare(comparison, left, right) => {
                let (left, right) = (self.expression(left)?, self.expression(right)?);
                Ok(left.compare(*comparison, &right))
            }
            Predicate::IsNull(property) => Ok(Some(self.message.get(property) == SqlValue::Null)),
            Predicate::Exists(property) => Ok(Some(self.message.has(property))),
            Predicate::In(left, items) => self.is_in(left, items),
            Predicate::Like(left, pattern) => self.like(left, pattern),
        }
    }

    /// `decisive` decides alone: false in `AND`, true in `OR`. Otherwise one unknown makes the whole unknown.
    fn chain(&mut self, operands: &'e [Predicate], decisive: bool) -> Truth {
        let mut result = Some(!decisive);
        for operand in operands {
            match self.predicate(operand)? {
                Some(truth) if truth == decisive => return Ok(Some(decisive)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    fn is_in(&mut self, left: &'e Expression, items: &'e [Expression]) -> Truth {
        let left = self.expression(left)?;
        if left == SqlValue::Null {
            return Ok(None);
        }
        let mut result = Some(false);
        for item in items {
            match left.compare(Comparison::Equal, &self.expression(item)?) {
                Some(true) => return Ok(Some(true)),
                Some(false) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    fn like(&mut self, left: &'e Expression, operand: &'e LikeOperand) -> Truth {
        let left = self.expression(left)?;
        let (pattern, escape) = match operand {
            LikeOperand::Constant(pattern) => {
                return match left {
                    SqlValue::Text(text) => Ok(Some(pattern.matches(&text))),
                    SqlValue::Null => Ok(None),
                    _ => Err(EvaluationError::Pattern),
                };
            }
            LikeOperand::Computed { pattern, escape } => (pattern, escape),
        };
        let pattern = self.expression(pattern)?;
        let escape = escape.as_ref().map(|escape| self.expression(escape)).transpose()?;
        match (left, pattern, escape) {
            (SqlValue::Null, ..) | (_, SqlValue::Null, _) | (.., Some(SqlValue::Null)) => Ok(None),
            (SqlValue::Text(text), SqlValue::Text(pattern), escape) => {
                let escape = match escape {
                    Some(escape) => Some(escape_character(&escape).ok_or(EvaluationError::Pattern)?),
                    None => None,
                };
                Ok(Some(LikePattern::compile(&pattern, escape).matches(&text)))
            }
            _ => Err(EvaluationError::Pattern),
        }
    }

    pub(super) fn expression(&mut self, expression: &'e Expression) -> Result<SqlValue<'e>, EvaluationError> {
        match expression {
            Expression::Constant(constant) => Ok(constant.borrow()),
            Expression::Property(property) => Ok(self.message.get(property)),
            Expression::PropertyOf(name) => {
                let SqlValue::Text(name) = self.expression(name)? else { return Err(EvaluationError::PropertyName) };
                let property = PropertyName::parse(&name).ok_or(EvaluationError::UnknownSystemProperty)?;
                Ok(self.message.get(&property))
            }
            Expression::NewId => Ok(SqlValue::Guid((self.new_id)())),
            Expression::Arithmetic(operator, left, right) => {
                let left = self.expression(left)?;
                left.apply(*operator, self.expression(right)?)
            }
            Expression::Negate(operand) => self.expression(operand)?.negate(),
            Expression::Plus(operand) => match self.expression(operand)? {
                value @ (SqlValue::Null | SqlValue::Long(_) | SqlValue::Double(_) | SqlValue::Span(_)) => Ok(value),
                _ => Err(EvaluationError::Operands("+")),
            },
        }
    }
}

impl PropertyName {
    /// A computed name, with or without a scope.
    fn parse(name: &str) -> Option<Self> {
        match name.split_once('.') {
            Some((scope, name)) if scope.eq_ignore_ascii_case("sys") => SystemProperty::find(name).map(Self::System),
            Some((scope, name)) if scope.eq_ignore_ascii_case("user") => Some(Self::User(name.into())),
            _ => Some(Self::User(name.into())),
        }
    }
}
