//! What can go wrong, what kind of thing it is, and whether trying again may help: one table, from AMQP condition to [`Kind`].
//!
//! Weighing both mistakes: an error wrongly called retryable costs attempts, each paced and logged; one wrongly called final makes a
//! caller give up on a message. So a condition nobody knows is retryable.

use std::sync::Arc;
use std::time::Duration;

use amqp::{CommandError, Symbol, condition};

/// Why an operation did not succeed. Cheap to clone: one cause may be told to many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("read the connection string")]
    ConnectionString(#[from] crate::connection_string::Error),
    #[error("set up TLS")]
    Tls(#[from] crate::tls::Error),
    #[error("connect to `{host}`")]
    Connect {
        host: Arc<str>,
        #[source]
        source: Lost,
    },
    /// What was under way when the connection ended; whether the bus carried it out is not known.
    #[error("connection to `{host}` lost")]
    ConnectionLost {
        host: Arc<str>,
        #[source]
        source: Lost,
    },
    /// The bus answered, and the answer is no.
    #[error("{step} `{address}`")]
    Refused {
        step: Step,
        address: Arc<str>,
        #[source]
        source: Box<Refusal>,
    },
    #[error("settle {} of {asked} messages from `{address}`", failed.len())]
    Unsettled {
        address: Arc<str>,
        asked: usize,
        /// By sequence number; never empty.
        failed: Arc<[(i64, Refusal)]>,
    },
    /// No answer in time. Whether the bus carried it out is not known.
    #[error("{step} `{address}`: no answer within {within:?}")]
    Timeout { step: Step, address: Arc<str>, within: Duration },
    #[error("message of {size} bytes exceeds the {limit} that `{address}` takes")]
    MessageTooLarge { address: Arc<str>, size: usize, limit: u64 },
    /// The connection's own state does not allow it.
    #[error("{step} `{address}`")]
    Impossible {
        step: Step,
        address: Arc<str>,
        #[source]
        source: CommandError,
    },
    #[error("{step} `{address}`: {what}")]
    Malformed { step: Step, address: Arc<str>, what: &'static str },
    #[error("`{address}` is closed")]
    Closed { address: Arc<str> },
    /// The sender's own guard said no, right before the transfer would have been written: it never left.
    #[error("send to `{address}`: held back, this sender may write no more")]
    Withheld { address: Arc<str> },
}

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
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

/// How a connection ended, or never began.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Lost {
    #[error("dial")]
    Dial(#[source] Arc<std::io::Error>),
    #[error("agree on TLS")]
    Tls(#[source] Arc<std::io::Error>),
    #[error("read or write the socket")]
    Socket(#[source] Arc<std::io::Error>),
    #[error("the peer hung up")]
    HungUp,
    #[error("closed by the peer")]
    ByPeer,
    #[error("ended with an AMQP error")]
    Amqp(#[source] Box<Refusal>),
    #[error("{0} got no answer in time")]
    NoAnswer(Step),
    #[error("the peer does not read what is sent to it")]
    Stalled,
    #[error("closed by this client")]
    Closed,
}

/// The bus's own words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{condition}: {description}")]
pub struct Refusal {
    pub condition: Symbol,
    pub description: Box<str>,
}

/// What an error means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The bus asks for patience.
    Busy,
    Timeout,
    /// The link was taken away; a new one may be opened.
    Detached,
    ConnectionLost,
    Internal,
    Cancelled,
    /// A condition this table does not know.
    Unknown,
    /// The peer broke the protocol.
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
    /// This end closed it.
    Closed,
    /// This end did not let it out: see [`Sender::guarded`](crate::Sender::guarded).
    Withheld,
    Configuration,
}

impl Kind {
    /// Whether the same operation may succeed later.
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
            // Room may be made, a session may be let go: the bus says "later", not "never".
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
            | Self::Withheld
            | Self::Configuration => false,
        }
    }

    /// The table: `servicebus-wire.md` §8, and AMQP's own conditions.
    pub fn of_condition(name: &Symbol) -> Self {
        TABLE.iter().find(|(condition, _)| condition == name).map_or(Self::Unknown, |(_, kind)| *kind)
    }
}

const TABLE: [(Symbol, Kind); 37] = [
    (condition::SERVER_BUSY, Kind::Busy),
    (condition::TIMEOUT, Kind::Timeout),
    (condition::DETACH_FORCED, Kind::Detached),
    (condition::CONNECTION_FORCED, Kind::ConnectionLost),
    (condition::INTERNAL_ERROR, Kind::Internal),
    (condition::OPERATION_CANCELLED, Kind::Cancelled),
    (condition::CONNECTION_REDIRECT, Kind::ConnectionLost),
    (condition::LINK_REDIRECT, Kind::Detached),
    (condition::LINK_STOLEN, Kind::SessionLockLost),
    (condition::NOT_FOUND, Kind::NotFound),
    (condition::RESOURCE_DELETED, Kind::NotFound),
    (condition::MESSAGE_NOT_FOUND, Kind::NotFound),
    (condition::SESSION_NOT_FOUND, Kind::NotFound),
    (condition::ENTITY_ALREADY_EXISTS, Kind::AlreadyExists),
    (condition::ENTITY_DISABLED, Kind::Disabled),
    (condition::NOT_ALLOWED, Kind::NotAllowed),
    (condition::PRECONDITION_FAILED, Kind::NotAllowed),
    (condition::INVALID_FIELD, Kind::InvalidArgument),
    (condition::ARGUMENT_ERROR, Kind::InvalidArgument),
    (condition::ARGUMENT_OUT_OF_RANGE, Kind::InvalidArgument),
    (condition::DECODE_ERROR, Kind::InvalidArgument),
    (condition::UNAUTHORIZED_ACCESS, Kind::Unauthorized),
    (condition::AUTH_FAILED, Kind::Unauthorized),
    (condition::MESSAGE_SIZE_EXCEEDED, Kind::MessageTooLarge),
    (condition::RESOURCE_LIMIT_EXCEEDED, Kind::QuotaExceeded),
    (condition::MESSAGE_LOCK_LOST, Kind::MessageLockLost),
    (condition::SESSION_LOCK_LOST, Kind::SessionLockLost),
    (condition::STORE_LOCK_LOST, Kind::Internal),
    (condition::SESSION_CANNOT_BE_LOCKED, Kind::SessionHeldElsewhere),
    (condition::RESOURCE_LOCKED, Kind::SessionHeldElsewhere),
    (condition::NOT_IMPLEMENTED, Kind::NotImplemented),
    (condition::FRAMING_ERROR, Kind::Protocol),
    (condition::ILLEGAL_STATE, Kind::Protocol),
    (condition::WINDOW_VIOLATION, Kind::Protocol),
    (condition::ERRANT_LINK, Kind::Protocol),
    (condition::UNATTACHED_HANDLE, Kind::Protocol),
    (condition::TRANSFER_LIMIT_EXCEEDED, Kind::Protocol),
];

impl Refusal {
    pub fn kind(&self) -> Kind {
        Kind::of_condition(&self.condition)
    }

    pub(crate) fn new(error: amqp::Error) -> Self {
        Self { condition: error.condition, description: error.description.unwrap_or_default().into() }
    }
}

impl Error {
    pub fn kind(&self) -> Kind {
        match self {
            Self::ConnectionString(_) | Self::Tls(_) => Kind::Configuration,
            Self::Connect { source, .. } | Self::ConnectionLost { source, .. } => source.kind(),
            Self::Refused { source, .. } => source.kind(),
            Self::Unsettled { failed, .. } => failed.first().map_or(Kind::Unknown, |(_, refusal)| refusal.kind()),
            Self::Timeout { .. } => Kind::Timeout,
            Self::MessageTooLarge { .. } => Kind::MessageTooLarge,
            Self::Impossible { source, .. } => of_command(*source),
            Self::Malformed { .. } => Kind::Protocol,
            Self::Closed { .. } => Kind::Closed,
            Self::Withheld { .. } => Kind::Withheld,
        }
    }

    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// The AMQP condition, where the bus gave one.
    pub fn condition(&self) -> Option<&str> {
        match self {
            Self::Refused { source, .. } => Some(source.condition.as_str()),
            Self::Unsettled { failed, .. } => failed.first().map(|(_, refusal)| refusal.condition.as_str()),
            Self::Connect { source, .. } | Self::ConnectionLost { source, .. } => source.condition(),
            Self::ConnectionString(_)
            | Self::Tls(_)
            | Self::Timeout { .. }
            | Self::MessageTooLarge { .. }
            | Self::Impossible { .. }
            | Self::Malformed { .. }
            | Self::Closed { .. }
            | Self::Withheld { .. } => None,
        }
    }
}

fn of_command(error: CommandError) -> Kind {
    match error {
        CommandError::Closed => Kind::ConnectionLost,
        CommandError::SessionGone | CommandError::LinkGone | CommandError::WrongState => Kind::Detached,
        CommandError::MessageTooLarge { .. } => Kind::MessageTooLarge,
        CommandError::TooManySessions | CommandError::TooManyLinks => Kind::QuotaExceeded,
        CommandError::WrongRole | CommandError::NoCredit | CommandError::TagTooLong => Kind::Protocol,
    }
}

impl Lost {
    fn kind(&self) -> Kind {
        match self {
            // Refused credentials and hosts that do not exist stay so; everything else about a network passes.
            Self::Amqp(refusal) => match refusal.kind() {
                Kind::Unauthorized => Kind::Unauthorized,
                Kind::NotFound => Kind::NotFound,
                Kind::Busy
                | Kind::Timeout
                | Kind::Detached
                | Kind::ConnectionLost
                | Kind::Internal
                | Kind::Cancelled
                | Kind::Unknown
                | Kind::Protocol
                | Kind::AlreadyExists
                | Kind::Disabled
                | Kind::NotAllowed
                | Kind::InvalidArgument
                | Kind::MessageTooLarge
                | Kind::QuotaExceeded
                | Kind::MessageLockLost
                | Kind::SessionLockLost
                | Kind::SessionHeldElsewhere
                | Kind::NotImplemented
                | Kind::Closed
                | Kind::Withheld
                | Kind::Configuration => Kind::ConnectionLost,
            },
            Self::Closed => Kind::Closed,
            Self::Dial(_)
            | Self::Tls(_)
            | Self::Socket(_)
            | Self::HungUp
            | Self::ByPeer
            | Self::NoAnswer(_)
            | Self::Stalled => Kind::ConnectionLost,
        }
    }

    fn condition(&self) -> Option<&str> {
        if let Self::Amqp(refusal) = self { Some(refusal.condition.as_str()) } else { None }
    }
}

impl std::fmt::Display for Step {
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
    fn what_may_be_tried_again_is_what_the_contract_says() {
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
            assert!(Kind::of_condition(&Symbol::from_static(name)).is_retryable(), "{name}");
        }
        for name in not {
            assert!(!Kind::of_condition(&Symbol::from_static(name)).is_retryable(), "{name}");
        }
    }
}
