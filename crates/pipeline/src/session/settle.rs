//! What becomes of a message: complete · dead-letter · nothing, the session being dropped and accepted again.
//!
//! Pure but for [`settle`], which counts a message as settled when the bus has said so.

use servicebus::{Error, ReceivedMessage, Settler};

use super::batch::Fate;
use crate::view::{Applied, End, Outcome};

/// Why we put a message among the dead letters: its `DeadLetterReason`. By these the reader of dead letters knows its own.
pub mod reason {
    /// The event cannot be applied, and `on_poison` says so. It is parked, too.
    pub const POISON: &str = "headwater-poison";
    /// The message is none of ours, or cannot be read.
    pub const UNREADABLE: &str = "headwater-unreadable";

    pub const ALL: [&str; 2] = [POISON, UNREADABLE];
}

/// How a message is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    Complete,
    DeadLetter { reason: &'static str, description: String },
}

/// The messages that may be settled, in order: up to the first whose event is not resolved.
pub(super) fn resolved(messages: Vec<(ReceivedMessage, Fate)>, applied: &Applied) -> Vec<(ReceivedMessage, How)> {
    let mut outcomes = applied.outcomes.iter();
    messages.into_iter().map_while(|(message, fate)| Some((message, how(&fate, &mut outcomes)?))).collect()
}

/// `None`: its event is not resolved.
fn how<'a>(fate: &Fate, outcomes: &mut impl Iterator<Item = &'a Outcome>) -> Option<How> {
    let unreadable =
        |description: &String| How::DeadLetter { reason: reason::UNREADABLE, description: description.clone() };
    match fate {
        Fate::NotAnEvent(description) => Some(unreadable(description)),
        Fate::Mangled(description) => outcomes.next().map(|_| unreadable(description)),
        Fate::Event => outcomes.next().map(|outcome| match outcome {
            Outcome::Applied | Outcome::Duplicate | Outcome::Parked => How::Complete,
            Outcome::DeadLetter => How::DeadLetter {
                reason: reason::POISON,
                description: "its event cannot be applied, and its aggregate is parked".to_owned(),
            },
        }),
    }
}

/// Whether the session goes on after a batch that ended so.
pub(super) const fn goes_on(end: &End) -> bool {
    match end {
        End::Complete => true,
        // What was applied of the rest is not known, or nothing: the cursor knows when the session is accepted again.
        End::Unknown | End::Failed(_) => false,
    }
}

/// Settles, and checks the bus's answers. How many were settled; on an error some may be.
pub(super) async fn settle(settler: &Settler, messages: &[(ReceivedMessage, How)]) -> Result<usize, Error> {
    let complete = messages.iter().filter(|(_, how)| *how == How::Complete).map(|(message, _)| message);
    settler.complete(complete).await?;
    for (message, how) in messages {
        if let How::DeadLetter { reason, description } = how {
            settler.dead_letter(message, reason, description).await?;
        }
    }
    Ok(messages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_resolved_is_settled() {
        let fates = [Fate::Event, Fate::NotAnEvent("not ours".into()), Fate::Mangled("broken".into()), Fate::Event];
        let outcomes = [Outcome::Applied, Outcome::Parked];
        let mut outcomes = outcomes.iter();
        let hows: Vec<_> = fates.iter().map(|fate| how(fate, &mut outcomes)).collect();
        let unreadable = |description: &str| {
            Some(How::DeadLetter { reason: reason::UNREADABLE, description: description.to_owned() })
        };
        assert_eq!(hows, [Some(How::Complete), unreadable("not ours"), unreadable("broken"), None]);
    }

    #[test]
    fn every_outcome_settles_and_only_poison_may_dead_letter() {
        let of = |outcome: Outcome| how(&Fate::Event, &mut [outcome].iter()).unwrap();
        for outcome in [Outcome::Applied, Outcome::Duplicate, Outcome::Parked] {
            assert_eq!(of(outcome), How::Complete);
        }
        assert!(matches!(of(Outcome::DeadLetter), How::DeadLetter { reason: reason::POISON, .. }));
    }
}
