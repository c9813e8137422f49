//! The error policy: one table for MongoDB errors, one for Service Bus errors. Every station looks its errors up here.
//!
//! Both mistakes cost. If a transient error counts as permanent, an aggregate is parked; an operator sees it, and `parked retry` fixes it. If a
//! permanent error counts as transient, it is retried forever and blocks the session. So an unknown refusal is permanent, and everything that happens
//! on the way to a server is transient. `capture/unresumable.rs` adds the errors that only a change stream can have.

use mongodb::error::{
    Error, ErrorKind, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use servicebus::{BusErrorKind, ErrorScope};

use crate::publish::PauseReason;
use crate::session::SessionProblem;

/// What an error means for the request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The same request may succeed later: retry with backoff.
    Transient,
    /// The same request fails again, because of its content: park or reject it and continue.
    Permanent,
    /// Every request fails until an operator acts: permissions, settings, the wrong kind of server.
    Fatal,
}

/// What the publisher does after a failed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendErrorAction {
    /// Message scope: retry this transfer after a backoff of its lane.
    Retry,
    /// Link scope: the link is lost and the outcome is unknown; resend on the next link.
    Reopen,
    /// Link scope: a transfer in flight made Service Bus detach the link; find it by resending in smaller groups.
    Isolate,
    /// Send nothing for a while.
    Pause(PauseReason),
    /// Message scope: Service Bus never accepts this message.
    Refused,
    /// The gate of the term is closed: the message was not sent, and no other will be.
    GateClosed,
    /// A retry cannot fix it.
    Fatal,
}

/// What a failed query for the subscription says about the subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionQueryAction {
    /// Nothing: keep the last known answer.
    KeepLastAnswer,
    /// We may send but not query: assume that the subscription exists.
    AssumeExists,
}

/// What the publisher does after a failed send, by the scope of the error. Only an error about the message itself is about its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendPolicy {
    /// Service Bus answered this transfer.
    pub(crate) message: SendErrorAction,
    /// Service Bus detached the link: every transfer in flight fails with the same error.
    pub(crate) link: SendErrorAction,
    /// The connection was closed or could not be opened.
    pub(crate) connection: SendErrorAction,
}

/// The action after a failed send, or a failed open of the sender link.
pub(crate) fn on_send_error(error: &servicebus::Error) -> SendErrorAction {
    let policy = service_bus(error.kind()).send;
    match error.scope() {
        ErrorScope::Operation => policy.message,
        ErrorScope::Link => policy.link,
        ErrorScope::Connection => policy.connection,
    }
}

/// One row of the Service Bus table: an error in each scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceBusPolicy {
    /// Of a single request, such as a lock renewal.
    pub(crate) request: ErrorClass,
    /// Of a send by the publisher.
    pub(crate) send: SendPolicy,
    /// Of the accept of a session.
    pub(crate) accept: SessionProblem,
    /// Of the query whether the subscription exists.
    pub(crate) subscription_query: SubscriptionQueryAction,
}

/// The Service Bus table. A wrong retry of a send blocks its lane, and the state shows it; a wrong refusal parks the aggregate at every consumer. So only an
/// error about the message itself is a refusal.
pub(crate) const fn service_bus(kind: BusErrorKind) -> ServiceBusPolicy {
    use ErrorClass::{Fatal, Permanent, Transient};
    use SessionProblem as Accept;
    use SubscriptionQueryAction::{AssumeExists, KeepLastAnswer};
    let (request, accept, subscription_query) = match kind {
        BusErrorKind::Busy | BusErrorKind::QuotaExceeded => (Transient, Accept::Busy, KeepLastAnswer),
        BusErrorKind::Timeout
        | BusErrorKind::Internal
        | BusErrorKind::Cancelled
        | BusErrorKind::Unknown
        | BusErrorKind::Protocol
        | BusErrorKind::Detached
        | BusErrorKind::ConnectionLost
        | BusErrorKind::MessageLockLost
        | BusErrorKind::SessionLockLost
        | BusErrorKind::SessionHeldElsewhere => (Transient, Accept::Unreachable, KeepLastAnswer),
        BusErrorKind::MessageTooLarge => (Permanent, Accept::Refused, KeepLastAnswer),
        BusErrorKind::InvalidArgument => (Permanent, Accept::Refused, AssumeExists),
        BusErrorKind::NotAllowed | BusErrorKind::NotImplemented => (Fatal, Accept::Refused, AssumeExists),
        BusErrorKind::Unauthorized => (Fatal, Accept::Unauthorized, AssumeExists),
        BusErrorKind::NotFound => (Fatal, Accept::SubscriptionMissing, KeepLastAnswer),
        BusErrorKind::Disabled => (Fatal, Accept::Disabled, KeepLastAnswer),
        BusErrorKind::AlreadyExists | BusErrorKind::Configuration => (Fatal, Accept::Refused, KeepLastAnswer),
        BusErrorKind::Closed => (Fatal, Accept::Unreachable, KeepLastAnswer),
        // Only a sender whose term is over meets it.
        BusErrorKind::Fenced => (Fatal, Accept::Refused, KeepLastAnswer),
    };
    ServiceBusPolicy { request, send: send_policy(kind), accept, subscription_query }
}

