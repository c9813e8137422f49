//! Tiers of Service Bus: the limits that a namespace has, and the name that it shows.

/// A program that works here must work in a namespace of the same tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceTier {
    #[default]
    Standard,
    Premium,
}

impl ServiceTier {
    /// The largest message or batch, in bytes.
    pub const fn max_message_size(self) -> usize {
        match self {
            Self::Standard => 256 << 10,
            Self::Premium => 1 << 20,
        }
    }

    /// The name in the namespace's properties.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "Standard",
            Self::Premium => "Premium",
        }
    }
}
