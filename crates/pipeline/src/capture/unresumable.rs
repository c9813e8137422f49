//! Decides which server errors prove that a resume token is dead.
//!
//! Both mistakes cost. If a dead token counts as alive, capture reopens the stream forever and makes no progress, though logs and the
//! progress-based liveness probe show it. If a live token counts as dead, the pipeline halts, or with `on_history_lost: snapshot` reads the whole
//! source again. So only an error about the token itself proves it dead. Everything that can pass (an election, a lost cursor, an overloaded
//! server, an unknown code) is retried.

use mongo_error::error_code;
use mongodb::error::{Error, ErrorKind};

/// What a failure means for the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamErrorClass {
    /// Transient: reopen from the same token.
    Retry,
    /// No stream can be opened from this token again.
    HistoryLost,
    /// Caused by the filter, though the server reports it like a dead token.
    FilterChangesId,
    PostImageGone,
    TooLarge,
    /// The server will refuse the same request again.
    Refused,
}

const NON_RESUMABLE: &str = "NonResumableChangeStreamError";
const UNAUTHORIZED: i32 = 13;
const NO_MATCHING_DOCUMENT: i32 = 47;
/// An open stream fell behind the oplog. Has no error labels.
const CAPPED_POSITION_LOST: i32 = 136;
/// The reply to `resumeAfter` an invalidate token (`tests/capture/dropped_collection.rs`). We use `startAfter`, so it should not occur; if it
/// does, it is about the token.
const INVALID_RESUME_TOKEN: i32 = 260;
/// The server cannot parse the token, because another version or a person wrote it: empty, unknown version, truncated, unknown kind.
const INVALID_TOKEN_FORMAT: [i32; 4] = [40649, 50795, 50872, 51057];
const CHANGE_STREAM_FATAL: i32 = 280;
/// The token is older than the oplog when the stream opens.
const CHANGE_STREAM_HISTORY_LOST: i32 = 286;
/// Occurs in a snapshot with a filter; a stream splits large events.
const OBJECT_TOO_LARGE: i32 = 10334;
/// Occurs in a stream whose filter makes one field larger than a reply may be.
const CANNOT_BE_SPLIT: i32 = 7_182_500;

/// An invalid request stays invalid: BadValue, FailedToParse, TypeMismatch, IllegalOperation, CommandNotFound, InvalidOptions,
/// InvalidNamespace, CommandNotSupportedOnView, InvalidPipelineOperator, OptionNotSupportedOnView, and by number: an unknown stage, an unknown field,
/// `$changeStream` without a replica set.
const INVALID_REQUEST: [i32; 13] = [2, 9, 14, 20, 59, 72, 73, 166, 167, 168, 40324, 40415, 40573];

/// Part of the server's message when the filter changed an event's `_id`; the code is 280 as well.
const ID_CHANGED: &str = "modified by the pipeline";

pub(super) fn classify(error: &Error) -> StreamErrorClass {
    match error_code(error) {
        Some(code) => classify_code(code, message_of(error), error.contains_label(NON_RESUMABLE)),
        // No reply, or the driver could not read it.
        None => StreamErrorClass::Retry,
    }
}

fn classify_code(code: i32, message: &str, non_resumable: bool) -> StreamErrorClass {
    match code {
        CHANGE_STREAM_FATAL if message.contains(ID_CHANGED) => StreamErrorClass::FilterChangesId,
        // A `required` post-image is missing. The error is labelled non-resumable, but the token is fine.
        NO_MATCHING_DOCUMENT => StreamErrorClass::PostImageGone,
        OBJECT_TOO_LARGE | CANNOT_BE_SPLIT => StreamErrorClass::TooLarge,
        CHANGE_STREAM_HISTORY_LOST | CAPPED_POSITION_LOST | CHANGE_STREAM_FATAL | INVALID_RESUME_TOKEN => {
            StreamErrorClass::HistoryLost
        }
        code if INVALID_TOKEN_FORMAT.contains(&code) => StreamErrorClass::HistoryLost,
        _ if non_resumable => StreamErrorClass::HistoryLost,
        UNAUTHORIZED => StreamErrorClass::Refused,
        code if INVALID_REQUEST.contains(&code) => StreamErrorClass::Refused,
        // Unknown codes are retried: see the module docs.
        _ => StreamErrorClass::Retry,
    }
}

/// Elections, shutdowns and the like, which do not depend on the request.
const TRANSIENT_CODES: [i32; 17] =
    [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436];

/// Whether the server refused the request itself. Used to find the stage of a filter that the server refuses.
pub(super) fn is_refusal(error: &Error) -> bool {
    error_code(error).is_some_and(|code| !TRANSIENT_CODES.contains(&code))
}

/// Never log it: it may quote a document.
fn message_of(error: &Error) -> &str {
    match &*error.kind {
        ErrorKind::Command(command) => &command.message,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_about_the_token_mean_history_lost() {
        let table = [
            (286, "", true, StreamErrorClass::HistoryLost),
            (136, "", false, StreamErrorClass::HistoryLost),
            (280, "cannot resume", true, StreamErrorClass::HistoryLost),
            (280, "an event whose _id field was modified by the pipeline", true, StreamErrorClass::FilterChangesId),
            (260, "", false, StreamErrorClass::HistoryLost),
            (50795, "", false, StreamErrorClass::HistoryLost),
            (4711, "", true, StreamErrorClass::HistoryLost),
            (47, "", true, StreamErrorClass::PostImageGone),
            (10334, "", false, StreamErrorClass::TooLarge),
            (40324, "", false, StreamErrorClass::Refused),
            (13, "", false, StreamErrorClass::Refused),
            // CursorNotFound, NotWritablePrimary, InterruptedDueToReplStateChange, CursorKilled, QueryPlanKilled, an unknown one.
            (43, "", false, StreamErrorClass::Retry),
            (10107, "", false, StreamErrorClass::Retry),
            (11602, "", false, StreamErrorClass::Retry),
            (237, "", false, StreamErrorClass::Retry),
            (175, "", false, StreamErrorClass::Retry),
            (4711, "", false, StreamErrorClass::Retry),
        ];
        for (code, message, label, verdict) in table {
            assert_eq!(classify_code(code, message, label), verdict, "{code} {message} {label}");
        }
    }

    #[test]
    fn an_error_without_a_code_is_retried() {
        assert_eq!(classify(&Error::custom("the connection broke")), StreamErrorClass::Retry);
    }
}
