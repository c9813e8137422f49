//! Tiers of Service Bus: the limits and features that a namespace has, and the name that it shows.

use crate::core::EntityDefinition;

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

    /// Why an entity cannot exist in this tier.
    pub(crate) fn refusal(self, description: &EntityDefinition) -> Option<&'static str> {
        if self != Self::Basic {
            return None;
        }
        let EntityDefinition::Queue(queue) = description else {
            return Some("Cannot operate on type Topic because the namespace is using 'Basic' tier.");
        };
        let features = [
            (queue.egress.requires_session, "sessions are not available in the Basic tier"),
            (queue.ingress.requires_duplicate_detection, "duplicate detection is not available in the Basic tier"),
            (description.forward_paths().next().is_some(), "forwarding is not available in the Basic tier"),
        ];
        features.into_iter().find_map(|(used, text)| used.then_some(text))
    }
}