/// The columns of the Service Bus table that are about sends.
const fn send_policy(kind: BusErrorKind) -> SendPolicy {
    use PauseReason as Because;
    use SendErrorAction::{Fatal, GateClosed, Isolate, Pause, Refused, Reopen, Retry};
    let (message, link, connection) = match kind {
        BusErrorKind::Busy | BusErrorKind::QuotaExceeded => (Pause(Because::Busy), Pause(Because::Busy), Reopen),
        BusErrorKind::Timeout
        | BusErrorKind::Internal
        | BusErrorKind::Cancelled
        | BusErrorKind::Unknown
        | BusErrorKind::Protocol
        | BusErrorKind::AlreadyExists
        // Errors of receivers: a sender does not meet them.
        | BusErrorKind::MessageLockLost
        | BusErrorKind::SessionLockLost
        | BusErrorKind::SessionHeldElsewhere => (Retry, Reopen, Reopen),
        BusErrorKind::Detached | BusErrorKind::ConnectionLost => (Reopen, Reopen, Reopen),
        BusErrorKind::MessageTooLarge
        | BusErrorKind::InvalidArgument
        | BusErrorKind::NotAllowed
        | BusErrorKind::NotImplemented => (Refused, Isolate, Reopen),
        BusErrorKind::Unauthorized => {
            (Pause(Because::Unauthorized), Pause(Because::Unauthorized), Pause(Because::Unauthorized))
        }
        // An unknown host also has this kind.
        BusErrorKind::NotFound => {
            (Pause(Because::TopicMissing), Pause(Because::TopicMissing), Pause(Because::Unreachable))
        }
        BusErrorKind::Disabled => (Pause(Because::Disabled), Pause(Because::Disabled), Reopen),
        BusErrorKind::Closed | BusErrorKind::Configuration => (Fatal, Fatal, Fatal),
        BusErrorKind::Fenced => (GateClosed, GateClosed, GateClosed),
    };
    SendPolicy { message, link, connection }
}

/// Labels of server and driver for errors that a retry may fix.
const TRANSIENT_LABELS: [&str; 5] = [
    TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
    RETRYABLE_WRITE_ERROR,
    RETRYABLE_ERROR,
    SYSTEM_OVERLOADED_ERROR,
];

/// Codes of a server that is temporarily unable. Includes 251: an aborted transaction is started again.
const TRANSIENT: [i32; 37] = [
    6, 7, 24, 39, 43, 46, 50, 63, 64, 89, 91, 112, 117, 133, 134, 150, 175, 189, 202, 225, 234, 239, 246, 251, 262,
    267, 290, 313, 314, 317, 361, 365, 462, 9001, 10107, 11600, 11602,
];
/// Codes of step-downs (50746: an explained write on a server that just stepped down), of chunk migrations, and of a full disk.
const TRANSIENT_TOPOLOGY: [i32; 7] = [13388, 13435, 13436, 14031, 211, 388, 50746];

/// Permissions, a server outside a replica set, a version without the command, a write concern that cannot be met.
const FATAL: [i32; 11] = [11, 13, 18, 20, 59, 79, 100, 115, 263, 8000, 13297];

