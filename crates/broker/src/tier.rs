//! Tiers of Service Bus: the limits and features that a namespace has, and the name that it shows.

use std::time::Duration;

use crate::core::{EntityDefinition, Error};

/// A program that works here must work in a namespace of the same tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceTier {
    Basic,
    #[default]
    Standard,
    Premium,
}

impl ServiceTier {
    /// The largest message or batch, in bytes.
    pub const fn max_message_size(self) -> usize {
        match self {
            Self::Basic | Self::Standard => 256 << 10,
            Self::Premium => 1 << 20,
        }
    }

    /// The name in the namespace's properties.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Basic => "Basic",
            Self::Standard => "Standard",
            Self::Premium => "Premium",
        }
    }

    /// Queues and topics of a namespace. A Premium namespace has one messaging unit here.
    pub const fn max_entities(self) -> usize {
        match self {
            Self::Basic | Self::Standard => 10_000,
            Self::Premium => 1_000,
        }
    }

    /// The largest size of a queue or topic; of each partition, if it is partitioned.
    const fn max_size_in_megabytes(self) -> u64 {
        match self {
            Self::Basic | Self::Standard => 5 << 10,
            Self::Premium => 80 << 10,
        }
    }

    /// The longest time to live.
    const fn max_time_to_live(self) -> Option<Duration> {
        match self {
            Self::Basic => Some(Duration::from_secs(14 * 86_400)),
            Self::Standard | Self::Premium => None,
        }
    }

    /// Sets what the tier sets if a client does not.
    pub(crate) fn apply_defaults(self, description: &mut EntityDefinition) {
        let common = description.common_mut();
        common.default_message_time_to_live = common.default_message_time_to_live.or(self.max_time_to_live());
    }

    /// Refuses an entity that cannot exist in this tier.
    pub(crate) fn check(self, description: &EntityDefinition) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::NotInTier { text: text.into() });
        let kind = match description {
            EntityDefinition::Queue(_) => "Queue",
            EntityDefinition::Topic(_) => "Topic",
            EntityDefinition::Subscription(_) => "Subscription",
        };
        if self == Self::Basic && kind != "Queue" {
            return refuse(format!("Cannot operate on type {kind} because the namespace is using 'Basic' tier."));
        }
        if let Some(property) = self.missing_feature(description) {
            let tier = self.name();
            return refuse(format!(
                "The property '{property}' cannot be set when creating a {kind} because the namespace is using '{tier}' tier."
            ));
        }
        if let Some(longest) = self.max_time_to_live()
            && description.common().default_message_time_to_live.is_some_and(|chosen| chosen > longest)
        {
            return refuse(
                "The property value for 'DefaultMessageTimeToLive' must be between 00:00:01 and 14.00:00:00 when the namespace is using 'Basic' tier.".to_owned(),
            );
        }
        let largest = self.max_size_in_megabytes();
        match description.ingress().map(|ingress| ingress.max_size_in_megabytes) {
            Some(size) if size > largest => refuse(format!(
                "The value '{size}' for 'MaxSizeInMegabytes' must not exceed {largest} when the namespace is using '{}' tier.",
                self.name()
            )),
            _ => Ok(()),
        }
    }

    /// A property that the tier does not have.
    fn missing_feature(self, description: &EntityDefinition) -> Option<&'static str> {
        let [forwards, forwards_dead_letters] = description.forwarding().map(|to| to.is_some());
        let ingress = description.ingress();
        let features = match self {
            Self::Basic => &[
                (description.egress().is_some_and(|egress| egress.requires_session), "RequiresSession"),
                (ingress.is_some_and(|ingress| ingress.requires_duplicate_detection), "RequiresDuplicateDetection"),
                (forwards, "ForwardTo"),
                (forwards_dead_letters, "ForwardDeadLetteredMessagesTo"),
                (description.common().auto_delete_on_idle.is_some(), "AutoDeleteOnIdle"),
            ][..],
            Self::Standard => &[],
            // Partitions are a property of the namespace there.
            Self::Premium => &[(ingress.is_some_and(|ingress| ingress.enable_partitioning), "EnablePartitioning")],
        };
        features.iter().find_map(|(used, property)| used.then_some(*property))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{QueueDescription, SubscriptionDescription, TopicDescription};

    fn queue(change: impl FnOnce(&mut QueueDescription)) -> EntityDefinition {
        let mut description = QueueDescription::default();
        change(&mut description);
        EntityDefinition::Queue(description)
    }

    #[test]
    fn each_tier_has_its_features_and_sizes() {
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        let cases = [
            ("plain", queue(|_| {}), [true; 3]),
            ("topic", EntityDefinition::Topic(TopicDescription::default()), [false, true, true]),
            ("subscription", EntityDefinition::Subscription(SubscriptionDescription::default()), [false, true, true]),
            ("sessions", queue(|q| q.egress.requires_session = true), [false, true, true]),
            ("duplicates", queue(|q| q.ingress.requires_duplicate_detection = true), [false, true, true]),
            ("forwards", queue(|q| q.egress.forward_to = Some("to".into())), [false, true, true]),
            (
                "forwards dead letters",
                queue(|q| q.egress.forward_dead_lettered_messages_to = Some("to".into())),
                [false, true, true],
            ),
            ("idle", queue(|q| q.common.auto_delete_on_idle = days(1)), [false, true, true]),
            ("14 days", queue(|q| q.common.default_message_time_to_live = days(14)), [true; 3]),
            ("15 days", queue(|q| q.common.default_message_time_to_live = days(15)), [false, true, true]),
            ("partitions", queue(|q| q.ingress.enable_partitioning = true), [true, true, false]),
            ("5 GB", queue(|q| q.ingress.max_size_in_megabytes = 5_120), [true; 3]),
            ("80 GB", queue(|q| q.ingress.max_size_in_megabytes = 81_920), [false, false, true]),
        ];
        for (name, description, expected) in cases {
            let tiers = [ServiceTier::Basic, ServiceTier::Standard, ServiceTier::Premium];
            assert_eq!(tiers.map(|tier| tier.check(&description).is_ok()), expected, "{name}");
        }
    }

    #[test]
    fn refusals_have_the_words_of_the_service() {
        let sessions = queue(|q| q.egress.requires_session = true);
        let refusal = ServiceTier::Basic.check(&sessions).unwrap_err();
        let expected = "The property 'RequiresSession' cannot be set when creating a Queue because the namespace is using 'Basic' tier.";
        assert_eq!((refusal.to_string().as_str(), refusal.status()), (expected, 400));
        let mut plain = queue(|_| {});
        ServiceTier::Basic.apply_defaults(&mut plain);
        assert_eq!(plain.common().default_message_time_to_live, Some(Duration::from_secs(14 * 86_400)));
    }
}
