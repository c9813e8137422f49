//! How a message is settled: complete, dead-letter, or not at all (the session is closed and accepted again).
//!
//! Pure except for [`settle`], which counts a message as settled once Service Bus has confirmed it.

use servicebus::{Error, ReceivedMessage, Settler};

use super::batch::SettlementRule;
use crate::view::{AppliedBatch, ApplyOutcome, BatchEnd};

/// The `DeadLetterReason`s of messages that Headwater dead-letters. The dead-letter reader recognises its own messages by them.
pub mod dead_letter_reason {
    /// The event cannot be applied, and `on_poison` asks for dead-lettering. It is parked, too.
    pub const POISON: &str = "headwater-poison";
    /// The message is foreign or unreadable.
    pub const UNREADABLE: &str = "headwater-unreadable";

    /// The signature is missing or wrong.
    pub const SIGNATURE: &str = "headwater-signature";

    pub const ALL: [&str; 3] = [POISON, UNREADABLE, SIGNATURE];
}

/// How a message is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettleAction {
    Complete,
    DeadLetter { reason: &'static str, description: String },
}

/// The messages that may be settled, in order: up to the first with an unresolved event.
pub(super) fn settleable_messages(
    messages: Vec<(ReceivedMessage, SettlementRule)>,
    applied: &AppliedBatch,
) -> Vec<(ReceivedMessage, SettleAction)> {
    let mut outcomes = applied.outcomes.iter();
    messages.into_iter().map_while(|(message, rule)| Some((message, settle_action(&rule, &mut outcomes)?))).collect()
}

/// `None`: the event is not resolved.
fn settle_action<'a>(
    rule: &SettlementRule,
    outcomes: &mut impl Iterator<Item = &'a ApplyOutcome>,
) -> Option<SettleAction> {
    let dead_letter =
        |reason, description: &String| SettleAction::DeadLetter { reason, description: description.clone() };
    match rule {
        SettlementRule::DeadLetter { reason, description } => Some(dead_letter(reason, description)),
        SettlementRule::DeadLetterOnceResolved(description) => {
            outcomes.next().map(|_| dead_letter(dead_letter_reason::UNREADABLE, description))
        }
        SettlementRule::ByOutcome => outcomes.next().map(|outcome| match outcome {
            ApplyOutcome::Applied | ApplyOutcome::Duplicate | ApplyOutcome::Parked => SettleAction::Complete,
            ApplyOutcome::DeadLetter => SettleAction::DeadLetter {
                reason: dead_letter_reason::POISON,
                description: "the event cannot be applied; its aggregate is parked".to_owned(),
            },
        }),
    }
}

/// Whether the session continues after a batch.
pub(super) const fn can_continue(end: &BatchEnd) -> bool {
    match end {
        BatchEnd::Complete => true,
        // Unknown or not applied: the cursor decides when the session is accepted again.
        BatchEnd::Unknown | BatchEnd::Failed(_) => false,
    }
}

/// Settles and awaits the confirmations. Returns how many were settled; on an error some of them may be.
pub(super) async fn settle(settler: &Settler, messages: &[(ReceivedMessage, SettleAction)]) -> Result<usize, Error> {
    let complete = messages
        .iter()
        .filter(|(_, settle_action)| *settle_action == SettleAction::Complete)
        .map(|(message, _)| message);
    settler.complete(complete).await?;
    for (message, settle_action) in messages {
        if let SettleAction::DeadLetter { reason, description } = settle_action {
            settler.dead_letter(message, reason, description).await?;
        }
    }
    Ok(messages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resolved_messages_are_settled() {
        let rules = [
            SettlementRule::ByOutcome,
            SettlementRule::DeadLetter { reason: dead_letter_reason::UNREADABLE, description: "not ours".into() },
            SettlementRule::DeadLetterOnceResolved("broken".into()),
            SettlementRule::ByOutcome,
        ];
        let outcomes = [ApplyOutcome::Applied, ApplyOutcome::Parked];
        let mut outcomes = outcomes.iter();
        let actions: Vec<_> = rules.iter().map(|rule| settle_action(rule, &mut outcomes)).collect();
        let unreadable = |description: &str| {
            Some(SettleAction::DeadLetter {
                reason: dead_letter_reason::UNREADABLE,
                description: description.to_owned(),
            })
        };
        assert_eq!(actions, [Some(SettleAction::Complete), unreadable("not ours"), unreadable("broken"), None]);
    }

    #[test]
    fn only_poison_outcomes_are_dead_lettered() {
        let action_for =
            |outcome: ApplyOutcome| settle_action(&SettlementRule::ByOutcome, &mut [outcome].iter()).unwrap();
        for outcome in [ApplyOutcome::Applied, ApplyOutcome::Duplicate, ApplyOutcome::Parked] {
            assert_eq!(action_for(outcome), SettleAction::Complete);
        }
        assert!(matches!(
            action_for(ApplyOutcome::DeadLetter),
            SettleAction::DeadLetter { reason: dead_letter_reason::POISON, .. }
        ));
    }
}