/// The class of a MongoDB error.
pub fn classify_mongo(error: &Error) -> ErrorClass {
    if TRANSIENT_LABELS.iter().any(|label| error.contains_label(label)) {
        return ErrorClass::Transient;
    }
    if let Some(code) = mongo_error::error_code(error) {
        return classify_mongo_code(code);
    }
    match &*error.kind {
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::Authentication { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::Shutdown => ErrorClass::Fatal,
        ErrorKind::BsonSerialization(_) | ErrorKind::Bson(_) => ErrorClass::Permanent,
        // Network errors, and replies without a code: labels and codes are handled above.
        ErrorKind::Io(_)
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::InvalidResponse { .. }
        | ErrorKind::BsonDeserialization(_)
        | ErrorKind::Internal { .. }
        | ErrorKind::Transaction { .. }
        | ErrorKind::Command(_)
        | ErrorKind::Write(_)
        | ErrorKind::InsertMany(_)
        | ErrorKind::BulkWrite(_)
        | ErrorKind::GridFs(_)
        | ErrorKind::MissingResumeToken
        | ErrorKind::Custom(_) => ErrorClass::Transient,
        // The enum of the driver is non-exhaustive.
        _ => ErrorClass::Transient,
    }
}

/// The class of a server code, of a command or of one statement in it.
pub fn classify_mongo_code(code: i32) -> ErrorClass {
    if TRANSIENT.contains(&code) || TRANSIENT_TOPOLOGY.contains(&code) {
        ErrorClass::Transient
    } else if FATAL.contains(&code) {
        ErrorClass::Fatal
    } else {
        ErrorClass::Permanent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mongo_codes_have_the_documented_class() {
        let table = [
            (112, "WriteConflict", ErrorClass::Transient),
            (251, "NoSuchTransaction", ErrorClass::Transient),
            (246, "SnapshotUnavailable", ErrorClass::Transient),
            (189, "PrimarySteppedDown", ErrorClass::Transient),
            (10107, "NotWritablePrimary", ErrorClass::Transient),
            (91, "ShutdownInProgress", ErrorClass::Transient),
            (64, "WriteConcernTimeout", ErrorClass::Transient),
            (50746, "an explained write on a secondary", ErrorClass::Transient),
            (11000, "DuplicateKey", ErrorClass::Permanent),
            (2, "BadValue", ErrorClass::Permanent),
            (9, "FailedToParse", ErrorClass::Permanent),
            (14, "TypeMismatch", ErrorClass::Permanent),
            (28, "PathNotViable", ErrorClass::Permanent),
            (66, "ImmutableField", ErrorClass::Permanent),
            (121, "DocumentValidationFailure", ErrorClass::Permanent),
            (17419, "a document that grew over 16 MB", ErrorClass::Permanent),
            (7_749_501, "too many stages", ErrorClass::Permanent),
            (987_654_321, "nobody knows", ErrorClass::Permanent),
            (13, "Unauthorized", ErrorClass::Fatal),
            (20, "IllegalOperation: not a replica set", ErrorClass::Fatal),
        ];
        for (code, name, verdict) in table {
            assert_eq!(classify_mongo_code(code), verdict, "{code} {name}");
        }
    }

    #[test]
    fn a_network_error_is_transient() {
        let broken = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(classify_mongo(&broken), ErrorClass::Transient);
    }

    #[test]
    fn service_bus_errors_have_the_documented_policy() {
        use BusErrorKind as Kind;
        use ErrorClass::{Fatal, Permanent, Transient};
        use SessionProblem as Accept;
        let table = [
            // Columns: request, accept, subscription query assumes that the subscription exists.
            (Kind::Busy, Transient, Accept::Busy, false),
            (Kind::Timeout, Transient, Accept::Unreachable, false),
            (Kind::Detached, Transient, Accept::Unreachable, false),
            (Kind::ConnectionLost, Transient, Accept::Unreachable, false),
            (Kind::Internal, Transient, Accept::Unreachable, false),
            (Kind::Cancelled, Transient, Accept::Unreachable, false),
            (Kind::Unknown, Transient, Accept::Unreachable, false),
            (Kind::Protocol, Transient, Accept::Unreachable, false),
            (Kind::NotFound, Fatal, Accept::SubscriptionMissing, false),
            (Kind::AlreadyExists, Fatal, Accept::Refused, false),
            (Kind::Disabled, Fatal, Accept::Disabled, false),
            (Kind::NotAllowed, Fatal, Accept::Refused, true),
            (Kind::InvalidArgument, Permanent, Accept::Refused, true),
            (Kind::Unauthorized, Fatal, Accept::Unauthorized, true),
            (Kind::MessageTooLarge, Permanent, Accept::Refused, false),
            (Kind::QuotaExceeded, Transient, Accept::Busy, false),
            (Kind::MessageLockLost, Transient, Accept::Unreachable, false),
            (Kind::SessionLockLost, Transient, Accept::Unreachable, false),
            (Kind::SessionHeldElsewhere, Transient, Accept::Unreachable, false),
            (Kind::NotImplemented, Fatal, Accept::Refused, true),
            (Kind::Closed, Fatal, Accept::Unreachable, false),
            (Kind::Fenced, Fatal, Accept::Refused, false),
            (Kind::Configuration, Fatal, Accept::Refused, false),
        ];
        for (kind, request, accept, assumed) in table {
            let policy = service_bus(kind);
            assert_eq!((policy.request, policy.accept), (request, accept), "{kind:?}");
            assert_eq!(policy.subscription_query == SubscriptionQueryAction::AssumeExists, assumed, "{kind:?}");
            // The client must not call retryable what we do not retry.
            assert!(!kind.is_retryable() || policy.request == Transient, "{kind:?}");
        }
    }

    fn service_error(condition: &'static str) -> Box<servicebus::ServiceError> {
        let condition = amqp::Symbol::from_static(condition);
        Box::new(servicebus::ServiceError { condition, description: "".into() })
    }

    /// An error of the service for one transfer, and the same error as the reason of a detach.
    fn answered_and_detached(condition: &'static str) -> [servicebus::Error; 2] {
        let operation = servicebus::ClientOperation::Send;
        [
            servicebus::Error::Refused { operation, address: "events".into(), source: service_error(condition) },
            servicebus::Error::LinkDetached { operation, address: "events".into(), source: service_error(condition) },
        ]
    }

    fn connection_lost(condition: &'static str) -> servicebus::Error {
        let source = servicebus::DisconnectReason::AmqpError(service_error(condition));
        servicebus::Error::ConnectionLost { host: "bus".into(), source }
    }

    #[test]
    fn send_errors_of_message_link_and_connection_differ() {
        use PauseReason as Because;
        use SendErrorAction::{Isolate, Pause, Refused, Reopen, Retry};
        const UNAUTHORIZED: SendErrorAction = Pause(Because::Unauthorized);
        let paused = |reason| (Pause(reason), Pause(reason), Reopen);
        // Expected: for the error of one transfer, of the link, of the connection.
        let table: [(&[&'static str], _); 8] = [
            (
                &[
                    "amqp:not-allowed",
                    "amqp:link:message-size-exceeded",
                    "com.microsoft:argument-error",
                    "com.microsoft:argument-out-of-range",
                    "amqp:decode-error",
                    "amqp:invalid-field",
                    "amqp:not-implemented",
                ],
                (Refused, Isolate, Reopen),
            ),
            (&["com.microsoft:server-busy", "amqp:resource-limit-exceeded"], paused(Because::Busy)),
            (&["com.microsoft:entity-disabled"], paused(Because::Disabled)),
            (
                &["amqp:not-found"],
                (Pause(Because::TopicMissing), Pause(Because::TopicMissing), Pause(Because::Unreachable)),
            ),
            (&["amqp:unauthorized-access"], (UNAUTHORIZED, UNAUTHORIZED, UNAUTHORIZED)),
            (&["amqp:link:detach-forced", "amqp:connection:forced"], (Reopen, Reopen, Reopen)),
            (
                &[
                    "com.microsoft:timeout",
                    "amqp:internal-error",
                    "com.microsoft:operation-cancelled",
                    "amqp:illegal-state",
                ],
                (Retry, Reopen, Reopen),
            ),
            (&["com.example:unknown"], (Retry, Reopen, Reopen)),
        ];
        for (conditions, (message, link, connection)) in table {
            for &condition in conditions {
                let [answered, detached] = answered_and_detached(condition);
                assert_eq!(on_send_error(&answered), message, "{condition} of a message");
                assert_eq!(on_send_error(&detached), link, "{condition} of a link");
                assert_eq!(on_send_error(&connection_lost(condition)), connection, "{condition} of a connection");
            }
        }
    }

    #[test]
    fn errors_of_the_client_itself_have_their_scope() {
        use SendErrorAction::{Fatal, GateClosed, Refused, Reopen};
        let address = || std::sync::Arc::<str>::from("events");
        let invalid = |source| servicebus::Error::InvalidState {
            operation: servicebus::ClientOperation::Send,
            address: address(),
            source,
        };
        let table = [
            (servicebus::Error::MessageTooLarge { address: address(), size: 2, limit: 1 }, Refused),
            (invalid(amqp::CommandError::MessageTooLarge { size: 2, max: 1 }), Refused),
            (invalid(amqp::CommandError::LinkGone), Reopen),
            (invalid(amqp::CommandError::Closed), Reopen),
            (servicebus::Error::Closed { address: address() }, Fatal),
            (servicebus::Error::Fenced { address: address() }, GateClosed),
        ];
        for (error, expected) in table {
            assert_eq!(on_send_error(&error), expected, "{error}");
        }
    }
}
