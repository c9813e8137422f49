//! Finds the event whose handling ends the pod, within a handful of deliveries.
//!
//! A message that was delivered often is either such an event, or it was only delivered together with one, or its lock expired. To tell them
//! apart, a pod writes a mark into the session state before it handles such messages, and removes it when the attempt has ended, with whatever
//! result. One pod has one marked attempt at a time, so a mark that is left over names what was handled when the pod ended.
//!
//! The first mark covers all such messages that are received together, as most of them are innocent. If it is left over, each of them gets its
//! own. A message whose own mark is left over three times is parked. If even that does not end, it is dead-lettered unread.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use servicebus::ReceivedMessage;

/// Earlier deliveries from which on a message is handled with a mark.
const MARK_AT_DELIVERY: u32 = 3;
/// Marked attempts of one message that may end with the pod.
const MAX_ATTEMPTS: u32 = 3;
const FORMAT: u32 = 1;

/// The session state during an attempt: bus sequence numbers, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptMark {
    format: u32,
    first: i64,
    last: i64,
    /// With this mark; counts only for a single message.
    attempts: u32,
}

/// What is done with the marked messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptAction {
    Apply,
    Park,
    DeadLetter,
}

pub(super) fn needs_mark(message: &ReceivedMessage) -> bool {
    message.delivery_count() >= MARK_AT_DELIVERY
}

impl AttemptMark {
    /// `None` for a state that is not ours: nobody else should use it, and it must not stop the session.
    pub(super) fn read(state: &[u8]) -> Option<Self> {
        serde_json::from_slice(state).ok().filter(|mark: &Self| mark.format == FORMAT)
    }

    pub(super) fn to_state(self) -> Bytes {
        serde_json::to_vec(&self).unwrap_or_default().into()
    }

    /// The mark of the next attempt, which covers the first of these messages or more. `left_over`: the mark that the last holder left.
    pub(super) fn next(left_over: Option<Self>, first: i64, last: i64) -> (Self, AttemptAction) {
        match left_over.filter(|mark| (mark.first..=mark.last).contains(&first)) {
            None => (Self { format: FORMAT, first, last, attempts: 1 }, AttemptAction::Apply),
            Some(mark) => {
                let attempts = if mark.first == mark.last { mark.attempts } else { 0 };
                let action = match attempts {
                    ..MAX_ATTEMPTS => AttemptAction::Apply,
                    MAX_ATTEMPTS => AttemptAction::Park,
                    _ => AttemptAction::DeadLetter,
                };
                (Self { format: FORMAT, first, last: first, attempts: attempts.saturating_add(1) }, action)
            }
        }
    }

    pub(super) fn covers(self, message: &ReceivedMessage) -> bool {
        (self.first..=self.last).contains(&message.sequence_number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_attempts_that_did_not_end_park_a_message() {
        let mut left_over = None;
        let mut actions = vec![];
        for _ in 0..5 {
            let (mark, action) = AttemptMark::next(left_over, 7, 7);
            actions.push(action);
            left_over = AttemptMark::read(&mark.to_state());
        }
        let AttemptAction::Apply = actions[0] else { panic!("{actions:?}") };
        assert_eq!(actions[1..3], [AttemptAction::Apply; 2]);
        assert_eq!(actions[3..], [AttemptAction::Park, AttemptAction::DeadLetter]);
    }

    #[test]
    fn a_left_over_mark_of_many_messages_blames_none() {
        let (many, _) = AttemptMark::next(None, 5, 9);
        let (alone, action) = AttemptMark::next(Some(many), 6, 9);
        assert_eq!((alone.first, alone.last, alone.attempts, action), (6, 6, 1, AttemptAction::Apply));
        let (others, _) = AttemptMark::next(Some(many), 10, 12);
        assert_eq!((others.first, others.last), (10, 12));
    }

    #[test]
    fn a_foreign_session_state_is_no_mark() {
        assert_eq!(AttemptMark::read(b"theirs"), None);
        assert_eq!(AttemptMark::read(br#"{"format":2,"first":1,"last":1,"attempts":9}"#), None);
    }
}
