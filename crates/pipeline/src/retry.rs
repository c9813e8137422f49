//! What an error means, the only table of its sort; and how long to wait before trying again, the only formula.
//!
//! Weighing both mistakes. A passing error called permanent parks an aggregate: an operator sees it, and `retry` mends it. A permanent
//! error called passing is tried for ever, and with it waits the session and everyone in it. So a refusal nobody knows is
//! permanent, and everything that happens between us and a server is passing.

use std::time::Duration;

use mongodb::error::{
    Error, ErrorKind, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use servicebus::BusErrorKind;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The same may succeed later: try again, with a pause.
    Transient,
    /// The same fails again, and only because of what it is: put it aside and go on.
    Permanent,
    /// Everything fails until an operator has acted: rights, settings, a server of the wrong kind.
    Fatal,
}

/// Labels by which server and driver say that a repetition may succeed.
const TRANSIENT_LABELS: [&str; 5] = [
    TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
    RETRYABLE_WRITE_ERROR,
    RETRYABLE_ERROR,
    SYSTEM_OVERLOADED_ERROR,
];

/// Codes of a server that cannot just now. 251 with it: a transaction that is gone is begun again.
const TRANSIENT: [i32; 37] = [
    6, 7, 24, 39, 43, 46, 50, 63, 64, 89, 91, 112, 117, 133, 134, 150, 175, 189, 202, 225, 234, 239, 246, 251, 262,
    267, 290, 313, 314, 317, 361, 365, 462, 9001, 10107, 11600, 11602,
];
/// More of them, of servers that step down (50746: a write is explained on one that just has) and of sharding that moves; and a disk that
/// is full now.
const TRANSIENT_TOPOLOGY: [i32; 7] = [13388, 13435, 13436, 14031, 211, 388, 50746];

/// Rights, a server that is no member of a set, a version that lacks a command, a write concern that cannot be met.
const FATAL: [i32; 11] = [11, 13, 18, 20, 59, 79, 100, 115, 263, 8000, 13297];

/// What an answer or a failure of MongoDB means.
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
        // On the way, or an answer that says nothing else: what is said by code or label is dealt with above.
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
        // The driver's enum may grow.
        _ => ErrorClass::Transient,
    }
}

/// What a server's code means: of a command, or of one statement in it.
pub fn classify_mongo_code(code: i32) -> ErrorClass {
    if TRANSIENT.contains(&code) || TRANSIENT_TOPOLOGY.contains(&code) {
        ErrorClass::Transient
    } else if FATAL.contains(&code) {
        ErrorClass::Fatal
    } else {
        ErrorClass::Permanent
    }
}

/// What an answer or a failure of the bus means.
pub const fn classify_service_bus(kind: BusErrorKind) -> ErrorClass {
    match kind {
        BusErrorKind::Busy
        | BusErrorKind::Timeout
        | BusErrorKind::Detached
        | BusErrorKind::ConnectionLost
        | BusErrorKind::Internal
        | BusErrorKind::Cancelled
        | BusErrorKind::Unknown
        | BusErrorKind::Protocol
        | BusErrorKind::QuotaExceeded
        | BusErrorKind::MessageLockLost
        | BusErrorKind::SessionLockLost
        | BusErrorKind::SessionHeldElsewhere => ErrorClass::Transient,
        BusErrorKind::MessageTooLarge | BusErrorKind::InvalidArgument => ErrorClass::Permanent,
        BusErrorKind::NotFound
        | BusErrorKind::AlreadyExists
        | BusErrorKind::Disabled
        | BusErrorKind::NotAllowed
        | BusErrorKind::Unauthorized
        | BusErrorKind::NotImplemented
        | BusErrorKind::Closed
        | BusErrorKind::Configuration
        // Of a sender whose term is over; a consumer does not meet it.
        | BusErrorKind::Fenced => ErrorClass::Fatal,
    }
}

/// The pause after so many failures before: doubles from `first` to `longest`.
pub fn exponential_delay(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(longest)
}

/// The same, drawn from the upper half, so that many who failed together do not come back together.
pub fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    exponential_delay(failures, first, longest).mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_to_the_maximum() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_secs(1));
        assert_eq!(
            [0, 1, 2].map(|failures| exponential_delay(failures, first, longest)),
            [first, first * 2, first * 4]
        );
        assert_eq!(exponential_delay(u32::MAX, first, longest), longest);
        let late = backoff(60, first, longest);
        assert!(late >= longest / 2 && late <= longest);
    }

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
    fn retryable_service_bus_errors_are_transient() {
        let retryable = [
            BusErrorKind::Busy,
            BusErrorKind::Timeout,
            BusErrorKind::Detached,
            BusErrorKind::ConnectionLost,
            BusErrorKind::Internal,
            BusErrorKind::Unknown,
        ];
        for kind in retryable {
            assert!(kind.is_retryable(), "{kind:?}");
            assert_eq!(classify_service_bus(kind), ErrorClass::Transient, "{kind:?}");
        }
        assert_eq!(classify_service_bus(BusErrorKind::Unauthorized), ErrorClass::Fatal);
        assert_eq!(classify_service_bus(BusErrorKind::MessageTooLarge), ErrorClass::Permanent);
    }
}
