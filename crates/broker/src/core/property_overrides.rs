//! Property changes made by settlements after a message was stored. The stored bytes never change.

use std::sync::Arc;

use bytes::Bytes;

use super::id::SequenceNumber;

/// Properties that override those of the stored message when it is delivered. Most messages have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PropertyOverrides {
    /// `DeadLetterReason`, for messages in a dead-letter queue.
    pub reason: Option<Box<str>>,
    /// `DeadLetterErrorDescription`, for messages in a dead-letter queue.
    pub description: Option<Box<str>>,
    /// `x-opt-enqueue-sequence-number`: the sequence number before dead-lettering.
    pub enqueued_sequence: Option<SequenceNumber>,
    /// `x-opt-deadletter-source`: the entity that dead-lettered the message, if it was forwarded since.
    pub dead_letter_source: Option<Box<str>>,
    /// Application properties to set, in the order they were first set. Values are encoded AMQP, opaque to the core.
    pub properties: Vec<(Box<str>, Bytes)>,
}

impl PropertyOverrides {
    /// The earlier overrides with `properties` added on top.
    pub(super) fn merge(earlier: Option<&Arc<Self>>, properties: &[(Box<str>, Bytes)]) -> Self {
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
        let first = Arc::new(PropertyOverrides::merge(None, &[set("a", "1"), set("b", "2")]));
        let second = PropertyOverrides::merge(Some(&first), &[set("a", "3"), set("c", "4")]);
        assert_eq!(second.properties, [set("a", "3"), set("b", "2"), set("c", "4")]);
    }
}
