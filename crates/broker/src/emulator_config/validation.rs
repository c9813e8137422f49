//! Validates entities on temporary cores, so that the core alone decides what is valid.

use crate::core::{
    BrokerLimits, CallContext, Core, EntityDefinition, Error, QueueDescription, Timestamp, TopicDescription,
};
use crate::journal::VolatileJournal;

/// The names of the queues and topics so far.
pub(super) struct NameValidator(ScratchCore);

impl Default for NameValidator {
    fn default() -> Self {
        Self(ScratchCore::new())
    }
}

impl NameValidator {
    /// `Err` says what is wrong with the name.
    pub(super) fn add_entity(&mut self, name: &str, description: &EntityDefinition) -> Result<(), String> {
        let plain = match description {
            EntityDefinition::Queue(_) => EntityDefinition::Queue(Default::default()),
            EntityDefinition::Topic(_) => EntityDefinition::Topic(Default::default()),
            EntityDefinition::Subscription(_) => unreachable!("subscriptions are checked separately"),
        };
        self.0.create(name, plain).map_err(|error| rule(&error))
    }

    /// Works even if the topic itself is invalid.
    pub(super) fn check_subscription(&self, name: &str, siblings: &[String]) -> Result<(), String> {
        if siblings.iter().any(|sibling| sibling.to_lowercase() == name.to_lowercase()) {
            return Err(TAKEN.to_owned());
        }
        ScratchCore::with_topic()
            .create(&subscription_path(name), EntityDefinition::Subscription(Default::default()))
            .map_err(|e| rule(&e))
    }
}

/// `Err` says what is wrong with the properties. Entities to forward to may follow later in the file.
pub(super) fn validate_description(description: &EntityDefinition) -> Result<(), String> {
    let mut scratch = ScratchCore::with_topic();
    for path in description.forward_paths() {
        let queue = EntityDefinition::Queue(QueueDescription::default());
        match scratch.create(path, queue) {
            Ok(()) | Err(Error::EntityExists { .. }) => {}
            Err(error) => return Err(rule(&error)),
        }
    }
    let outcome = match description {
        EntityDefinition::Subscription(_) => scratch.create(&subscription_path("any"), description.clone()),
        EntityDefinition::Queue(_) | EntityDefinition::Topic(_) => scratch.create(UNLIKELY, description.clone()),
    };
    outcome.map_err(|error| rule(&error))
}

const TAKEN: &str = "the name is already used (names are case-insensitive)";
const TOPIC: &str = "topic";
/// The name of the validated entity, which none in the file has.
const UNLIKELY: &str = "-/-/-";

fn subscription_path(name: &str) -> String {
    format!("{TOPIC}/Subscriptions/{name}")
}

/// Only the rule: the path already names the field.
fn rule(error: &Error) -> String {
    match error {
        Error::InvalidArgument { rule, .. } => rule.to_string(),
        Error::EntityExists { .. } => TAKEN.to_owned(),
        other => other.to_string(),
    }
}

struct ScratchCore {
    core: Core,
    journal: VolatileJournal,
}

impl ScratchCore {
    fn new() -> Self {
        Self { core: Core::new(BrokerLimits::default(), [0; 32]), journal: VolatileJournal::default() }
    }

    fn with_topic() -> Self {
        let mut scratch = Self::new();
        scratch.create(TOPIC, EntityDefinition::Topic(TopicDescription::default())).expect("a plain topic is valid");
        scratch
    }

    fn create(&mut self, path: &str, description: EntityDefinition) -> Result<(), Error> {
        let mut call = CallContext { now: Timestamp::default(), journal: &mut self.journal, effects: &mut Vec::new() };
        self.core.create(&mut call, path, description).map(drop)
    }
}
