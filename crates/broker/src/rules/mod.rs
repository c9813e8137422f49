//! Rules of subscriptions: which messages a subscription gets, and what an action changes in its copy.
//!
//! A [`RuleDescription`] is what clients send and what the journal stores. [`CompiledRule`] is its checked form: an
//! expression is parsed once, when the rule is created. `RuleIndex` holds the rules of all subscriptions of a topic and
//! selects the few that can match a message.
//!
//! Reading order: `description` → `lexer` → `parser` → `syntax` (the tree) → `value` and `message` (what it is evaluated
//! on) → `evaluate`, `correlation` → `action` → `index`.
//!
//! | case | behaviour |
//! | --- | --- |
//! | property names | compared without ASCII case |
//! | strings | compared exactly, also by `LIKE` |
//! | a user property that does not exist, or is null | unknown, as in three-valued logic |
//! | a system property that does not exist | the rule is refused |
//! | a comparison of values that have no common type | unknown |
//! | arithmetic on values that are no numbers, overflow, division by zero | evaluation error |

mod action;
mod compiled;
mod correlation;
mod description;
mod evaluate;
mod index;
mod lexer;
mod like;
mod message;
mod parser;
mod rule_set;
mod syntax;
mod value;

pub(crate) use compiled::parse_time;
pub use compiled::{CompiledRule, RuleError};
pub use description::{
    CorrelationFilter, DEFAULT_RULE, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression,
};
pub(crate) use index::{MatchedRules, RuleCopy, RuleIndex};
pub(crate) use message::MessageContext;
pub use rule_set::FilterCounts;
pub(crate) use rule_set::RuleSet;

#[cfg(test)]
mod tests;
