//! Tries entities on cores that are thrown away, so that the core alone says what is valid.

use crate::core::{Core, Description, Error, Limits, Timestamp, TopicDescription, Turn};
use crate::journal::Volatile;

/// The queues and topics so far, by name.
pub(super) struct Rehearsal(Scratch);

impl Default for Rehearsal {
    fn default() -> Self {
        Self(Scratch::new())
    }
}

impl Rehearsal {
    /// `Err`: what is wrong with the name.
    pub(super) fn place_entity(&mut self, name: &str, description: &Description) -> Result<(), String> {
        let plain = match description {
            Description::Queue(_) => Description::Queue(Default::default()),
            Description::Topic(_) => Description::Topic(Default::default()),
            Description::Subscription(_) => unreachable!("placed below its topic"),
        };
        self.0.create(name, plain).map_err(|error| rule(&error))
    }

    /// Also where the topic itself has no place.
    pub(super) fn check_subscription(&self, name: &str, siblings: &[String]) -> Result<(), String> {
        if siblings.iter().any(|sibling| sibling.to_lowercase() == name.to_lowercase()) {
            return Err(TAKEN.to_owned());
        }
        Scratch::with_topic().create(&below(name), Description::Subscription(Default::default())).map_err(|e| rule(&e))
    }
}

/// `Err`: what the core does not like about the properties.
pub(super) fn try_out(description: &Description) -> Result<(), String> {
    let outcome = match description {
        Description::Subscription(_) => Scratch::with_topic().create(&below("any"), description.clone()),
        Description::Queue(_) | Description::Topic(_) => Scratch::new().create("any", description.clone()),
    };
    outcome.map_err(|error| rule(&error))
}

const TAKEN: &str = "the name is taken, and case makes no difference";
const TOPIC: &str = "topic";

fn below(name: &str) -> String {
    format!("{TOPIC}/Subscriptions/{name}")
}

/// The rule alone: the path already names the field.
fn rule(error: &Error) -> String {
    match error {
        Error::InvalidArgument { rule, .. } => rule.to_string(),
        Error::EntityExists { .. } => TAKEN.to_owned(),
        other => other.to_string(),
    }
}

struct Scratch {
    core: Core,
    journal: Volatile,
}

impl Scratch {
    fn new() -> Self {
        Self { core: Core::new(Limits::default(), [0; 32]), journal: Volatile::default() }
    }

    fn with_topic() -> Self {
        let mut scratch = Self::new();
        scratch.create(TOPIC, Description::Topic(TopicDescription::default())).expect("a plain topic is valid");
        scratch
    }

    fn create(&mut self, path: &str, description: Description) -> Result<(), Error> {
        let mut turn = Turn { now: Timestamp::default(), journal: &mut self.journal, effects: &mut Vec::new() };
        self.core.create(&mut turn, path, description).map(drop)
    }
}
