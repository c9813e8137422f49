//! Parses filters and actions by recursive descent.
//!
//! From loose to tight: `OR`, `AND`, `NOT`, comparisons with `IS`, `IN` and `LIKE`, `+ -`, `* / %`, signs.

use super::compiled::SyntaxError;
use super::lexer::{Keyword, PlacedToken, Token, tokenize};
use super::like::LikePattern;
use super::syntax::*;
use super::value::SqlValue;

/// Parentheses, signs and `NOT` inside each other. Bounds the stack.
const MAX_DEPTH: usize = 50;

/// The documented limit of statements in an action.
const MAX_STATEMENTS: usize = 32;

/// Values of `@name`.
pub(super) type Parameters = Vec<(String, Constant)>;

pub(super) fn parse_filter(text: &str, parameters: &Parameters) -> Result<Predicate, SyntaxError> {
    let mut parser = Parser::new(text, parameters)?;
    let position = parser.position();
    let predicate = parser.disjunction()?.into_predicate(position)?;
    parser.expect_end()?;
    Ok(predicate)
}

pub(super) fn parse_action(text: &str, parameters: &Parameters) -> Result<Vec<Statement>, SyntaxError> {
    let mut parser = Parser::new(text, parameters)?;
    let mut statements = Vec::new();
    while parser.peek() != &Token::End {
        if statements.len() == MAX_STATEMENTS {
            return Err(parser.error(format!("an action has at most {MAX_STATEMENTS} statements")));
        }
        statements.push(parser.statement()?);
        // The documented grammar separates statements by commas, its examples by semicolons. Both are optional.
        while parser.take_symbol(";") || parser.take_symbol(",") {}
    }
    match statements.is_empty() {
        true => Err(parser.error("expected `SET` or `REMOVE`")),
        false => Ok(statements),
    }
}

/// What stands between parentheses is known only after it is read.
enum Parsed {
    Predicate(Predicate),
    Expression(Expression),
}

impl Parsed {
    fn into_predicate(self, position: usize) -> Result<Predicate, SyntaxError> {
        match self {
            Self::Predicate(predicate) => Ok(predicate),
            Self::Expression(_) => Err(SyntaxError {
                position,
                text: "expected a condition, such as a comparison, and found a value".to_owned(),
            }),
        }
    }

    fn into_expression(self, position: usize) -> Result<Expression, SyntaxError> {
        match self {
            Self::Expression(expression) => Ok(expression),
            Self::Predicate(_) => {
                Err(SyntaxError { position, text: "expected a value and found a condition".to_owned() })
            }
        }
    }
}

struct Parser<'p> {
    tokens: Vec<PlacedToken>,
    at: usize,
    depth: usize,
    parameters: &'p Parameters,
}

