//! Every error the broker returns, with its AMQP condition and HTTP status.
//!
//! `servicebus-wire.md` §8 lists the pairs. Texts are those of the service where it has one: programs look for them. They name
//! the entity, never the contents of a message.

use std::sync::Arc;

use super::id::SequenceNumber;
use crate::journal::{AppendError, ReadError};
use crate::rules::RuleError;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("The messaging entity '{path}' could not be found.")]
    EntityNotFound { path: Box<str> },
    #[error("The messaging entity '{path}' already exists.")]
    EntityExists { path: Box<str> },
    #[error("Messaging entity '{path}' is currently disabled for this operation.")]
    EntityDisabled { path: Box<str> },
    #[error("the messaging entity '{path}' was deleted")]
    EntityDeleted { path: Box<str> },
    #[error(
        "The request was terminated because the namespace is being throttled. Error code : 50009. Please wait 2 seconds and try again."
    )]
    ServerBusy,
    #[error(
        "The maximum number of resources of type `{what}` has been reached or exceeded. Actual: {limit}, Max allowed: {limit}. Delete one before you create another."
    )]
    TooManyEntities { what: &'static str, limit: usize },
    #[error("The value for '{field}' {rule}.")]
    InvalidArgument { field: &'static str, rule: Box<str> },
    #[error("SubCode=40400. The auto forwarding destination entity '{path}' does not exist.")]
    ForwardTargetNotFound { path: Box<str> },
    #[error("Auto forwarding from '{path}' to '{to}' is not allowed: messages would come back to '{path}'.")]
    ForwardLoop { path: Box<str>, to: Box<str> },
    #[error("{text}")]
    NotInTier { text: Box<str> },
    #[error("{0}")]
    NotAllowed(&'static str),
    #[error("not implemented: {0}")]
    NotImplemented(&'static str),
    #[error("The received message of {size} bytes exceeds the limit ({limit} bytes) currently allowed on the link.")]
    MessageTooLarge { size: usize, limit: usize },
    #[error("the transaction is unknown: it was not declared on this connection, has ended, or has taken too long")]
    UnknownTransaction,
    #[error("the transaction was rolled back: {reason}")]
    TransactionRolledBack { reason: Box<str> },
    #[error(
        "too many open transactions: a connection {} may have {limit}; commit or roll back one before you declare another",
        if *.is_authorized { "with a token" } else { "without a token" }
    )]
    TooManyTransactions { limit: usize, is_authorized: bool },
    #[error("the transaction is too large: at most {limit} messages are allowed")]
    TransactionTooLarge { limit: usize },
    #[error(
        "The maximum entity size has been reached or exceeded for '{path}'. Size of entity in bytes:{size}, Max entity size in bytes:{limit}."
    )]
    QuotaExceeded { path: Box<str>, size: u64, limit: u64 },
    #[error(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
    )]
    MessageLockLost,
    #[error("The session lock has expired on the MessageSession. Accept a new MessageSession.")]
    SessionLockLost,
    #[error("The requested session '{session}' cannot be accepted. It may be locked by another receiver.")]
    SessionCannotBeLocked { session: Box<str> },
    #[error("The operation did not complete within the allotted timeout: no session is available.")]
    Timeout,
    #[error("no message with sequence number {0} in the requested state")]
    MessageNotFound(SequenceNumber),
    #[error("{0}")]
    InvalidRule(#[from] RuleError),
    #[error("the topic '{path}' has {limit} {kind} filters: no more are allowed")]
    TooManyRules { path: Box<str>, kind: &'static str, limit: usize },
    #[error("the broker's disk is full")]
    StorageFull,
    #[error("the broker's disk failed")]
    Storage(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The AMQP error condition.
    pub fn condition(&self) -> &'static str {
        match self {
            Self::EntityNotFound { .. } | Self::EntityDeleted { .. } => "amqp:not-found",
            Self::ServerBusy => "com.microsoft:server-busy",
            Self::EntityExists { .. } => "com.microsoft:entity-already-exists",
            Self::EntityDisabled { .. } => "com.microsoft:entity-disabled",
            Self::InvalidArgument { .. } | Self::InvalidRule(_) => "com.microsoft:argument-error",
            Self::NotAllowed(_)
            | Self::NotInTier { .. }
            | Self::ForwardTargetNotFound { .. }
            | Self::ForwardLoop { .. } => "amqp:not-allowed",
            Self::NotImplemented(_) => "amqp:not-implemented",
            Self::MessageTooLarge { .. } => "amqp:link:message-size-exceeded",
            Self::UnknownTransaction => "amqp:transaction:unknown-id",
            Self::TransactionRolledBack { .. } => "amqp:transaction:rollback",
            Self::QuotaExceeded { .. }
            | Self::TooManyEntities { .. }
            | Self::TooManyRules { .. }
            | Self::TransactionTooLarge { .. }
            | Self::TooManyTransactions { .. }
            | Self::StorageFull => "amqp:resource-limit-exceeded",
            Self::MessageLockLost => "com.microsoft:message-lock-lost",
            Self::SessionLockLost => "com.microsoft:session-lock-lost",
            Self::SessionCannotBeLocked { .. } => "com.microsoft:session-cannot-be-locked",
            Self::Timeout => "com.microsoft:timeout",
            Self::MessageNotFound(_) => "com.microsoft:message-not-found",
            Self::Storage(_) => "amqp:internal-error",
        }
    }

    /// True if the same message would be refused again.
    pub(crate) fn is_about_the_message(&self) -> bool {
        matches!(self, Self::InvalidArgument { .. } | Self::NotAllowed(_) | Self::MessageTooLarge { .. })
    }

    /// The status code of a management response.
    pub fn status(&self) -> u16 {
        match self {
            Self::EntityNotFound { .. }
            | Self::EntityDeleted { .. }
            | Self::UnknownTransaction
            | Self::MessageNotFound(_) => 404,
            Self::EntityExists { .. } => 409,
            Self::EntityDisabled { .. }
            | Self::InvalidArgument { .. }
            | Self::InvalidRule(_)
            | Self::ForwardTargetNotFound { .. }
            | Self::ForwardLoop { .. }
            | Self::NotInTier { .. }
            | Self::TransactionRolledBack { .. }
            | Self::NotAllowed(_) => 400,
            Self::MessageTooLarge { .. }
            | Self::QuotaExceeded { .. }
            | Self::TooManyEntities { .. }
            | Self::TooManyRules { .. }
            | Self::TransactionTooLarge { .. }
            | Self::TooManyTransactions { .. }
            | Self::StorageFull => 403,
            Self::MessageLockLost | Self::SessionLockLost | Self::SessionCannotBeLocked { .. } => 410,
            Self::ServerBusy => 503,
            Self::Timeout => 408,
            Self::Storage(_) => 500,
            Self::NotImplemented(_) => 501,
        }
    }

    pub(super) fn invalid(field: &'static str, rule: impl Into<Box<str>>) -> Self {
        Self::InvalidArgument { field, rule: rule.into() }
    }
}

impl From<AppendError> for Error {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full => Self::StorageFull,
            AppendError::Io(_) => Self::Storage(Arc::new(error)),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::Storage(Arc::new(error))
    }
}
