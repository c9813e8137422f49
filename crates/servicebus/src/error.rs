//! Errors, their kinds, and which kinds may be retried: one table, from AMQP condition to [`BusErrorKind`].
//!
//! A wrong "retryable" costs extra attempts, each with backoff and a log line. A wrong "final" makes a caller give up on a message.
//! So an unknown condition is retryable.

use std::sync::Arc;
use std::time::Duration;

use amqp::{CommandError, Symbol, condition};

/// Why an operation failed. Cheap to clone, because one cause may fail many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("invalid connection string")]
    ConnectionString(#[from] crate::connection_string::Error),
    #[error("failed to set up TLS")]
    Tls(#[from] crate::tls::Error),
    #[error("failed to connect to `{host}`")]
    Connect {
        host: Arc<str>,
        #[source]
        source: DisconnectReason,
    },
    /// The operation was in flight when the connection was lost. It may or may not have been carried out.
    #[error("connection to `{host}` lost")]
    ConnectionLost {
        host: Arc<str>,
        #[source]
        source: DisconnectReason,
    },
    /// Entra ID gave no token.
    #[error("failed to obtain a token for `{host}`")]
    Token {
        host: Arc<str>,
        #[source]
        source: Box<crate::entra::Error>,
    },
    /// Service Bus replied with an error.
    #[error("failed to {operation} `{address}`")]
    Refused {
        operation: ClientOperation,
        address: Arc<str>,
        #[source]
        source: Box<ServiceError>,
    },
    /// Service Bus detached the link with an error. Whatever was in flight on it may or may not have been carried out, and the error may be about
    /// another operation on the same link.
    #[error("failed to {operation} `{address}`: the link was detached")]
    LinkDetached {
        operation: ClientOperation,
        address: Arc<str>,
        #[source]
        source: Box<ServiceError>,
    },
    #[error("failed to settle {} of {requested} messages from `{address}`", failed.len())]
    Unsettled {
        address: Arc<str>,
        requested: usize,
        /// By sequence number; never empty.
        failed: Arc<[(i64, ServiceError)]>,
    },
    /// No reply in time. The operation may or may not have been carried out.
    #[error("failed to {operation} `{address}`: no reply within {within:?}")]
    Timeout { operation: ClientOperation, address: Arc<str>, within: Duration },
    #[error("message of {size} bytes exceeds the limit of {limit} bytes of `{address}`")]
    MessageTooLarge { address: Arc<str>, size: usize, limit: u64 },
    /// The local state of the connection does not allow the operation.
    #[error("failed to {operation} `{address}`")]
    InvalidState {
        operation: ClientOperation,
        address: Arc<str>,
        #[source]
        source: CommandError,
    },
    #[error("failed to {operation} `{address}`: {what}")]
    InvalidReply { operation: ClientOperation, address: Arc<str>, what: &'static str },
    #[error("`{address}` is closed")]
    Closed { address: Arc<str> },
    /// The sender's write guard refused, right before the transfer was written. Nothing was sent.
    #[error("send to `{address}` refused by the write guard: this sender may no longer write")]
    Fenced { address: Arc<str> },
}

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOperation {
    Open,
    Authorize,
    Attach,
    Send,
    Receive,
    Settle,
    Manage,
    Detach,
    Close,
}

/// Why a connection was closed or could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DisconnectReason {
    #[error("TCP connect failed")]
    Dial(#[source] Arc<std::io::Error>),
    #[error("TLS handshake failed")]
    Tls(#[source] Arc<std::io::Error>),
    #[error("failed to open a WebSocket")]
    WebSocket(#[source] Arc<websocket::Error>),
    #[error("socket read or write failed")]
    Socket(#[source] Arc<std::io::Error>),
    #[error("the peer closed the socket without an AMQP close")]
    UnexpectedEof,
    #[error("closed by the peer")]
    ClosedByPeer,
    #[error("closed with an AMQP error")]
    AmqpError(#[source] Box<ServiceError>),
    #[error("no reply in time: failed to {0} it")]
    NoReply(ClientOperation),
    #[error("write timed out: the peer does not read")]
    WriteStalled,
    #[error("closed by this client")]
    Closed,
}

/// An error from Service Bus, as sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{condition}: {description}")]
pub struct ServiceError {
    pub condition: Symbol,
    pub description: Box<str>,
}

/// What an error is about. Everything outside the scope is unaffected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorScope {
    /// This operation alone.
    Operation,
    /// Everything in flight on the link.
    Link,
    /// Everything in flight on the connection.
    Connection,
}

/// The kind of an error, which decides about retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BusErrorKind {
    /// Service Bus is throttling.
    Busy,
    Timeout,
    /// The link was detached; a new one may be opened.
    Detached,
    ConnectionLost,
    Internal,
    Cancelled,
    /// A condition that is not in the table.
    Unknown,
    /// The peer violated the protocol.
    Protocol,
    NotFound,
    AlreadyExists,
    Disabled,
    NotAllowed,
    InvalidArgument,
    Unauthorized,
    MessageTooLarge,
    QuotaExceeded,
    MessageLockLost,
    SessionLockLost,
    SessionHeldElsewhere,
    NotImplemented,
    /// Closed by this client.
    Closed,
    /// Refused by the write guard: see [`Sender::with_write_guard`](crate::Sender::with_write_guard).
    Fenced,
    Configuration,
}

impl BusErrorKind {
    /// True if the same operation may succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Busy
            | Self::Timeout
            | Self::Detached
            | Self::ConnectionLost
            | Self::Internal
            | Self::Cancelled
            | Self::Unknown
            | Self::Protocol => true,
            // Space may be freed and a session may be released, so retrying can help.
            Self::QuotaExceeded | Self::SessionHeldElsewhere => true,
            Self::NotFound
            | Self::AlreadyExists
            | Self::Disabled
            | Self::NotAllowed
            | Self::InvalidArgument
            | Self::Unauthorized
            | Self::MessageTooLarge
            | Self::MessageLockLost
            | Self::SessionLockLost
            | Self::NotImplemented
            | Self::Closed
            | Self::Fenced
            | Self::Configuration => false,
        }
    }

    /// Looks up Service Bus's and AMQP's own conditions.
    pub fn from_condition(name: &Symbol) -> Self {
        CONDITION_KINDS.iter().find(|(condition, _)| condition == name).map_or(Self::Unknown, |(_, kind)| *kind)
    }
}

const CONDITION_KINDS: [(Symbol, BusErrorKind); 37] = [
    (condition::SERVER_BUSY, BusErrorKind::Busy),
    (condition::TIMEOUT, BusErrorKind::Timeout),
    (condition::DETACH_FORCED, BusErrorKind::Detached),
    (condition::CONNECTION_FORCED, BusErrorKind::ConnectionLost),
    (condition::INTERNAL_ERROR, BusErrorKind::Internal),
    (condition::OPERATION_CANCELLED, BusErrorKind::Cancelled),
    (condition::CONNECTION_REDIRECT, BusErrorKind::ConnectionLost),
    (condition::LINK_REDIRECT, BusErrorKind::Detached),
    (condition::LINK_STOLEN, BusErrorKind::SessionLockLost),
    (condition::NOT_FOUND, BusErrorKind::NotFound),
    (condition::RESOURCE_DELETED, BusErrorKind::NotFound),
    (condition::MESSAGE_NOT_FOUND, BusErrorKind::NotFound),
    (condition::SESSION_NOT_FOUND, BusErrorKind::NotFound),
    (condition::ENTITY_ALREADY_EXISTS, BusErrorKind::AlreadyExists),
    (condition::ENTITY_DISABLED, BusErrorKind::Disabled),
    (condition::NOT_ALLOWED, BusErrorKind::NotAllowed),
    (condition::PRECONDITION_FAILED, BusErrorKind::NotAllowed),
    (condition::INVALID_FIELD, BusErrorKind::InvalidArgument),
    (condition::ARGUMENT_ERROR, BusErrorKind::InvalidArgument),
    (condition::ARGUMENT_OUT_OF_RANGE, BusErrorKind::InvalidArgument),
    (condition::DECODE_ERROR, BusErrorKind::InvalidArgument),
    (condition::UNAUTHORIZED_ACCESS, BusErrorKind::Unauthorized),
    (condition::AUTH_FAILED, BusErrorKind::Unauthorized),
    (condition::MESSAGE_SIZE_EXCEEDED, BusErrorKind::MessageTooLarge),
    (condition::RESOURCE_LIMIT_EXCEEDED, BusErrorKind::QuotaExceeded),
    (condition::MESSAGE_LOCK_LOST, BusErrorKind::MessageLockLost),
    (condition::SESSION_LOCK_LOST, BusErrorKind::SessionLockLost),
    (condition::STORE_LOCK_LOST, BusErrorKind::Internal),
    (condition::SESSION_CANNOT_BE_LOCKED, BusErrorKind::SessionHeldElsewhere),
    (condition::RESOURCE_LOCKED, BusErrorKind::SessionHeldElsewhere),
    (condition::NOT_IMPLEMENTED, BusErrorKind::NotImplemented),
    (condition::FRAMING_ERROR, BusErrorKind::Protocol),
    (condition::ILLEGAL_STATE, BusErrorKind::Protocol),
    (condition::WINDOW_VIOLATION, BusErrorKind::Protocol),
    (condition::ERRANT_LINK, BusErrorKind::Protocol),
    (condition::UNATTACHED_HANDLE, BusErrorKind::Protocol),
    (condition::TRANSFER_LIMIT_EXCEEDED, BusErrorKind::Protocol),
];

impl ServiceError {
    pub fn kind(&self) -> BusErrorKind {
        BusErrorKind::from_condition(&self.condition)
    }

    pub(crate) fn new(error: amqp::Error) -> Self {
        Self { condition: error.condition, description: error.description.unwrap_or_default().into() }
    }
}

impl Error {
    pub fn kind(&self) -> BusErrorKind {
        match self {
            Self::ConnectionString(_) | Self::Tls(_) => BusErrorKind::Configuration,
            Self::Connect { source, .. } | Self::ConnectionLost { source, .. } => source.kind(),
            Self::Token { source, .. } if source.is_retryable() => BusErrorKind::ConnectionLost,
            Self::Token { .. } => BusErrorKind::Unauthorized,
            Self::Refused { source, .. } | Self::LinkDetached { source, .. } => source.kind(),
            Self::Unsettled { failed, .. } => {
                failed.first().map_or(BusErrorKind::Unknown, |(_, refusal)| refusal.kind())
            }
            Self::Timeout { .. } => BusErrorKind::Timeout,
            Self::MessageTooLarge { .. } => BusErrorKind::MessageTooLarge,
            Self::InvalidState { source, .. } => kind_of_command_error(*source),
            Self::InvalidReply { .. } => BusErrorKind::Protocol,
            Self::Closed { .. } => BusErrorKind::Closed,
            Self::Fenced { .. } => BusErrorKind::Fenced,
        }
    }

    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    pub fn scope(&self) -> ErrorScope {
        match self {
            Self::ConnectionString(_)
            | Self::Tls(_)
            | Self::Connect { .. }
            | Self::ConnectionLost { .. }
            | Self::Token { .. } => ErrorScope::Connection,
            Self::LinkDetached { .. } | Self::Closed { .. } => ErrorScope::Link,
            Self::InvalidState { source, .. } => scope_of_command_error(*source),
            Self::Refused { .. }
            | Self::Unsettled { .. }
            | Self::Timeout { .. }
            | Self::MessageTooLarge { .. }
            | Self::InvalidReply { .. }
            | Self::Fenced { .. } => ErrorScope::Operation,
        }
    }

    /// The AMQP condition, if Service Bus sent one.
    pub fn condition(&self) -> Option<&str> {
        match self {
            Self::Refused { source, .. } | Self::LinkDetached { source, .. } => Some(source.condition.as_str()),
            Self::Unsettled { failed, .. } => failed.first().map(|(_, refusal)| refusal.condition.as_str()),
            Self::Connect { source, .. } | Self::ConnectionLost { source, .. } => source.condition(),
            Self::ConnectionString(_)
            | Self::Tls(_)
            | Self::Token { .. }
            | Self::Timeout { .. }
            | Self::MessageTooLarge { .. }
            | Self::InvalidState { .. }
            | Self::InvalidReply { .. }
            | Self::Closed { .. }
            | Self::Fenced { .. } => None,
        }
    }
}

fn kind_of_command_error(error: CommandError) -> BusErrorKind {
    match error {
        CommandError::Closed => BusErrorKind::ConnectionLost,
        CommandError::SessionGone | CommandError::LinkGone | CommandError::WrongState => BusErrorKind::Detached,
        CommandError::MessageTooLarge { .. } => BusErrorKind::MessageTooLarge,
        CommandError::TooManySessions | CommandError::TooManyLinks => BusErrorKind::QuotaExceeded,
        CommandError::WrongRole | CommandError::NoCredit | CommandError::TagTooLong => BusErrorKind::Protocol,
    }
}

fn scope_of_command_error(error: CommandError) -> ErrorScope {
    match error {
        CommandError::Closed => ErrorScope::Connection,
        CommandError::SessionGone
        | CommandError::LinkGone
        | CommandError::WrongState
        | CommandError::TooManySessions
        | CommandError::TooManyLinks => ErrorScope::Link,
        CommandError::MessageTooLarge { .. }
        | CommandError::WrongRole
        | CommandError::NoCredit
        | CommandError::TagTooLong => ErrorScope::Operation,
    }
}

impl DisconnectReason {
    fn kind(&self) -> BusErrorKind {
        match self {
            // Wrong credentials and unknown hosts stay wrong. Other network errors are temporary.
            Self::AmqpError(refusal) => match refusal.kind() {
                BusErrorKind::Unauthorized => BusErrorKind::Unauthorized,
                BusErrorKind::NotFound => BusErrorKind::NotFound,
                BusErrorKind::Busy
                | BusErrorKind::Timeout
                | BusErrorKind::Detached
                | BusErrorKind::ConnectionLost
                | BusErrorKind::Internal
                | BusErrorKind::Cancelled
                | BusErrorKind::Unknown
                | BusErrorKind::Protocol
                | BusErrorKind::AlreadyExists
                | BusErrorKind::Disabled
                | BusErrorKind::NotAllowed
                | BusErrorKind::InvalidArgument
                | BusErrorKind::MessageTooLarge
                | BusErrorKind::QuotaExceeded
                | BusErrorKind::MessageLockLost
                | BusErrorKind::SessionLockLost
                | BusErrorKind::SessionHeldElsewhere
                | BusErrorKind::NotImplemented
                | BusErrorKind::Closed
                | BusErrorKind::Fenced
                | BusErrorKind::Configuration => BusErrorKind::ConnectionLost,
            },
            Self::Closed => BusErrorKind::Closed,
            Self::Dial(_)
            | Self::Tls(_)
            | Self::WebSocket(_)
            | Self::Socket(_)
            | Self::UnexpectedEof
            | Self::ClosedByPeer
            | Self::NoReply(_)
            | Self::WriteStalled => BusErrorKind::ConnectionLost,
        }
    }

    fn condition(&self) -> Option<&str> {
        if let Self::AmqpError(refusal) = self { Some(refusal.condition.as_str()) } else { None }
    }
}

impl std::fmt::Display for ClientOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open a connection to",
            Self::Authorize => "put a token for",
            Self::Attach => "attach to",
            Self::Send => "send to",
            Self::Receive => "receive from",
            Self::Settle => "settle messages from",
            Self::Manage => "ask",
            Self::Detach => "detach from",
            Self::Close => "close the connection to",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retryable_conditions_match_the_documentation() {
        let retryable = [
            "com.microsoft:server-busy",
            "com.microsoft:timeout",
            "amqp:link:detach-forced",
            "amqp:connection:forced",
            "amqp:internal-error",
            "com.microsoft:operation-cancelled",
            "com.example:never-heard-of",
        ];
        let not = [
            "amqp:not-found",
            "amqp:not-allowed",
            "amqp:unauthorized-access",
            "amqp:link:message-size-exceeded",
            "com.microsoft:message-lock-lost",
            "com.microsoft:session-lock-lost",
            "com.microsoft:argument-error",
            "com.microsoft:argument-out-of-range",
        ];
        for name in retryable {
            assert!(BusErrorKind::from_condition(&Symbol::from_static(name)).is_retryable(), "{name}");
        }
        for name in not {
            assert!(!BusErrorKind::from_condition(&Symbol::from_static(name)).is_retryable(), "{name}");
        }
    }
}
