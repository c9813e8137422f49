//! What settlements changed about a message since it was stored. The stored bytes themselves never change.

use std::sync::Arc;

use bytes::Bytes;

use super::id::SequenceNumber;

/// Changes to be laid over a stored message on its way out. Most messages have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageOverrides {
    /// `DeadLetterReason`, for messages in a dead-letter queue.
    pub reason: Option<Box<str>>,
    /// `DeadLetterErrorDescription`, likewise.
    pub description: Option<Box<str>>,
    /// `x-opt-enqueue-sequence-number`: the number before it was dead-lettered.
    pub enqueued_sequence: Option<SequenceNumber>,
    /// Application properties to set, in the order they were first set; values are encoded AMQP, opaque here.
    pub properties: Vec<(Box<str>, Bytes)>,
}

impl MessageOverrides {
    /// These with `properties` set on top.
    pub(super) fn with(earlier: Option<&Arc<Self>>, properties: &[(Box<str>, Bytes)]) -> Self {
        let mut new = earlier.map(|earlier| (**earlier).clone()).unwrap_or_default();
        for (name, value) in properties {
            match new.properties.iter_mut().find(|(known, _)| known == name) {
                Some((_, old)) => *old = value.clone(),
                None => new.properties.push((name.clone(), value.clone())),
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_set_again_takes_the_new_value() {
        let set = |name: &str, value: &'static str| (name.into(), Bytes::from_static(value.as_bytes()));
        let first = Arc::new(MessageOverrides::with(None, &[set("a", "1"), set("b", "2")]));
        let second = MessageOverrides::with(Some(&first), &[set("a", "3"), set("c", "4")]);
        assert_eq!(second.properties, [set("a", "3"), set("b", "2"), set("c", "4")]);
    }
}
