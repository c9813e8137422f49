//! The tree of a parsed filter or action.

use super::like::LikePattern;
use super::value::SqlValue;

/// A constant of an expression. It borrows nothing.
pub(super) type Constant = SqlValue<'static>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Predicate {
    Not(Box<Predicate>),
    /// All of them. Flat, so that a long chain is not a deep tree.
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
    Compare(Comparison, Box<Expression>, Box<Expression>),
    IsNull(PropertyName),
    In(Box<Expression>, Vec<Expression>),
    Like(Box<Expression>, LikeOperand),
    Exists(PropertyName),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum LikeOperand {
    /// Compiled once.
    Constant(LikePattern),
    Computed {
        pattern: Box<Expression>,
        escape: Option<Box<Expression>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Constant(Constant),
    Property(PropertyName),
    /// `property(name)`: the name is computed.
    PropertyOf(Box<Expression>),
    NewId,
    Arithmetic(ArithmeticOperator, Box<Expression>, Box<Expression>),
    Negate(Box<Expression>),
    /// A unary plus: the value, if it is a number.
    Plus(Box<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArithmeticOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A property of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PropertyName {
    System(SystemProperty),
    /// As written; compared without case.
    User(Box<str>),
}

/// One statement of an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Statement {
    Set(PropertyName, Expression),
    Remove(PropertyName),
}

macro_rules! system_properties {
    ($($name:ident $(or $other:literal)?: $settable:literal),* $(,)?) => {
        /// A property of the message itself, written with the scope `sys`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum SystemProperty {
            $($name),*
        }

        impl SystemProperty {
            pub(super) fn find(name: &str) -> Option<Self> {
                $(
                    if name.eq_ignore_ascii_case(stringify!($name)) $(|| name.eq_ignore_ascii_case($other))? {
                        return Some(Self::$name);
                    }
                )*
                None
            }

            /// Whether an action may set it.
            pub(super) fn is_settable(self) -> bool {
                match self {
                    $(Self::$name => $settable),*
                }
            }
        }
    };
}

system_properties! {
    ContentType: true,
    CorrelationId: true,
    Label or "Subject": true,
    MessageId: true,
    PartitionKey: true,
    ReplyTo: true,
    ReplyToSessionId: true,
    ScheduledEnqueueTimeUtc or "ScheduledEnqueueTime": true,
    SessionId: true,
    TimeToLive: true,
    To: true,
    ViaPartitionKey or "TransactionPartitionKey": true,
    DeadLetterSource: false,
    DeliveryCount: false,
    EnqueuedSequenceNumber: false,
    EnqueuedTimeUtc or "EnqueuedTime": false,
    ExpiresAtUtc or "ExpiresAt": false,
    LockToken: false,
    LockedUntilUtc or "LockedUntil": false,
    SequenceNumber: false,
    Size: false,
    State: false,
}
