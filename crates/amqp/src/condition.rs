//! Names of error conditions: those of AMQP 1.0 and those Service Bus adds.

use crate::Symbol;

macro_rules! conditions {
    ($($name:ident = $text:literal;)*) => {
        $(pub const $name: Symbol = Symbol::from_static($text);)*
    };
}

conditions! {
    INTERNAL_ERROR = "amqp:internal-error";
    NOT_FOUND = "amqp:not-found";
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access";
    DECODE_ERROR = "amqp:decode-error";
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded";
    NOT_ALLOWED = "amqp:not-allowed";
    INVALID_FIELD = "amqp:invalid-field";
    NOT_IMPLEMENTED = "amqp:not-implemented";
    RESOURCE_LOCKED = "amqp:resource-locked";
    PRECONDITION_FAILED = "amqp:precondition-failed";
    RESOURCE_DELETED = "amqp:resource-deleted";
    ILLEGAL_STATE = "amqp:illegal-state";
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small";
    CONNECTION_FORCED = "amqp:connection:forced";
    FRAMING_ERROR = "amqp:connection:framing-error";
    CONNECTION_REDIRECT = "amqp:connection:redirect";
    WINDOW_VIOLATION = "amqp:session:window-violation";
    ERRANT_LINK = "amqp:session:errant-link";
    HANDLE_IN_USE = "amqp:session:handle-in-use";
    UNATTACHED_HANDLE = "amqp:session:unattached-handle";
    DETACH_FORCED = "amqp:link:detach-forced";
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded";
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded";
    LINK_REDIRECT = "amqp:link:redirect";
    LINK_STOLEN = "amqp:link:stolen";
    TRANSACTION_UNKNOWN_ID = "amqp:transaction:unknown-id";
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback";
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout";
    DEAD_LETTER = "com.microsoft:dead-letter";
    TIMEOUT = "com.microsoft:timeout";
    SERVER_BUSY = "com.microsoft:server-busy";
    ENTITY_DISABLED = "com.microsoft:entity-disabled";
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists";
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost";
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found";
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost";
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked";
    SESSION_NOT_FOUND = "com.microsoft:session-not-found";
    STORE_LOCK_LOST = "com.microsoft:store-lock-lost";
    ARGUMENT_ERROR = "com.microsoft:argument-error";
    ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range";
    AUTH_FAILED = "com.microsoft:auth-failed";
    OPERATION_CANCELLED = "com.microsoft:operation-cancelled";
}
