//! Which server codes prove a token dead, and which do not.
//!
//! Both mistakes cost. Calling a dead token alive wedges us: the stream is reopened for ever and nothing moves, though the
//! logs and the liveness by progress say so. Calling a live one dead halts the pipeline, or with `on_history_lost: snapshot`
//! reads the whole source again. So only what the server says about the token itself proves it dead; everything that can
//! pass (an election, a lost cursor, an overloaded server, a code nobody has met) is tried again.

use mongo_error::error_code;
use mongodb::error::{Error, ErrorKind};

/// What a failure means for the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamErrorClass {
    /// It may pass: reopen from the same token.
    Retry,
    /// No stream can be opened from this token again.
    HistoryLost,
    /// The filter's doing, though the server words it like a dead token.
    FilterChangesId,
    PostImageGone,
    TooLarge,
    /// The same request will be refused again.
    Refused,
}

const NON_RESUMABLE: &str = "NonResumableChangeStreamError";
const UNAUTHORIZED: i32 = 13;
const NO_MATCHING_DOCUMENT: i32 = 47;
/// An open stream that fell behind the oplog; comes without labels.
const CAPPED_POSITION_LOST: i32 = 136;
/// Not met by a stream that is always opened with `startAfter`: it is what the server says to `resumeAfter` an invalidate
/// (`tests/capture/dropped.rs`). Should a server ever say it otherwise, it says it of the token.
const INVALID_RESUME_TOKEN: i32 = 260;
/// A token the server cannot read, because another version of it wrote it or somebody's hand: empty, of an unknown version, cut short, of
/// an unknown kind.
const INVALID_TOKEN_FORMAT: [i32; 4] = [40649, 50795, 50872, 51057];
const CHANGE_STREAM_FATAL: i32 = 280;
/// A stream that is opened behind the oplog.
const CHANGE_STREAM_HISTORY_LOST: i32 = 286;
/// Of a snapshot with a filter; the large events of a stream are split.
const OBJECT_TOO_LARGE: i32 = 10334;
/// Of a stream with a filter that makes one field of an event larger than an answer may be.
const CANNOT_BE_SPLIT: i32 = 7_182_500;

/// A request that is wrong stays wrong: BadValue, FailedToParse, TypeMismatch, IllegalOperation, CommandNotFound, InvalidOptions,
/// InvalidNamespace, CommandNotSupportedOnView, InvalidPipelineOperator, OptionNotSupportedOnView, and by number: an unknown stage, an unknown field,
/// `$changeStream` without a replica set.
const INVALID_REQUEST: [i32; 13] = [2, 9, 14, 20, 59, 72, 73, 166, 167, 168, 40324, 40415, 40573];

/// What the server says when the pipeline changed an event's `_id`, also with code 280.
const ID_CHANGED: &str = "modified by the pipeline";

pub(super) fn classify(error: &Error) -> StreamErrorClass {
    match error_code(error) {
        Some(code) => classify_code(code, message_of(error), error.contains_label(NON_RESUMABLE)),
        // The server never answered, or the driver could not read it.
        None => StreamErrorClass::Retry,
    }
}

fn classify_code(code: i32, message: &str, non_resumable: bool) -> StreamErrorClass {
    match code {
        CHANGE_STREAM_FATAL if message.contains(ID_CHANGED) => StreamErrorClass::FilterChangesId,
        // A post-image is asked for as `required`; this one comes labelled non-resumable too, but the token is sound.
        NO_MATCHING_DOCUMENT => StreamErrorClass::PostImageGone,
        OBJECT_TOO_LARGE | CANNOT_BE_SPLIT => StreamErrorClass::TooLarge,
        CHANGE_STREAM_HISTORY_LOST | CAPPED_POSITION_LOST | CHANGE_STREAM_FATAL | INVALID_RESUME_TOKEN => {
            StreamErrorClass::HistoryLost
        }
        code if INVALID_TOKEN_FORMAT.contains(&code) => StreamErrorClass::HistoryLost,
        _ if non_resumable => StreamErrorClass::HistoryLost,
        UNAUTHORIZED => StreamErrorClass::Refused,
        code if INVALID_REQUEST.contains(&code) => StreamErrorClass::Refused,
        // A code nobody has met: see above.
        _ => StreamErrorClass::Retry,
    }
}

/// Elections, shutdowns and the like: what the server answers whatever it is asked.
const TRANSIENT_CODES: [i32; 17] =
    [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436];

/// Whether the server has read the request and does not want it. For a request that is tried beside others that differ in one stage.
pub(super) fn is_refusal(error: &Error) -> bool {
    error_code(error).is_some_and(|code| !TRANSIENT_CODES.contains(&code))
}

/// To decide by, never to show: it may quote a document.
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
    fn only_what_is_said_of_the_token_proves_it_dead() {
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
    fn silence_proves_nothing() {
        assert_eq!(classify(&Error::custom("the connection broke")), StreamErrorClass::Retry);
    }
}