impl<'p> Parser<'p> {
    fn new(text: &str, parameters: &'p Parameters) -> Result<Self, SyntaxError> {
        Ok(Self { tokens: tokenize(text)?, at: 0, depth: 0, parameters })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn position(&self) -> usize {
        self.tokens[self.at].1
    }

    /// The last token is the end, which stays.
    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn error(&self, text: impl Into<String>) -> SyntaxError {
        SyntaxError { position: self.position(), text: text.into() }
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        if found {
            self.advance();
        }
        found
    }

    fn take_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.peek() == &Token::Keyword(keyword);
        if found {
            self.advance();
        }
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<(), SyntaxError> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(self.error(format!("expected `{symbol}`"))) }
    }

    fn expect_end(&self) -> Result<(), SyntaxError> {
        if self.peek() == &Token::End { Ok(()) } else { Err(self.error("expected an operator or the end")) }
    }

    /// Runs a rule one level deeper.
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Result<T, SyntaxError>) -> Result<T, SyntaxError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} levels are nested here")));
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    fn statement(&mut self) -> Result<Statement, SyntaxError> {
        let position = self.position();
        let removes = match self.advance() {
            Token::Keyword(Keyword::Set) => false,
            Token::Keyword(Keyword::Remove) => true,
            _ => return Err(SyntaxError { position, text: "expected `SET` or `REMOVE`".to_owned() }),
        };
        let position = self.position();
        let property = self.property()?;
        if let PropertyName::System(system) = property
            && !system.is_settable()
        {
            return Err(SyntaxError { position, text: "this system property cannot be changed".to_owned() });
        }
        if removes {
            return Ok(Statement::Remove(property));
        }
        self.expect_symbol("=")?;
        Ok(Statement::Set(property, self.expression()?))
    }

    fn disjunction(&mut self) -> Result<Parsed, SyntaxError> {
        self.chain(Keyword::Or, Self::conjunction, Predicate::Or)
    }

    fn conjunction(&mut self) -> Result<Parsed, SyntaxError> {
        self.chain(Keyword::And, Self::negation, Predicate::And)
    }

    fn chain(
        &mut self,
        keyword: Keyword,
        operand: fn(&mut Self) -> Result<Parsed, SyntaxError>,
        join: fn(Vec<Predicate>) -> Predicate,
    ) -> Result<Parsed, SyntaxError> {
        let position = self.position();
        let first = operand(self)?;
        if self.peek() != &Token::Keyword(keyword) {
            return Ok(first);
        }
        let mut operands = vec![first.into_predicate(position)?];
        while self.take_keyword(keyword) {
            let position = self.position();
            operands.push(operand(self)?.into_predicate(position)?);
        }
        Ok(Parsed::Predicate(join(operands)))
    }

    fn negation(&mut self) -> Result<Parsed, SyntaxError> {
        if !self.take_keyword(Keyword::Not) {
            return self.condition();
        }
        let position = self.position();
        let negated = self.nested(Self::negation)?.into_predicate(position)?;
        Ok(Parsed::Predicate(Predicate::Not(Box::new(negated))))
    }

    fn condition(&mut self) -> Result<Parsed, SyntaxError> {
        if self.take_keyword(Keyword::Exists) {
            self.expect_symbol("(")?;
            let property = self.property()?;
            self.expect_symbol(")")?;
            return Ok(Parsed::Predicate(Predicate::Exists(property)));
        }
        let position = self.position();
        let left = self.sum()?;
        if let Some(comparison) = self.comparison() {
            let left = Box::new(left.into_expression(position)?);
            return Ok(Parsed::Predicate(Predicate::Compare(comparison, left, Box::new(self.expression()?))));
        }
        if self.take_keyword(Keyword::Is) {
            return self.null_test(left.into_expression(position)?, position);
        }
        let negated = self.take_keyword(Keyword::Not);
        let predicate = if self.take_keyword(Keyword::In) {
            self.list(left.into_expression(position)?)?
        } else if self.take_keyword(Keyword::Like) {
            self.like(left.into_expression(position)?)?
        } else if negated {
            return Err(self.error("expected `IN` or `LIKE` after `NOT`"));
        } else {
            return Ok(left);
        };
        Ok(Parsed::Predicate(if negated { Predicate::Not(Box::new(predicate)) } else { predicate }))
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        let comparison = match *symbol {
            "=" => Comparison::Equal,
            "<>" | "!=" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => return None,
        };
        self.advance();
        Some(comparison)
    }

    fn null_test(&mut self, left: Expression, position: usize) -> Result<Parsed, SyntaxError> {
        let negated = self.take_keyword(Keyword::Not);
        if !self.take_keyword(Keyword::Null) {
            return Err(self.error("expected `NULL`"));
        }
        let Expression::Property(property) = left else {
            return Err(SyntaxError { position, text: "`IS NULL` takes a property".to_owned() });
        };
        let test = Predicate::IsNull(property);
        Ok(Parsed::Predicate(if negated { Predicate::Not(Box::new(test)) } else { test }))
    }

    fn list(&mut self, left: Expression) -> Result<Predicate, SyntaxError> {
        self.expect_symbol("(")?;
        let mut items = vec![self.expression()?];
        while self.take_symbol(",") {
            items.push(self.expression()?);
        }
        self.expect_symbol(")")?;
        Ok(Predicate::In(Box::new(left), items))
    }

    fn like(&mut self, left: Expression) -> Result<Predicate, SyntaxError> {
        let pattern = self.expression()?;
        let position = self.position();
        let escape = if self.take_keyword(Keyword::Escape) { Some(self.expression()?) } else { None };
        let operand = match (&pattern, &escape) {
            (Expression::Constant(SqlValue::Text(pattern)), None) => {
                LikeOperand::Constant(LikePattern::compile(pattern, None))
            }
            (Expression::Constant(SqlValue::Text(pattern)), Some(Expression::Constant(escape))) => {
                let escape = escape_character(escape)
                    .ok_or_else(|| SyntaxError { position, text: "`ESCAPE` takes one character".to_owned() })?;
                LikeOperand::Constant(LikePattern::compile(pattern, Some(escape)))
            }
            _ => LikeOperand::Computed { pattern: Box::new(pattern), escape: escape.map(Box::new) },
        };
        Ok(Predicate::Like(Box::new(left), operand))
    }

    fn expression(&mut self) -> Result<Expression, SyntaxError> {
        let position = self.position();
        self.sum()?.into_expression(position)
    }

    fn sum(&mut self) -> Result<Parsed, SyntaxError> {
        let operators = [("+", ArithmeticOperator::Add), ("-", ArithmeticOperator::Subtract)];
        self.arithmetic(&operators, Self::product)
    }

    fn product(&mut self) -> Result<Parsed, SyntaxError> {
        let operators = [
            ("*", ArithmeticOperator::Multiply),
            ("/", ArithmeticOperator::Divide),
            ("%", ArithmeticOperator::Remainder),
        ];
        self.arithmetic(&operators, Self::signed)
    }

    fn arithmetic(
        &mut self,
        operators: &[(&str, ArithmeticOperator)],
        operand: fn(&mut Self) -> Result<Parsed, SyntaxError>,
    ) -> Result<Parsed, SyntaxError> {
        let position = self.position();
        let mut result = operand(self)?;
        while let Some((_, operator)) = operators.iter().find(|(symbol, _)| self.take_symbol(symbol)) {
            let left = Box::new(result.into_expression(position)?);
            let position = self.position();
            let right = Box::new(operand(self)?.into_expression(position)?);
            result = Parsed::Expression(Expression::Arithmetic(*operator, left, right));
        }
        Ok(result)
    }

    fn signed(&mut self) -> Result<Parsed, SyntaxError> {
        let negative = self.take_symbol("-");
        if !negative && !self.take_symbol("+") {
            return self.primary();
        }
        let position = self.position();
        let operand = self.nested(Self::signed)?.into_expression(position)?;
        Ok(Parsed::Expression(match operand {
            // A negative constant is a constant, so that it can be indexed.
            Expression::Constant(constant) if negative => {
                let negated = constant.negate().map_err(|error| SyntaxError { position, text: error.to_string() })?;
                Expression::Constant(negated)
            }
            operand if negative => Expression::Negate(Box::new(operand)),
            operand => Expression::Plus(Box::new(operand)),
        }))
    }

    fn primary(&mut self) -> Result<Parsed, SyntaxError> {
        let position = self.position();
        let constant = match self.peek().clone() {
            Token::Symbol("(") => {
                self.advance();
                let inner = self.nested(Self::disjunction)?;
                self.expect_symbol(")")?;
                return Ok(inner);
            }
            Token::Name { text, plain: true } if self.tokens[self.at + 1].0 == Token::Symbol("(") => {
                self.advance();
                self.advance();
                return Ok(Parsed::Expression(self.function(&text, position)?));
            }
            Token::Name { .. } => return Ok(Parsed::Expression(Expression::Property(self.property()?))),
            Token::Text(text) => SqlValue::Text(String::from(text).into()),
            Token::Integer(number) => SqlValue::Long(number),
            Token::Number(number) => SqlValue::Double(number),
            Token::Parameter(name) => self.parameter(&name)?,
            Token::Keyword(Keyword::True) => SqlValue::Boolean(true),
            Token::Keyword(Keyword::False) => SqlValue::Boolean(false),
            Token::Keyword(Keyword::Null) => SqlValue::Null,
            Token::Keyword(_) => return Err(self.error("a keyword is no name: write it as `[name]`")),
            Token::End => return Err(self.error("the expression ends here: expected a value")),
            Token::Symbol(symbol) => return Err(self.error(format!("`{symbol}` is not expected here"))),
        };
        self.advance();
        Ok(Parsed::Expression(Expression::Constant(constant)))
    }

    fn parameter(&self, name: &str) -> Result<Constant, SyntaxError> {
        let is_named = |given: &str| given.strip_prefix('@').unwrap_or(given).eq_ignore_ascii_case(name);
        let found = self.parameters.iter().find(|(given, _)| is_named(given));
        found.map(|(_, value)| value.clone()).ok_or_else(|| self.error(format!("parameter `@{name}` has no value")))
    }

    /// After `name(`.
    fn function(&mut self, name: &str, position: usize) -> Result<Expression, SyntaxError> {
        let call = match name.to_ascii_lowercase().as_str() {
            "newid" => Expression::NewId,
            "property" | "p" => Expression::PropertyOf(Box::new(self.nested(Self::expression)?)),
            _ => return Err(SyntaxError { position, text: format!("function `{name}` does not exist") }),
        };
        self.expect_symbol(")")?;
        Ok(call)
    }

    fn property(&mut self) -> Result<PropertyName, SyntaxError> {
        let position = self.position();
        let Token::Name { text, plain } = self.peek().clone() else {
            return Err(match self.peek() {
                Token::Keyword(_) => self.error("a keyword is no name: write it as `[name]`"),
                _ => self.error("expected the name of a property"),
            });
        };
        self.advance();
        if !plain || !self.take_symbol(".") {
            return Ok(PropertyName::User(text));
        }
        let name_position = self.position();
        let Token::Name { text: name, .. } = self.peek().clone() else {
            return Err(self.error("expected the name of a property"));
        };
        self.advance();
        match text.to_ascii_lowercase().as_str() {
            "user" => Ok(PropertyName::User(name)),
            "sys" => SystemProperty::find(&name).map(PropertyName::System).ok_or_else(|| SyntaxError {
                position: name_position,
                text: format!("system property `{name}` does not exist"),
            }),
            _ => Err(SyntaxError { position, text: format!("`{text}` is no scope: expected `sys` or `user`") }),
        }
    }
}

/// The only character of a text.
pub(super) fn escape_character(value: &SqlValue<'_>) -> Option<char> {
    let SqlValue::Text(text) = value else { return None };
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}
